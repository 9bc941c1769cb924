"""What can be monitored: columns of a view's events, its features, columns of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import pyarrow as pa

from paimon_features.core.errors import RequestError, UnknownNameError
from paimon_features.core.process.callbacks import OnProgress, ignore_progress
from paimon_features.definitions import CompiledView
from paimon_features.lake import Lake, iter_batches
from paimon_features.offline.reading.pinning import Pin
from paimon_features.offline.store import OfflineStore
from paimon_features.project.monitoring.feature_values import (
    EVENT_TIME_MS,
    entity_rows,
    feature_rows,
    in_range,
    requested_rows,
)
from paimon_features.project.monitoring.monitoring_report import ColumnReport, MonitoringReport
from paimon_features.project.monitoring.time_ranges import TimeRange
from paimon_features.project.monitoring.value_statistics import ColumnValues, collect
from paimon_features.project.monitoring.view_reader import ViewReader
from paimon_features.transformers.column_statistics import ColumnStatistics

Ranges = tuple[TimeRange, TimeRange | None]
"""The current range and the reference."""


def of_columns(
    reader: ViewReader,
    columns: Sequence[str],
    ranges: Ranges,
    origin: Literal["tiles", "events"] | None = None,
    progress: OnProgress = ignore_progress,
) -> MonitoringReport:
    """Report on columns of a view's events: from tiles, if these have bins or categories for all.

    From events, all values of both ranges are kept in memory, 8 bytes each.
    """
    whole = all(
        tile_column.available & {"bins", "categories"}
        for tile_column in reader.tile_columns(columns)
    )
    chosen = origin or ("tiles" if whole else "events")
    name = reader.view.name
    if chosen == "tiles":
        here = reader.statistics(columns, ranges[0], progress)
        before: Sequence[ColumnStatistics | None] = [None] * len(here)
        if ranges[1] is not None:
            before = reader.statistics(columns, ranges[1], progress)
        pairs = zip(here, before, strict=True)
        return MonitoringReport(name, chosen, *ranges, [ColumnReport.of(*pair) for pair in pairs])
    return _of_tables(name, chosen, columns, ranges, lambda of: reader.rows(columns, of, progress))


def of_features(
    lake: Lake,
    store: OfflineStore,
    view: CompiledView,
    tiles: Pin,
    features: Sequence[str],
    ranges: Ranges,
    rows: Any = None,
    progress: OnProgress = ignore_progress,
) -> MonitoringReport:
    """Report on features of a view, for the entity rows whose times are in a range.

    Without ``rows``: for all entities known at the end of the range, at that time.

    Raises
    ------
    RequestError
        For a range without end, a view without keys, or rows without a required column.
    """

    def tables(of: TimeRange) -> Iterator[pa.Table]:
        if rows is not None:
            requested: Any = requested_rows(lake, view, rows, of)
        elif of.until_ms is None:
            raise RequestError("features are read at the end of a range; pass an end")
        else:
            requested = entity_rows(lake, view, tiles, of.until_ms)
        _, chunks = feature_rows(store, view, features, requested, progress)
        return chunks

    return _of_tables(view.name, "features", features, ranges, tables)


def of_table(
    lake: Lake,
    table: str,
    columns: Sequence[str],
    ranges: Ranges,
    progress: OnProgress = ignore_progress,
) -> MonitoringReport:
    """Report on columns of a table of the lake whose rows have a time, ``event_time_ms``.

    Raises
    ------
    UnknownNameError
        For a column that the table does not have.
    """
    schema = lake.schema(table)
    for column in (*columns, EVENT_TIME_MS):
        if column not in schema.names:
            raise UnknownNameError.of("column", column, schema.names, f"table {table!r}")
    names = list(dict.fromkeys([*columns, EVENT_TIME_MS]))

    def tables(of: TimeRange) -> Iterator[pa.Table]:
        done = 0
        for batch in iter_batches(lake, table, names):
            done += batch.num_rows
            progress(done, 0)
            yield in_range(pa.Table.from_batches([batch]), of)

    return _of_tables(table, "rows", columns, ranges, tables)


def _of_tables(
    name: str,
    origin: str,
    columns: Sequence[str],
    ranges: Ranges,
    tables: Callable[[TimeRange], Iterator[pa.Table]],
) -> MonitoringReport:
    here = collect(columns, tables(ranges[0]))
    before: Sequence[ColumnValues | None] = [None] * len(columns)
    if ranges[1] is not None:
        before = collect(columns, tables(ranges[1]))
    pairs = zip(here, before, strict=True)
    return MonitoringReport(
        name, origin, *ranges, [ColumnReport.of_values(*pair) for pair in pairs]
    )
