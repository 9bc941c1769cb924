"""Runs of row groups in data files, read with today's columns, whichever schema wrote them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from paimon_features.core.errors import DamagedFileError, TableError
from paimon_features.lake.catalog import Lake
from paimon_features.lake.reading.deltas import VALUE_KIND
from paimon_features.lake.reading.snapshot_content import (
    KEY_PREFIX,
    SEQUENCE_NUMBER,
    Content,
    ContentFile,
)

INTERNAL = {SEQUENCE_NUMBER: pa.int64(), VALUE_KIND: pa.int8()}
"""Columns of data files that are not columns of the table."""
_PART_BYTES = 32 << 20
"""How much of files that are read together is decoded at a time, in values of eight bytes."""
_OPEN_FILES = 64
"""How many files are open at once."""
_KEPT_BYTES = 64 << 20
"""Decoded key columns of one snapshot that are kept."""


@dataclass(frozen=True, slots=True)
class Span:
    """Row groups ``[first, stop)`` of one file; ``stop`` None is the end of the file.

    ``rows`` are read of it. It has ``stored`` rows (None: as many), which begin at row ``skip``
    of the file: if some of them are not read, the file has a mask.
    """

    path: str
    rows: int
    first: int = 0
    stop: int | None = None
    skip: int = 0
    stored: int | None = None

    @property
    def stored_rows(self) -> int:
        return self.rows if self.stored is None else self.stored


class KeptColumns:
    """Decoded columns of complete files, each until all its rows were read once.

    Keys are merged before the first block is decoded, and are columns of the table too: without
    this they would be decoded twice. A copy in another process begins empty.

    >>> kept = KeptColumns()
    >>> kept.keep("a.parquet", "id", pa.chunked_array([[1, 2, 3]]))
    >>> kept.take("a.parquet", "id", pa.int64(), 0, 2).to_pylist()
    [1, 2]
    >>> kept.take("a.parquet", "id", pa.int64(), 2, 1).to_pylist()
    [3]
    >>> kept.take("a.parquet", "id", pa.int64(), 0, 3)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._columns: dict[tuple[str, str], pa.ChunkedArray] = {}
        self._left: dict[tuple[str, str], int] = {}
        self._bytes = 0

    def __reduce__(self) -> tuple[type[KeptColumns], tuple[()]]:
        return KeptColumns, ()

    def keep(self, path: str, name: str, column: pa.ChunkedArray) -> None:
        """Keep a column of a file, if there is room."""
        with self._lock:
            has_room = self._bytes + column.nbytes <= _KEPT_BYTES
            if has_room and (path, name) not in self._columns:
                self._columns[path, name], self._left[path, name] = column, len(column)
                self._bytes += column.nbytes

    def take(
        self, path: str, name: str, kind: pa.DataType, start: int, rows: int
    ) -> pa.ChunkedArray | None:
        """Return the rows ``[start, start + rows)`` of a column; None where it is not kept.

        Nobody else has the memory of a column that is taken whole.
        """
        with self._lock:
            column = self._columns.get((path, name))
            if column is None or column.type != kind or start + rows > len(column):
                return None
            self._left[path, name] -= rows
            if self._left[path, name] <= 0:
                del self._columns[path, name], self._left[path, name]
                self._bytes -= column.nbytes
            return column if rows == len(column) else column.slice(start, rows)


@dataclass(frozen=True)
class DataFiles:
    """The files of a snapshot, by path, and what is needed to read them."""

    lake: Lake
    content: Content
    files: Mapping[str, ContentFile]
    kept: KeptColumns = field(default_factory=KeptColumns, compare=False)
    """Keys that were decoded already; :meth:`read` and the like take them from here."""

    @classmethod
    def of(cls, lake: Lake, content: Content) -> DataFiles:
        return cls(lake, content, {file.path: file for file in content.files})

    def open(self, path: str) -> pq.ParquetFile:
        """Open a data file; the caller closes it. All reads of rows and footers go through here."""
        return self.lake.storage.open_parquet(path, self.files[path].size)

    def read(self, span: Span, schema: pa.Schema) -> pa.Table:
        """Return all stored rows of a span, with the columns and types of ``schema``.

        A column that is younger than the file is null, a renamed one is found by its id, and
        one of another type is converted where that loses nothing. ``_SEQUENCE_NUMBER``,
        ``_VALUE_KIND`` and ``_KEY_<column>`` are columns too.

        Raises
        ------
        TableError
            If the file has another number of rows than its manifest says, lacks a column that
            its schema has, or has a value that does not fit today's type.
        DamagedFileError
            If it is not the file that was written.
        OSError
            If it is not there, or its store fails.
        """
        with self.open(span.path) as file:
            return self._read(file, set(file.schema_arrow.names), span, schema)

    def read_groups(self, span: Span, groups: Iterable[pa.Schema]) -> Iterator[pa.Table]:
        """Yield all stored rows of a span, a group of columns after the other.

        Raises as :meth:`read`.
        """
        with self.open(span.path) as file:
            stored_names = set(file.schema_arrow.names)
            for schema in groups:
                yield self._read(file, stored_names, span, schema)

    def _read(
        self, file: pq.ParquetFile, there: set[str], span: Span, schema: pa.Schema
    ) -> pa.Table:
        stored = self.content.schemas[self.files[span.path].schema_id]
        places = {name: self._place(name, there, stored) for name in schema.names}
        kept = {
            column.name: taken_column
            for column in schema
            if (taken_column := self._take_kept(span, column)) is not None
        }
        wanted = list(
            dict.fromkeys(
                place for name, place in places.items() if place is not None and name not in kept
            )
        )
        if span.stop is None:
            table = file.read(wanted, use_threads=False)
            rows = file.metadata.num_rows
        else:
            groups = list(range(span.first, span.stop))
            table = file.read_row_groups(groups, wanted, use_threads=False)
            rows = sum(file.metadata.row_group(group).num_rows for group in groups)
        if rows != span.stored_rows:
            raise DamagedFileError(f"it has {rows} rows; its manifest says {span.stored_rows}")
        columns = [
            pa.chunked_array([pa.nulls(rows, column.type)])
            if place is None
            else kept[column.name]
            if column.name in kept
            else _as_type(table.column(place), column)
            for column, place in zip(schema, places.values(), strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=schema)

    def read_parts(
        self, files: Sequence[ContentFile], schema: pa.Schema
    ) -> Iterator[list[pa.Table]]:
        """Yield all rows of files, a few columns of all of them at a time; raises as :meth:`read`
        does.

        Memory that was used recently is in the processor's cache and needs no new pages.
        """
        spans = [Span(file.path, file.rows) for file in files]
        if self.lake.storage.is_remote or len(files) > _OPEN_FILES:
            # a file is one request, or one opening
            yield [self.read(span, schema) for span in spans]
            return
        width = max(1, _PART_BYTES // (8 * max(1, sum(file.rows for file in files))))
        with ExitStack() as stack:
            opened = [stack.enter_context(self.open(span.path)) for span in spans]
            names = [set(file.schema_arrow.names) for file in opened]
            for start in range(0, len(schema), width):
                part = pa.schema([schema.field(k) for k in range(len(schema))[start:][:width]])
                yield [
                    self._read(file, stored_names, span, part)
                    for file, stored_names, span in zip(opened, names, spans, strict=True)
                ]

    def _take_kept(self, span: Span, column: pa.Field) -> pa.ChunkedArray | None:
        return self.kept.take(span.path, column.name, column.type, span.skip, span.stored_rows)

    def metadata(self, path: str) -> Any:
        """Return the footer of a file; raises as :meth:`read` does."""

        def read() -> Any:
            with self.open(path) as file:
                return file.metadata

        return self.lake.storage.repeated(read)

    def _place(self, name: str, there: set[str], stored: Mapping[int, object]) -> str | None:
        """Return the name that a column has in the file; None if it did not exist yet."""
        key = name.removeprefix(KEY_PREFIX)
        if name in INTERNAL or (key != name and name in there):
            in_file: str = name
        else:
            stored_field = stored.get(self.content.fields[key].id)
            if stored_field is None:
                return None
            in_file = stored_field.name  # type: ignore[attr-defined]
        if in_file not in there:
            raise TableError(
                f"it has no column {in_file!r}, which its schema has; rewrite the table, or leave "
                "the column out by columns="
            )
        return in_file


def _as_type(values: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    # a file may have "not null" or nanoseconds where the table has neither
    if values.type == field.type:
        return values
    try:
        return values.cast(field.type)
    except pa.ArrowException as error:
        raise TableError(
            f"its column {field.name!r} is {values.type}, today {field.type}, and {error}; "
            "leave the column out by columns=, or rewrite the table"
        ) from error
