"""The oracle: features directly from raw events, by loops that are easy to verify by reading.

Nothing here uses tiles, levels, partials or engines. Every optimized path of the project is
compared with these functions, on generated and on real events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paimon_features.core.expressions import Expression, parse
from paimon_features.core.expressions.nodes import Call
from paimon_features.definitions import CompiledFeature, FeatureView
from paimon_features.testing.reference.aggregates import (
    IllConditioned,
    WindowEvents,
    reference_value,
)
from paimon_features.testing.reference.expressions import UnsafeStepError, evaluate_row
from paimon_features.testing.reference.retractions import lessened, standing
from paimon_features.testing.reference.windows import bounds, members, read_time

Event = Mapping[str, Any]
"""One raw event: a value (or None) for each column of the source."""


class Entered(tuple[dict[str, Any], ...]):
    """The events that enter a view's tiles, with its derived columns, in their order.

    It can be passed instead of raw events to all functions of this module.
    """


def consumed(commits: Sequence[Sequence[Event]], position: int) -> list[Event]:
    """Return the events that a read of tiles may use: those of the commits its job has read.

    Later commits are in no tile, so they are in no window at all, neither in its tiles nor where it
    is cut within one.

    >>> consumed([[{"x": 1}], [{"x": 2}], [{"x": 3}]], 2)
    [{'x': 1}, {'x': 2}]
    """
    return [event for commit in commits[:position] for event in commit]


def entered(view: FeatureView, events: Iterable[Event]) -> Entered:
    """Return the events that fulfil the view's condition and no skip rule rejects."""
    if isinstance(events, Entered):
        return events
    steps = _derivations(view)
    where = None if view.where is None else parse(view.where, view.compiled.scope)
    return Entered(
        row for event in events if (row := _enters(view, steps, where, event)) is not None
    )


def _derivations(view: FeatureView) -> list[tuple[str, Expression]]:
    """Return the view's derived columns; each may use earlier ones."""
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
    """Return the event with its derived columns, or None where it does not enter."""
    row = dict(event)
    try:
        for name, expression in steps:
            row[name] = evaluate_row(expression, row)
        if where is not None and evaluate_row(where, row) is not True:
            return None
    except UnsafeStepError:
        # a step overflows, or hides an infinity: a rule skips such an event
        return None
    return row if all(holds(rule.condition, event) for rule in view.compiled.skip_rules) else None


def holds(condition: Expression, event: Event) -> bool:
    """Return whether a condition is true; for ``a OR b`` one true side is enough."""
    try:
        return evaluate_row(condition, event) is True
    except UnsafeStepError:
        sides = condition.args if isinstance(condition, Call) and condition.op == "or" else ()
        return any(holds(side, event) for side in sides)


@dataclass(frozen=True)
class Answer:
    """The expected result of a read for one entity: its status, and a value for each feature.

    ``counting`` are the features that count the event of the request, which are present.
    """

    status: str
    values: dict[str, Any]
    ill_conditioned: frozenset[str] = frozenset()
    counting: frozenset[str] = frozenset()


READ_TIME = "__read_time"
"""The column with the time of a row, which for the event of a request is that of the read."""


def answer(
    view: FeatureView,
    events: Sequence[Event],
    as_of_ms: int,
    *,
    online: bool = False,
    own_event: Event | None = None,
) -> Answer:
    """Return the features of one entity at ``as_of_ms``, from all raw events of that entity.

    ``own_event`` is the event of the request: where it enters the view, it is one more row of each
    window, at the time of the read, and the entity is known.

    ``online`` includes the whole open tile, as an online read of sawtooth windows does: the tile
    that contains ``as_of_ms`` also counts events with a later event time that have arrived.
    """
    compiled = view.compiled
    time = view.source.event_time
    edges = [bounds(f.window, as_of_ms) for f in compiled.features]
    known_from, horizon = min(start for start, _ in edges), max(end for _, end in edges)
    seen_until = max(bounds(f.window, as_of_ms, online=online)[1] for f in compiled.features)
    rows = [row for row in entered(view, events) if row[time] < seen_until]
    nothing: dict[str, Any] = {f.name: None for f in compiled.features}
    if compiled.ttl_ms is not None:
        known_from = min(known_from, horizon - compiled.ttl_ms)
    newest = max((row[time] for row in rows), default=None)
    status = "PRESENT"
    if newest is None or newest < known_from:
        status = "MISSING"
    elif compiled.ttl_ms is not None and newest < horizon - compiled.ttl_ms:
        status = "EXPIRED"
    own_row = next(iter(entered(view, [] if own_event is None else [own_event])), None)
    counting = frozenset(
        f.name for f in compiled.features if own_row and f.aggregate.counts_own_event
    )
    values = nothing
    ill = set()
    for feature in compiled.features:
        if status != "PRESENT" and feature.name not in counting:
            continue
        value = feature_value(view, feature, rows, as_of_ms, online=online, own_event=own_row)
        if isinstance(value, IllConditioned):
            ill.add(feature.name)
            value = None
        values[feature.name] = value
    return Answer(status, values, frozenset(ill), counting)


def feature_value(
    view: FeatureView,
    feature: CompiledFeature,
    rows: Sequence[Event],
    as_of_ms: int,
    *,
    online: bool = False,
    own_event: Event | None = None,
) -> Any:
    """Return one feature at ``as_of_ms`` from the entity's rows (derived columns included)."""
    window = window_of(view, feature, rows, as_of_ms, online=online, own_event=own_event)
    kept, unmet = standing(view, window.rows)
    if unmet:
        return lessened(feature.aggregate, replace(window, rows=kept), replace(window, rows=unmet))
    return reference_value(feature.aggregate, replace(window, rows=kept))


def window_of(
    view: FeatureView,
    feature: CompiledFeature,
    rows: Sequence[Event],
    as_of_ms: int,
    *,
    online: bool = False,
    own_event: Event | None = None,
) -> WindowEvents:
    """Return the rows of the entity that the aggregate of a feature uses at ``as_of_ms``.

    ``own_event`` is the event of the request, if it enters the view.
    """
    time, scope, aggregate = view.source.event_time, view.compiled.scope, feature.aggregate
    chosen = members([row[time] for row in rows], as_of_ms, feature.window, online=online)
    inside = [rows[i] for i in chosen]
    newest_ms = max((row[time] for row in inside), default=0)
    read_ms = read_time(feature.window, as_of_ms)
    if own_event is not None and aggregate.counts_own_event:
        # all at their time, and the event of the request at that of the read
        inside = [{**row, READ_TIME: row[time]} for row in inside] + [
            {**own_event, READ_TIME: read_ms}
        ]
        time, newest_ms = READ_TIME, read_ms
    if aggregate.where is not None:
        where = parse(aggregate.where, scope)
        inside = [row for row in inside if evaluate_row(where, row) is True]
    return WindowEvents(inside, time, scope, read_ms, feature.window_ms, newest_ms)
