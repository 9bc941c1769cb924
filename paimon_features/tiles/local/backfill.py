"""All tiles of an events table at one snapshot, computed by DuckDB and written to the lake.

The table is read in groups of whole partitions, so that what DuckDB holds is bounded by a group;
what exceeds its memory limit is spilled. Everything becomes one commit per table, or nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.times.partition_days import first_day
from paimon_features.definitions import CompiledView
from paimon_features.definitions.aggregates.base import ROWS
from paimon_features.definitions.event_partials import event_columns
from paimon_features.lake import Lake, append_arrow, iter_batches, table_options
from paimon_features.lake.duckdb_engine import DuckDBEngine, identifier, literal
from paimon_features.lake.metadata.snapshots import BATCH_IDENTIFIER, ref_of
from paimon_features.lake.reading.deltas import DataFile, live_files, verify_files
from paimon_features.lake.specs import EVENT_DAY, TILE_DAY
from paimon_features.lake.writing.sorted_files import SortedFiles
from paimon_features.tiles.local.sorted_tiling import merged_tiles, sorted_sql
from paimon_features.tiles.local.tiling import (
    TILE,
    entering_sql,
    skipped_sql,
    tile_rows,
    tile_sql,
)

GROUP_EVENTS = 5_000_000
"""Partitions are processed together up to this number of events; a larger one alone."""
DENSE_EVENTS = 6.0
"""Events of a tile from which grouping by a hash table is faster than sorting."""
SAMPLED_EVENTS = 500_000
"""Most events by which the number of those that share a tile is estimated; fewer are sorted."""
_SAMPLED_SHARE = 20
_LEAST_SAMPLED = 50_000
_BATCH_ROWS = 250_000
_BATCH_VALUES = 500_000
"""Of a batch with many partials: several copies of it are in memory at once."""


@dataclass(frozen=True, slots=True)
class TilesComputed:
    """How far a computation is: events read (whole groups) and tiles written."""

    events: int
    tiles: int


OnTilesComputed = Callable[[TilesComputed], None]


def write_tiles(
    engine: DuckDBEngine,
    lake: Lake,
    view: CompiledView,
    generation: int,
    snapshot_id: int,
    commit_user: str,
    progress: OnTilesComputed = lambda _: None,
) -> int | None:
    """Fill the two empty tables of a generation from the events at a snapshot.

    Commits the skipped rows, then the tiles, each as one batch commit of ``commit_user``.
    Returns the snapshot of the tile table, None where no event entered a tile. The caller owns
    both tables.

    Raises
    ------
    JobError
        If DuckDB cannot compute it.
    SnapshotExpiredError
        If the snapshot, or a file of it, has expired.
    DamagedFileError
        If a data file is not what was written.
    """
    description = f"backfill of view {view.name!r}"
    skipped: list[pa.Table] = []
    events = 0
    per_tile: float | None = None
    table = view.table(generation)
    partition_days = table_options.partition_days(lake, table)
    with SortedFiles(lake, table, dict(view.keys), TILE_DAY) as files:
        for source, count, several in _groups(engine, lake, view, snapshot_id, partition_days):
            entered = 0
            if per_tile is None:
                per_tile = _events_per_tile(engine, view, source, count, description)
            before = files.rows
            batches = _tiles(engine, view, source, partition_days, several, per_tile, description)
            for batch in batches:
                files.write(batch)
                entered += pc.sum(batch.column(ROWS.name)).as_py() or 0
                progress(TilesComputed(events + entered, files.rows))
            if files.rows > before:
                per_tile = entered / (files.rows - before)
            if entered < count:  # some are no members, or break a rule
                skipped.append(engine.table(skipped_sql(view, source), description))
            events += count
            progress(TilesComputed(events, files.rows))
        if skipped:
            append_arrow(
                lake,
                view.skipped_table(generation),
                # a sum that the lake would make at each read
                _merged(pa.concat_tables(skipped)),
                commit_user=commit_user,
                commit_identifier=BATCH_IDENTIFIER,
            )
        return files.commit(commit_user)


def _events_per_tile(
    engine: DuckDBEngine, view: CompiledView, source: str, count: int, what: str
) -> float:
    """Estimate how many of these events share a tile, by the first ones.

    Too few where they come in no order of time, which costs a sort of more rows, no more.
    """
    if count <= SAMPLED_EVENTS:
        return 1.0
    keys = "".join(f"{identifier(key)}, " for key in view.keys)
    sampled = min(max(count // _SAMPLED_SHARE, _LEAST_SAMPLED), SAMPLED_EVENTS)
    sample = f"(SELECT * FROM {source} LIMIT {sampled})"
    statement = (
        f"SELECT count(*) / greatest(1, approx_count_distinct(hash({keys}{identifier(TILE)})))"
        f" AS found FROM {entering_sql(view, sample)}"
    )
    per_tile: float = engine.table(statement, what).column("found")[0].as_py()
    return per_tile


def _tiles(
    engine: DuckDBEngine,
    view: CompiledView,
    source: str,
    partition_days: int,
    several: bool,
    events_per_tile: float,
    what: str,
) -> Iterator[pa.RecordBatch]:
    """Yield rows of the tile table, by the faster of the two ways."""
    order = partition_days if several else None
    batch_rows = min(_BATCH_ROWS, _BATCH_VALUES // (len(view.keys) + len(view.partials) + 1))
    if events_per_tile < DENSE_EVENTS:
        statement = sorted_sql(view, source, partition_days=order)
        sorted_events = engine.stream(statement, batch_rows, what)
        yield from merged_tiles(view, sorted_events, partition_days, several=several)
        return
    statement = tile_sql(view, source, partition_days=order)
    for batch in engine.stream(statement, batch_rows, what):
        yield tile_rows(view, batch, partition_days)


def _merged(skipped: pa.Table) -> pa.Table:
    keys = skipped.column_names[:-1]
    merged = skipped.group_by(keys).aggregate([(skipped.column_names[-1], "sum")])
    return merged.rename_columns([*keys, skipped.column_names[-1]])


def _groups(
    engine: DuckDBEngine, lake: Lake, view: CompiledView, snapshot_id: int, partition_days: int
) -> Iterator[tuple[str, int, bool]]:
    """Yield what to read one after another: (something for FROM, events, of several partitions).

    ``partition_days`` are those of the tiles: no two groups have events of one partition of them.
    """
    table = view.source.table
    files = live_files(lake, table, snapshot_id)
    if not lake.storage.is_remote and all(file.path.endswith(".parquet") for file in files):
        for group in _by_partition(files, partition_days):
            verify_files(group, event_columns(view))
            several = len({_partition(f, partition_days) for f in group}) > 1
            several |= any(_spans_several(f, partition_days) for f in group)
            yield parquet_sql([f.path for f in group]), sum(f.rows for f in group), several
        return
    # another file format, or files of an object store, for which DuckDB needs an extension that is
    # no package: pypaimon reads them, and DuckDB may spill what it is given
    batches = iter_batches(lake, table, event_columns(view), ref_of(lake, table, snapshot_id))
    schema = pa.schema([lake.schema(table).field(name) for name in event_columns(view)])
    engine.load("events", pa.RecordBatchReader.from_batches(schema, batches))
    yield identifier("events"), sum(file.rows for file in files), True


def _by_partition(files: Sequence[DataFile], partition_days: int) -> Iterator[list[DataFile]]:
    """Yield files of whole partitions together, oldest first, up to ``GROUP_EVENTS`` where one
    allows.

    A partition is one of the tiles', or of the events' where those contain more days.
    """
    partitions: dict[int | None, list[DataFile]] = {}
    for file in files:
        partitions.setdefault(_partition(file, partition_days), []).append(file)
    group: list[DataFile] = []
    events = 0
    for first in sorted(partitions, key=lambda day: (day is not None, day)):
        count = sum(file.rows for file in partitions[first])
        if group and events + count > GROUP_EVENTS:
            yield group
            group, events = [], 0
        group += partitions[first]
        events += count
    if group:
        yield group


def _partition(file: DataFile, partition_days: int) -> int | None:
    """Return the first day of the partition of tiles, or of events, that has all events of a
    file."""
    days = file.days(EVENT_DAY)
    return None if days is None else first_day(days.start, max(len(days), partition_days))


def _spans_several(file: DataFile, partition_days: int) -> bool:
    """Return True if events of a file can be in several partitions of tiles."""
    days = file.days(EVENT_DAY)
    return days is None or len(days) > partition_days


def parquet_sql(paths: Sequence[str]) -> str:
    """Return Parquet files as an operand of FROM.

    >>> parquet_sql(["/lake/a[1].parquet"])
    "read_parquet(['/lake/a[[]1].parquet'], hive_partitioning = false)"
    """
    # a path is a pattern to DuckDB: in brackets, the characters that it would take for one
    names = [literal(re.sub(r"([*?\[])", r"[\1]", path)) for path in paths]
    return f"read_parquet([{', '.join(names)}], hive_partitioning = false)"
