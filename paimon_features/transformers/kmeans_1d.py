"""K-means of one column: the steps of scikit-learn, rounded in the same order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paimon_features.core.types.array_types import Floats

_MOST_ROUNDS = 300
_TOLERANCE = 1e-4
"""Relative to the variance: convergence if the squared shifts of the centres sum to less."""


def centres_of(values: Floats, count: int) -> Floats:
    """Return ``count`` centres of values, ascending.

    There must be at least ``count`` values, and at least two distinct ones. Lloyd's algorithm
    starts from the middles of bins of equal width, and ends when no value changes its centre or
    the centres hardly move. A centre without values moves to the value farthest from its centre.

    >>> centres_of(np.array([0.0, 1.0, 9.0, 10.0, 50.0]), 3).tolist()
    [0.5, 9.5, 50.0]
    """
    edges = np.linspace(values.min(), values.max(), count + 1)
    # centred at the mean, where squares keep their digits
    mean = values.mean()
    moved, centres = values - mean, (edges[1:] + edges[:-1]) * 0.5 - mean
    enough = float(values.var()) * _TOLERANCE
    nearest = np.full(len(values), -1)
    for _ in range(_MOST_ROUNDS):
        before, nearest = nearest, _nearest(moved, centres)
        old, centres = centres, _means(moved, nearest, centres)
        if np.array_equal(nearest, before) or np.square(centres - old).sum() <= enough:
            break
    return np.sort(centres + mean)


def _nearest(values: Floats, centres: Floats) -> npt.NDArray[np.int64]:
    """Return the closest centre of each value; of equally close ones the first."""
    # the terms of (x - c)^2 that depend on c
    squares = centres * centres
    nearest = np.zeros(len(values), np.int64)
    least = squares[0] - 2.0 * (values * centres[0])
    for index in range(1, len(centres)):
        apart = squares[index] - 2.0 * (values * centres[index])
        nearer = apart < least
        nearest[nearer] = index
        np.minimum(least, apart, out=least)
    return nearest


def _means(values: Floats, nearest: npt.NDArray[np.int64], centres: Floats) -> Floats:
    """Return the means of the centres' values; an empty one takes the farthest value."""
    sums: Floats = np.bincount(nearest, values, len(centres)).astype(np.float64, copy=False)
    counts = np.bincount(nearest, minlength=len(centres)).astype(np.float64)
    empty = np.flatnonzero(counts == 0)
    if len(empty):
        apart = np.square(values - centres[nearest])
        if apart.max() > 0:
            farthest = np.argpartition(apart, -len(empty))[: -len(empty) - 1 : -1]
            for index, row in zip(empty, farthest, strict=True):
                sums[nearest[row]] -= values[row]
                counts[nearest[row]] -= 1
                sums[index], counts[index] = values[row], 1
    # a centre that lost its only value gets the sum of the largest cluster, which may not be
    # divided yet (as in scikit-learn)
    largest = int(np.argmax(counts))
    for index, n in enumerate(counts.tolist()):
        sums[index] = sums[index] * (1.0 / n) if n > 0 else sums[largest]
    return sums
