"""Metrics of predictions and labels with 95 % confidence intervals.

The area under the ROC curve has that of DeLong et al. (1988), in the O(n log n) form of Sun and Xu
(2014). Means over rows, such as the log loss, have the normal interval of a mean. These intervals
are for one look at the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.array_types import Floats
from paimon_features.models.manifest import Metric

_Z = 1.959963984540054
"""The 97.5 % point of the normal distribution."""
_BINS = 10
_LEAST = 1e-15
"""A probability below it counts as this one: its loss is finite."""


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


def log_losses(chosen: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The log loss of each row, from the probability of what happened, 0 to 1.

    >>> log_losses(np.array([1.0, 0.5])).round(3).tolist()
    [-0.0, 0.693]
    """
    found: npt.NDArray[Any] = -np.log(np.clip(chosen, _LEAST, 1.0))
    return found


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


def mean_metric(values: Floats) -> Metric:
    """The mean of values, of one or more."""
    deviation = float(np.sqrt(_variance(values) / max(len(values), 1)))
    return _interval(float(values.mean()), deviation, len(values), "normal")


def _mid_ranks(values: Floats) -> Floats:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Floats = (last - (counts - 1) / 2)[inverse]
    return ranks


def _variance(values: Floats) -> float:
    return float(values.var(ddof=1)) if len(values) > 1 else 0.0


def _interval(
    value: float, deviation: float, rows: int, method: str,
    low: float = -np.inf, high: float = np.inf,
) -> Metric:  # fmt: skip
    half = _Z * deviation
    return Metric(value, max(value - half, low), min(value + half, high), rows, method)
