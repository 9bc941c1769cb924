"""Metrics against scikit-learn, and intervals that contain the truth as often as they say."""

from __future__ import annotations

import numpy as np
import pytest

from trainer_bridge.training.evaluation import (
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
