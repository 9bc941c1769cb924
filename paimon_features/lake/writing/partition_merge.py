"""Merge short partitions of an events table into those that its option requires.

``partition_days`` of a table can grow; its older partitions then remain as they are, in files that
are slow to read for the few rows that each has. Merging rewrites them in one commit of kind
COMPACT: it changes no rows, so streams skip it, and readers of earlier snapshots are not affected.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.times.partition_days import first_day
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.manifests import manifest_damage, raw_snapshot, read_entries
from paimon_features.lake.metadata.snapshots import BATCH_IDENTIFIER, latest_snapshot
from paimon_features.lake.ownership.lease import committing
from paimon_features.lake.reading.deltas import DataFile, live_files, read_file
from paimon_features.lake.specs import EVENT_DAY
from paimon_features.lake.storage.write_errors import write_errors
from paimon_features.lake.writing.append_files import AppendFiles
from paimon_features.lake.writing.table_writer import conform


@dataclass(frozen=True, slots=True)
class MergedPartitions:
    """How many partitions became how many; both 0 if there was nothing to merge."""

    before: int = 0
    after: int = 0


def merge_partitions(lake: Lake, table: str) -> MergedPartitions:
    """Merge the partitions that are shorter than the table's ``partition_days``.

    The caller owns the table. The rows of a partition are in memory, as far as the writer of
    ``AppendFiles`` holds them. If it is interrupted, nothing changes.

    Raises
    ------
    TableError
        If another process holds the commit lock, or the table cannot be written.
    DamagedFileError
        If a data file is not what was written; nothing changes then.
    """
    newest = latest_snapshot(lake, table)
    if newest is None or lake.table(table).partition_keys != [EVENT_DAY]:
        return MergedPartitions()
    short = _short(live_files(lake, table, newest.id))
    if not short:
        return MergedPartitions()
    user = f"merge-partitions_{uuid.uuid4()}"
    columns = lake.schema(table).names
    with AppendFiles(lake, table, user) as merged_files:
        for first, files in sorted(short.items()):
            for rows in _rows(files, columns, first):
                merged_files.write(conform(lake, table, rows))
        messages = merged_files.messages()
        gone = {file.path.rpartition("/")[2] for files in short.values() for file in files}
        with manifest_damage(lake, table, newest.id):
            entries = read_entries(
                lake, table, raw_snapshot(lake, table, newest.id), statistics=True
            )
        with committing(lake, table, f"merging partitions of table {table!r}") as check:
            builder: Any = lake.table(table).new_stream_write_builder()
            commit = builder._with_commit_user(user).new_commit()
            store = commit.file_store_commit
            added = store._collect_manifest_entries(messages)
            removed = [_removed(entry) for entry in entries if entry.file.file_name in gone]
            try:
                check()
                merged_files.release()  # from here on, the files may be part of a snapshot
                with write_errors(f"table {table!r} cannot be written"):
                    store._try_commit(
                        "COMPACT",
                        BATCH_IDENTIFIER,
                        lambda _: [*removed, *added],
                        detect_conflicts=True,
                    )
            finally:
                commit.close()
    before = {file.partition[EVENT_DAY] for files in short.values() for file in files}
    return MergedPartitions(len(before), len(short))


def _short(files: Sequence[DataFile]) -> dict[int, list[DataFile]]:
    """Return the files of partitions to be merged, by the first day of that which they are merged
    into."""
    by_first_day: dict[int, list[DataFile]] = {}
    for file in files:
        by_first_day.setdefault(
            first_day(file.partition[EVENT_DAY], file.partition_days), []
        ).append(file)
    return {
        first: partition_files
        for first, partition_files in by_first_day.items()
        if any(file.partition[EVENT_DAY] != first for file in partition_files)
    }


def _rows(files: Sequence[DataFile], columns: Sequence[str], first: int) -> Iterator[pa.Table]:
    for file in files:
        rows = read_file(file, columns)
        at = rows.schema.get_field_index(EVENT_DAY)
        days = pa.array(np.full(rows.num_rows, first, np.int32))
        yield rows.set_column(at, rows.schema.field(at), days)


def _removed(entry: Any) -> Any:
    from pypaimon.manifest.schema.manifest_entry import ManifestEntry

    return ManifestEntry(
        kind=1,
        partition=entry.partition,
        bucket=entry.bucket,
        total_buckets=entry.total_buckets,
        file=entry.file,
    )
