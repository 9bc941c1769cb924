"""Files of an append table, written by several threads as rows arrive, in bounded memory.

pypaimon's writer buffers all rows of a partition until its file is full, and writes the files of a
commit one after another. Here full files are written in the background, and once the rows that are
held exceed a bound, those of the largest partition are.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.errors import TableError
from paimon_features.lake.catalog import Lake
from paimon_features.lake.storage.write_errors import write_errors
from paimon_features.lake.writing.checksums import complete_files

HELD_BYTES = 256 << 20
"""Bytes of all rows that are held, in memory."""
FILE_BYTES = 128 << 20
"""Bytes of a file's rows in memory; in Parquet they are fewer."""
_THREADS = 2


@dataclass
class _Partition:
    """The rows of a partition that are in no file yet, and pypaimon's writers of its files."""

    writers: list[Any] = field(default_factory=list)
    held: list[pa.Table] = field(default_factory=list)
    held_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Written:
    """Files, as a commit message has them."""

    new_files: list[Any]


class AppendFiles:
    """The data files of one commit to an append table; a context manager.

    ``write`` takes rows with the columns of the table, in any order of partitions; ``messages`` is
    what pypaimon commits. Files are deleted unless ``release`` was called.

    Raises
    ------
    TableError
        For a table with a primary key or more than one partition column.
    """

    def __init__(
        self,
        lake: Lake,
        name: str,
        commit_user: str,
        *,
        held_bytes: int = HELD_BYTES,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        self._table = lake.table(name)
        if self._table.primary_keys or len(self._table.partition_keys) > 1:
            raise TableError(
                f"table {name!r}: expected an append table with at most one partition column, got "
                f"the primary key {self._table.primary_keys} and the partition columns "
                f"{self._table.partition_keys}"
            )
        self._what = f"table {name!r} cannot be written"
        builder: Any = self._table.new_stream_write_builder()._with_commit_user(commit_user)
        self._write = builder.new_write()
        self._keys: Sequence[str] = self._table.partition_keys
        self._most, self._file_bytes = held_bytes, file_bytes
        self._partitions: dict[tuple[Any, ...], _Partition] = {}
        self._held_bytes = 0
        self._pool = ThreadPoolExecutor(_THREADS, "append")
        self._waiting: list[Future[None]] = []
        self._owned = True
        self.rows = 0

    def write(self, rows: pa.Table) -> None:
        """Take the next rows; they have the columns of the table in order."""
        if not rows.num_rows:
            return
        self.rows += rows.num_rows
        for value, part in self._split(rows):
            self._add(value, part)
        while self._held_bytes > self._most:
            self._flush(max(self._partitions, key=lambda v: self._partitions[v].held_bytes))

    def messages(self) -> list[Any]:
        """Write what is held, and describe all files for pypaimon's commit."""
        from pypaimon.write.commit_message import CommitMessage

        for value in self._partitions:
            self._flush(value)
        self._await(0)
        return [
            CommitMessage(
                partition=value,
                bucket=0,
                new_files=[file for writer in partition.writers for file in writer.committed_files],
                changelog_files=[],
                total_buckets=None,
            )
            for value, partition in self._partitions.items()
        ]

    def release(self) -> None:
        """Leave the files to the commit that contains them."""
        self._owned = False

    def __enter__(self) -> AppendFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for partition in self._partitions.values():
            if self._owned:
                for writer in partition.writers:
                    with suppress(Exception):
                        writer.abort()
        self._partitions.clear()

    def _split(self, rows: pa.Table) -> list[tuple[tuple[Any, ...], pa.Table]]:
        """Return the rows by partition, in their order."""
        if not self._keys:
            return [((), rows)]
        column = rows.column(self._keys[0])
        if not pa.types.is_integer(column.type) or column.null_count:
            encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
            if isinstance(encoded, pa.ChunkedArray):
                encoded = encoded.unify_dictionaries().combine_chunks()
            distinct_values = encoded.dictionary.to_pylist()
            codes = encoded.indices.to_numpy()
        else:
            codes = column.to_numpy()
            distinct_values = None
        if (codes[1:] < codes[:-1]).any():
            order = np.argsort(codes, kind="stable")
            rows, codes = rows.take(pa.array(order)), codes[order]
        starts = np.concatenate([[0], np.flatnonzero(np.diff(codes)) + 1, [len(codes)]])
        parts = []
        for start, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            code = int(codes[start])
            value = code if distinct_values is None else distinct_values[code]
            parts.append(((value,), rows.slice(start, end - start)))
        return parts

    def _add(self, value: tuple[Any, ...], rows: pa.Table) -> None:
        partition = self._partitions.setdefault(value, _Partition())
        size = rows.nbytes
        partition.held.append(rows)
        partition.held_bytes += size
        self._held_bytes += size
        if partition.held_bytes >= self._file_bytes:
            self._flush(value)

    def _flush(self, value: tuple[Any, ...]) -> None:
        """Write the rows of a partition that are held as a file, in the background."""
        partition = self._partitions[value]
        if not partition.held:
            return
        self._await(2 * _THREADS)
        store: Any = self._write.file_store_write
        writer = store._create_data_writer(value, 0, store.options)
        partition.writers.append(writer)
        rows = pa.concat_tables(partition.held)
        self._held_bytes -= partition.held_bytes
        partition.held, partition.held_bytes = [], 0
        self._waiting.append(self._pool.submit(self._put, writer, rows))

    def _put(self, writer: Any, rows: pa.Table) -> None:
        """Write a file and describe it; in a thread."""
        writer._write_data_to_file(rows)
        complete_files(self._table, [_Written(writer.committed_files)])

    def _await(self, most: int) -> None:
        while len(self._waiting) > most:
            with write_errors(self._what):
                self._waiting.pop(0).result()
