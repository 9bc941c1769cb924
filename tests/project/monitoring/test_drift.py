"""PSI, KS and quantiles compared with loops and with SciPy."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.columns.column import Column
from paimon_features.core.types.schema import Float64
from paimon_features.definitions.aggregates import Quantile
from paimon_features.project.monitoring.drift import (
    coarse,
    drift_of,
    ks,
    ks_of_values,
    ks_p_value,
    psi,
    quantile,
)
from tests.reference.monitoring import reference_bins, reference_ks, reference_psi

SEEDS = st.integers(0, 2**32)


def samples(seed: int) -> tuple[list[float], list[float]]:
    rng = random.Random(seed)
    sizes = rng.randrange(1, 60), rng.randrange(1, 60)
    step = rng.choice([0.1, 1.0, 5.0])  # few different values: ties
    draw = [[round(rng.gauss(at, 2) / step) * step for _ in range(size)]
            for at, size in zip((0, rng.choice([0, 1])), sizes, strict=True)]  # fmt: skip
    return draw[0], draw[1]


@given(SEEDS)
def test_psi_and_ks_equal_their_loops(seed: int) -> None:
    here, there = samples(seed)
    edges = sorted({random.Random(seed).gauss(0, 2) for _ in range(8)})
    bins = reference_bins(here, edges), reference_bins(there, edges)
    assert psi(*bins) == pytest.approx(reference_psi(*bins), rel=1e-12, abs=1e-14)
    exact = reference_ks(here, there)
    assert ks_of_values(np.array(here), np.array(there)) == pytest.approx(exact, abs=1e-12)
    # at edges it is the exact one or less, by at most the share of the fullest bin
    fullest = max(max(side) / sum(side) for side in bins)
    assert exact - fullest - 1e-12 <= ks(*bins) <= exact + 1e-12


def test_equal_distributions_have_no_drift_and_an_empty_bin_a_finite_one() -> None:
    assert psi([3, 6, 1], [3, 6, 1]) == 0.0
    assert ks([1, 2, 1], [10, 20, 10]) == 0.0
    assert math.isfinite(psi([0, 100], [100, 0]))
    assert psi([0, 100], [100, 0]) > 5
    assert ks([0, 100], [100, 0]) == 1.0


@given(SEEDS)
def test_ks_and_its_p_value_are_those_of_scipy(seed: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    here, there = samples(seed)
    reported = stats.ks_2samp(here, there, method="asymp")
    found = ks_of_values(np.array(here), np.array(there))
    assert found == pytest.approx(reported.statistic, abs=1e-12)
    size = math.sqrt(len(here) * len(there) / (len(here) + len(there)))
    x = (size + 0.12 + 0.11 / size) * found
    assert ks_p_value(found, len(here), len(there)) == pytest.approx(
        float(stats.kstwobign.sf(x)), abs=1e-9
    )


@given(SEEDS)
def test_putting_bins_together_keeps_every_count_and_fills_each_bin(seed: int) -> None:
    rng = random.Random(seed)
    here = [rng.randrange(50) for _ in range(40)]
    there = [rng.choice([0, rng.randrange(50)]) for _ in range(40)]
    pair = coarse(here, there, 10)
    assert [sum(side) for side in pair] == [sum(here), sum(there)]
    assert len(pair[0]) == len(pair[1]) <= 11
    both = [sum(counts) for counts in zip(*pair, strict=True)]
    assert all(count >= sum(both) / 20 for count in both) or len(both) == 1
    assert coarse(there, here, 10) == pair[::-1]


@given(SEEDS)
def test_quantiles_are_those_of_the_aggregate(seed: int) -> None:
    rng = random.Random(seed)
    edges = sorted({rng.uniform(-5, 5) for _ in range(rng.randrange(1, 6))})
    counts = [rng.choice([0, rng.randrange(9)]) for _ in range(len(edges) + 1)]
    for q in (0.0, 0.05, 0.5, 0.95, 1.0):
        merged = [Column(np.array([count])) for count in counts]
        aggregate = Quantile("x", q=q, edges=edges)
        column = aggregate.finish({"x": Float64}, merged, None).column  # type: ignore[arg-type]
        expected = column.values[0] if column.mask[0] else None
        assert quantile(edges, counts, q) == expected


def test_nulls_are_one_more_bin_and_no_value_at_all_is_no_drift_that_is_known() -> None:
    same = drift_of("x", [5, 5], [50, 50], True, (0, 0))
    nulls = drift_of("x", [5, 5], [50, 50], True, (10, 0))
    assert same.psi == pytest.approx(0)
    assert nulls.psi is not None
    assert nulls.psi > 0.5
    assert nulls.ks == 0.0  # of the values, which are distributed as before
    assert nulls.nulls_p_value is not None
    assert nulls.nulls_p_value < 1e-4
    assert nulls.counts.startswith("10 values against 100, nulls 10 against 0 (p ")
    empty = drift_of("x", [0, 0], [50, 50], True)
    assert (empty.psi, empty.ks, str(empty)) == (
        None, None, "x: drift is unknown (no bins, or no values)",
    )  # fmt: skip
