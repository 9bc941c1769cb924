"""Metrics with 95 % confidence intervals.

The area under the ROC curve has that of DeLong et al. (1988), in the O(n log n) form of Sun and Xu
(2014). Means over rows, such as the log loss, have the normal interval of a mean; the calibration
error and the coefficient of determination that of 200 bootstrap samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paimon_features.array_types import Floats
from paimon_features.models import Metric

_Z = 1.959963984540054
"""The 97.5 % point of the normal distribution."""
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
        chosen = np.clip(predictions[rows, labels.astype(np.int64)], _LEAST, 1.0)
        right = predictions.argmax(axis=1) == labels
        return {"log_loss": _mean(-np.log(chosen)), "accuracy": _mean(right.astype(np.float64))}
    errors = (predictions - labels) ** 2
    mean = _mean(errors)
    found = {"mse": mean, "mae": _mean(np.abs(predictions - labels))}
    if labels.std() > 0:
        found["r2"] = _bootstrapped(
            lambda rows: 1 - float(errors[rows].mean() / max(labels[rows].var(), _LEAST)),
            len(labels), seed,
        )  # fmt: skip
    return found


def auc(labels: Floats, scores: Floats) -> Metric:
    """The area under the ROC curve: the share of (positive, negative) pairs in the right order.

    A pair of equal scores counts half. Both classes must occur.

    >>> auc(np.array([0.0, 1.0, 1.0, 0.0]), np.array([0.1, 0.9, 0.4, 0.4])).value
    0.875
    """
    positive = labels > 0.5
    own, others = scores[positive], scores[~positive]
    # mid-ranks among all, and among the own class
    among_all = _mid_ranks(np.concatenate([own, others]))
    count, other_count = len(own), len(others)
    value = (among_all[:count].sum() - count * (count + 1) / 2) / (count * other_count)
    of_positives = (among_all[:count] - _mid_ranks(own)) / other_count
    of_negatives = 1 - (among_all[count:] - _mid_ranks(others)) / count
    variance = _variance(of_positives) / count + _variance(of_negatives) / other_count
    return _interval(float(value), float(np.sqrt(variance)), len(labels), "DeLong", 0.0, 1.0)


def log_loss(labels: Floats, probabilities: Floats) -> Metric:
    """The mean of ``-log`` of the probability of what happened."""
    chosen = np.where(labels > 0.5, probabilities, 1 - probabilities)
    return _mean(-np.log(np.clip(chosen, _LEAST, 1.0)))


def brier(labels: Floats, probabilities: Floats) -> Metric:
    """The mean squared difference of probability and label."""
    return _mean((probabilities - labels) ** 2)


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


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Rows of similar predictions: the mean of these, the share of positives, how many rows."""

    predicted: float
    observed: float
    rows: int


def calibration_curve(labels: Floats, probabilities: Floats) -> list[CalibrationBin]:
    """Predicted and observed shares in ten bins of equally many rows."""
    order = np.argsort(probabilities, kind="stable")
    parts = [part for part in np.array_split(order, _BINS) if len(part)]
    return [
        CalibrationBin(float(probabilities[p].mean()), float(labels[p].mean()), len(p))
        for p in parts
    ]


def _mid_ranks(values: Floats) -> Floats:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Floats = (last - (counts - 1) / 2)[inverse]
    return ranks


def _variance(values: Floats) -> float:
    return float(values.var(ddof=1)) if len(values) > 1 else 0.0


def _mean(values: Floats) -> Metric:
    deviation = float(np.sqrt(_variance(values) / max(len(values), 1)))
    return _interval(float(values.mean()), deviation, len(values), "normal")


def _interval(
    value: float, deviation: float, rows: int, method: str,
    low: float = -np.inf, high: float = np.inf,
) -> Metric:  # fmt: skip
    half = _Z * deviation
    return Metric(value, max(value - half, low), min(value + half, high), rows, method)


def _bootstrapped(metric: Callable[[npt.NDArray[np.int64]], float], rows: int, seed: int) -> Metric:
    dice = np.random.default_rng(seed)
    found = [metric(dice.integers(0, rows, rows)) for _ in range(_BOOTSTRAPS)]
    low, high = np.percentile(found, [2.5, 97.5])
    return Metric(metric(np.arange(rows)), float(low), float(high), rows, "bootstrap")
