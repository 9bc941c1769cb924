"""Drift between two distributions: PSI and KS, from binned counts or values.

- **PSI** (population stability index) is ``sum((a - b) * ln(a / b))`` over the shares of bins, the
  symmetric Kullback-Leibler divergence (Kullback and Leibler 1951; as a stability index: Siddiqi,
  "Credit Risk Scorecards", 2006). Half a count is added to each bin (Jeffreys' prior), so that an
  empty one does not make it infinite. Bins and categories are chosen from both ranges together:
  those of one range alone fit it better than the other, which looks like drift. What PSI is
  without a change is in ``no_change``.
- **KS** (Kolmogorov-Smirnov) is the greatest distance of the two distribution functions. From
  counts it is taken at the edges of bins: at most the exact one, and less by at most the share of
  the fullest bin. Its p-value is Kolmogorov's, with Stephens' correction for few values
  (Stephens 1970; Press et al., "Numerical Recipes", 14.3); it is too large for ties and bins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paimon_features.core.types.array_types import Floats
from paimon_features.project.monitoring.no_change import psi_of_counts, psi_without_change

BINS = 10
"""Approximate number of bins, of equal share in both ranges together, for PSI."""
CATEGORIES = 50
"""Number of most frequent categories for PSI; all others are counted together."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The drift of a column against a reference; None for unknown values.

    ``count`` and ``reference`` are numbers of values, ``nulls`` and ``reference_nulls`` of rows
    without one. ``expected_psi`` is the mean of PSI without a change, the ``..._p_value`` of a
    measure the probability of at least its value then, of this column alone. KS is None for
    categories, which have no order; ``nulls_p_value`` is of the share of nulls.
    """

    column: str
    count: int
    reference: int
    nulls: int = 0
    reference_nulls: int = 0
    psi: float | None = None
    expected_psi: float | None = None
    psi_p_value: float | None = None
    ks: float | None = None
    ks_p_value: float | None = None
    nulls_p_value: float | None = None

    @property
    def fewer_rows(self) -> int:
        """The rows of the range that has fewer, nulls included."""
        return min(self.count + self.nulls, self.reference + self.reference_nulls)

    @property
    def counts(self) -> str:
        """The numbers of values of both ranges, and of nulls if there are any."""
        text = f"{self.count:,} values against {self.reference:,}"
        if self.nulls or self.reference_nulls:
            text += f", nulls {self.nulls:,} against {self.reference_nulls:,}"
            if self.nulls_p_value is not None:
                text += f" (p {self.nulls_p_value:.3g})"
        return text

    def __str__(self) -> str:
        if self.psi is None or self.expected_psi is None or self.psi_p_value is None:
            return f"{self.column}: drift is unknown (no bins, or no values)"
        text = (
            f"{self.column}: PSI {self.psi:.4f} "
            f"(without a change {self.expected_psi:.2g}, p {self.psi_p_value:.3g})"
        )
        if self.ks is not None and self.ks_p_value is not None:
            text += f", KS {self.ks:.4f} (p {self.ks_p_value:.3g})"
        return f"{text}, {self.counts}"


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
    here, total_before = count + nulls[0], before + nulls[1]
    if not here or not total_before:
        return Drift(column, count, before, *nulls)
    pair = coarse(current, reference) if ordered else frequent(current, reference)
    nulls_p_value = None
    if any(nulls):
        pair = [[*side, missing] for side, missing in zip(pair, nulls, strict=True)]
        nulls_p_value = psi_without_change([count, nulls[0]], [before, nulls[1]])[1]
    if ordered and distance is None:
        distance = ks(current, reference)
    return Drift(
        column,
        count,
        before,
        *nulls,
        psi(*pair),
        *psi_without_change(*pair),
        distance,
        None if distance is None else ks_p_value(distance, count, before),
        nulls_p_value,
    )


def psi(current: Sequence[int], reference: Sequence[int]) -> float:
    """Return the population stability index of counts in the same bins; 0 for equal shares.

    >>> psi([50, 50], [50, 50])
    0.0
    >>> round(psi([90, 10], [50, 50]), 4)
    0.8531
    """
    return float(psi_of_counts(*(np.asarray(side, np.float64) for side in (current, reference))))


def coarse(current: Sequence[int], reference: Sequence[int], bins: int = BINS) -> list[list[int]]:
    """Merge neighbouring bins of both counts until each has ``1/bins`` of both together.

    >>> coarse([1, 2, 3, 4], [5, 1, 1, 5], bins=2)
    [[6, 4], [7, 5]]
    """
    share = max((sum(current) + sum(reference)) / bins, 1)
    out: list[list[int]] = [[0, 0]]
    for here, before in zip(current, reference, strict=True):
        if sum(out[-1]) >= share:
            out.append([0, 0])
        out[-1][0] += here
        out[-1][1] += before
    if len(out) > 1 and sum(out[-1]) < share / 2:  # too small for a bin of its own
        here, before = out.pop()
        out[-1][0] += here
        out[-1][1] += before
    return [[pair[side] for pair in out] for side in (0, 1)]


def frequent(
    current: Sequence[int], reference: Sequence[int], most: int = CATEGORIES
) -> list[list[int]]:
    """Count all but the most frequent categories of both together as one.

    >>> frequent([1, 2, 3, 4], [5, 1, 1, 5], most=2)
    [[1, 4, 5], [5, 5, 2]]
    """
    if len(current) <= most + 1:
        return [list(current), list(reference)]
    both = [here + before for here, before in zip(current, reference, strict=True)]
    order = sorted(range(len(both)), key=lambda place: -both[place])
    kept, others = sorted(order[:most]), order[most:]
    return [
        [*(side[place] for place in kept), sum(side[place] for place in others)]
        for side in (current, reference)
    ]


def ks(current: Sequence[int], reference: Sequence[int]) -> float:
    """Return the Kolmogorov-Smirnov distance of counts in the same ordered bins, at their edges.

    >>> ks([10, 0], [5, 5]), ks([3, 3], [1, 1])
    (0.5, 0.0)
    """
    here, before = (np.cumsum(np.asarray(side, np.float64)) for side in (current, reference))
    if not (here[-1] and before[-1]):
        return 0.0
    return float(np.max(np.abs(here / here[-1] - before / before[-1])))


def ks_of_values(current: Floats, reference: Floats) -> float:
    """Return the exact Kolmogorov-Smirnov distance of two samples, including ties.

    >>> ks_of_values(np.array([1.0, 2.0]), np.array([2.0, 3.0]))
    0.5
    """
    if not (len(current) and len(reference)):
        return 0.0
    here, before = np.sort(current), np.sort(reference)
    at = np.concatenate([here, before])
    apart = np.searchsorted(here, at, side="right") / len(here)
    apart -= np.searchsorted(before, at, side="right") / len(before)
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
