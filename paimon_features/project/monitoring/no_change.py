"""What drift measures are when nothing has changed: expected values, p-values, Holm's correction.

Without a change it is chance which of the rows of both ranges are in which range. So the counts of
the current range are a draw without replacement from the counts of both (a permutation test; Good,
"Permutation, Parametric and Bootstrap Tests of Hypotheses", 2005): exact for any number of rows and
any distribution, if the bins are chosen from both ranges together. For many rows this is the known
law: PSI is ``(1/n + 1/m)`` times a chi-square of ``bins - 1`` degrees of freedom (Yurdakul,
"Statistical Properties of Population Stability Index", 2018; Yurdakul and Naranjo, "Statistical
properties of the population stability index", 2020).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paimon_features.core.types.array_types import Floats, Ints

DRAWS, MORE_DRAWS = 2_000, 20_000
"""Number of draws; the second where the first find less than ``UNSUSPICIOUS``."""
UNSUSPICIOUS = 0.05
_LARGEST_DRAW = 10**9
"""NumPy draws without replacement from fewer rows than this; more follow the law."""
_ENOUGH = 10
"""Draws that must be as large as a value for its p-value to be their share."""
_TAIL = 0.01
"""The share of draws that the distribution beyond them is extrapolated from."""
_SMALLEST = 1e-12
"""No extrapolation says more than this."""
_SEED = 20_180_601


def psi_of_counts(current: Floats | Ints, reference: Floats | Ints) -> Floats:
    """Return the PSI of each row of counts, shape (..., bins); half a count is added to each."""
    here, before = current + 0.5, reference + 0.5
    here /= here.sum(axis=-1, keepdims=True)
    before /= before.sum(axis=-1, keepdims=True)
    out: Floats = np.sum((here - before) * np.log(here / before), axis=-1)
    return out


def psi_without_change(current: Sequence[int], reference: Sequence[int]) -> tuple[float, float]:
    """Return the mean PSI without a change, and the probability of at least the PSI of the counts.

    The same counts yield the same numbers: the draws have a fixed seed.

    >>> mean, p_value = psi_without_change([3, 1, 2, 0, 4], [1, 3, 2, 3, 1])
    >>> round(mean, 1), p_value > 0.2
    (0.6, True)
    >>> psi_without_change([0, 0, 900], [300, 300, 300])[1]
    1e-12
    """
    here, before = (np.asarray(side, np.int64) for side in (current, reference))
    psi = float(psi_of_counts(here, before))
    generator = np.random.default_rng(_SEED)
    draws = _psi_draws(here, before, DRAWS, generator)
    p_value = _share_at_least(psi, draws)
    if p_value < UNSUSPICIOUS:
        draws = _psi_draws(here, before, MORE_DRAWS, generator)
        p_value = _share_at_least(psi, draws)
    return float(draws.mean()), p_value


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values corrected for their number (Holm 1979), in their order.

    Where each at most ``a`` counts as a finding, the probability of any finding among what has not
    changed is at most ``a``, however the values depend on each other.

    >>> [round(p, 3) for p in holm([0.01, 0.5, 0.02])]
    [0.03, 0.5, 0.04]
    """
    count, least = len(p_values), 0.0
    out = [1.0] * count
    for rank, index in enumerate(sorted(range(count), key=p_values.__getitem__)):
        least = max(least, min(1.0, (count - rank) * p_values[index]))
        out[index] = least
    return out


def _psi_draws(here: Ints, there: Ints, draws: int, generator: np.random.Generator) -> Floats:
    """Return the PSI of ``draws`` random divisions of all rows into ranges of the same sizes."""
    pooled, sizes = here + there, (int(here.sum()), int(there.sum()))
    if sum(sizes) >= _LARGEST_DRAW:
        law = generator.chisquare(max(np.count_nonzero(pooled) - 1, 1), draws)
        out: Floats = law * (1 / sizes[0] + 1 / sizes[1])
        return out
    drawn = generator.multivariate_hypergeometric(pooled, min(sizes), draws, method="marginals")
    return psi_of_counts(drawn, pooled - drawn)


def _share_at_least(value: float, draws: Floats) -> float:
    """Return the probability of at least ``value``: the share of draws, extrapolated beyond them.

    Beyond the draws the tail is exponential, as that of a chi-square is or falls faster.
    """
    # a division with the same counts has the same PSI except for rounding
    reached = int(np.count_nonzero(draws >= value * (1 - 1e-9)))
    share = (reached + 1) / (len(draws) + 1)
    if reached >= _ENOUGH:
        return share
    start = float(np.quantile(draws, 1 - _TAIL))
    beyond = draws[draws > start] - start
    if not len(beyond) or value <= start:
        return share
    tail = len(beyond) / len(draws) * np.exp(-(value - start) / beyond.mean())
    return float(min(max(tail, _SMALLEST), (_ENOUGH + 1) / (len(draws) + 1)))
