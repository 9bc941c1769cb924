"""Tolerances of values compared with the reference: exact, or bounded by rounding errors.

Sums of floats may differ by ``n * eps * sum(|v|)``, because engines add in different orders;
decayed ones also by the rounding of their weights. ``tolerance`` and ``undecided`` dispatch on the
class of the aggregate, as ``reference_value`` is; an aggregate without one has to be equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import singledispatch
from typing import Any

from paimon_features.core.windows import parse_duration
from paimon_features.definitions import aggregates as agg
from paimon_features.definitions.aggregates.decayed import Decayed
from paimon_features.testing.reference.aggregates import (
    WindowEvents,
    central_moment,
    spread,
    squares_around,
    text_of,
)

EPS = 2.0**-52
TINY = 1e-150
"""Sizes below which squares and weighted values may have become zeros."""
FADED = 1000
"""Half-lives after which a value may count as nothing."""

Bound = float | Sequence[float]
"""How far a value, or each item of a list, may be off; 0: it has to be equal."""


@singledispatch
def tolerance(aggregate: agg.Aggregate, window: WindowEvents, wanted: Any) -> Bound:
    """Return the tolerance of a value around ``wanted``, the reference, which is not null."""
    return 0.0


@singledispatch
def undecided(aggregate: agg.Aggregate, window: WindowEvents) -> bool:
    """Return True if rounding decides if there is a value at all."""
    return False


def float_sum_error(values: Sequence[Any]) -> float:
    """Return ``n * eps * sum(|v|)``."""
    total = sum((abs(Fraction(value)) for value in values), Fraction(0))
    return float(total * len(values) * Fraction(EPS))


@tolerance.register(agg.Sum)
@tolerance.register(agg.Mean)
@tolerance.register(agg.Rate)
def _(aggregate: agg.Sum | agg.Mean | agg.Rate, window: WindowEvents, wanted: Any) -> Bound:
    if aggregate.scale_of(window.scope) is not None:
        return 0.0
    values = window.values(aggregate.column)
    error = float_sum_error(values)
    if isinstance(aggregate, agg.Rate):
        assert window.window_ms is not None
        scaled = error * parse_duration(aggregate.per) / window.window_ms
        return float(scaled + 4 * EPS * abs(wanted))
    return error / len(values) if isinstance(aggregate, agg.Mean) else error


@tolerance.register(agg.VectorSum)
@tolerance.register(agg.VectorMean)
def _(aggregate: agg.VectorSum | agg.VectorMean, window: WindowEvents, wanted: Any) -> Bound:
    if aggregate.scale_of(window.scope) is not None:
        return 0.0
    vectors = window.values(aggregate.column)
    n = len(vectors) if isinstance(aggregate, agg.VectorMean) else 1
    return [float_sum_error([v[i] for v in vectors]) / n for i in range(len(wanted))]


@tolerance.register
def _(aggregate: agg.SumBy, window: WindowEvents, wanted: Any) -> Bound:
    if aggregate.scale_of(window.scope) is not None:
        return 0.0
    column, declared = aggregate.column or "", [text_of(value) for value in aggregate.values]
    groups: dict[str, list[Any]] = {name: [] for name, _ in wanted}
    for row in window.rows:
        if row[aggregate.by] is not None and row[column] is not None:
            name = text_of(row[aggregate.by])
            groups.setdefault(name if name in declared else str(aggregate.other), []).append(
                row[column]
            )
    return [float_sum_error(groups[name]) for name, _ in wanted]


@tolerance.register(agg.DecayedSum)
@tolerance.register(agg.DecayedCount)
@tolerance.register(agg.DecayedMean)
def _(aggregate: Decayed, window: WindowEvents, wanted: Any) -> Bound:
    seen = window.seen(aggregate.column)
    is_mean = isinstance(aggregate, agg.DecayedMean)
    if is_mean and undecided(aggregate, window):
        return math.inf
    half_life = aggregate.half_life_ms
    back = max((abs(window.as_of_ms - ts) for ts, _ in seen), default=0) / half_life
    base = max((ts for ts, _ in seen), default=0) if is_mean else window.as_of_ms
    weights = [2.0 ** ((ts - base) / half_life) for ts, _ in seen]
    counted = isinstance(aggregate, agg.DecayedCount)
    sizes = [1.0 if counted else abs(float(value)) for _, value in seen]
    total = math.fsum(w * v for w, v in zip(weights, sizes, strict=True))
    bound = (2 * len(seen) + 100 + 2 * back) * EPS * total
    if is_mean and seen:
        bound /= math.fsum(weights)
    # a tile's weights go down to 2^-500, below which the smallest values are zeros
    return bound + 1e-300 * math.fsum(sizes) + len(seen) * TINY


@undecided.register
def _(aggregate: agg.DecayedMean, window: WindowEvents) -> bool:
    # all values are so much older than the newest event that they may be nothing
    times = [ts for ts, _ in window.seen(aggregate.column)]
    return all(window.newest_ms - ts > FADED * aggregate.half_life_ms for ts in times)


@tolerance.register(agg.Variance)
@tolerance.register(agg.StdDev)
def _(aggregate: agg.Variance, window: WindowEvents, wanted: Any) -> Bound:
    if aggregate.scale_of(window.scope) is not None:
        return 0.0
    values = [Fraction(value) for value in window.values(aggregate.column)]
    n, squares = len(values), squares_around(values, aggregate.center)
    bound = float((n + 8) * 4 * Fraction(EPS) * squares / max(n - aggregate.ddof, 1)) + 1e-300
    if isinstance(aggregate, agg.StdDev):
        # of a root: |a - b| = |a^2 - b^2| / (a + b)
        root = math.sqrt(bound)
        return float(min(root, bound / wanted if wanted else root) + 8 * EPS * wanted)
    return bound


@tolerance.register(agg.Skewness)
@tolerance.register(agg.Kurtosis)
def _(aggregate: agg.Skewness | agg.Kurtosis, window: WindowEvents, wanted: Any) -> Bound:
    if aggregate.scale_of(window.scope) is not None:
        return 0.0
    values = [Fraction(value) for value in window.values(aggregate.column)]
    n, power = len(values), aggregate.highest
    squares = squares_around(values, aggregate.center)
    if squares < Fraction(TINY):
        return math.inf
    shifted = [value - Fraction(aggregate.center) for value in values]
    mean = abs(sum(shifted, Fraction(0)) / n)
    # the sizes of the terms that cancel in a central moment, and their number
    terms = sum(
        math.comb(power, k) * mean ** (power - k) * sum(abs(v) ** k for v in shifted)
        for k in range(power + 1)
    )
    m2 = central_moment(values, 2)
    condition = float(squares / (m2 * n))
    scale = float(Fraction(terms) / n) / float(m2) ** (power / 2)
    error = (n + 16) * 4 * EPS
    return float(error * (scale + power * condition * (abs(wanted) + 3)) + 1e-300)


@undecided.register(agg.Variance)
@undecided.register(agg.StdDev)
@undecided.register(agg.Skewness)
@undecided.register(agg.Kurtosis)
def _(aggregate: agg.Variance | agg.Skewness | agg.Kurtosis, window: WindowEvents) -> bool:
    values = [Fraction(value) for value in window.values(aggregate.column)]
    if len(values) < 2 or aggregate.scale_of(window.scope) is not None:
        return False
    squares = squares_around(values, aggregate.center)
    if 0 < squares < Fraction(TINY):
        return True
    edge = spread(values) * Fraction(aggregate.max_condition)
    return squares * Fraction(9, 10) <= edge <= squares * Fraction(11, 10)
