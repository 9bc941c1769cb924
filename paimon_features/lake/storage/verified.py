"""Parquet files whose pages are verified before they are decoded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from paimon_features.core.errors import DamagedFileError, StoreUnreachableError
from paimon_features.lake.storage.pages import KnownFooter, PageCounts, verify_chunks
from paimon_features.lake.storage.retries import error_code, is_passing

_SMALL_BYTES = 1 << 17
_TABLE = re.compile(r"\.db/([^/]+)/")


def damaged(path: str, problem: object) -> DamagedFileError:
    """Return the error for a damaged file: which, what is wrong with it, and the remedy.

    >>> print(damaged("/lake/shop.db/events_retail/snapshot/snapshot-4", "it is empty"))
    file /lake/shop.db/events_retail/snapshot/snapshot-4 is damaged: it is empty. Restore it from
    a backup, or roll table 'events_retail' back to a snapshot without it; a tile table can be
    rebuilt from its events
    """
    match = _TABLE.search(path)
    table = "" if match is None else f" {match[1]!r}"
    text = " ".join(str(problem).split())  # Arrow's messages have several lines
    return DamagedFileError(
        f"file {path} is damaged: {text.rstrip('.')}. Restore it from a backup, or roll table"
        f"{table} back to a snapshot without it; a tile table can be rebuilt from its events"
    )


@contextmanager
def damage_of(path: str) -> Iterator[None]:
    """Raise what a damaged file makes a library raise as DamagedFileError; other errors pass."""
    try:
        yield
    except DamagedFileError as error:
        raise (error if str(error).startswith("file ") else damaged(path, error)) from error
    except (pa.ArrowException, OSError, ValueError, OverflowError, KeyError) as error:
        if not _is_damage(error):
            raise
        raise damaged(path, error) from error


def _is_damage(error: Exception) -> bool:
    if isinstance(error, (MemoryError, pa.ArrowCancelled, StoreUnreachableError)):
        return False
    if isinstance(error, OSError):
        # the system's and the store's errors have a number or a code; a decoder's have none
        return error.errno is None and error_code(error) == (None, None) and not is_passing(error)
    return True


def check_size(path: str, found: int, expected: int | None) -> None:
    """Raise DamagedFileError if a file has another size than its manifest says."""
    if expected is not None and found != expected:
        raise damaged(path, f"it has {found} bytes; its manifest says {expected}")


def _typed(schema: pa.Schema) -> pa.Schema:
    """Return the schema; raises DamagedFileError for a type that no column of a table has."""
    for field in schema:
        if field.type == pa.null():
            raise DamagedFileError(f"its footer says no type for {field.name!r}")
    return schema


class VerifiedParquetFile(pq.ParquetFile):  # type: ignore[misc]
    """A Parquet file that verifies the pages of what is read, before it is decoded.

    ``content`` is the complete file if it is in memory or mapped; without it (a remote file),
    Arrow verifies the CRCs while it decodes. All reads raise DamagedFileError.
    """

    def __init__(
        self,
        path: str,
        source: Any,
        content: memoryview | None = None,
        footer: KnownFooter | None = None,
        **options: Any,
    ) -> None:
        self._path, self._content, self._source = path, content, source
        try:
            with damage_of(path):
                super().__init__(
                    source,
                    metadata=None if footer is None else footer.metadata,
                    page_checksum_verification=content is None,
                    **options,
                )
                self.footer = KnownFooter(self.metadata) if footer is None else footer
                if self.footer.schema is None:
                    self.footer.schema = _typed(super().schema_arrow)
        except BaseException:
            self._content = None
            source.close()
            raise

    @property
    def schema_arrow(self) -> pa.Schema:
        """The columns; Arrow would derive them again each time."""
        assert self.footer.schema is not None
        return self.footer.schema

    def read(
        self,
        columns: Sequence[str] | None = None,
        use_threads: bool = True,
        use_pandas_metadata: bool = False,
    ) -> pa.Table:
        read = super().read
        return self._table(None, columns, lambda: read(columns, use_threads, use_pandas_metadata))

    def read_row_groups(
        self,
        row_groups: Sequence[int],
        columns: Sequence[str] | None = None,
        use_threads: bool = True,
        use_pandas_metadata: bool = False,
    ) -> pa.Table:
        read = super().read_row_groups
        return self._table(
            row_groups,
            columns,
            lambda: read(row_groups, columns, use_threads, use_pandas_metadata),
        )

    def read_row_group(
        self,
        i: int,
        columns: Sequence[str] | None = None,
        use_threads: bool = True,
        use_pandas_metadata: bool = False,
    ) -> pa.Table:
        return self.read_row_groups([i], columns, use_threads, use_pandas_metadata)

    def iter_batches(
        self,
        batch_size: int = 65536,
        row_groups: Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
        use_threads: bool = True,
        use_pandas_metadata: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        groups = range(self.metadata.num_row_groups) if row_groups is None else row_groups
        for group in groups:
            self.verify(columns, [group])
            with damage_of(self._path):
                yield from super().iter_batches(
                    batch_size, [group], columns, use_threads, use_pandas_metadata
                )

    def verify(
        self, columns: Sequence[str] | None = None, groups: Iterable[int] | None = None
    ) -> PageCounts:
        """Verify pages without decoding them; does nothing if the content is not in memory."""
        if self._content is None:
            return PageCounts()
        with damage_of(self._path):
            chunks = self.footer.chunks(columns, groups)
            if len(self._content) <= _SMALL_BYTES:
                return self.footer.verify_again(self._content, chunks)
            return verify_chunks(self._content, chunks)

    @classmethod
    def local(cls, path: str, size: int, footer: KnownFooter | None = None) -> VerifiedParquetFile:
        """Return a local file, memory mapped; a small one is read, which takes less time."""
        with damage_of(path):
            if size <= _SMALL_BYTES:
                with open(path, "rb", buffering=0) as file:
                    buffer = pa.py_buffer(file.read())
                source = pa.BufferReader(buffer)
            else:
                source = pa.memory_map(path)
                buffer = source.read_buffer()
                source.seek(0)
        return cls(path, source, memoryview(buffer), footer)

    def close(self, force: bool = False) -> None:
        super().close(force)
        self._content = None
        self._source.close()

    def _table(
        self,
        groups: Sequence[int] | None,
        columns: Sequence[str] | None,
        read: Callable[[], pa.Table],
    ) -> pa.Table:
        self.verify(columns, groups)
        with damage_of(self._path):
            table = read()
            footer = self.metadata
            rows = (
                footer.num_rows
                if groups is None
                else sum(footer.row_group(group).num_rows for group in groups)
            )
            if table.num_columns and table.num_rows != rows:
                raise DamagedFileError(f"it has {table.num_rows} rows; its footer says {rows}")
        return table
