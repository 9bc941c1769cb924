"""Write data files directly from sorted rows: the fast way to fill an empty tile table.

pypaimon's writers accept rows in any order and buffer, sort and merge them: 0.2 million tiles a
second. Rows that are merged and sorted already are written here as Parquet files of level 0, one
per day and bucket, in the layout of pypaimon's native writer (no copies of key columns), and
committed by pypaimon.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import TableError
from paimon_features.core.hashing.buckets import bucket_of
from paimon_features.core.types.schema import DataType
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.snapshots import BATCH_IDENTIFIER, latest_snapshot
from paimon_features.lake.ownership.lease import committing
from paimon_features.lake.storage.write_errors import write_errors
from paimon_features.lake.writing.table_writer import published

_SEQUENCE_NUMBER = "_SEQUENCE_NUMBER"
_GROUP_ROWS = 1 << 17
"""Rows of a Parquet row group, buffered per file."""
_GROUP_BYTES = 16 << 20
"""The same in bytes, for rows with many or long values."""
_THREADS = 2
"""Threads that encode and compress; files are assigned to them by bucket."""
_GROUPS_AHEAD = 4
"""The maximum number of row groups that wait for a thread."""


class SortedFiles:
    """Writes a tile table's data files from rows in the order of its key; a context manager.

    Batches must be sorted by (``day``, key, tile), with unique keys; ``day`` is the partition
    column, the first day of a partition. ``commit`` publishes all of them as one snapshot; without
    it, the files are deleted. ``keys`` are the entity's columns and types.

    The caller must own the table (see ``lease``), which must be empty.
    """

    def __init__(self, lake: Lake, name: str, keys: dict[str, DataType], day: str) -> None:
        self.lake, self.name, self.keys, self.day = lake, name, keys, day
        self._table = lake.table(name)
        self._buckets = int(self._table.options.bucket())
        # made from all options again at each call
        self._paths = self._table.path_factory()
        self._schema = _file_schema(lake, name, self._table)
        self._open: dict[tuple[int, int], _SortedFile] = {}
        self._closed: list[_SortedFile] = []
        self._pools = [ThreadPoolExecutor(1) for _ in range(min(_THREADS, self._buckets))]
        self._waiting: list[Future[None]] = []
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the next rows, with the table's columns in order."""
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        days = batch.column(self.day).to_numpy()
        buckets = self._buckets_of(batch)
        first = np.flatnonzero(np.diff(days, prepend=days[0] - 1))
        for start, end in zip(first, [*first[1:], len(days)], strict=True):
            self._close_other_days(int(days[start]))
            part, part_buckets = batch.slice(start, end - start), buckets[start:end]
            for bucket in np.unique(part_buckets).tolist():
                rows = part if self._buckets == 1 else part.filter(pa.array(part_buckets == bucket))
                self._file(int(days[start]), bucket).add(rows)

    def commit(self, commit_user: str, identifier: int = BATCH_IDENTIFIER) -> int | None:
        """Publish all files in one commit; return the snapshot id, None without rows.

        ``identifier`` is that of a batch, or the checkpoint that a stream continues from.

        Raises
        ------
        TableError
            If the table is not empty, or the commit failed.
        """
        for file in [*self._open.values()]:
            self._close(file)
        self._await(0)
        if not self._closed:
            return None
        with committing(self.lake, self.name, f"committing to table {self.name!r}") as check:
            if (newest := latest_snapshot(self.lake, self.name)) is not None:
                raise TableError(
                    f"table {self.name!r} is not empty, it is at snapshot {newest.id}: files "
                    "written next to its rows would count events twice"
                )
            messages = [file.message() for file in self._closed]
            builder: Any = self._table.new_stream_write_builder()._with_commit_user(commit_user)
            commit = builder.new_commit()

            def publish() -> None:
                try:
                    check()
                    commit.commit(messages, identifier)
                finally:
                    commit.close()

            snapshot = published(self.lake, self.name, None, publish, commit_user, identifier)
        self._closed.clear()
        return snapshot.id

    def __enter__(self) -> SortedFiles:
        return self

    def __exit__(self, *_: object) -> None:
        """Delete uncommitted files."""
        for pool in self._pools:
            pool.shutdown(wait=True, cancel_futures=True)
        for file in [*self._open.values(), *self._closed]:
            file.delete()
        self._open.clear()
        self._closed.clear()

    def _buckets_of(self, batch: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Return the bucket of each row.

        Rows are sorted, so each entity is hashed once per batch.
        """
        if self._buckets == 1:
            return np.zeros(batch.num_rows, np.int32)
        differs = np.zeros(batch.num_rows, np.bool_)
        differs[0] = True
        for key in self.keys:
            column = batch.column(key)
            differs[1:] |= np.asarray(
                pc.not_equal(column.slice(1), column.slice(0, len(column) - 1))
            )
        first = np.flatnonzero(differs)
        entities = [Column.from_arrow(batch.column(key).take(pa.array(first))) for key in self.keys]
        buckets = bucket_of([e.values for e in entities], [*self.keys.values()], self._buckets)
        return np.repeat(buckets, np.diff(first, append=len(differs)))

    def _file(self, day: int, bucket: int) -> _SortedFile:
        file = self._open.get((day, bucket))
        if file is None:
            file = _SortedFile(self, day, bucket)
            self._open[day, bucket] = file
        return file

    def _close_other_days(self, day: int) -> None:
        for key in [key for key in self._open if key[0] != day]:
            self._close(self._open[key])

    def _close(self, file: _SortedFile) -> None:
        del self._open[file.day, file.bucket]
        self._closed.append(file)
        self._submit(file, file.take(), last=True)

    def _submit(self, file: _SortedFile, batches: list[pa.RecordBatch], last: bool = False) -> None:
        """Write rows of a file in the thread assigned to it."""
        self._await(_GROUPS_AHEAD)
        pool = self._pools[file.bucket % len(self._pools)]
        self._waiting.append(pool.submit(file.put, batches, last))

    def _await(self, most: int) -> None:
        while len(self._waiting) > most:
            with write_errors(f"table {self.name!r} cannot be written"):
                self._waiting.pop(0).result()


@dataclass
class _SortedFile:
    """A data file being written: buffered rows, writer, and metadata."""

    owner: SortedFiles
    day: int
    bucket: int
    held: list[pa.RecordBatch] = field(default_factory=list)
    held_rows: int = 0
    held_bytes: int = 0
    rows: int = 0
    least: list[Any] = field(default_factory=list)
    greatest: list[Any] = field(default_factory=list)
    first: list[Any] = field(default_factory=list)
    last: list[Any] = field(default_factory=list)
    writer: pq.ParquetWriter | None = None
    sink: Any = None

    def __post_init__(self) -> None:
        folder = self.owner._paths.bucket_path((self.day,), self.bucket)
        self.path = f"{folder}/data-{uuid.uuid4()}-0.parquet"

    def add(self, rows: pa.RecordBatch) -> None:
        """Buffer rows; a full row group is written."""
        self.held.append(rows)
        self.held_rows += rows.num_rows
        self.held_bytes += rows.nbytes
        if self.held_rows >= _GROUP_ROWS or self.held_bytes >= _GROUP_BYTES:
            self.owner._submit(self, self.take())

    def take(self) -> list[pa.RecordBatch]:
        """Return the buffered rows."""
        held, self.held, self.held_rows, self.held_bytes = self.held, [], 0, 0
        return held

    def put(self, batches: list[pa.RecordBatch], last: bool) -> None:
        """Write a row group; in the file's thread."""
        schema = self.owner._schema
        if batches:
            rows = pa.Table.from_batches(batches)
            count = rows.num_rows
            # one sequence number for all: keys are unique, so their order does not matter
            numbers = pa.array(np.zeros(count, np.int64))
            kinds = pa.array(np.zeros(count, np.int8))
            columns = [numbers, kinds, *(c.cast(schema.field(n).type) for n, c in _named(rows))]
            if self.writer is None:
                self.sink = self.owner.lake.storage.open_output(self.path)
                self.writer = _parquet_writer(self.sink, schema, self.owner._table)
            self.writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            self._note(rows)
            self.rows += count
        if last and self.writer is not None:
            self.writer.close()
            self.sink.close()

    def _note(self, rows: pa.Table) -> None:
        """Record the key statistics for the manifest."""
        names = self.owner._table.trimmed_primary_keys
        bounds = [pc.min_max(rows.column(name)) for name in names]
        least, greatest = [b["min"].as_py() for b in bounds], [b["max"].as_py() for b in bounds]
        if not self.rows:
            self.first = [rows.column(name)[0].as_py() for name in names]
            self.least, self.greatest = least, greatest
        self.least = list(map(min, self.least, least))
        self.greatest = list(map(max, self.greatest, greatest))
        self.last = [rows.column(name)[-1].as_py() for name in names]

    def message(self) -> Any:
        """Return the metadata of the finished file, for pypaimon's commit."""
        from pypaimon.manifest.schema.data_file_meta import DataFileMeta
        from pypaimon.manifest.schema.simple_stats import SimpleStats
        from pypaimon.table.row.generic_row import GenericRow
        from pypaimon.write.commit_message import CommitMessage

        table = self.owner._table
        keys = table.trimmed_primary_keys_fields
        meta = DataFileMeta.create(
            file_name=self.path.rpartition("/")[2],
            file_size=self.owner.lake.storage.size(self.path),
            row_count=self.rows,
            min_key=GenericRow(self.first, keys),
            max_key=GenericRow(self.last, keys),
            key_stats=SimpleStats(
                GenericRow(self.least, keys), GenericRow(self.greatest, keys), [0] * len(keys)
            ),
            # partials are not used in filters
            value_stats=SimpleStats.empty_stats(),
            value_stats_cols=[],
            min_sequence_number=0,
            max_sequence_number=0,
            schema_id=table.table_schema.id,
            level=0,
            extra_files=[],
            delete_row_count=0,
            file_source=0,
            file_path=self.path,
        )
        return CommitMessage((self.day,), self.bucket, [meta], total_buckets=self.owner._buckets)

    def delete(self) -> None:
        """Delete the file, if it exists."""
        if self.writer is not None:
            with suppress(Exception):
                self.writer.close()
            with suppress(Exception):
                self.sink.close()
            self.owner.lake.storage.delete_file(self.path)


def _named(rows: pa.Table) -> Iterator[tuple[str, pa.ChunkedArray]]:
    return zip(rows.column_names, rows.columns, strict=True)


def _file_schema(lake: Lake, name: str, table: Any) -> pa.Schema:
    """Return the columns of a data file, with Paimon's field ids."""
    system = [
        pa.field(_SEQUENCE_NUMBER, pa.int64(), nullable=False),
        pa.field("_VALUE_KIND", pa.int8(), nullable=False),
    ]
    ids = {field.name: field.id for field in table.fields}
    return pa.schema(
        [
            *system,
            *(f.with_metadata({"PARQUET:field_id": str(ids[f.name])}) for f in lake.schema(name)),
        ]
    )


def _parquet_writer(sink: Any, schema: pa.Schema, table: Any) -> pq.ParquetWriter:
    """Return a writer with the table's compression.

    Values of tiles hardly repeat, so without dictionaries; only keys are used in filters, so
    without statistics of partials. Integers of neighbours are close (sorted keys, times of a day,
    counts): as packed differences they are half the work to write and to read.
    """
    codec = table.options.file_compression()
    level = table.options.file_compression_zstd_level() if codec == "zstd" else None
    return pq.ParquetWriter(
        sink,
        schema,
        compression=codec,
        compression_level=level,
        use_dictionary=False,
        column_encoding={
            field.name: "DELTA_BINARY_PACKED"
            for field in schema
            if pa.types.is_int64(field.type) and field.name != _SEQUENCE_NUMBER
        },
        write_statistics=list(table.trimmed_primary_keys),
        store_schema=False,
        write_page_checksum=True,
    )
