"""The oracle: features straight from raw events, by loops that anyone can check by eye.

Nothing here knows tiles, levels, partials or engines. Every clever path of the project is
compared with these functions, on generated and on real events.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN
from decimal import Decimal as PyDecimal
from fractions import Fraction
from typing import Any

from paimon_features.aggregates import (
    Aggregate,
    Count,
    DecayedCount,
    DecayedMean,
    DecayedSum,
    Last,
    Max,
    Mean,
    Min,
    Sum,
    Variance,
)
from paimon_features.aggregates.basic import Numeric
from paimon_features.aggregates.moments import MAX_CONDITION, StdDev
from paimon_features.definitions import CompiledFeature, FeatureView
from paimon_features.expressions import Expression, parse
from paimon_features.expressions.nodes import Call
from paimon_features.testing.naive_expressions import UnsafeStepError, evaluate_row
from paimon_features.testing.naive_windows import bounds, members, read_time

Event = Mapping[str, Any]
"""One raw event: a value (or None) for each column of the source."""


class Entered(tuple[dict[str, Any], ...]):
    """The events that enter a view's tiles, with its derived columns, in their order.

    Made once, it can be given in place of raw events to all that follows.
    """


def entered(view: FeatureView, events: Iterable[Event]) -> Entered:
    """The events that are members and break no rule."""
    if isinstance(events, Entered):
        return events
    steps = _derivations(view)
    where = None if view.where is None else parse(view.where, view.compiled.scope)
    return Entered(
        row for event in events if (row := _enters(view, steps, where, event)) is not None
    )


def enters(view: FeatureView, event: Event) -> bool:
    """Whether an event enters the view's tiles."""
    return len(entered(view, [event])) == 1


def _derivations(view: FeatureView) -> list[tuple[str, Expression]]:
    """The view's derived columns; a later one may use an earlier one."""
    scope = dict(view.source.schema)
    steps = []
    for name, text in view.derive.items():
        expression = parse(text, scope)
        scope[name] = expression.type
        steps.append((name, expression))
    return steps


def _enters(
    view: FeatureView,
    steps: Sequence[tuple[str, Expression]],
    where: Expression | None,
    event: Event,
) -> dict[str, Any] | None:
    """The event with its derived columns, or None where it does not enter."""
    row = dict(event)
    try:
        for name, expression in steps:
            row[name] = evaluate_row(expression, row)
        if where is not None and evaluate_row(where, row) is not True:
            return None
    except UnsafeStepError:
        # a step overflows, or hides an infinity: a rule keeps such an event out
        return None
    return row if all(holds(rule.condition, event) for rule in view.compiled.skip_rules) else None


def holds(condition: Expression, event: Event) -> bool:
    """Whether a condition is true; of ``a OR b`` it is enough that one side is."""
    try:
        return evaluate_row(condition, event) is True
    except UnsafeStepError:
        sides = condition.args if isinstance(condition, Call) and condition.op == "or" else ()
        return any(holds(side, event) for side in sides)


@dataclass(frozen=True)
class Answer:
    """What a read has to give for one entity: its status, and a value for each feature."""

    status: str
    values: dict[str, Any]
    ill_conditioned: frozenset[str] = frozenset()


def answer(
    view: FeatureView, events: Sequence[Event], q_ms: int, *, online: bool = False
) -> Answer:
    """The features of one entity at ``q_ms``, from all raw events of that entity.

    ``online`` takes the open tile whole, as an online read of sawtooth windows does: the tile
    that contains ``q_ms`` also counts what has arrived with a later event time.
    """
    compiled = view.compiled
    time = view.source.event_time
    edges = [bounds(f.window, q_ms) for f in compiled.features]
    known_from, horizon = min(start for start, _ in edges), max(end for _, end in edges)
    seen_until = max(bounds(f.window, q_ms, online=online)[1] for f in compiled.features)
    rows = [row for row in entered(view, events) if row[time] < seen_until]
    nothing: dict[str, Any] = {f.name: None for f in compiled.features}
    if compiled.ttl_ms is not None:
        known_from = min(known_from, horizon - compiled.ttl_ms)
    newest = max((row[time] for row in rows), default=None)
    if newest is None or newest < known_from:
        return Answer("MISSING", nothing)
    if compiled.ttl_ms is not None and newest < horizon - compiled.ttl_ms:
        return Answer("EXPIRED", nothing)
    values = {}
    ill = set()
    for feature in compiled.features:
        value = feature_value(view, feature, rows, q_ms, online=online)
        if isinstance(value, IllConditioned):
            ill.add(feature.name)
            value = None
        values[feature.name] = value
    return Answer("PRESENT", values, frozenset(ill))


class IllConditioned:
    """Stands for a variance that the sums of the stream cannot tell."""


def feature_value(
    view: FeatureView,
    feature: CompiledFeature,
    rows: Sequence[Event],
    q_ms: int,
    *,
    online: bool = False,
) -> Any:
    """One feature at ``q_ms`` from the entity's rows (derived columns included)."""
    aggregate = feature.aggregate
    scope = view.compiled.scope
    where = None if aggregate.where is None else parse(aggregate.where, scope)
    inside = members([r[view.source.event_time] for r in rows], q_ms, feature.window, online=online)
    window = [rows[i] for i in inside if where is None or evaluate_row(where, rows[i]) is True]
    times = [row[view.source.event_time] for row in window]
    if aggregate.column is None:
        values: list[Any] = [1] * len(window)
    else:
        values = [row[aggregate.column] for row in window]
    seen = [(ts, v) for ts, v in zip(times, values, strict=True) if v is not None]
    return aggregate_value(aggregate, scope, seen, read_time(feature.window, q_ms))


def aggregate_value(
    aggregate: Aggregate, scope: Mapping[str, Any], seen: Sequence[tuple[int, Any]], q_ms: int
) -> Any:
    """The aggregate of the (event time, value) pairs of a window, nulls already left out.

    ``q_ms`` is the time to which decay counts.
    """
    values = [value for _, value in seen]
    if isinstance(aggregate, Count):
        return len(values)
    if isinstance(aggregate, Last):
        return _float_zero(max(seen)[1]) if seen else None
    if isinstance(aggregate, DecayedSum | DecayedCount | DecayedMean):
        return _decayed(aggregate, seen, q_ms)
    assert isinstance(aggregate, Numeric), f"no naive twin for {aggregate.kind}"
    scale = aggregate.scale_of(scope)
    exact = [_exact(value, scale) for value in values]
    if isinstance(aggregate, Variance):
        return _variance(aggregate, scale, exact, values)
    if isinstance(aggregate, Sum):
        if aggregate.as_decimal:
            assert scale is not None
            total = sum(exact, Fraction(0))
            return PyDecimal(int(total * 10**scale)).scaleb(-scale)
        total = sum(exact, Fraction(0))
    elif not values:
        return None
    elif isinstance(aggregate, Mean):
        total = sum(exact, Fraction(0)) / len(exact)
        return float(total)
    elif isinstance(aggregate, Min):
        total = min(exact)
    else:
        assert isinstance(aggregate, Max), f"no naive twin for {aggregate.kind}"
        total = max(exact)
    return int(total) if aggregate.output_type(scope).text == "int64" else float(total)


def _exact(value: Any, scale: int | None) -> Fraction:
    """The number that enters the sum, exactly: rounded half-even where there is a scale."""
    if scale is None:
        return Fraction(value)
    if isinstance(value, float):
        return Fraction(round(value * 10.0**scale), 10**scale)
    if isinstance(value, PyDecimal):
        value = value.quantize(PyDecimal(1).scaleb(-scale), ROUND_HALF_EVEN)
    return Fraction(value)


def _decayed(
    aggregate: DecayedSum | DecayedCount | DecayedMean, seen: Sequence[tuple[int, Any]], q_ms: int
) -> float | None:
    half_life = aggregate.half_life_ms
    if isinstance(aggregate, DecayedMean):
        if not seen:
            return None
        newest = max(ts for ts, _ in seen)
        weights = [2.0 ** ((ts - newest) / half_life) for ts, _ in seen]
        total = math.fsum(w * float(v) for w, (_, v) in zip(weights, seen, strict=True))
        return total / math.fsum(weights)
    terms = []
    for ts, value in seen:
        number = 1.0 if isinstance(aggregate, DecayedCount) else float(value)
        terms.append(number * 2.0 ** ((ts - q_ms) / half_life))
    return math.fsum(terms)


def _variance(
    aggregate: Variance, scale: int | None, exact: Sequence[Fraction], values: Sequence[Any]
) -> float | IllConditioned | None:
    n = len(exact)
    if n <= aggregate.ddof:
        return None
    mean = sum(exact, Fraction(0)) / n
    spread = sum(((x - mean) ** 2 for x in exact), Fraction(0))
    if scale is None and n > 1:
        squares = sum(((x - Fraction(aggregate.center)) ** 2 for x in exact), Fraction(0))
        if squares > 0 and spread * Fraction(MAX_CONDITION) < squares:
            return IllConditioned()
    variance = float(spread / (n - aggregate.ddof))
    return math.sqrt(variance) if isinstance(aggregate, StdDev) else variance


def _float_zero(value: Any) -> Any:
    """A negative zero is a zero; other values stay."""
    return value + 0.0 if isinstance(value, float) else value
