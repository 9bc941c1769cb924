"""Reference implementation of ``project.monitoring``: statistics and drift by plain loops.

Values are Python numbers and None; sums are exact (``fractions``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction


def reference_moments(values: Sequence[float]) -> tuple[Fraction, Fraction]:
    """The mean, and the sum of squared distances from it, exactly."""
    exact = [Fraction(value) for value in values]
    mean = sum(exact, Fraction(0)) / len(exact)
    return mean, sum(((value - mean) ** 2 for value in exact), Fraction(0))


def reference_bins(values: Sequence[float], edges: Sequence[float]) -> list[int]:
    """How many values lie below the first edge, between two (the lower included), beyond."""
    out = [0] * (len(edges) + 1)
    for value in values:
        place = 0
        for edge in edges:
            if value >= edge:
                place += 1
        out[place] += 1
    return out


def reference_psi(current: Sequence[int], reference: Sequence[int]) -> float:
    """The population stability index, half a count added to each bin."""
    total = 0.0
    bins = len(current)
    for here, there in zip(current, reference, strict=True):
        a = (here + 0.5) / (sum(current) + 0.5 * bins)
        b = (there + 0.5) / (sum(reference) + 0.5 * bins)
        total += (a - b) * math.log(a / b)
    return total


def reference_psi_p_value(current: Sequence[int], reference: Sequence[int]) -> float:
    """The probability of at least this PSI if rows are in a range by chance: all divisions."""
    pooled = [here + there for here, there in zip(current, reference, strict=True)]
    found, total, reached = reference_psi(current, reference), 0, 0
    for counts in itertools.product(*(range(count + 1) for count in pooled)):
        if sum(counts) == sum(current):
            ways = math.prod(math.comb(n, k) for n, k in zip(pooled, counts, strict=True))
            rest = [n - k for n, k in zip(pooled, counts, strict=True)]
            total += ways
            reached += ways * (reference_psi(counts, rest) >= found - 1e-12)
    return reached / total


def reference_ks(current: Sequence[float], reference: Sequence[float]) -> float:
    """The greatest distance of the shares of values that are not above some value."""
    greatest = 0.0
    for at in [*current, *reference]:
        here = sum(value <= at for value in current) / len(current)
        there = sum(value <= at for value in reference) / len(reference)
        greatest = max(greatest, abs(here - there))
    return greatest
