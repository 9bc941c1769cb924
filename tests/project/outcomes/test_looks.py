"""Looks that share the error: how often a winner of equal versions is named, over visits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paimon_features.project.outcomes.compare import ends_of_looks
from paimon_features.project.outcomes.looks import Look, Stream, paired_looks, split_looks
from paimon_features.project.outcomes.losses import LOSSES, OutcomeLoss
from paimon_features.project.outcomes.sample_ratio import SampleRatio
from paimon_features.testing.sizes import seeds
from tests.equal_versions import ZIPFS, entity_effects, visits
from tests.long_cases import quick_cases


def split(loss: OutcomeLoss, rows: Any, is_second: Any, alpha: float = 0.05) -> list[Look]:
    """Looks at rows whose entities are split; each version predicts its own."""
    times = np.arange(len(rows.labels))
    streams = [
        Stream(rows.entities[own], rows.labels[own], predictions[own])
        for own, predictions in ((~is_second, rows.first), (is_second, rows.second))
    ]
    ends = ends_of_looks(times[~is_second], times[is_second])
    return split_looks(loss, *streams, ends, alpha)


def has_winner(looks: list[Look]) -> bool:
    return any(look.excludes(0.0) for look in looks)


@pytest.mark.parametrize("zipf", quick_cases(ZIPFS, ZIPFS[0], ZIPFS[-1]))
@pytest.mark.parametrize("design", ["split", "pairs"])
def test_equal_versions_have_a_winner_in_one_comparison_of_twenty_at_most(
    zipf: float, design: str
) -> None:
    for seed in seeds(1):
        dice = np.random.default_rng(seed)
        wrong = {loss.name: 0 for loss in LOSSES["binary"]}
        for _ in range(40):
            entities = visits(dice, 4_000, int(dice.choice([100, 500, 2_000])), zipf)
            rows = entity_effects(dice, float(dice.choice([0.01, 0.2])), entities)
            is_second = (dice.random(2_000) < dice.choice([0.1, 0.5]))[entities]
            for loss in LOSSES["binary"]:
                if design == "split":
                    looks = split(loss, rows, is_second)
                else:
                    both = [Stream(entities, rows.labels, p) for p in (rows.first, rows.second)]
                    looks = paired_looks(loss, *both, 0.05)
                wrong[loss.name] += has_winner(looks)
        # of 40 at 5 %: 2 expected at most, standard deviation 1.4
        assert max(wrong.values()) <= 6, (seed, wrong)


def test_values_of_different_sizes_by_entity_have_no_winner() -> None:
    dice, wrong = np.random.default_rng(0), 0
    squared, _ = LOSSES["regression"]
    for _ in range(40):
        entities = visits(dice, 5_000, 500, 0.8)
        labels = np.exp(dice.normal(0, 1, 500))[entities] * dice.normal(size=5_000)
        is_second = (dice.random(500) < 0.3)[entities]
        times = np.arange(5_000)
        streams = [
            Stream(entities[own], labels[own], np.zeros(own.sum()))
            for own in (~is_second, is_second)
        ]
        ends = ends_of_looks(times[~is_second], times[is_second])
        wrong += has_winner(split_looks(squared, *streams, ends, 0.05))
    assert wrong <= 5


def test_a_version_without_information_loses_a_split() -> None:
    dice = np.random.default_rng(0)
    chances = dice.beta(0.5, 1.0, 6_000)
    labels = (dice.random(6_000) < chances).astype(float)
    people, is_second = np.arange(6_000), dice.random(6_000) < 0.5
    times = np.arange(6_000)
    brier, _ = LOSSES["binary"]
    first = Stream(people[~is_second], labels[~is_second], np.full((~is_second).sum(), 1 / 3))
    second = Stream(people[is_second], labels[is_second], chances[is_second])
    ends = ends_of_looks(times[~is_second], times[is_second])
    looks = split_looks(brier, first, second, ends, 0.05)
    assert looks[-1].low > 0
    # without an outcome of ten entities of each, nothing is known
    assert looks[0].rows == 100
    none = Stream(people, np.zeros(6_000), chances)
    assert all(np.isinf(look.high) for look in paired_looks(brier, none, none, 0.05))


def test_a_sample_ratio_is_alarmed_rarely_however_often_it_is_read() -> None:
    alarms = 0
    for seed in range(300):
        is_second = np.random.default_rng(seed).random(3_000) < 0.1
        seconds = np.cumsum(is_second)
        reads = range(100, 3_001, 100)
        alarms += any(
            SampleRatio.of((n - int(seconds[n - 1]), int(seconds[n - 1])), 0.1).is_mismatch
            for n in reads
        )
    assert alarms <= 2
    assert SampleRatio.of((9_000, 1_200), 0.1).is_mismatch
