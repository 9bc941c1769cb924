"""The algorithms as loops in plain NumPy: what the bodies on the runtime are compared with.

Nothing here is distributed or clever. ``parallelism`` only says how rows are dealt: row ``i``
goes to share ``i % parallelism``, as Flink's rebalance deals them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from paimon_features.core.types.array_types import Floats


def shares(rows: int, parallelism: int) -> list[Any]:
    """The rows of each subtask."""
    return [np.arange(subtask, rows, parallelism) for subtask in range(parallelism)]


def sizes(batch: int, parallelism: int) -> list[int]:
    """How many rows of a batch each subtask takes: the first ones take what is left over."""
    whole, over = divmod(batch, parallelism)
    return [whole + (subtask < over) for subtask in range(parallelism)]


# -- linear models --------------------------------------------------------------------------


def loss_and_slope(loss: str, product: float, label: float) -> tuple[float, float]:
    """The loss of one point and its derivative by the product of features and coefficients."""
    if loss == "least_square":
        return 0.5 * (product - label) ** 2, product - label
    sign = 2 * label - 1
    if loss == "hinge":
        return max(0.0, 1 - sign * product), -sign if 1 - sign * product > 0 else 0.0
    assert loss == "logistic", loss
    with np.errstate(over="ignore"):
        return (
            float(np.log(1 + np.exp(-product * sign))),
            float(-sign / (np.exp(product * sign) + 1)),
        )


def regularized(coefficient: Floats, reg: float, elastic_net: float, rate: float) -> Floats:
    """The coefficients after the step against the penalties."""
    if reg == 0:
        return coefficient
    if elastic_net == 0:
        return coefficient * (1 - rate * reg)
    slope = elastic_net * reg * np.sign(coefficient) + (1 - elastic_net) * reg * coefficient
    return coefficient - rate * slope


def sgd(
    features: Floats,
    labels: Floats,
    weights: Floats,
    loss: str,
    *,
    initial: Floats | None = None,
    max_iter: int = 20,
    learning_rate: float = 0.1,
    global_batch_size: int = 32,
    tol: float = 1e-6,
    reg: float = 0.0,
    elastic_net: float = 0.0,
    parallelism: int = 1,
) -> Floats:
    """Coefficients by stochastic gradient descent, one global batch an iteration.

    Each subtask takes the next rows of its share, from the start again once it has reached its
    end. It stops after the iteration whose mean loss is not above ``tol``.
    """
    coefficient = np.zeros(features.shape[1]) if initial is None else initial.astype(np.float64)
    dealt, offsets = shares(len(features), parallelism), [0] * parallelism
    for _ in range(max_iter):
        gradient, total_weight, total_loss = np.zeros_like(coefficient), 0.0, 0.0
        for subtask, size in enumerate(sizes(global_batch_size, parallelism)):
            share, offset = dealt[subtask], offsets[subtask]
            for row in share[offset : offset + size]:
                product = float(features[row] @ coefficient)
                of_point, slope = loss_and_slope(loss, product, float(labels[row]))
                total_loss += weights[row] * of_point
                gradient += weights[row] * slope * features[row]
                total_weight += weights[row]
            offsets[subtask] = offset + size if offset + size < len(share) else 0
        if total_weight > 0:
            coefficient = coefficient - learning_rate / total_weight * gradient
            coefficient = regularized(coefficient, reg, elastic_net, learning_rate)
        # without a weight there is no loss, and training continues
        if total_weight > 0 and not total_loss / total_weight > tol:
            break
    return coefficient


def ftrl(
    batches: Sequence[tuple[Any, Floats, Floats]],
    initial: Floats,
    *,
    alpha: float = 0.1,
    beta: float = 0.1,
    reg: float = 0.0,
    elastic_net: float = 0.0,
) -> list[Floats]:
    """The coefficients after each batch of (features, labels, weights), by FTRL-Proximal.

    Features are a matrix, or for sparse ones a list of dictionaries from place to value: there
    a place is divided by the weights of the points that have it, elsewhere by their number.

    McMahan et al., Ad click prediction: a view from the trenches, KDD 2013.
    """
    coefficient = initial.astype(np.float64)
    z, n = np.zeros_like(coefficient), np.zeros_like(coefficient)
    l1, l2 = elastic_net * reg, (1 - elastic_net) * reg
    out = []
    for features, labels, weights in batches:
        gradient, seen = np.zeros_like(z), np.zeros_like(z)
        for row, label, weight in zip(features, labels, weights, strict=True):
            sparse = isinstance(row, dict)
            point = row if sparse else dict(enumerate(row))
            product = sum(value * coefficient[place] for place, value in point.items())
            error = 1 / (1 + np.exp(-product)) - label
            for place, value in point.items():
                gradient[place] += error * value
                seen[place] += weight if sparse else 1.0
        coefficient = coefficient.copy()
        for place in range(len(z)):
            g = gradient[place] / seen[place] if seen[place] != 0 else gradient[place]
            sigma = (np.sqrt(n[place] + g * g) - np.sqrt(n[place])) / alpha
            z[place] += g - sigma * coefficient[place]
            n[place] += g * g
            sign = -1 if z[place] < 0 else 1
            step = (beta + np.sqrt(n[place])) / alpha + l2
            coefficient[place] = 0.0 if abs(z[place]) <= l1 else (sign * l1 - z[place]) / step
        out.append(coefficient)
    return out


# -- clusters -------------------------------------------------------------------------------


def closest(point: Floats, centroids: Floats, measure: str) -> int:
    """The number of the closest centroid, the first of equally close ones."""
    if measure == "cosine":
        lengths = np.sqrt(np.sum(centroids**2, axis=1)) * np.sqrt(np.sum(point**2))
        return int(np.argmin(1 - centroids @ point / lengths))
    away = centroids - point
    distances = np.abs(away) if measure == "manhattan" else away**2
    return int(np.argmin(distances.sum(axis=1)))


def kmeans(
    points: Floats, initial: Floats, *, max_iter: int = 20, measure: str = "euclidean"
) -> tuple[Floats, Floats]:
    """Centroids and how many points each has, after ``max_iter`` rounds of Lloyd's algorithm.

    A centroid without a point stays where it is.
    """
    centroids = initial.astype(np.float64)
    counts = np.zeros(len(centroids))
    for _ in range(max_iter):
        chosen = np.array([closest(point, centroids, measure) for point in points])
        counts = np.array([np.sum(chosen == c) for c in range(len(centroids))], np.float64)
        centroids = np.array(
            [
                points[chosen == c].mean(axis=0) if counts[c] else centroids[c]
                for c in range(len(centroids))
            ]
        )
    return centroids, counts


def online_kmeans(
    batches: Sequence[Floats],
    centroids: Floats,
    weights: Floats,
    *,
    decay_factor: float = 0.0,
    measure: str = "euclidean",
) -> list[tuple[Floats, Floats]]:
    """Centroids and weights after each batch: old ones decay, points of the batch weigh 1.

    A centroid that has no weight then stays where it is.
    """
    out = []
    for batch in batches:
        chosen = np.array([closest(point, centroids, measure) for point in batch])
        weights = decay_factor * weights
        moved = np.empty_like(centroids)
        for c in range(len(centroids)):
            points = batch[chosen == c]
            total = weights[c] + len(points)
            whole = weights[c] * centroids[c] + points.sum(axis=0)
            moved[c] = whole / total if total else centroids[c]
        weights = weights + np.bincount(chosen, minlength=len(centroids))
        centroids = moved
        out.append((centroids, weights))
    return out


# -- one pass -------------------------------------------------------------------------------


def mean_and_deviation(rows: Floats) -> tuple[Floats, Floats]:
    """Mean and deviation (of n - 1; 0 of one row) of each column."""
    away = rows - rows[0]  # exact also if the mean is large compared with the deviation
    deviation = away.std(axis=0, ddof=1) if len(rows) > 1 else np.zeros(rows.shape[1])
    return rows[0] + away.mean(axis=0), deviation


def quantile(values: Floats, at: float) -> float:
    """The element at rank ``ceil(at * n)``, counted from 1; NaN is left out."""
    there = np.sort(values[~np.isnan(values)])
    return float(there[max(int(np.ceil(at * len(there))), 1) - 1])


def most_frequent(values: Floats) -> float:
    """The least of the values that are as frequent as any; NaN is left out."""
    there = values[~np.isnan(values)].tolist()
    return float(min(set(there), key=lambda value: (-there.count(value), value)))


def bin_edges(values: Floats, strategy: str, bins: int) -> list[float]:
    """The ascending edges of the bins of one column, infinite ones of a constant one.

    As ``KBinsDiscretizer`` of Flink ML computes them since FLINK-31029, without equal edges.
    """
    values = np.sort(values)
    low, high, n = float(values[0]), float(values[-1]), len(values)
    if low == high:
        return [-math.inf, math.inf]
    starts = [float(values[int(place * (1.0 * n / bins))]) for place in range(bins)]
    if strategy == "quantile":
        return sorted(set(_separated([*starts, high] if n > bins else values.tolist())))
    if strategy == "uniform" or len(set(values.tolist())) <= bins:
        edges = [low]
        for _ in range(bins):
            edges.append(edges[-1] + (high - low) / bins)
        return sorted(set(edges)) if edges[-1] > low else [low, high]
    centres, old_loss, change, rounds = starts, np.inf, np.inf, 0
    while rounds < 300 and change > 1e-4:
        chosen = [min(range(bins), key=lambda c: (abs(centres[c] - v), c)) for v in values]
        loss = sum(abs(centres[c] - v) for c, v in zip(chosen, values, strict=True)) / n
        groups = [[v for c, v in zip(chosen, values, strict=True) if c == k] for k in range(bins)]
        centres = [sum(g) / len(g) if g else centres[k] for k, g in enumerate(groups)]
        change, old_loss, rounds = abs(loss - old_loss), loss, rounds + 1
    centres = sorted(centres)
    return sorted({low, *((a + b) / 2 for a, b in pairwise(centres)), high})


def _separated(edges: list[float]) -> list[float]:
    """The edges, each at most twice, one of two equal ones moved between its neighbours."""
    kept: list[float] = []
    for edge in sorted(edges):
        if kept.count(edge) < 2:
            kept.append(edge)
    for i in range(1, len(kept) - 1):
        if kept[i] == kept[i - 1]:
            kept[i] = (kept[i + 1] + kept[i - 1]) / 2
    if kept[-1] == kept[-2]:
        kept[-2] = (kept[-1] + kept[-3]) / 2
    return kept
