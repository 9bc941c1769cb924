"""Metrics against scikit-learn, and intervals that contain the truth as often as they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paimon_features.testing.sizes import seeds
from trainer_bridge.training.evaluation import (
    EvaluatedRows,
    auc,
    calibration_curve,
    calibration_error,
    evaluate,
)

metrics = pytest.importorskip("sklearn.metrics", reason="pip install scikit-learn")


def rows(dice: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels that have the stated probabilities."""
    probabilities = 1 / (1 + np.exp(-dice.normal(0, 1.5, count)))
    return (dice.random(count) < probabilities).astype(float), probabilities


def test_metrics_are_those_of_scikit_learn() -> None:
    labels, scores = rows(np.random.default_rng(0), 300)
    scores = np.round(scores, 2)  # with ties
    found = evaluate("binary", labels, np.clip(scores, 0.01, 0.99))
    clipped = np.clip(scores, 0.01, 0.99)
    assert found["auc"].value == pytest.approx(metrics.roc_auc_score(labels, clipped))
    assert found["log_loss"].value == pytest.approx(metrics.log_loss(labels, clipped))
    assert found["brier"].value == pytest.approx(metrics.brier_score_loss(labels, clipped))
    several = np.random.default_rng(1).dirichlet(np.ones(3), 50)
    classes = np.arange(50) % 3
    assert evaluate("multiclass", classes, several)["log_loss"].value == pytest.approx(
        metrics.log_loss(classes, several)
    )
    values = evaluate("regression", labels, scores)
    assert values["r2"].value == pytest.approx(metrics.r2_score(labels, scores))
    assert values["mae"].value == pytest.approx(metrics.mean_absolute_error(labels, scores))


@pytest.mark.long
def test_intervals_contain_the_truth_in_95_of_100_samples() -> None:
    truth = evaluate("binary", *rows(np.random.default_rng(1), 200_000))
    hits = dict.fromkeys(("auc", "log_loss", "brier"), 0)
    for seed in range(300):
        labels, scores = rows(np.random.default_rng(1_000 + seed), 150)
        found = evaluate("binary", labels, scores)
        for name in hits:
            low, high = found[name].low, found[name].high
            assert low is not None
            assert high is not None
            hits[name] += low <= truth[name].value <= high
    # of 300: 285 expected, standard deviation 3.8
    assert all(270 <= count <= 297 for count in hits.values()), hits


def test_edges() -> None:
    labels = np.array([0.0, 0.0, 1.0])
    assert "auc" not in evaluate("binary", np.zeros(3), np.full(3, 0.5))
    perfect = auc(labels, np.array([0.1, 0.2, 0.9]))
    assert (perfect.value, perfect.high) == (1.0, 1.0)
    assert perfect.low is not None
    assert perfect.low < 0.2  # a single positive says little
    sure = evaluate("binary", labels, np.array([0.0, 0.0, 0.0]))["log_loss"]
    assert np.isfinite(sure.value)
    assert evaluate("binary", labels[:1], np.array([0.5]))["log_loss"].rows == 1


def test_calibration_finds_overconfident_predictions() -> None:
    labels, scores = rows(np.random.default_rng(2), 5_000)
    fair = calibration_error(labels, scores)
    sharper = scores**3 / (scores**3 + (1 - scores) ** 3)
    wrong = calibration_error(labels, sharper)
    assert fair.high is not None
    assert wrong.low is not None
    assert fair.high < 0.04 < wrong.low
    assert sum(each.rows for each in calibration_curve(labels, scores)) == 5_000


def coverage(
    count: int, rate: float, seed: int, samples: int, entities: int | None = None
) -> dict[str, float]:
    """How often the intervals of calibrated predictions contain the truth."""

    def drawn(dice: np.random.Generator, count: int, entities: int | None) -> tuple[Any, Any, Any]:
        of = np.arange(count) if entities is None else dice.integers(0, entities, count)
        shared = 0.0 if entities is None else dice.normal(0, 1, of.max() + 1)[of]
        known = np.log(rate / (1 - rate)) + dice.normal(0, 1.5, count)
        labels = dice.random(count) < 1 / (1 + np.exp(-known - shared))
        return labels.astype(float), 1 / (1 + np.exp(-known)), of

    dice = np.random.default_rng(seed)
    labels, scores, _ = drawn(dice, 200_000, None if entities is None else 100_000)
    truth = {name: each.value for name, each in evaluate("binary", labels, scores).items()}
    if entities is None:
        truth["calibration_error"] = 0.0
    hits = dict.fromkeys(truth, 0)
    known = dict.fromkeys(truth, 0)
    for _ in range(samples):
        labels, scores, of = drawn(dice, count, entities)
        found = evaluate("binary", labels, scores, rows=EvaluatedRows(of))
        for name, metric in found.items():
            assert metric.low is not None
            assert metric.high is not None
            known[name] += 1
            hits[name] += metric.low <= truth[name] <= metric.high
    return {name: hits[name] / known[name] for name in truth}


@pytest.mark.parametrize(
    ("count", "rate", "entities"), [(200, 0.05, None), (150, 0.3, None), (1_000, 0.2, 50)]
)
def test_intervals_contain_the_truth_of_few_positives_and_of_clustered_rows(
    count: int, rate: float, entities: int | None
) -> None:
    for seed in seeds(1):
        found = coverage(count, rate, seed, 100, entities)
        # 95 of 100 expected at least, standard deviation 2.2
        assert min(found.values()) >= 0.88, (seed, found)


def test_weights_of_rows_are_as_many_rows() -> None:
    labels, scores = rows(np.random.default_rng(3), 80)
    counts = np.random.default_rng(4).integers(1, 4, 80)
    weighed = EvaluatedRows(weights=counts.astype(float))
    weighted = evaluate("binary", labels, scores, rows=weighed)
    repeated = evaluate("binary", np.repeat(labels, counts), np.repeat(scores, counts))
    for name in ("auc", "log_loss", "brier"):
        assert weighted[name].value == pytest.approx(repeated[name].value)
    values = evaluate(
        "regression", scores, labels, rows=EvaluatedRows(weights=counts.astype(float))
    )
    again = evaluate("regression", np.repeat(scores, counts), np.repeat(labels, counts))
    assert values["r2"].value == pytest.approx(again["r2"].value)
