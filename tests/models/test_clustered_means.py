"""Means of clusters: against loops, and how often their bounds are wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paimon_features.models.clustered_means import (
    ClusteredMean,
    PossibleOutcomes,
    rare_label_clusters,
    student_t,
)
from paimon_features.testing.sizes import every_seed


@every_seed(20)
def test_the_variance_is_that_of_leaving_each_cluster_out(seed: int) -> None:
    dice = np.random.default_rng(seed)
    count = int(dice.integers(2, 60))
    clusters = dice.integers(0, max(2, count // 3), count)
    clusters[:2] = 0, 1
    values, weights = dice.normal(5, 2, count), dice.integers(1, 4, count).astype(float)
    found = ClusteredMean.of(values, clusters, weights)
    known = sorted(set(clusters.tolist()))
    mean = sum(w * v for w, v in zip(weights, values, strict=True)) / weights.sum()
    squares = 0.0
    for cluster in known:
        rest = [(w, v) for w, v, c in zip(weights, values, clusters, strict=True) if c != cluster]
        squares += (sum(w * v for w, v in rest) / sum(w for w, _ in rest) - mean) ** 2
    assert found.mean == pytest.approx(mean)
    assert found.variance == pytest.approx(squares * (len(known) - 1) / len(known))
    assert found.clusters == len(known)


@pytest.mark.parametrize(
    ("confidence", "freedom", "expected"),
    [(0.95, 1, 6.313752), (0.975, 4, 2.776445), (0.999, 30, 3.385185), (0.95, 2.5, 2.558219),
     (0.95, math.inf, 1.644854), (0.95, 0, math.inf)],
)  # fmt: skip
def test_quantiles_are_those_of_tables(confidence: float, freedom: float, expected: float) -> None:
    assert student_t(confidence, freedom) == pytest.approx(expected, rel=1e-5)


def test_a_bound_is_above_the_exact_one_of_every_count_of_events() -> None:
    # 1,000 rows with n events; the exact 95 % bounds of a Poisson mean
    exact = {0: 2.996, 1: 4.744, 2: 6.296, 5: 10.513, 10: 16.962, 50: 63.287}
    for events, bound in exact.items():
        labels = (np.arange(1_000) < events).astype(float)
        possible = PossibleOutcomes(np.tile([0.0, 1.0], (1_000, 1)), None, labels.astype(np.int64))
        found = ClusteredMean.of(labels, possible=possible).high(0.95) * 1_000
        assert bound - 0.1 <= found <= bound + 4


def test_weights_count_rows_and_zero_removes_a_cluster() -> None:
    values, clusters = np.array([1.0, 3.0, 9.0]), np.array([0, 1, 2])
    once = ClusteredMean.of(values[:2], clusters[:2])
    found = ClusteredMean.of(values, clusters, np.array([2.0, 2.0, 0.0]))
    assert (found.mean, found.variance, found.clusters) == (2.0, once.variance, 2)
    alone = ClusteredMean.of(values, np.zeros(3, np.int64))
    assert (alone.low(0.95), alone.high(0.95)) == (-math.inf, math.inf)
    assert rare_label_clusters(values, clusters) == 2
