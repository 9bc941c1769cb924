"""How far two distributions are apart: PSI and KS, from counts in bins or from values.

- **PSI** (population stability index) is ``sum((a - b) * ln(a / b))`` over the shares of bins, the
  symmetric Kullback-Leibler divergence (Kullback and Leibler 1951; as a stability index: Siddiqi,
  "Credit Risk Scorecards", 2006). Half a count is added to each bin (Jeffreys' prior), so that an
  empty one does not make it infinite. Without any drift its mean is about
  ``(bins - 1) * (1/n + 1/m)`` (Yurdakul and Naranjo, "Statistical properties of the population
  stability index", 2020), which is told in addition as ``noise``.
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
"""Into about so many bins of equal share, those of the reference, PSI puts values."""


@dataclass(frozen=True, slots=True)
class Drift:
    """How far a column's values are from those of a reference; None where that is not known.

    ``noise`` is what PSI is on average without any drift, ``p_value`` of KS how probable its
    distance is then. KS is None for categories, which have no order.
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
            return f"{self.column}: no drift can be told (no bins, or no values)"
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
    """The drift of counts in the same bins; ``ordered`` says that the bins are of numbers.

    ``nulls`` (current, reference) are one more bin of PSI, where there are any. ``distance`` is
    the exact KS, where it is known; else it is taken at the edges of the bins.
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
    """The population stability index of counts in the same bins; 0 for equal shares.

    >>> psi([50, 50], [50, 50])
    0.0
    >>> round(psi([90, 10], [50, 50]), 4)
    0.8531
    """
    here, there = (np.asarray(side, np.float64) + 0.5 for side in (current, reference))
    here, there = here / here.sum(), there / there.sum()
    return float(np.sum((here - there) * np.log(here / there)))


def psi_noise(bins: int, count: int, reference: int) -> float:
    """What PSI is on average of so many values from one and the same distribution."""
    return (bins - 1) * (1 / count + 1 / reference) if count and reference else math.inf


def coarse(current: Sequence[int], reference: Sequence[int], bins: int = BINS) -> list[list[int]]:
    """Both counts with neighbouring bins put together, until each has ``1/bins`` of the reference.

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
    if len(out) > 1 and out[-1][1] < share / 2:  # a rest too small to stand alone
        here, there = out.pop()
        out[-1][0] += here
        out[-1][1] += there
    return [[pair[side] for pair in out] for side in (0, 1)]


def ks(current: Sequence[int], reference: Sequence[int]) -> float:
    """The Kolmogorov-Smirnov distance of counts in the same bins, in order, at their edges.

    >>> ks([10, 0], [5, 5]), ks([3, 3], [1, 1])
    (0.5, 0.0)
    """
    here, there = (np.cumsum(np.asarray(side, np.float64)) for side in (current, reference))
    if not (here[-1] and there[-1]):
        return 0.0
    return float(np.max(np.abs(here / here[-1] - there / there[-1])))


def ks_of_values(current: Floats, reference: Floats) -> float:
    """The exact Kolmogorov-Smirnov distance of two samples, ties included.

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
    """How probable a distance as great as this is between samples of one distribution.

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
    """The value below which this share of values lies, interpolated within its bin.

    Off by the width of the bin at most; outside of the edges it is the nearest edge. None
    without values. As the aggregate ``Quantile`` has it.

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
