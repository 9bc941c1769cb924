"""The events of a preview: those of the lake within a view's retention, or given ones."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from paimon_features.core.errors import UnknownNameError
from paimon_features.core.types.schema import arrow_schema
from paimon_features.core.windows import MIN_TIME_MS
from paimon_features.definitions import FeatureView
from paimon_features.definitions.event_partials import event_columns
from paimon_features.lake import Lake
from paimon_features.offline.inputs.row_source import arrow_table
from paimon_features.offline.reading.pinning import Pinner
from paimon_features.project.monitoring.merged_tiles import events_within
from paimon_features.project.monitoring.time_ranges import TimeRange
from paimon_features.project.preview.preview import as_of_time


def load_events(
    lake: Lake | None, view: FeatureView, as_of: int | str | dt.datetime | None, events: Any
) -> pa.Table:
    """Return the columns that a preview needs, of ``events``, or of those in ``lake``.

    Of the lake those that a read at ``as_of`` can use (None: at the newest event), and one tile
    more on either side.

    Raises
    ------
    UnknownNameError
        If the source has no table yet.
    """
    if isinstance(events, str | Path):
        events = pq.ParquetDataset(events, partitioning=None).read()
    if lake is None:
        table = arrow_table(events)
        return table.select([n for n in event_columns(view.compiled) if n in table.column_names])
    source, compiled = view.source, view.compiled
    if not lake.exists(source.table):
        raise UnknownNameError(
            f"source {source.name!r} has no table {source.table!r} yet; 'paimon-features apply' "
            f"creates it, or pass events= to preview {view.name!r} with"
        )
    pin = Pinner(lake, None).pin(source.table)
    if as_of is None:
        _, times = events_within(lake, pin, TimeRange(), [source.event_time])
        newest = [pc.max(column.column(source.event_time)).as_py() for column in times]
        as_of_ms = max((time for time in newest if time is not None), default=0) + 1
    else:
        as_of_ms = as_of_time(as_of)
    low = MIN_TIME_MS
    if not compiled.has_lifetime:
        low = max(low, int(compiled.known_from(as_of_ms)) - compiled.tile_ms)
    within = TimeRange(low, as_of_ms + compiled.tile_ms)
    _, chunks = events_within(lake, pin, within, event_columns(view.compiled))
    kept = []
    for chunk in chunks:
        times = chunk.column(source.event_time)
        inside = pc.and_(pc.greater_equal(times, within.low_ms), pc.less(times, within.high_ms))
        kept.append(chunk.filter(inside))
    pin.check(lake)
    return pa.concat_tables(kept) if kept else _none(view)


def _none(view: FeatureView) -> pa.Table:
    names = event_columns(view.compiled)
    return arrow_schema({name: view.source.schema[name] for name in names}).empty_table()
