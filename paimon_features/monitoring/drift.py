"""Drift between two distributions: PSI and KS, from binned counts or values.

- **PSI** (population stability index) is ``sum((a - b) * ln(a / b))`` over the shares of bins, the
  symmetric Kullback-Leibler divergence (Kullback and Leibler 1951; as a stability index: Siddiqi,
  "Credit Risk Scorecards", 2006). Half a count is added to each bin (Jeffreys' prior), so that an
  empty one does not make it infinite. Without any drift its mean is about
  ``(bins - 1) * (1/n + 1/m)`` (Yurdakul and Naranjo, "Statistical properties of the population
  stability index", 2020), which is reported as ``noise``.
- **KS** (Kolmogorov-Smirnov) is the greatest distance of the two distribution functions. From
  counts it is taken at the edges of bins: at most the exact one, and less by at most the share of
  the fullest bin. Its p-value is Kolmogorov's, with Stephens' correction for few values
  (Stephens 1970; Press et al., "Numerical Recipes", 14.3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paimon_features.array_types import Floats

BINS = 10
"""Approximate number of bins, of equal share in the reference, for PSI."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The drift of a column against a reference; None for unknown values.

    ``noise`` is the mean of PSI without any drift, ``p_value`` the probability of the KS distance
    then. KS is None for categories, which have no order.
    """

    column: str
    count: int
    reference: int
    psi: float | None = None
    noise: float | None = None
    ks: float | None = None
    p_value: float | None = None

    def __str__(self) -> str:
        if self.psi is None or self.noise is None:
            return f"{self.column}: drift is unknown (no bins, or no values)"
        text = f"{self.column}: PSI {self.psi:.4f} (by chance about {self.noise:.2g})"
        if self.ks is not None and self.p_value is not None:
            text += f", KS {self.ks:.4f} (p {self.p_value:.3g})"
        return f"{text}, {self.count:,} values against {self.reference:,}"


def drift_of(
    column: str,
    current: Sequence[int],
    reference: Sequence[int],
    ordered: bool,
    nulls: tuple[int, int] = (0, 0),
    distance: float | None = None,
) -> Drift:
    """Return the drift of counts in the same bins; ``ordered``: the bins are of numbers.

    ``nulls`` (current, reference) are an additional bin of PSI, if there are any. ``distance`` is
    the exact KS distance if known; by default it is computed at the edges of the bins.
    """
    count, before = sum(current), sum(reference)
    here, there = count + nulls[0], before + nulls[1]
    if not here or not there:
        return Drift(column, count, before)
    pair = coarse(current, reference) if ordered else [list(current), list(reference)]
    if any(nulls):
        pair = [[*side, missing] for side, missing in zip(pair, nulls, strict=True)]
    if ordered and distance is None:
        distance = ks(current, reference)
    return Drift(
        column,
        count,
        before,
        psi(*pair),
        psi_noise(len(pair[0]), here, there),
        distance,
        None if distance is None else ks_p_value(distance, count, before),
    )


def psi(current: Sequence[int], reference: Sequence[int]) -> float:
    """Return the population stability index of counts in the same bins; 0 for equal shares.

    >>> psi([50, 50], [50, 50])
    0.0
    >>> round(psi([90, 10], [50, 50]), 4)
    0.8531
    """
    here, there = (np.asarray(side, np.float64) + 0.5 for side in (current, reference))
    here, there = here / here.sum(), there / there.sum()
    return float(np.sum((here - there) * np.log(here / there)))


def psi_noise(bins: int, count: int, reference: int) -> float:
    """Return the mean of PSI of two samples from the same distribution."""
    return (bins - 1) * (1 / count + 1 / reference) if count and reference else math.inf


def coarse(current: Sequence[int], reference: Sequence[int], bins: int = BINS) -> list[list[int]]:
    """Merge neighbouring bins of both counts until each has ``1/bins`` of the reference.

    >>> coarse([1, 2, 3, 4], [5, 1, 1, 5], bins=2)
    [[3, 7], [6, 6]]
    """
    share = max(sum(reference) / bins, 1)
    out: list[list[int]] = [[0, 0]]
    for here, there in zip(current, reference, strict=True):
        if out[-1][1] >= share:
            out.append([0, 0])
        out[-1][0] += here
        out[-1][1] += there
    if len(out) > 1 and out[-1][1] < share / 2:  # too small for a bin of its own
        here, there = out.pop()
        out[-1][0] += here
        out[-1][1] += there
    return [[pair[side] for pair in out] for side in (0, 1)]


def ks(current: Sequence[int], reference: Sequence[int]) -> float:
    """Return the Kolmogorov-Smirnov distance of counts in the same ordered bins, at their edges.

    >>> ks([10, 0], [5, 5]), ks([3, 3], [1, 1])
    (0.5, 0.0)
    """
    here, there = (np.cumsum(np.asarray(side, np.float64)) for side in (current, reference))
    if not (here[-1] and there[-1]):
        return 0.0
    return float(np.max(np.abs(here / here[-1] - there / there[-1])))


def ks_of_values(current: Floats, reference: Floats) -> float:
    """Return the exact Kolmogorov-Smirnov distance of two samples, including ties.

    >>> ks_of_values(np.array([1.0, 2.0]), np.array([2.0, 3.0]))
    0.5
    """
    if not (len(current) and len(reference)):
        return 0.0
    here, there = np.sort(current), np.sort(reference)
    at = np.concatenate([here, there])
    apart = np.searchsorted(here, at, side="right") / len(here)
    apart -= np.searchsorted(there, at, side="right") / len(there)
    return float(np.max(np.abs(apart)))


def ks_p_value(distance: float, count: int, reference: int) -> float:
    """Return the probability of at least this distance between samples of one distribution.

    >>> round(ks_p_value(0.3, 50, 50), 3), ks_p_value(0.0, 50, 50)
    (0.017, 1.0)
    """
    if not (count and reference) or distance <= 0:
        return 1.0
    size = math.sqrt(count * reference / (count + reference))
    x = (size + 0.12 + 0.11 / size) * distance
    if x < 0.2:  # the series below does not converge there, and the value is 1 to 10 digits
        return 1.0
    terms = ((-1) ** (k - 1) * math.exp(-2.0 * (k * x) ** 2) for k in range(1, 101))
    return min(max(2.0 * math.fsum(terms), 0.0), 1.0)


def quantile(edges: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """Return a quantile of binned values, interpolated within its bin; None without values.

    The error is at most the width of the bin; outside of the edges it is the nearest edge. The
    definition is that of the aggregate ``Quantile``.

    >>> quantile([0.0, 10.0, 20.0], [0, 5, 5, 0], 0.5)
    10.0
    """
    total = sum(counts)
    if not total:
        return None
    ends = np.cumsum(counts)
    target = share * total
    chosen = int(np.argmax((ends >= target) & (ends > 0)))
    bounds = [edges[0], *edges, edges[-1]]
    low, high = bounds[chosen], bounds[chosen + 1]
    inside = counts[chosen]
    part = (target - (int(ends[chosen]) - inside)) / (inside or 1)
    return float(min(low + (high - low) * part, high))
