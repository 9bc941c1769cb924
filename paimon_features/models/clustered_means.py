"""Means of rows in clusters, with bounds for few clusters and for outcomes that are rare.

Rows of one entity resemble each other, so that the entities are the observations. The variance of a
mean is the jackknife over clusters, CV3 of MacKinnon, Nielsen and Webb, "Fast and reliable
jackknife and bootstrap methods for cluster-robust inference" (Journal of Applied Econometrics,
2023), and its quantile that of Student's t. Where few clusters have most of the rows, the degrees
of freedom are those of the effective number of clusters, (sum of sizes)^2 / (sum of squared sizes):
Kish, "Survey Sampling" (1965), section 8.2.

A variance says nothing about outcomes that the rows do not contain. Of n observations without an
event, its rate may be up to ln(1/alpha)/n (the rule of three: Hanley and Lippman-Hand, JAMA 1983).
A bound therefore has the summand ln(1/alpha)/n times what such an outcome costs, as the bound of
Maurer and Pontil, "Empirical Bernstein bounds and sample variance penalization" (COLT 2009,
theorem 4), has its range. Of a Poisson count N the two together are N + z sqrt(N) + ln(1/alpha),
which is above the exact bound for every N.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from paimon_features.core.types.array_types import Bools, Floats, Ints

SEEN = 10
"""In so many clusters an outcome was seen often enough to know how many rows of one have it."""


@dataclass(frozen=True, slots=True)
class PossibleOutcomes:
    """The value that each row would have had by each outcome, shape (rows, outcomes).

    ``chances``, of the same shape, are the probabilities of the outcomes that a model states; None:
    any outcome is possible in each row alike. ``happened`` is the number of the outcome of each
    row; None where outcomes are the ends of a range.
    """

    values: Floats
    chances: Floats | None = None
    happened: Ints | None = None

    def take(self, rows: Bools) -> PossibleOutcomes:
        """Return the outcomes of some rows."""
        return PossibleOutcomes(
            self.values[rows],
            None if self.chances is None else self.chances[rows],
            None if self.happened is None else self.happened[rows],
        )

    def costs(self, mean: float, weights: Floats, sign: int) -> Floats:
        """Return how far beyond a mean a row would be by each outcome; ``sign`` is -1 for below it.

        The mean over rows, weighted by the chance of the outcome and by how far it is beyond: an
        outcome that costs something in some of the rows only is as rare as these.
        """
        beyond = np.maximum(sign * (self.values - mean), 0.0)
        cost = beyond * weights[:, None] * (1.0 if self.chances is None else self.chances)
        total = cost.sum(axis=0)
        costs: Floats = (cost * beyond).sum(axis=0) / np.where(total > 0, total, 1.0)
        return costs

    def counts(self, clusters: Ints) -> Ints | None:
        """Return the rows of each cluster with each outcome, shape (clusters, outcomes)."""
        if self.happened is None:
            return None
        outcomes, count = self.values.shape[1], int(clusters.max(initial=0)) + 1
        counts = np.bincount(clusters * outcomes + self.happened, minlength=count * outcomes)
        return counts.reshape(count, outcomes)


@dataclass(frozen=True, slots=True)
class ClusteredMean:
    """A mean with its variance, and the degrees of freedom of that.

    The variance is infinite for a single cluster. ``above`` is by how much the mean would be higher
    if one more observation had an outcome that was not seen, ``below`` by how much lower.
    """

    mean: float
    variance: float
    rows: int
    clusters: int
    freedom: float
    above: float = 0.0
    below: float = 0.0

    @classmethod
    def of(
        cls,
        values: Floats,
        clusters: Ints | None = None,
        weights: Floats | None = None,
        possible: PossibleOutcomes | None = None,
    ) -> ClusteredMean:
        """Return the mean of values, one or more, by the cluster of each; None: each row is one.

        >>> found = ClusteredMean.of(np.array([1.0, 1.0, 4.0, 4.0]), np.array([0, 0, 1, 1]))
        >>> (found.mean, found.variance, found.clusters)
        (2.5, 2.25, 2)
        """
        weights = np.ones(len(values)) if weights is None else weights.astype(np.float64)
        total = float(weights.sum())
        mean = float(weights @ values / total) if total > 0 else math.nan
        rows = np.arange(len(values)) if clusters is None else clusters
        _, codes = np.unique(rows, return_inverse=True)
        by_row = weights * (values - mean) / total
        sizes = np.bincount(codes, weights=weights) / total
        sums = np.bincount(codes, weights=by_row)[sizes > 0]
        shares = sizes[sizes > 0]
        count, variance = len(shares), math.inf
        if count > 1:
            without = sums / (1 - shares)
            variance = float(without @ without) * (count - 1) / count
        effective = 1 / float(shares @ shares) if count else 0.0
        freedom, above, below = effective - 1, 0.0, 0.0
        if possible is not None and count > 1:
            alone = total**2 / float(weights @ weights)
            size = max(alone / effective, 1.0)
            table = possible.counts(codes)
            if table is None:
                independent = float(by_row @ by_row)
                ratio = variance / independent if independent > 0 else math.inf
                alike = np.clip(ratio, 1.0, size)
            else:
                together, least = _together(table)
                alike, freedom = 1 + (size - 1) * together, min(effective, least) - 1
            above, below = (
                float((possible.costs(mean, weights, sign) * alike / alone).max(initial=0.0))
                for sign in (1, -1)
            )
        return cls(mean, variance, len(values), count, freedom, above, below)

    def high(self, confidence: float) -> float:
        """Return the upper bound with a one-sided confidence; infinite for a single cluster."""
        return self.mean + self._half(confidence) - math.log(1 - confidence) * self.above

    def low(self, confidence: float) -> float:
        """Return the lower bound with a one-sided confidence.

        Minus infinity for a single cluster.
        """
        return self.mean - self._half(confidence) + math.log(1 - confidence) * self.below

    def minus(self, other: ClusteredMean) -> ClusteredMean:
        """Return the difference from an independent mean, with the degrees of freedom of Welch
        (1947)."""
        variance = self.variance + other.variance
        freedom = min(self.freedom, other.freedom)
        if math.isfinite(variance) and freedom > 0 and variance > 0:
            parts = (self.variance**2 / self.freedom, other.variance**2 / other.freedom)
            freedom = variance**2 / sum(parts)
        return ClusteredMean(
            self.mean - other.mean,
            variance,
            self.rows + other.rows,
            min(self.clusters, other.clusters),
            freedom,
            self.above + other.below,
            self.below + other.above,
        )

    def _half(self, confidence: float) -> float:
        if not math.isfinite(self.variance):
            return math.inf
        return student_t(confidence, self.freedom) * math.sqrt(self.variance)


def rare_label_clusters(labels: Floats, clusters: Ints) -> int:
    """Return how many clusters have a row with another label than the most frequent one.

    >>> rare_label_clusters(np.array([0.0, 0.0, 0.0, 1.0, 1.0]), np.array([1, 2, 3, 4, 4]))
    1
    """
    values, counts = np.unique(labels, return_counts=True)
    return len(np.unique(clusters[labels != values[np.argmax(counts)]])) if len(labels) else 0


def _together(table: Ints) -> tuple[Floats, float]:
    """Return what rows of one cluster have in common, from the rows of each cluster with each
    outcome.

    By outcome: how probably another row of a cluster has it too if one row has it, which is 1 for
    an outcome of fewer than ``SEEN`` clusters. It is the mean over pairs, or over rows with the
    outcome if that is more: the largest clusters have most of the pairs, and where these happen to
    lack an outcome, only the others show that it comes in groups. And the effective number of
    clusters with the rarest of the other outcomes: no variance is known better.
    """
    others = table.sum(axis=1, keepdims=True) - 1
    pairs = table * (table - 1)
    by_pair = pairs.sum(axis=0) / np.maximum((table * others).sum(axis=0), 1)
    by_row = (pairs / np.maximum(others, 1)).sum(axis=0)
    by_row /= np.maximum((table * (others > 0)).sum(axis=0), 1)
    share = np.maximum(by_pair, by_row)
    is_seen = (table > 0).sum(axis=0) >= SEEN
    effective = table.sum(axis=0) ** 2 / np.maximum((table**2).sum(axis=0), 1)
    least = float(np.min(effective, initial=math.inf, where=is_seen))
    return np.where(is_seen, share, 1.0), least


@lru_cache(4_096)
def student_t(confidence: float, freedom: float) -> float:
    """Return the quantile of Student's t for a confidence from 0.5 to 1, exclusive.

    Bisection of the distribution function, whose incomplete beta function is that of the NIST
    Digital Library of Mathematical Functions, 26.5 and 8.17; degrees of freedom may be fractions.

    >>> round(student_t(0.975, 9), 3), round(student_t(0.95, 1e9), 3)
    (2.262, 1.645)
    """
    if freedom <= 0:
        return math.inf
    if freedom > 1e7:
        return NormalDist().inv_cdf(confidence)
    low, high = 0.0, 1.0
    tail = 1 - confidence
    while _tail_of_t(high, freedom) > tail:
        low, high = high, high * 2
        if high > 1e150:
            return math.inf
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _tail_of_t(middle, freedom) > tail else (low, middle)
    return (low + high) / 2


def _tail_of_t(value: float, freedom: float) -> float:
    """Return the probability of more than a value, 0 or more."""
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + value * value)) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function, by its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
        + a * math.log(x) + b * math.log1p(-x)
    ) / a  # fmt: skip
    # Lentz's method, from the first convergent on
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or 1e-300)
    fraction = d
    for m in range(1, 10_000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + term * d or 1e-300)
            c = 1 + term / c or 1e-300
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * fraction
