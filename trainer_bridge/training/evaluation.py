"""The metrics of a task with 95 % confidence intervals.

Those of ``paimon_features.models.metrics``; the calibration error and the coefficient of
determination have the interval of 200 bootstrap samples.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from paimon_features.array_types import Floats
from paimon_features.models import Metric
from paimon_features.models.metrics import (
    CalibrationBin,
    auc,
    calibration_curve,
    log_losses,
    mean_metric,
)

__all__ = [
    "CalibrationBin",
    "auc",
    "brier",
    "calibration_curve",
    "calibration_error",
    "evaluate",
    "log_loss",
]

_BOOTSTRAPS = 200
_BINS = 10
_LEAST = 1e-15


def evaluate(task: str, labels: Floats, predictions: Floats, seed: int = 0) -> dict[str, Metric]:
    """The metrics of a task.

    ``labels`` are 0 and 1 (binary), class numbers or values, shape (rows,). ``predictions`` are
    probabilities of true, shape (rows,), one per class, shape (rows, classes), or values.
    """
    if task == "binary":
        found = {"log_loss": log_loss(labels, predictions), "brier": brier(labels, predictions),
                 "calibration_error": calibration_error(labels, predictions, seed)}  # fmt: skip
        if 0 < labels.sum() < len(labels):
            found = {"auc": auc(labels, predictions), **found}
        return found
    if task == "multiclass":
        rows = np.arange(len(labels))
        chosen = predictions[rows, labels.astype(np.int64)]
        right = predictions.argmax(axis=1) == labels
        return {
            "log_loss": mean_metric(log_losses(chosen)),
            "accuracy": mean_metric(right.astype(np.float64)),
        }
    errors = (predictions - labels) ** 2
    mean = mean_metric(errors)
    found = {"mse": mean, "mae": mean_metric(np.abs(predictions - labels))}
    if labels.std() > 0:
        found["r2"] = _bootstrapped(
            lambda rows: 1 - float(errors[rows].mean() / max(labels[rows].var(), _LEAST)),
            len(labels), seed,
        )  # fmt: skip
    return found


def log_loss(labels: Floats, probabilities: Floats) -> Metric:
    """The mean of ``-log`` of the probability of what happened."""
    chosen = np.where(labels > 0.5, probabilities, 1 - probabilities)
    return mean_metric(log_losses(chosen))


def brier(labels: Floats, probabilities: Floats) -> Metric:
    """The mean squared difference of probability and label."""
    return mean_metric((probabilities - labels) ** 2)


def calibration_error(labels: Floats, probabilities: Floats, seed: int = 0) -> Metric:
    """The mean difference of predicted and observed shares, over ten bins of equally many rows."""
    order = np.argsort(probabilities, kind="stable")
    bins = np.empty(len(order), np.int64)
    bins[order] = np.arange(len(order)) * _BINS // max(len(order), 1)

    def error(rows: npt.NDArray[np.int64]) -> float:
        own = bins[rows]
        counts = np.bincount(own, minlength=_BINS)
        difference = np.bincount(own, weights=probabilities[rows] - labels[rows], minlength=_BINS)
        return float(np.abs(difference).sum() / counts.sum())

    return _bootstrapped(error, len(labels), seed)


def _bootstrapped(metric: Callable[[npt.NDArray[np.int64]], float], rows: int, seed: int) -> Metric:
    dice = np.random.default_rng(seed)
    found = [metric(dice.integers(0, rows, rows)) for _ in range(_BOOTSTRAPS)]
    low, high = np.percentile(found, [2.5, 97.5])
    return Metric(metric(np.arange(rows)), float(low), float(high), rows, "bootstrap")
