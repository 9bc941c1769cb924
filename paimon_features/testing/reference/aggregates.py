"""The reference implementation of each aggregate: its value from the raw events, by a loop.

``reference_value`` dispatches on the class of the aggregate (``functools.singledispatch``), so that
a custom aggregate gets its reference implementation where it is tested::

    @reference_value.register
    def _(aggregate: Spread, window: WindowEvents) -> Any:
        values = window.values(aggregate.column)
        return max(values) - min(values) if values else None

``paimon_features.testing.reference.tolerance`` defines how far a value may be from the reference.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, localcontext
from decimal import Decimal as PyDecimal
from fractions import Fraction
from functools import singledispatch
from typing import Any

from paimon_features.core.expressions import parse
from paimon_features.core.types.schema import DataType, ListType, MapType
from paimon_features.core.windows import parse_duration
from paimon_features.definitions import aggregates as agg
from paimon_features.definitions.aggregates.decayed import Decayed
from paimon_features.testing.reference.expressions import evaluate_row

Row = Mapping[str, Any]

ROOT_DIGITS = 200
"""Decimal digits of square roots: so many more than a float's that only one rounding is left."""


@dataclass(frozen=True)
class WindowEvents:
    """The events of one entity that an aggregate uses, read at ``as_of_ms``.

    ``rows`` are those in the window for which its ``where`` is true, with derived columns, in
    any order. ``window_ms`` is the window's nominal length, None for a lifetime; ``newest_ms``
    is the time of the newest event in the window, whether the aggregate uses it or not.
    """

    rows: Sequence[Row]
    event_time: str
    scope: Mapping[str, DataType]
    as_of_ms: int
    window_ms: int | None = None
    newest_ms: int = 0

    def seen(self, column: str | None) -> list[tuple[int, Any]]:
        """Return (event time, value) of each event whose column is not null; 1 for no column."""
        pairs = [(row[self.event_time], 1 if column is None else row[column]) for row in self.rows]
        return [(ts, value) for ts, value in pairs if value is not None]

    def values(self, column: str | None) -> list[Any]:
        """Return the values of a column that are not null."""
        return [value for _, value in self.seen(column)]


class IllConditioned:
    """The value of an aggregate whose sums leave too few correct digits."""


@singledispatch
def reference_value(aggregate: agg.Aggregate, window: WindowEvents) -> Any:
    """Return the value of the aggregate: a Python value, or IllConditioned.

    Dates are days and timestamps milliseconds since 1970, maps lists of (key, value) pairs.
    """
    kind = type(aggregate).__name__
    raise NotImplementedError(
        f"{kind} has no reference implementation; write one: @reference_value.register of a "
        f"function of (aggregate: {kind}, window: WindowEvents), both of "
        "paimon_features.testing.reference.aggregates"
    )


# -- counts and sums ---------------------------------------------------------------------------


@reference_value.register
def _(aggregate: agg.Count, window: WindowEvents) -> Any:
    return len(window.values(aggregate.column))


@reference_value.register
def _(aggregate: agg.Sum, window: WindowEvents) -> Any:
    values = window.values(aggregate.column)
    return total_of(values, aggregate.scale_of(window.scope), aggregate.output_type(window.scope))


@reference_value.register
def _(aggregate: agg.Mean, window: WindowEvents) -> Any:
    values = window.values(aggregate.column)
    scale = aggregate.scale_of(window.scope)
    return float(sum(exact(v, scale) for v in values) / Fraction(len(values))) if values else None


@reference_value.register(agg.Min)
@reference_value.register(agg.Max)
def _(aggregate: agg.Min | agg.Max, window: WindowEvents) -> Any:
    values, kind = window.values(aggregate.column), aggregate.output_type(window.scope)
    if aggregate.scale is not None:
        values = [exact(value, aggregate.scale) for value in values]
    if not values:
        return None
    value = min(values) if isinstance(aggregate, agg.Min) else max(values)
    if aggregate.scale is not None:
        return total_of([value], aggregate.scale, kind)
    return float(value) + 0.0 if kind.is_float else value


@reference_value.register
def _(aggregate: agg.Rate, window: WindowEvents) -> Any:
    assert window.window_ms is not None
    scale = aggregate.scale_of(window.scope)
    total = sum((exact(v, scale) for v in window.values(aggregate.column)), Fraction(0))
    return float(total * parse_duration(aggregate.per) / window.window_ms)


@reference_value.register(agg.VectorSum)
@reference_value.register(agg.VectorMean)
def _(aggregate: agg.VectorSum | agg.VectorMean, window: WindowEvents) -> Any:
    vectors = window.values(aggregate.column)
    kind = aggregate.output_type(window.scope)
    assert isinstance(kind, ListType)
    assert kind.length is not None
    scale = aggregate.scale_of(window.scope)
    if isinstance(aggregate, agg.VectorSum):
        return [total_of([v[i] for v in vectors], scale, kind.item) for i in range(kind.length)]
    if not vectors:
        return None
    sums = [sum(exact(v[i], scale) for v in vectors) for i in range(kind.length)]
    return [float(total / Fraction(len(vectors))) for total in sums]


def total_of(values: Sequence[Any], scale: int | None, kind: DataType) -> Any:
    """Return the exact sum, as a value of type ``kind``."""
    total = sum((exact(value, scale) for value in values), Fraction(0))
    if kind.is_decimal:
        assert scale is not None
        return PyDecimal(int(total * 10**scale)).scaleb(-scale)
    return int(total) if kind.is_integer else float(total)


def exact(value: Any, scale: int | None) -> Fraction:
    """Return the number that enters the sum, exactly: rounded half-even where there is a scale."""
    if scale is None:
        return Fraction(value)
    if isinstance(value, float):
        return Fraction(round(value * 10.0**scale), 10**scale)
    if isinstance(value, PyDecimal):
        value = value.quantize(PyDecimal(1).scaleb(-scale), ROUND_HALF_EVEN)
    return Fraction(value)


# -- moments -----------------------------------------------------------------------------------


@reference_value.register
def _(aggregate: agg.Variance, window: WindowEvents) -> Any:
    values = [exact(v, aggregate.scale_of(window.scope)) for v in window.values(aggregate.column)]
    if len(values) <= aggregate.ddof:
        return None
    if is_ill_conditioned(aggregate, values, window):
        return IllConditioned()
    variance = spread(values) / (len(values) - aggregate.ddof)
    return nearest_root(variance) if isinstance(aggregate, agg.StdDev) else float(variance)


@reference_value.register
def _(aggregate: agg.Skewness, window: WindowEvents) -> Any:
    values = [exact(v, aggregate.scale_of(window.scope)) for v in window.values(aggregate.column)]
    if is_ill_conditioned(aggregate, values, window):
        return IllConditioned()
    m2, m3 = central_moment(values, 2), central_moment(values, 3)
    if m2 == 0:
        return None
    return math.copysign(nearest_root(m3 * m3 / (m2 * m2 * m2)), m3)


@reference_value.register
def _(aggregate: agg.Kurtosis, window: WindowEvents) -> Any:
    values = [exact(v, aggregate.scale_of(window.scope)) for v in window.values(aggregate.column)]
    if is_ill_conditioned(aggregate, values, window):
        return IllConditioned()
    m2 = central_moment(values, 2)
    return None if m2 == 0 else float(central_moment(values, 4) / (m2 * m2) - 3)


def nearest_root(value: Fraction) -> float:
    """Return the float nearest to the square root of a fraction that is not negative."""
    with localcontext(prec=ROOT_DIGITS):
        return float((PyDecimal(value.numerator) / PyDecimal(value.denominator)).sqrt())


def central_moment(values: Sequence[Fraction], power: int) -> Fraction:
    """Return the mean of the powers of the distances from the mean; 0 without values."""
    n = Fraction(max(len(values), 1))
    mean = sum(values, Fraction(0)) / n
    return sum(((value - mean) ** power for value in values), Fraction(0)) / n


def spread(values: Sequence[Fraction]) -> Fraction:
    """Return the sum of the squared distances from the mean."""
    return central_moment(values, 2) * len(values)


def is_ill_conditioned(
    aggregate: agg.Variance | agg.Skewness | agg.Kurtosis,
    values: Sequence[Fraction],
    window: WindowEvents,
) -> bool:
    """Return whether float sums around the center are too large relative to the spread."""
    if aggregate.scale_of(window.scope) is not None or len(values) <= 1:
        return False
    squares = squares_around(values, aggregate.center)
    return squares > 0 and spread(values) * Fraction(aggregate.max_condition) < squares


def squares_around(values: Sequence[Fraction], center: float) -> Fraction:
    """Return the sum of the squared distances from a center."""
    return sum(((value - Fraction(center)) ** 2 for value in values), Fraction(0))


# -- decay -------------------------------------------------------------------------------------


@reference_value.register(agg.DecayedSum)
@reference_value.register(agg.DecayedCount)
def _(aggregate: Decayed, window: WindowEvents) -> Any:
    terms = []
    for ts, value in window.seen(aggregate.column):
        number = 1.0 if isinstance(aggregate, agg.DecayedCount) else float(value)
        terms.append(number * 2.0 ** ((ts - window.as_of_ms) / aggregate.half_life_ms))
    return math.fsum(terms)


@reference_value.register
def _(aggregate: agg.DecayedMean, window: WindowEvents) -> Any:
    seen = window.seen(aggregate.column)
    if not seen:
        return None
    newest = max(ts for ts, _ in seen)
    weights = [2.0 ** ((ts - newest) / aggregate.half_life_ms) for ts, _ in seen]
    total = math.fsum(w * float(v) for w, (_, v) in zip(weights, seen, strict=True))
    return total / math.fsum(weights)


# -- in order ----------------------------------------------------------------------------------


@reference_value.register(agg.First)
@reference_value.register(agg.Last)
@reference_value.register(agg.FirstN)
@reference_value.register(agg.LastN)
def _(aggregate: agg.First | agg.Last | agg.FirstN | agg.LastN, window: WindowEvents) -> Any:
    column, tie, newest = aggregate.column, aggregate.tie, aggregate.newest
    assert column is not None
    ranked = []
    for row in window.rows:
        if row[column] is None:
            continue
        rank = () if tie is None else sort_key(row[tie], null_last=not newest)
        ranked.append(((row[window.event_time], rank, sort_key(row[column])), row[column]))
    ranked.sort(key=lambda pair: pair[0], reverse=newest)
    values = [plain(value) for _, value in ranked]
    if isinstance(aggregate, agg.FirstN | agg.LastN):
        return values[: aggregate.n] or None
    return values[0] if values else None


@reference_value.register(agg.TopK)
@reference_value.register(agg.BottomK)
def _(aggregate: agg.TopK | agg.BottomK, window: WindowEvents) -> Any:
    column, by = aggregate.column, aggregate.by
    assert column is not None
    ranked = [
        ((0 if by is None else sort_key(row[by]), sort_key(row[column])), row[column])
        for row in window.rows
        if row[column] is not None and (by is None or row[by] is not None)
    ]
    ranked.sort(key=lambda pair: pair[0], reverse=isinstance(aggregate, agg.TopK))
    return [plain(value) for _, value in ranked[: aggregate.n]] or None


def sort_key(value: Any, null_last: bool = False) -> tuple[bool, Any]:
    """Return what a value sorts by, null before or behind all others."""
    if value is None:
        return null_last, 0
    return not null_last, value


def plain(value: Any) -> Any:
    """Return a negative zero as zero, also in vectors; other values unchanged."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value + 0.0 if isinstance(value, float) else value


# -- categories, conditions, times ---------------------------------------------------------------


def text_of(value: Any) -> str:
    """Return a category as a key of a map."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@reference_value.register
def _(aggregate: agg.CountBy, window: WindowEvents) -> Any:
    occurrences = Counter(map(text_of, window.values(aggregate.column)))
    declared = [text_of(value) for value in aggregate.values]
    counts = [(name, occurrences[name]) for name in declared]
    if aggregate.other is not None:
        counts.append(
            (aggregate.other, occurrences.total() - sum(occurrences[name] for name in declared))
        )
    return counts


@reference_value.register
def _(aggregate: agg.SumBy, window: WindowEvents) -> Any:
    declared = [text_of(value) for value in aggregate.values]
    groups: dict[str | None, list[Any]] = {name: [] for name in declared}
    if aggregate.other is not None:
        groups[aggregate.other] = []
    for row in window.rows:
        category, value = row[aggregate.by], row[aggregate.column or ""]
        if category is not None and value is not None:
            name = text_of(category)
            groups.setdefault(name if name in declared else aggregate.other, []).append(value)
    kind, scale = aggregate.output_type(window.scope), aggregate.scale_of(window.scope)
    assert isinstance(kind, MapType)
    totals = {name: total_of(values, scale, kind.item) for name, values in groups.items()}
    return [(name, total) for name, total in totals.items() if name is not None]


@reference_value.register
def _(aggregate: agg.TopCategories, window: WindowEvents) -> Any:
    occurrences = Counter(map(text_of, window.values(aggregate.column)))
    ranked = sorted(occurrences.items(), key=lambda pair: (-pair[1], pair[0]))
    return ranked[: aggregate.n] or None


@reference_value.register(agg.Any)
@reference_value.register(agg.All)
def _(aggregate: agg.Any | agg.All, window: WindowEvents) -> Any:
    if aggregate.condition is None:
        verdicts = window.values(aggregate.column)
    else:
        condition = parse(aggregate.condition, window.scope)
        verdicts = [evaluate_row(condition, row) for row in window.rows]
        verdicts = [verdict for verdict in verdicts if verdict is not None]
    if not verdicts:
        return None
    return any(verdicts) if isinstance(aggregate, agg.Any) else all(verdicts)


@reference_value.register(agg.TimeSinceLast)
@reference_value.register(agg.TimeSinceFirst)
def _(aggregate: agg.TimeSinceLast | agg.TimeSinceFirst, window: WindowEvents) -> Any:
    times = [ts for ts, _ in window.seen(aggregate.column)]
    if not times:
        return None
    at = max(times) if isinstance(aggregate, agg.TimeSinceLast) else min(times)
    age_ms = max(window.as_of_ms - at, 0)
    return age_ms if aggregate.unit is None else age_ms / parse_duration(aggregate.unit)


# -- bins and sketches -------------------------------------------------------------------------


def bin_counts(edges: Sequence[float], values: Sequence[Any]) -> list[int]:
    """Return how many values are below the first edge, between two, and from the last one on."""
    counts = [0] * (len(edges) + 1)
    for value in values:
        counts[bisect_right(edges, float(value))] += 1
    return counts


@reference_value.register
def _(aggregate: agg.Histogram, window: WindowEvents) -> Any:
    return bin_counts(aggregate.edges, window.values(aggregate.column))


@reference_value.register
def _(aggregate: agg.Quantile, window: WindowEvents) -> Any:
    assert isinstance(aggregate.q, float | int)
    edges = aggregate.edges
    counts = bin_counts(edges, window.values(aggregate.column))
    target, before = aggregate.q * sum(counts), 0
    for number, count in enumerate(counts):
        if count and before + count >= target:
            if number in (0, len(edges)):
                return edges[0] if number == 0 else edges[-1]
            low, high = edges[number - 1], edges[number]
            return min(low + (high - low) * ((target - before) / count), high)
        before += count
    return None


@reference_value.register
def _(aggregate: agg.ApproxCountDistinct, window: WindowEvents) -> Any:
    kind = window.scope[aggregate.column or ""]
    item = parse(f"item({aggregate.column})", {aggregate.column or "": kind})
    ranks: dict[int, int] = {}
    for row in window.rows:
        text = evaluate_row(item, row)
        if text is not None:
            digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
            bits = f"{int.from_bytes(digest, 'big'):0128b}"
            register, rank = int(bits[:12], 2), (bits[12:28] + "1").index("1") + 1
            ranks[register] = max(ranks.get(register, 0), min(rank, 15))
    return ertl_estimate(ranks, registers=4096, top=15)


def ertl_estimate(ranks: Mapping[int, int], registers: int, top: int) -> int:
    """Return the estimate of Ertl (2017), algorithm 6, register by register."""
    counts = Counter(ranks.values())
    counts[0] = registers - len(ranks)
    if counts[0] == registers:
        return 0
    share, total, factor = 1 - counts[top] / registers, counts[top] / registers, 1.0
    if 0 < share < 1:
        for _ in range(64):
            share, factor = math.sqrt(share), factor / 2
            total -= (1 - share) ** 2 * factor
        weight = registers * total / 3
    else:
        weight = 0.0
    for rank in range(top - 1, 0, -1):
        weight = (weight + counts[rank]) / 2
    power, total, factor = counts[0] / registers, counts[0] / registers, 1.0
    for _ in range(64):
        power, total, factor = power * power, total + power * power * factor, factor * 2
    weight += registers * total
    return round(registers * registers / (2 * math.log(2)) / weight)
