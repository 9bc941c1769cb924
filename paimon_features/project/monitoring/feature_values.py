"""Features of a view at a point in time, of all entities known by then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.columns.column import one_array
from paimon_features.core.errors import RequestError
from paimon_features.core.process.callbacks import OnProgress, ignore_progress
from paimon_features.core.times.utc_ms import utc_ms
from paimon_features.definitions import CompiledView, FeatureRef
from paimon_features.definitions.aggregates import EVENT_TIME_MAX
from paimon_features.lake import Lake
from paimon_features.lake.reading.deltas import live_files
from paimon_features.lake.specs import TILE_START
from paimon_features.offline.inputs.row_source import row_source
from paimon_features.offline.reading.pinning import Pin
from paimon_features.offline.reading.view_scan import pieces
from paimon_features.offline.store import OfflineStore
from paimon_features.project.monitoring.time_ranges import TimeRange

EVENT_TIME_MS = "event_time_ms"
_CHUNK_ROWS = 1_000_000


def newest_event_ms(lake: Lake, tiles: Pin) -> int:
    """Return the time of the newest event in the tiles.

    Raises
    ------
    RequestError
        If there is no event.
    """
    newest = [
        pc.max(rows.column(EVENT_TIME_MAX.name)).as_py()
        for rows in _rows(lake, tiles, [EVENT_TIME_MAX.name])
    ]
    times = [time for time in newest if time is not None]
    if not times:
        raise RequestError(
            f"table {tiles.table!r} has no tiles yet; "
            "'paimon-features backfill' computes those of existing events"
        )
    return int(max(times))


def entity_rows(lake: Lake, view: CompiledView, tiles: Pin, as_of_ms: int) -> pa.Table:
    """Return a row ``(keys, event_time_ms=as_of_ms)`` per entity with a tile that starts before
    ``as_of_ms``.

    Takes about the memory of the distinct keys.

    Raises
    ------
    RequestError
        If there is no such entity, or the view has no keys.
    """
    keys = list(view.keys)
    if not keys:
        raise RequestError(
            f"feature view {view.name!r} has no keys, and therefore no features of entities; use "
            "its columns"
        )
    entities: pa.Table | None = None
    for rows in _rows(lake, tiles, [*keys, TILE_START]):
        batch_keys = rows.filter(pc.less(rows.column(TILE_START), as_of_ms)).select(keys)
        both = (
            batch_keys
            if entities is None
            else pa.concat_tables([entities, batch_keys.cast(entities.schema)])
        )
        entities = both.group_by(keys).aggregate([])
    if entities is None or not entities.num_rows:
        raise RequestError(f"no entity of view {view.name!r} is known before {as_of_ms}")
    # in one order, so that a fit in parts returns the same bits each time
    entities = entities.sort_by([(key, "ascending") for key in keys])
    return entities.append_column(
        EVENT_TIME_MS, pa.array([as_of_ms] * entities.num_rows, pa.int64())
    )


def requested_rows(
    lake: Lake, view: CompiledView, rows: Any, within: TimeRange | None = None
) -> pa.RecordBatchReader:
    """Return the keys and times of the entity rows in a range, without other columns.

    Raises
    ------
    RequestError
        If they lack a key, or ``event_time_ms``.
    """
    source = row_source(rows, lake)
    names = [*view.keys, EVENT_TIME_MS]
    lacking = [name for name in names if name not in source.schema.names]
    if lacking:
        raise RequestError(
            f"the rows have no column {lacking[0]!r}; they have: {', '.join(source.schema.names)}"
        )
    schema = pa.schema([source.schema.field(name) for name in names])

    def batches() -> Iterator[pa.RecordBatch]:
        chunks = source.chunks()
        while len(piece := chunks.take(_CHUNK_ROWS)):
            inside = piece if within is None else in_range(piece, within)
            yield from inside.select(names).cast(schema).to_batches()

    return pa.RecordBatchReader.from_batches(schema, batches())


def in_range(rows: pa.Table, within: TimeRange) -> pa.Table:
    """Return the rows whose ``event_time_ms`` lies in a range."""
    time = utc_ms(one_array(rows.column(EVENT_TIME_MS)))
    inside = pc.and_(pc.greater_equal(time, within.low_ms), pc.less(time, within.high_ms))
    return rows.filter(pc.fill_null(inside, False))


def feature_rows(
    store: OfflineStore,
    view: CompiledView,
    features: Sequence[str],
    rows: Any,
    progress: OnProgress = ignore_progress,
) -> tuple[tuple[Pin, ...], Iterator[pa.Table]]:
    """Yield the snapshots that are read, and the features of the rows, some at a time.

    Rows whose entity is not known at their time (MISSING) are left out.
    """
    read = store.pin([FeatureRef(view.name, name) for name in features])

    def tables() -> Iterator[pa.Table]:
        status = f"{features[0]}__status"
        for batch in read.stream(rows, statuses=True, progress=progress):
            present = pc.not_equal(batch.column(status).cast(pa.string()), "MISSING")
            table = pa.Table.from_batches([batch]).filter(present)
            if table.num_rows:
                yield table.select(list(features))

    return read.pins, tables()


def _rows(lake: Lake, tiles: Pin, columns: Sequence[str]) -> Iterator[pa.Table]:
    if tiles.snapshot_id is not None:
        yield from pieces(live_files(lake, tiles.table, tiles.snapshot_id), columns, _CHUNK_ROWS)
