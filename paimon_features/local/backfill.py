"""All tiles of an events table at one snapshot, computed by DuckDB and written to the lake.

The table is read in groups of whole days, so that what DuckDB holds is bounded by a group; what
exceeds its memory limit is spilled. Everything becomes one commit per table, or nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.aggregates.base import ROWS
from paimon_features.definitions import CompiledView
from paimon_features.local.engine import DuckDBEngine
from paimon_features.local.tiling import (
    event_columns,
    identifier,
    literal,
    skipped_sql,
    tile_rows,
    tile_sql,
)
from paimon_features.tables import Lake, append_arrow, iter_batches
from paimon_features.tables.deltas import DataFile, live_files, verify_files
from paimon_features.tables.snapshots import BATCH_IDENTIFIER, ref_of
from paimon_features.tables.sorted_files import SortedFiles
from paimon_features.tables.specs import EVENT_DAY, TILE_DAY

GROUP_EVENTS = 5_000_000
"""Days are processed together up to this number of events; a larger day alone."""
_BATCH_ROWS = 250_000


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
    what = f"backfill of view {view.name!r}"
    skipped: list[pa.Table] = []
    events = 0
    with SortedFiles(lake, view.table(generation), dict(view.keys), TILE_DAY) as files:
        for source, count, by_day in _groups(engine, lake, view, snapshot_id):
            entered = 0
            statement = tile_sql(view, source, by_day=by_day)
            for batch in engine.stream(statement, _BATCH_ROWS, what):
                files.write(tile_rows(view, batch))
                entered += pc.sum(batch.column(ROWS.name)).as_py() or 0
                progress(TilesComputed(events + entered, files.rows))
            if entered < count:  # some are no members, or break a rule
                skipped.append(engine.table(skipped_sql(view, source), what))
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


def _merged(skipped: pa.Table) -> pa.Table:
    keys = skipped.column_names[:-1]
    merged = skipped.group_by(keys).aggregate([(skipped.column_names[-1], "sum")])
    return merged.rename_columns([*keys, skipped.column_names[-1]])


def _groups(
    engine: DuckDBEngine, lake: Lake, view: CompiledView, snapshot_id: int
) -> Iterator[tuple[str, int, bool]]:
    """What to read one after another: (something for FROM, events, of several days)."""
    table = view.source.table
    files = live_files(lake, table, snapshot_id)
    if not lake.storage.is_remote and all(file.path.endswith(".parquet") for file in files):
        for group in _by_day(files):
            verify_files(group, event_columns(view))
            days = {file.partition.get(EVENT_DAY) for file in group}
            yield (
                parquet_sql([f.path for f in group]),
                sum(f.rows for f in group),
                len(days) > 1 or None in days,
            )
        return
    # another file format, or files of an object store, for which DuckDB needs an extension that is
    # no package: pypaimon reads them, and DuckDB may spill what it is given
    batches = iter_batches(lake, table, event_columns(view), ref_of(lake, table, snapshot_id))
    schema = pa.schema([lake.schema(table).field(name) for name in event_columns(view)])
    engine.load("events", pa.RecordBatchReader.from_batches(schema, batches))
    yield identifier("events"), sum(file.rows for file in files), True


def _by_day(files: Sequence[DataFile]) -> Iterator[list[DataFile]]:
    """Files of whole days together, oldest first, up to ``GROUP_EVENTS`` where a day allows."""
    days: dict[Any, list[DataFile]] = {}
    for file in files:
        days.setdefault(file.partition.get(EVENT_DAY), []).append(file)
    group: list[DataFile] = []
    events = 0
    for day in sorted(days, key=lambda day: (day is not None, day)):
        count = sum(file.rows for file in days[day])
        if group and events + count > GROUP_EVENTS:
            yield group
            group, events = [], 0
        group = [*group, *days[day]]
        events += count
    if group:
        yield group


def parquet_sql(paths: Sequence[str]) -> str:
    """Parquet files as an operand of FROM.

    >>> parquet_sql(["/lake/a[1].parquet"])
    "read_parquet(['/lake/a[[]1].parquet'], hive_partitioning = false)"
    """
    # a path is a pattern to DuckDB: in brackets, the characters that it would take for one
    names = [literal(re.sub(r"([*?\[])", r"[\1]", path)) for path in paths]
    return f"read_parquet([{', '.join(names)}], hive_partitioning = false)"
