"""Confidence sequences: against their formulas as loops, and how often they are wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from paimon_features.array_types import Floats
from paimon_features.oracle.outcomes import any_mean_interval, bounded_mean_interval
from paimon_features.outcomes.sequences import (
    LEAST,
    TUNED_FOR,
    ConfidenceSequence,
    any_mean,
    bounded_mean,
)
from paimon_features.testing.equal_versions import equal_versions


@pytest.mark.parametrize("alpha", [0.05, 0.01])
@pytest.mark.parametrize("seed", range(4))
def test_each_interval_is_that_of_the_reference(seed: int, alpha: float) -> None:
    dice = np.random.default_rng(seed)
    shares, numbers = dice.random(300) ** 3, dice.normal(1e6, 2, 300)
    bounded, asymptotic = bounded_mean(shares, alpha), any_mean(numbers, alpha)
    for count in (1, 2, 3, 50, LEAST, 299, 300):
        low, high = bounded_mean_interval(shares[:count].tolist(), alpha)
        assert bounded.low[count - 1] == pytest.approx(low, abs=1e-12)
        assert bounded.high[count - 1] == pytest.approx(high, abs=1e-12)
        if count < LEAST:
            assert asymptotic.high[count - 1] == np.inf
            continue
        low, high = any_mean_interval(numbers[:count].tolist(), alpha, TUNED_FOR)
        assert asymptotic.low[count - 1] == pytest.approx(low, rel=1e-12)
        assert asymptotic.high[count - 1] == pytest.approx(high, rel=1e-12)


def _fixed(values: Floats, alpha: float) -> ConfidenceSequence:
    """The usual interval of 95 %, computed again after each value."""
    count = np.arange(1, len(values) + 1)
    mean = np.cumsum(values) / count
    deviation = np.sqrt(np.maximum(np.cumsum(values**2) / count - mean**2, 0) / count)
    half = np.where(count < LEAST, np.inf, 1.96 * deviation)
    return ConfidenceSequence(mean - half, mean + half)


def _halved(values: Floats, alpha: float) -> ConfidenceSequence:
    return bounded_mean((values + 1) / 2, alpha).scaled(2.0, -1.0)


@pytest.mark.parametrize(
    ("sequence", "least", "most"), [(_halved, 0, 3), (any_mean, 1, 20), (_fixed, 60, 200)]
)
def test_of_equal_versions_looked_at_after_each_row_few_differ(
    sequence: Callable[[Floats, float], ConfidenceSequence], least: int, most: int
) -> None:
    # 200 streams of 3,000 rows; 10 may be wrong at 5 %; the usual interval is in a third
    wrong = 0
    for seed in range(200):
        labels, first, second = equal_versions(np.random.default_rng(seed), 3_000)
        differences = (first - labels) ** 2 - (second - labels) ** 2
        wrong += sequence(differences, 0.05).first_without(0.0) is not None
    assert least <= wrong <= most


def test_a_better_version_is_found() -> None:
    dice = np.random.default_rng(0)
    chances = dice.beta(1, 4, 5_000)
    labels = (dice.random(5_000) < chances).astype(float)
    differences = (0.2 - labels) ** 2 - (chances - labels) ** 2
    for sequence in (_halved, any_mean):
        found = sequence(differences, 0.05)
        first = found.first_without(0.0)
        assert first is not None
        assert first < 3_000
        assert found.low[-1] > 0
        assert found.low[-1] < 0.16 * 0.25 < found.high[-1] + 0.02
