"""``evaluate``: the value of an aggregate for a few plain events, computed as the product does.

::

    events -> skip rules and ``where`` -> partials of each event -> tiles -> merged -> finished
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paimon_features.core._arrow import pa
from paimon_features.core.columns.column import Column
from paimon_features.core.errors import DefinitionError
from paimon_features.core.types.array_types import Ints
from paimon_features.core.types.schema import (
    Bool,
    Bytes,
    DataType,
    Date,
    Decimal,
    Float64,
    Int64,
    List,
    String,
    Timestamp,
)
from paimon_features.core.windows import floor_ms
from paimon_features.definitions.aggregates import Aggregate
from paimon_features.definitions.aggregates.fold import canonical, fold
from paimon_features.definitions.compiled import CompiledFeature, CompiledView
from paimon_features.definitions.entity import EVERYTHING, Entity
from paimon_features.definitions.event_partials import partials_of
from paimon_features.definitions.feature_view import FeatureView
from paimon_features.definitions.finishing import finish_window
from paimon_features.definitions.skipped import entering_rows
from paimon_features.definitions.source import EventSource

AT_MS = "at_ms"
"""The column with the time of an event (UTC ms)."""

_TYPES: Mapping[type, DataType] = {
    bool: Bool, int: Int64, float: Float64, str: String, bytes: Bytes, dt.date: Date,
    dt.datetime: Timestamp,
}  # fmt: skip


def evaluate(
    aggregate: Aggregate | FeatureView,
    events: Sequence[Mapping[str, Any]],
    *,
    as_of_ms: int | None = None,
    schema: Mapping[str, DataType] | None = None,
    tile: str = "5min",
) -> Any:
    """Return the value of an aggregate for the events of one entity, read at ``as_of_ms``.

    For trying out and documenting an aggregate: no lake and no store is involved, and the steps
    are those of every engine: partials of each event, merged to tiles of length ``tile``, tiles
    merged over the window, finished.

    Parameters
    ----------
    aggregate
        An aggregate, or a feature view; of a view all features are returned.
    events
        One mapping per event, in any order. ``at_ms`` is the time of the event (UTC ms); without
        it an event happens one millisecond after the one before, the first at 0. Columns that an
        event does not have are null. The events of a view have its ``event_time`` instead.
    as_of_ms
        The time of the read; events at or after it do not count. By default one millisecond
        after the newest event.
    schema
        Types of columns; by default they are inferred from the values.

    Returns
    -------
    The value of the feature, null as None. A dictionary of values by feature name where the
    aggregate represents several features (several windows, half-lives or quantiles), and for a
    view. The entity counts as known, so an empty window has the value that the aggregate defines
    for it.

    Warns
    -----
    SkippedEventsWarning
        If events are in no feature, such as one with a value beyond the ``bound`` of an aggregate.

    Raises
    ------
    DefinitionError
        For an aggregate that does not fit the columns, or a column whose type cannot be inferred.

    >>> import paimon_features as pf
    >>> events = [{"amount": 2.0}, {"amount": None}, {"amount": 5.0}]
    >>> pf.evaluate(pf.Mean("amount"), events)
    3.5
    >>> late = [{"amount": 2.0, "at_ms": 0}, {"amount": 5.0, "at_ms": 3_600_000}]
    >>> pf.evaluate(pf.Sum("amount", windows=["30min", "1d"]), late, as_of_ms=3_700_000)
    {'sum_amount_30min': 5.0, 'sum_amount_1d': 7.0}
    """
    if isinstance(aggregate, FeatureView):
        view, time = aggregate, aggregate.source.event_time
        rows = [dict(event) for event in events]
    else:
        time = AT_MS
        rows = _timed(events)
        source = EventSource("events", schema=_schema(rows, schema or {}), event_time=time)
        everything = Entity(EVERYTHING, keys={})
        view = FeatureView(
            "evaluated",
            source=source,
            entity=everything,
            features=[aggregate],
            tile=tile,
            buckets=1,
        )
    if as_of_ms is None:
        as_of_ms = max((row[time] for row in rows), default=-1) + 1
    compiled = view.compiled
    partials, times = _partial_rows(compiled, rows)
    values = {f.name: _value(compiled, f, partials, times, as_of_ms) for f in compiled.features}
    if isinstance(aggregate, FeatureView) or len(values) > 1:
        return values
    return next(iter(values.values()))


def _timed(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    at_ms = 0
    for event in events:
        at_ms = event.get(AT_MS, at_ms)
        rows.append({**event, AT_MS: at_ms})
        at_ms += 1
    return rows


def _schema(
    rows: Sequence[Mapping[str, Any]], declared: Mapping[str, DataType]
) -> dict[str, DataType]:
    names = dict.fromkeys([*(name for row in rows for name in row), *declared])
    schema = {
        name: declared[name]
        if name in declared
        else _inferred(name, [row[name] for row in rows if row.get(name) is not None])
        for name in names
    }
    return {**schema, AT_MS: Int64}


def _inferred(name: str, values: Sequence[Any]) -> DataType:
    """Return the type of a column's values that are not null."""
    kinds = {type(value) for value in values}
    if kinds == {int, float}:
        return Float64
    if kinds == {list}:
        lengths = {len(value) for value in values}
        item = _inferred(name, [item for value in values for item in value if item is not None])
        return List(item, lengths.pop()) if len(lengths) == 1 else List(item)
    if kinds == {decimal.Decimal}:
        scale = max(max(0, -int(value.as_tuple().exponent)) for value in values)
        return Decimal(38, scale)
    data_type = _TYPES.get(next(iter(kinds), type(None)))
    if len(kinds) != 1 or data_type is None:
        raise DefinitionError(
            f"the type of column {name!r} cannot be inferred from {list(values)[:3]!r}; "
            "pass it in schema="
        )
    return data_type


def _partial_rows(
    view: CompiledView, rows: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Column], Ints]:
    """Return the partials of the events that enter the tiles, and the times of these events
    (ms)."""
    columns = {
        name: Column.from_arrow(pa.array([row.get(name) for row in rows], kind.arrow))
        for name, kind in view.source.schema.items()
    }
    chosen = entering_rows(view, columns, len(rows), stacklevel=3)
    columns = {name: column.take(chosen) for name, column in columns.items()}
    times = columns[view.source.event_time].values
    return partials_of(view, view.partials, columns, times), times


def _value(
    view: CompiledView,
    feature: CompiledFeature,
    partials: Mapping[str, Column],
    times: Ints,
    as_of_ms: int,
) -> Any:
    """Return the value of one feature: events of the window to tiles, tiles to one row,
    finished."""
    start, end = feature.window.bounds(as_of_ms)
    inside = np.flatnonzero((times >= start) & (times < end))
    inside = inside[np.argsort(times[inside], kind="stable")]
    events = {name: column.take(inside) for name, column in partials.items()}
    starts = floor_ms(times[inside], view.tile_ms)
    borders = np.flatnonzero(np.diff(starts, prepend=starts[:1] - 1))
    edges = np.array([*borders, len(inside)], np.int64)
    tiles = fold(view.partials, events, edges, view.tile_ms)
    whole = np.array([0, len(edges) - 1], np.int64)
    merged = canonical(view.partials, fold(view.partials, tiles, whole, view.tile_ms))
    (finished,) = finish_window(view, [feature], merged, as_of_ms)
    return finished.column.to_pylist(feature.type)[0]
