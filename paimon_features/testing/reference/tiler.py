"""Reference implementation of a tile job: events to tile rows, one event and value at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from paimon_features.core.types.schema import Int32, Int64, arrow_schema
from paimon_features.core.windows import DAY_MS, floor_ms
from paimon_features.definitions import FeatureView
from paimon_features.definitions.aggregates import EVENT_TIME, TILE_END
from paimon_features.testing.reference.expressions import evaluate_row
from paimon_features.testing.reference.features import Event, entered
from paimon_features.testing.reference.merges import lake_merged


def partial_row(view: FeatureView, event: Event) -> dict[str, Any]:
    """Return the partials of one event, by name."""
    compiled = view.compiled
    time = event[view.source.event_time]
    row = {**event, EVENT_TIME: time}
    row[TILE_END] = floor_ms(time, compiled.tile_ms) + compiled.tile_ms
    return {p.name: evaluate_row(compiled.expressions[p.name], row) for p in compiled.partials}


def tile_table(view: FeatureView, events: Iterable[Event], partition_days: int = 1) -> pa.Table:
    """Return the rows of the tile table of these events, in no particular order.

    ``partition_days`` are those of the table.
    """
    compiled = view.compiled
    cells: dict[tuple[Any, ...], dict[str, Any]] = {}
    for event in entered(view, events):
        start = floor_ms(event[view.source.event_time], compiled.tile_ms)
        cell = (*(event[key] for key in compiled.keys), start)
        partials = partial_row(view, event)
        cell_partials = cells.setdefault(cell, dict.fromkeys(partials))
        for partial in compiled.partials:
            name = partial.name
            cell_partials[name] = lake_merged(partial, cell_partials[name], partials[name])
    rows = [
        {
            **dict(zip((*compiled.keys, "tile_start"), cell, strict=True)),
            "tile_day": cell[-1] // DAY_MS // partition_days * partition_days,
            **partials,
        }
        for cell, partials in cells.items()
    ]
    return pa.Table.from_pylist(rows, schema=tile_schema(view))


def tile_schema(view: FeatureView) -> pa.Schema:
    """Return the columns of a view's tile table, in its order."""
    compiled = view.compiled
    columns = {"tile_day": Int32, **compiled.keys, "tile_start": Int64}
    return arrow_schema({**columns, **{p.name: p.type for p in compiled.partials}})


def event_rows(events: pa.Table) -> list[Event]:
    """Return events as the oracle expects them: dates are days and timestamps ms since 1970."""
    columns = []
    for name in events.schema.names:
        column = events.column(name)
        if pa.types.is_list(column.type):
            for item in _steps_to_number(column.type.value_type):
                column = column.cast(pa.list_(item))
        else:
            for kind in _steps_to_number(column.type):
                column = column.cast(kind)
        columns.append(column.to_pylist())
    return [dict(zip(events.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def _steps_to_number(kind: pa.DataType) -> Sequence[pa.DataType]:
    """Return the types to which a date or timestamp is cast in turn; none for other types."""
    if pa.types.is_date32(kind):
        return (pa.int32(),)
    return (pa.timestamp("ms"), pa.int64()) if pa.types.is_timestamp(kind) else ()
