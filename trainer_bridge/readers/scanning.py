"""Rows of a table at one snapshot for other engines: the columns and row groups they request."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from paimon_features.core.errors import DamagedFileError
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.snapshots import SnapshotRef, pinned
from paimon_features.lake.reading.deltas import live_files, verify_files
from paimon_features.lake.table_folders import merge_folder
from trainer_bridge.blocks.layout import Fold, Layout, select_schema
from trainer_bridge.blocks.open_layout import read_layout
from trainer_bridge.readers.pins import pinned_snapshot

_BLOCK_ROWS = 65_536


@contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except DamagedFileError as error:
        raise DamagedFileError(f"{what}: {error}") from error


@dataclass(frozen=True)
class TableScan:
    """A table at a pinned snapshot."""

    lake: Lake
    table: str
    snapshot_ref: str
    """``number@commit``: what was pinned is read, or nothing."""
    schema: pa.Schema
    """All columns, each of them nullable."""

    @classmethod
    def pin(
        cls,
        lake: Lake,
        table: str,
        snapshot_id: SnapshotRef | None = None,
        tag: str | None = None,
        as_of_ms: int | None = None,
    ) -> TableScan:
        """Return the table at a snapshot, by its id, a tag, or a time (UTC ms); at the newest by
        default.

        Raises
        ------
        ConfigurationError
            If more than one is given.
        UnknownNameError, TableError, SnapshotExpiredError
            If the table, the tag or the snapshot does not exist.
        """
        schema = pa.schema([field.with_nullable(True) for field in lake.schema(table)])
        match = pinned_snapshot(lake, table, snapshot_id, tag, as_of_ms)
        return cls(lake, table, match.ref, schema)

    def select(self, columns: Collection[str] | None) -> pa.Schema:
        """Return the schema of some columns; raises UnknownNameError for an unknown one."""
        fields = select_schema(self.schema, None if columns is None else list(columns), self.table)
        return pa.schema(list(fields))

    def tables(
        self, columns: Collection[str] | None = None, where: str | None = None, threads: int = 2
    ) -> Iterator[pa.Table]:
        """Yield the rows block by block, decoded ahead in threads; ``where`` prunes row groups."""
        schema, layout = self.select(columns), self._layout(where)
        pool = ThreadPoolExecutor(threads, thread_name_prefix="table-scan")
        waiting: deque[Future[pa.Table]] = deque()
        try:
            for number in range(len(layout.blocks)):
                waiting.append(pool.submit(layout.decode, number, schema))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def files(self) -> list[str] | None:
        """Return the files whose rows are exactly those of the table; None if there are none.

        That is the case if keys are merged or rows deleted, and if a file was written with
        another schema than today's.
        """
        layout = self._layout(None)
        paths = list(dict.fromkeys(span.path for block in layout.blocks for span in block.spans))
        source = layout.selector.data_files
        today = max(source.content.schemas, default=0)
        plain = all(
            not isinstance(part, Fold) and part.stored is None
            for block in layout.blocks
            for part in block.parts
        )
        current = all(source.files[path].schema_id == today for path in paths)
        return paths if plain and current else None

    def verify(self, columns: Collection[str]) -> None:
        """Verify all files, for engines that read them by themselves.

        Raises
        ------
        SnapshotExpiredError, DamagedFileError
            If a file does not exist any more, or is not what was written.
        """
        number = pinned(self.lake, self.table, self.snapshot_ref).id
        with _named(f"table {self.table!r}, snapshot {number}"):
            verify_files(live_files(self.lake, self.table, number), list(columns))

    def _layout(self, where: str | None) -> Layout:
        # with a condition row group by row group, because otherwise all of a small file is read;
        # the mask is not worth caching: the next query has another condition
        block_rows = _BLOCK_ROWS if where is None else 1
        cache = merge_folder(self.lake, self.table) if where is None else None
        number = pinned(self.lake, self.table, self.snapshot_ref).id
        return read_layout(self.lake, self.table, number, block_rows, where=where, cache=cache)
