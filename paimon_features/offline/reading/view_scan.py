"""Reading a view's tables at their pinned snapshots: relevant files, in pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import groupby

import pyarrow as pa

from paimon_features.lake import Lake
from paimon_features.lake.reading.deltas import (
    DataFile,
    RowChoice,
    live_files,
    read_batches,
    read_chosen,
    read_file,
    read_sample,
)
from paimon_features.lake.specs import EVENT_DAY, TILE_DAY
from paimon_features.offline.reading.pinning import Pin
from paimon_features.offline.reading.view_reads import ReadRequirements, ViewRead

CHUNK_ROWS = 1_000_000
"""Maximum rows of a table per chunk."""
FILES_AT_ONCE = 8
"""Small files that are read at once from an object store."""
SMALL_FILE_ROWS = 50_000
"""Maximum rows of such a file: all of them are in memory."""
SAMPLED_GROUPS = 4
"""Row groups by which the share of requested entities is estimated."""


class ViewScan:
    """The files of one view's tables that are relevant to entities in some buckets.

    Files of every level contain partial rows, which the join folds; nothing is merged here.
    """

    def __init__(
        self, lake: Lake, read: ViewRead, needs: ReadRequirements, buckets: Collection[int]
    ) -> None:
        self.lake, self.read, self.needs = lake, read, needs
        self._buckets = frozenset(buckets)
        self.event_files: list[DataFile] = []
        self.tile_files: list[DataFile] = []
        if not needs.none:
            self.event_files = self._event_files()
            self.tile_files = self._tile_files()

    def buckets_bytes(self) -> dict[int, int]:
        """Return the upper estimate of the bytes that the tiles of each bucket take."""
        tile_bytes, _ = self.read.table_bytes()
        bytes_by_bucket: dict[int, int] = {}
        for file in self.tile_files:
            bytes_by_bucket[file.bucket] = (
                bytes_by_bucket.get(file.bucket, 0) + file.rows * tile_bytes
            )
        return bytes_by_bucket

    def events_bytes(self) -> int:
        """Return the upper estimate of the bytes that the events take."""
        _, event_bytes = self.read.table_bytes()
        return sum(file.rows for file in self.event_files) * event_bytes

    def share_of(self, choice: RowChoice) -> float:
        """Estimate the share of the relevant tiles and events that is chosen, by a sample of
        them."""
        keys = list(choice.keys)
        files = [f for f in (*self.tile_files, *self.event_files) if f.rows]
        if not keys or not files:
            return 1.0
        rows = chosen = 0
        for number in range(SAMPLED_GROUPS):
            file = files[number * len(files) // SAMPLED_GROUPS]
            sample = read_sample(file, keys, number / SAMPLED_GROUPS, SMALL_FILE_ROWS)
            rows += sample.num_rows
            chosen += len(choice.rows_of(sample))
        return chosen / max(rows, 1)

    def events(
        self, columns: Sequence[str], rows: int = CHUNK_ROWS, choice: RowChoice | None = None
    ) -> Iterator[pa.Table]:
        """Return the relevant events, in file order.

        With a ``choice`` without most of the others.
        """
        return self._tables(self.read.events, self.event_files, columns, rows, choice)

    def tiles(
        self,
        buckets: Collection[int],
        columns: Sequence[str],
        rows: int = CHUNK_ROWS,
        choice: RowChoice | None = None,
    ) -> Iterator[pa.Table]:
        """Return the relevant tiles of some buckets, in file order; with a ``choice`` without most
        of the others."""
        files = [file for file in self.tile_files if file.bucket in buckets]
        assert self.read.tiles is not None
        return self._tables(self.read.tiles, files, columns, rows, choice)

    def _event_files(self) -> list[DataFile]:
        # no relevant day: nothing to read; a feedback table has no days: read all
        pin = self.read.events
        if pin.snapshot_id is None or not self.needs.needs_events(None):
            return []
        files = live_files(self.lake, pin.table, pin.snapshot_id)
        return [f for f in files if self.needs.needs_events(f.days(EVENT_DAY))]

    def _tile_files(self) -> list[DataFile]:
        pin, days = self.read.tiles, self.needs.tile_days()
        if pin is None or pin.snapshot_id is None or days is None:
            return []
        files = live_files(self.lake, pin.table, pin.snapshot_id, self._buckets)
        files = [file for file in files if file.overlaps(TILE_DAY, *days)]
        if self.read.rollups is not None:
            files = self.read.rollups.cover(files, self.needs.is_uncut)
        return sorted(files, key=lambda f: f.bucket)  # stable: keeps manifest order

    def _tables(
        self,
        pin: Pin,
        files: Iterable[DataFile],
        columns: Sequence[str],
        rows: int,
        choice: RowChoice | None,
    ) -> Iterator[pa.Table]:
        """Yield the rows of files, small ones concatenated, large ones in pieces: entity lookup has
        a cost per call."""
        full = self.lake.schema(pin.table)
        schema = pa.schema([full.field(column).with_nullable(True) for column in columns])
        held: list[pa.Table] = []
        count = 0
        for table in pieces(files, columns, rows, choice):
            held.append(table)
            count += table.num_rows
            if count >= rows:
                yield _concat(held, schema)
                held, count = [], 0
        if held:
            yield _concat(held, schema)


def pieces(
    files: Iterable[DataFile],
    columns: Sequence[str],
    rows: int,
    choice: RowChoice | None = None,
) -> Iterator[pa.Table]:
    """Yield the rows of files in order, those of large files some ``rows`` at a time.

    With a ``choice`` only those of a small file may all be there: to choose takes longer.
    Small files of an object store are read several at once: they cost waiting. Those of a folder
    cost processor time of one thread, and are read one after another.
    """
    with ExitStack() as stack:
        pool: ThreadPoolExecutor | None = None
        for small, some in groupby(files, _is_small_and_remote):
            if small:
                pool = pool or stack.enter_context(ThreadPoolExecutor(FILES_AT_ONCE, "read"))
                yield from _read_ahead(pool, some, columns)
                continue
            for file in some:
                if choice is not None and choice.keys and file.rows > SMALL_FILE_ROWS:
                    yield from read_chosen(file, columns, rows, choice)
                elif file.rows <= 2 * rows:
                    yield read_file(file, columns)
                else:
                    yield from read_batches(file, columns, rows)


def _is_small_and_remote(file: DataFile) -> bool:
    return file.storage.is_remote and file.rows <= SMALL_FILE_ROWS


def _read_ahead(
    pool: ThreadPoolExecutor, files: Iterable[DataFile], columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Yield the rows of each file, in order, while the next ones are read."""
    waiting: deque[Future[pa.Table]] = deque()
    try:
        for file in files:
            waiting.append(pool.submit(read_file, file, columns))
            if len(waiting) == FILES_AT_ONCE:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def _concat(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """Concatenate tables to the types of ``schema``; files differ in nullability."""
    alike = [
        table if table.schema.types == schema.types else table.cast(schema) for table in tables
    ]
    return pa.concat_tables(alike, promote_options="default").cast(schema)
