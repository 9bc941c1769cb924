"""The delta of a snapshot: the files that it added, and their raw rows.

The materializer follows a table by its deltas. In an aggregation table each row of a level-0
file is a partial of its key; a key can occur several times, in several files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paimon_features.core.columns.column import take_rows
from paimon_features.core.errors import SnapshotExpiredError, TableError
from paimon_features.core.types.array_types import Ints
from paimon_features.lake import table_options
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.manifests import manifest_damage, raw_snapshot, read_entries
from paimon_features.lake.metadata.snapshots import Snapshot, expired, snapshot
from paimon_features.lake.storage import LocalStorage, Storage, damaged

VALUE_KIND = "_VALUE_KIND"
"""Column of data files with a key: 0 insert, 1 update before, 2 update after, 3 delete."""

_ROWS_FOR_THREADS = 50_000


@dataclass(frozen=True, slots=True)
class DataFile:
    """One data file, as added to or deleted from the table by a snapshot.

    ``partition`` maps partition columns to values, ``level`` is 0 for files that were not
    compacted,
    ``rows`` counts the rows in the file before merging. ``storage`` opens the ``path``. ``columns``
    are those that it must have by its schema, if that is known. ``partition_days`` are the days
    that a partition contains at most.
    """

    bucket: int
    partition: Mapping[str, Any]
    path: str
    level: int
    kind: Literal["ADD", "DELETE"]
    rows: int
    size: int
    schema_id: int
    storage: Storage = field(default_factory=LocalStorage, compare=False, repr=False)
    columns: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    partition_days: int = 1

    def days(self, column: str) -> range | None:
        """Return the days since 1970 of which it may have rows, by the day column of its partition.

        None if the table is not partitioned by that column.
        """
        first = self.partition.get(column)
        return None if first is None else range(first, first + self.partition_days)

    def overlaps(self, column: str, first: int, last: int) -> bool:
        """Return True if it may have rows of the days ``first`` to ``last``, both inclusive.

        By the day column of its partition; true if the table is not partitioned by that.
        """
        days = self.days(column)
        return days is None or (days.start <= last and first < days.stop)


@dataclass(frozen=True, slots=True)
class Delta:
    """The files that one snapshot added and deleted, in manifest order."""

    snapshot: Snapshot
    files: tuple[DataFile, ...]

    def by_bucket(self) -> dict[int, list[DataFile]]:
        """Return the files of each bucket, over all partitions."""
        result: dict[int, list[DataFile]] = {}
        for file in self.files:
            result.setdefault(file.bucket, []).append(file)
        return result


def read_delta(lake: Lake, name: str, snapshot_id: int) -> Delta:
    """Return the delta of a snapshot, from its manifests; about 10 ms.

    Raises
    ------
    SnapshotExpiredError
        If the snapshot or one of its manifests has expired.
    """
    described = snapshot(lake, name, snapshot_id)
    raw = raw_snapshot(lake, name, snapshot_id)
    try:
        with manifest_damage(lake, name, snapshot_id):
            entries = read_entries(lake, name, raw, delta=True)
    except FileNotFoundError as error:
        raise expired(lake, name, snapshot_id) from error
    return Delta(described, tuple(_data_files(lake, name, entries)))


def live_files(
    lake: Lake, name: str, snapshot_id: int, buckets: Iterable[int] | None = None
) -> list[DataFile]:
    """Return the live files of a table at a snapshot, optionally of some buckets.

    Raises
    ------
    SnapshotExpiredError
        If the snapshot or one of its manifests has expired.
    """
    wanted = None if buckets is None else frozenset(buckets)
    keep = None if wanted is None else (lambda bucket, total: bucket in wanted)
    raw = raw_snapshot(lake, name, snapshot_id)

    def read(paths: list[str]) -> list[DataFile]:
        try:
            with manifest_damage(lake, name, snapshot_id):
                entries = read_entries(lake, name, raw, keep=keep, paths=paths)
        except FileNotFoundError as error:
            raise expired(lake, name, snapshot_id) from error
        return list(_data_files(lake, name, entries))

    if lake.storage.is_remote:
        return read([])
    # the names of the lists contain random numbers; the option can change without a snapshot
    lists = raw.base_manifest_list, raw.delta_manifest_list, raw.total_record_count
    key = name, snapshot_id, wanted, lists, table_options.partition_days(lake, name)
    return lake.live_cache.get(key, read)


def read_file(file: DataFile, columns: Sequence[str], insert_only: bool = True) -> pa.Table:
    """Return the raw rows of a data file: partials, not merged values.

    Columns that are missing in the file's schema are null.

    Raises
    ------
    SnapshotExpiredError
        If the file no longer exists: all snapshots that contain it have expired.
    DamagedFileError
        If it is not the file that was written.
    TableError
        If ``insert_only`` and a row is a retraction, which cannot be folded.
    """

    def read() -> pa.Table:
        with _opened(file, columns) as parquet:
            return parquet.read(
                _wanted(columns, parquet.schema_arrow.names, insert_only),
                # for a small file, threads cost more than reading
                use_threads=file.rows > _ROWS_FOR_THREADS,
            )

    return _as_requested(file.storage.repeated(read), file, columns)


def read_batches(
    file: DataFile, columns: Sequence[str], batch_rows: int, insert_only: bool = True
) -> Iterator[pa.Table]:
    """Yield the rows of ``read_file`` in batches of ``batch_rows``, for files larger than
    memory."""
    with _opened(file, columns) as parquet:
        wanted = _wanted(columns, parquet.schema_arrow.names, insert_only)
        for batch in parquet.iter_batches(batch_rows, columns=wanted):
            yield _as_requested(_table_of(batch), file, columns)


def read_sample(file: DataFile, columns: Sequence[str], place: float, rows: int) -> pa.Table:
    """Return the first ``rows`` rows, at most, of the row group at ``place`` (0 to 1) of a file.

    Raises as ``read_file`` does.
    """
    with _opened(file, columns) as parquet:
        group = int(place * parquet.metadata.num_row_groups)
        names = _wanted(columns, parquet.schema_arrow.names, insert_only=False)
        batch = next(parquet.iter_batches(rows, [group], names), None)
        empty = parquet.schema_arrow.empty_table().select(names)
        return _as_requested(empty if batch is None else _table_of(batch), file, columns)


class RowChoice(Protocol):
    """Which rows of a file are wanted, by the values of some columns."""

    @property
    def keys(self) -> Sequence[str]:
        """The columns that decide, at least one."""
        ...

    def may_have(self, least: Any, greatest: Any) -> bool:
        """Return True if a wanted row can have a value of the first of them between two,
        inclusive."""
        ...

    def rows_of(self, table: pa.Table) -> Ints:
        """Return positions of the wanted rows of a table of those columns, ascending."""
        ...


def read_chosen(
    file: DataFile, columns: Sequence[str], batch_rows: int, choice: RowChoice
) -> Iterator[pa.Table]:
    """Yield the rows of ``read_batches`` that are chosen, and maybe others.

    A row group without any of them is not decoded, by its statistics or by its keys. ``columns``
    include those of the choice.
    """
    with _opened(file, columns) as parquet:
        file_columns = parquet.schema_arrow.names
        wanted = _wanted(columns, file_columns, insert_only=True)
        tables: Iterator[pa.Table]
        if not set(choice.keys) <= set(file_columns):
            tables = map(_table_of, parquet.iter_batches(batch_rows, columns=wanted))
        else:
            tables = _chosen(parquet, wanted, batch_rows, choice)
        for table in tables:
            yield _as_requested(table, file, columns)


def _chosen(
    parquet: pq.ParquetFile, wanted: Sequence[str], batch_rows: int, choice: RowChoice
) -> Iterator[pa.Table]:
    keys = list(choice.keys)
    rest = [name for name in wanted if name not in keys]
    for group in range(parquet.metadata.num_row_groups):
        described = parquet.metadata.row_group(group)
        if not _may_have(described, keys[0], choice):
            continue
        if described.num_rows > batch_rows:  # too large to be held
            for table in map(_table_of, parquet.iter_batches(batch_rows, [group], wanted)):
                yield _taken(table, choice.rows_of(table))
            continue
        # threads cost more than they save: callers read several files at once
        table = parquet.read_row_group(group, keys, use_threads=False)
        rows = choice.rows_of(table)
        if not len(rows):
            continue
        if rest:
            others = parquet.read_row_group(group, rest, use_threads=False)
            for field, column in zip(others.schema, others.columns, strict=True):
                table = table.append_column(field, column)
        yield _taken(table.select(wanted), rows)


def _may_have(group: pq.RowGroupMetaData, key: str, choice: RowChoice) -> bool:
    """Return True if a row group may have a chosen row, by its statistics."""
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == key:
            statistics = column.statistics
            return not (
                statistics is not None
                and statistics.has_min_max
                and not choice.may_have(statistics.min, statistics.max)
            )
    return True


def _table_of(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def _taken(table: pa.Table, rows: Ints) -> pa.Table:
    """Return some rows; all where that is cheaper than to take most of them."""
    return table if 2 * len(rows) > table.num_rows else take_rows(table, rows)


def verify_files(files: Iterable[DataFile], columns: Sequence[str]) -> None:
    """Verify sizes, rows and pages of Parquet files, for readers that do not (DuckDB).

    Raises
    ------
    SnapshotExpiredError, DamagedFileError
        As ``read_file`` does.
    """
    for file in files:
        with _opened(file, columns) as parquet:
            # in a file of another schema, columns can have other names
            has_all = set(columns) <= set(parquet.schema_arrow.names)
            parquet.verify(columns if has_all else None)


@contextmanager
def _opened(file: DataFile, columns: Sequence[str]) -> Iterator[Any]:
    """Open a data file, which must have the rows of its manifest and the columns of its schema."""
    try:
        with file.storage.open_parquet(file.path, file.size) as parquet:
            rows = parquet.metadata.num_rows
            if rows != file.rows:
                raise damaged(file.path, f"it has {rows} rows; its manifest says {file.rows}")
            lacking = file.columns.intersection(columns) - {*parquet.schema_arrow.names}
            if lacking:
                raise damaged(file.path, f"it has no column {min(lacking)!r}, which its schema has")
            yield parquet
    except FileNotFoundError as error:
        raise SnapshotExpiredError(
            f"data file {file.path} no longer exists: the snapshots that contain it have expired. "
            "Read a newer snapshot; rebuild a materialized view"
        ) from error


def _wanted(columns: Sequence[str], file_columns: Sequence[str], insert_only: bool) -> list[str]:
    """Return the columns to read of a file, and the row kind."""
    names = [column for column in columns if column in file_columns]
    return [*names, VALUE_KIND] if insert_only and VALUE_KIND in file_columns else names


def _as_requested(table: pa.Table, file: DataFile, columns: Sequence[str]) -> pa.Table:
    names = table.column_names
    if VALUE_KIND in names and VALUE_KIND not in columns:
        check_insert_only(table, file.path)
    if names == list(columns):
        return table
    for column in columns:
        if column not in names:
            table = table.append_column(column, pa.nulls(table.num_rows))
    return table.select(list(columns))


def check_insert_only(table: pa.Table, origin: str) -> None:
    """Raise TableError if the column ``_VALUE_KIND`` contains anything but INSERT.

    Aggregation tables store a lone DELETE as a value, which a fold would add.
    """
    kinds = table.column(VALUE_KIND).to_numpy()
    others = np.flatnonzero(kinds)
    if len(others):
        names = {1: "UPDATE_BEFORE", 2: "UPDATE_AFTER", 3: "DELETE"}
        kind = int(kinds[others[0]])
        raise TableError(
            f"{origin}: {len(others)} of {len(kinds)} rows are not INSERT, the first is "
            f"{names.get(kind, kind)}; tile tables accept only inserts (a retraction is written "
            "as negated partials). Rebuild the generation from its events"
        )


def _data_files(lake: Lake, name: str, entries: Iterable[Any]) -> Iterator[DataFile]:
    table, partition_days = lake.table(name), table_options.partition_days(lake, name)
    paths = table.path_factory()
    columns: dict[int, frozenset[str]] = {}
    for entry in entries:
        number = entry.file.schema_id
        if number not in columns:
            columns[number] = _columns(table, number)
        values = entry.partition.values
        folder = paths.bucket_path(tuple(values), entry.bucket)
        yield DataFile(
            bucket=entry.bucket,
            partition=dict(zip(table.partition_keys, values, strict=True)),
            path=entry.file.external_path or f"{folder}/{entry.file.file_name}",
            level=entry.file.level,
            kind="ADD" if entry.kind == 0 else "DELETE",
            rows=entry.file.row_count,
            size=entry.file.file_size,
            schema_id=entry.file.schema_id,
            storage=lake.storage,
            # a file of some columns: evolving data, which tables of ours do not have
            columns=frozenset() if entry.file.write_cols else columns[number],
            partition_days=partition_days,
        )


def _columns(table: Any, schema_id: int) -> frozenset[str]:
    schema = table.table_schema
    if schema.id != schema_id:
        schema = table.schema_manager.get_schema(schema_id)
    return frozenset() if schema is None else frozenset(f.name for f in schema.fields)
