"""Metrics of predictions and labels with 95 % confidence intervals.

Means over rows, such as the log loss, have the interval of a mean of clusters, a cluster for each
entity (``clustered_means``). The area under the ROC curve has method 5 of Newcombe, "Confidence
intervals for an effect size measure based on the Mann-Whitney statistic" (Statistics in Medicine,
2006, part 2), which holds for few positives and near 1; rows of one entity enlarge it by the ratio
of the variance of Obuchowski, "Nonparametric analysis of clustered ROC curve data" (Biometrics,
1997), to that of DeLong et al. (1988), in the O(n log n) form of Sun and Xu (2014). These intervals
are for one look at the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core.types.array_types import Floats, Ints
from paimon_features.models.clustered_means import ClusteredMean, PossibleOutcomes, student_t
from paimon_features.models.manifest import Metric

_SIDE = 0.975
"""The confidence of each of the two bounds."""
_BINS = 10
_LEAST = 1e-15
"""A probability below it counts as this one: its loss is finite."""


def auc(
    labels: Floats, scores: Floats, clusters: Ints | None = None, weights: Floats | None = None
) -> Metric:
    """Return the area under the ROC curve: the share of (positive, negative) pairs in the right
    order.

    A pair of equal scores counts half, a pair of weighted rows the product of their weights. Both
    classes must occur, with a weight. ``clusters`` is the entity of each row.

    >>> auc(np.array([0.0, 1.0, 1.0, 0.0]), np.array([0.1, 0.9, 0.4, 0.4])).value
    0.875
    """
    positive = labels > 0.5
    weights = np.ones(len(labels)) if weights is None else weights.astype(np.float64)
    sides = [np.where(side, weights, 0.0) for side in (positive, ~positive)]
    totals = [float(side.sum()) for side in sides]
    below = [_below(scores, side) for side in sides]
    value = float(sides[0] @ below[1]) / (totals[0] * totals[1])
    # the share of the other class that each row is on the right side of
    placements = np.where(positive, below[1] / totals[1], 1 - below[0] / totals[0])
    shares = [side / total for side, total in zip(sides, totals, strict=True)]
    by_row = (shares[0] + shares[1]) * (placements - value)
    sizes = [1 / float(share @ share) for share in shares]
    independent = float(by_row @ by_row)
    together = independent
    if clusters is not None:
        _, codes = np.unique(clusters, return_inverse=True)
        sums = np.bincount(codes, weights=by_row)
        together = float(sums @ sums) * len(sums) / max(len(sums) - 1, 1)
    design = max(together / independent, 1.0) if independent > 0 else 1.0
    low, high = _auc_bounds(value, sizes[0] / design, sizes[1] / design)
    return Metric(value, low, high, len(labels), "Newcombe, by entity")


def _auc_bounds(value: float, positives: float, negatives: float) -> tuple[float, float]:
    """Return where a true area is two-sided 95 % compatible with the value: Newcombe's method 5."""
    freedom = max(min(positives, negatives) - 1, 1.0)
    quantile = student_t(0.975, freedom)
    mean_size = (positives + negatives) / 2 - 1

    def apart(area: float) -> float:
        variance = area * (1 - area) / (positives * negatives) * (
            1 + max(mean_size, 0.0) * ((1 - area) / (2 - area) + area / (1 + area))
        )  # fmt: skip
        return abs(value - area) - quantile * math.sqrt(variance)

    bounds = []
    for end in (0.0, 1.0):
        inside, outside = value, end
        for _ in range(60):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if apart(middle) <= 0 else (inside, middle)
        bounds.append(end if apart(end) <= 0 and value == end else inside)
    return bounds[0], bounds[1]


def _below(values: Floats, weights: Floats) -> Floats:
    """Return the weights of the values below each value; those of equal ones count half."""
    order = np.argsort(values, kind="stable")
    sums = np.concatenate([[0.0], np.cumsum(weights[order])])
    left, right = (np.searchsorted(values[order], values, side) for side in ("left", "right"))
    below: Floats = (sums[left] + sums[right]) / 2
    return below


def log_losses(chosen: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the log loss of each row, from the probability of what happened, 0 to 1.

    >>> log_losses(np.array([1.0, 0.5])).round(3).tolist()
    [-0.0, 0.693]
    """
    losses: npt.NDArray[Any] = -np.log(np.clip(chosen, _LEAST, 1.0))
    return losses


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Rows of similar predictions: the mean of these, the share of positives, how many rows."""

    predicted: float
    observed: float
    rows: int


def calibration_curve(labels: Floats, probabilities: Floats) -> list[CalibrationBin]:
    """Return predicted and observed shares in ten bins of equally many rows."""
    order = np.argsort(probabilities, kind="stable")
    parts = [part for part in np.array_split(order, _BINS) if len(part)]
    return [
        CalibrationBin(float(probabilities[p].mean()), float(labels[p].mean()), len(p))
        for p in parts
    ]


def mean_metric(
    values: Floats,
    clusters: Ints | None = None,
    weights: Floats | None = None,
    possible: PossibleOutcomes | None = None,
) -> Metric:
    """Return the mean of values, of one or more; without bounds for a single cluster.

    ``clusters`` is the entity of each row; ``possible`` are the values by outcomes that the rows
    may lack.
    """
    mean = ClusteredMean.of(values, clusters, weights, possible)
    low, high = mean.low(_SIDE), mean.high(_SIDE)
    has_bounds = math.isfinite(high - low)
    return Metric(
        mean.mean,
        low if has_bounds else None,
        high if has_bounds else None,
        mean.rows,
        "t, by entity",
    )
