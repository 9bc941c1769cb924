"""Which events a view would skip: by the names of its columns, and by the events that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.expressions import evaluate, parse
from paimon_features.core.types.schema import Int64
from paimon_features.definitions import CompiledView
from paimon_features.definitions.aggregates import Aggregate
from paimon_features.definitions.skipped import (
    SkippedEvents,
    describe_skipped,
    merged,
    skipped_events,
    verdicts,
)
from paimon_features.lake import Lake, iter_batches

SAMPLE = 100_000
"""How many events are checked."""
SOME_TIME_MS = 1_700_000_000_000
"""A time in 2023; no integer of this size may be summed with the default bound."""
_TIME_LIKE = re.compile(
    r"(^|_)(at|ts|time|timestamp|datetime|date|epoch|created|updated)(_(s|ms|us|ns|millis|micros|nanos))?$"
)


def skipped_by_plan(lake: Lake, view: CompiledView, sample: int = SAMPLE) -> Iterator[str]:
    """Yield what ``plan`` reports about events that would be in none of the view's features."""
    yield from times_beyond_bounds(view)
    yield from skipped_by_events(lake, view, sample)


def times_beyond_bounds(view: CompiledView) -> Iterator[str]:
    """Yield a line for each aggregate of an Int64 that looks like a time and has to be smaller."""
    for aggregate in dict.fromkeys(feature.aggregate for feature in view.features):
        column = aggregate.column
        if column is None or view.scope.get(column) is not Int64:
            continue
        is_event_time = column == view.source.event_time
        if (is_event_time or _TIME_LIKE.search(column)) and not _takes_times(aggregate, view):
            yield (
                f"{aggregate.stem}: events with {_limits(aggregate, view)} are in none of the "
                f"view's features, and {column!r} is, by its name, a time; times in milliseconds "
                "are larger: derive= a duration from it, use Min, Max or TimeSinceLast, or give "
                "a larger bound="
            )


def skipped_by_events(lake: Lake, view: CompiledView, sample: int = SAMPLE) -> Iterator[str]:
    """Yield a line for each rule that some of the first events of the source break."""
    if not lake.exists(view.source.table):
        return
    conditions = [rule.condition for rule in view.skip_rules]
    where = [] if view.where is None else [view.where]
    used = {view.source.event_time, *view.keys}.union(*(e.columns for e in conditions + where))
    names = [name for name in view.source.schema if name in used]
    rows, skipped = 0, list[SkippedEvents]()
    for batch in iter_batches(lake, view.source.table, names):
        columns = {name: Column.from_arrow(batch.column(name)) for name in names}
        members, broken = verdicts(view, columns, batch.num_rows)
        skipped = merged([*skipped, *skipped_events(view, columns, members, broken)])
        rows += batch.num_rows
        if rows >= sample:
            break
    for one in skipped:
        yield f"of {rows:,} events, none of its features has {describe_skipped(view, one)}"


def _takes_times(aggregate: Aggregate, view: CompiledView) -> bool:
    """Return True if the aggregate takes an integer as large as a time in milliseconds."""
    scope = view.scope
    guards = {guard for partial in aggregate.partials(scope) for guard in partial.guards}
    one = np.ones(1, np.int64)
    columns = {
        name: Column(one * SOME_TIME_MS) if name == aggregate.column else Column.nulls(1, kind)
        for name, kind in scope.items()
    }
    return all(evaluate(parse(g.expression, scope), columns, 1).values[0] for g in guards)


def _limits(aggregate: Aggregate, view: CompiledView) -> str:
    details = [g.detail for partial in aggregate.partials(view.scope) for g in partial.guards]
    return " or ".join(dict.fromkeys(details))
