"""A partitioned point-in-time join, for rows, tiles or events larger than memory.

Rows are partitioned by the hash of their entity and spilled; the view's tables are read once and
partitioned by the same hash, without data that no row needs. Then each part is joined separately,
and its results are spilled in row order::

    rows, in chunks     parts by entity      results         output, chunk by chunk
      [chunk 0]  ──┬──▶ [part 0] ─ join ─▶ [0: part 0] ──┬──▶ [chunk 0]
      [chunk 1]  ──┼──▶ [part 1] ─ join ─▶ [1: part 0] ──┼──▶ [chunk 1]
      [chunk 2]  ──┘                       [0: part 1] ──┘    [chunk 2]

All tiles of an entity are in one bucket, and a part lies within a bucket or consists of complete
ones. An entity with more rows than fit into memory is joined in several passes over its part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from paimon_features.core.columns.column import Column
from paimon_features.core.types.array_types import Bools, Floats, Ints
from paimon_features.lake import Lake
from paimon_features.offline.reading.entity_hash import EntityHash
from paimon_features.offline.reading.entity_rows import EntityRows
from paimon_features.offline.reading.spill import SpillFile
from paimon_features.offline.reading.view_reads import ViewRead, empty_join
from paimon_features.offline.reading.view_scan import CHUNK_ROWS, ViewScan

MAX_PARTITIONS = 2048
_ROWS, _TILES, _EVENTS = 0.3, 0.3, 0.1
"""Memory shares of the rows, tiles and events of one part; the rest is for reading, spilling and
output."""
_MIN_ROWS = 16


@dataclass(frozen=True, slots=True)
class JoinPart:
    """Partitions ``[first, last)`` of chunks ``[begin, end)``: rows that are joined together."""

    first: int
    last: int
    begin: int
    end: int


class PartitionedView:
    """The features of one view for all rows, computed part by part and returned chunk by chunk."""

    def __init__(
        self,
        lake: Lake,
        read: ViewRead,
        rows: EntityRows,
        memory_bytes: int,
        spill_folder: str | None,
        tick: Callable[[int], None],
    ) -> None:
        self.read, self.rows, self._folder = read, rows, spill_folder
        self._memory = memory_bytes
        self._hash = EntityHash(read.keys, read.buckets)
        self._pieces: list[list[tuple[int, int]]] = [[] for _ in range(rows.chunks)]
        self._answers, self._orders = SpillFile(spill_folder), SpillFile(spill_folder)
        try:
            self._needs = read.needs(memory_bytes // 16)
            scan = ViewScan(lake, read, self._needs, self._observe())
            self._bucket_bytes, self._event_bytes = scan.buckets_bytes(), scan.events_bytes()
            self.parts = self._parts_of_buckets()
            with SpillFile(spill_folder) as self._cells:
                self._cut()
                self._run(scan, tick)
        except BaseException:
            self.close()
            raise

    def chunk(self, number: int) -> pa.Table:
        """Return the features of a chunk's rows, in their order.

        Columns as of ``ViewJoin.table``.
        """
        # sorted by first partition, as when the chunk was partitioned
        pieces = [self._answers.read(place) for _, place in sorted(self._pieces[number])]
        order = self._orders.read(number).column(0).to_numpy()
        back = np.empty(len(order), np.int32)
        back[order] = np.arange(len(order), dtype=np.int32)
        return pa.concat_tables(pieces).combine_chunks().take(pa.array(back))

    def close(self) -> None:
        """Release spilled data."""
        self._answers.close()
        self._orders.close()

    def _observe(self) -> list[int]:
        """Observe all rows; returns the buckets of their entities."""
        seen = np.zeros(self.read.buckets, np.bool_)
        for chunk in range(self.rows.chunks):
            keys, as_of_ms = self.rows.keys(chunk, self.read)
            hashes = self._hash.of(keys)
            keyed = np.flatnonzero(hashes >= 0)
            self._needs.observe(as_of_ms[keyed], hashes[keyed])
            seen[hashes[keyed] % self.read.buckets] = True
        buckets: list[int] = np.flatnonzero(seen).tolist()
        return buckets

    # -- partitioning ---------------------------------------------------------------------------

    def _parts_of_buckets(self) -> int:
        """Return the partitions per bucket: enough for each to fit into memory, times two, as
        sizes vary."""
        buckets = self.read.buckets
        rows = self.rows.count * self.read.row_bytes / (_ROWS * self._memory)
        events = self._event_bytes / (_EVENTS * self._memory)
        tiles = max(self._bucket_bytes.values(), default=0) / (_TILES * self._memory)
        wanted = int(np.ceil(2 * max(rows / buckets, events / buckets, tiles)))
        return min(max(wanted, 1), max(MAX_PARTITIONS // buckets, 1))

    def _cut(self) -> None:
        """Spill the rows, chunk by chunk and partition by partition.

        Rows with a null key go to the first partition; any would do.
        """
        shape = self.rows.chunks, self.read.buckets * self.parts
        self._counts = np.zeros(shape, np.int64)
        self._places = np.zeros(shape, np.int64)
        for chunk in range(self.rows.chunks):
            keys, as_of_ms = self.rows.keys(chunk, self.read)
            mine = np.maximum(self._hash.partitions(self._hash.of(keys), self.parts), 0)
            # 16-bit integers are radix sorted, in linear time
            order = np.argsort(mine.astype(np.int16), kind="stable").astype(np.int32)
            self._orders.append(pa.table({"order": order}))
            counts = self._counts[chunk] = np.bincount(mine, minlength=shape[1])
            rows = keys.append_column("q", pa.array(as_of_ms)).take(pa.array(order))
            starts = np.cumsum(counts) - counts
            for partition in np.flatnonzero(counts).tolist():
                cell = rows.slice(starts[partition], counts[partition])
                self._places[chunk, partition] = self._cells.append(cell)

    def _blocks(self) -> Iterator[list[JoinPart]]:
        """Yield groups of parts whose tiles are read together: the parts of a split bucket.

        Loads are the shares of the memory for rows, tiles and events that a partition takes.
        """
        parts, buckets = self.parts, self.read.buckets
        loads = np.zeros((buckets * parts, 3))
        loads[:, 0] = self._counts.sum(axis=0) / self._rows_at_once
        for bucket, size in self._bucket_bytes.items():
            loads[bucket * parts : (bucket + 1) * parts, 1] = size / parts / (_TILES * self._memory)
        loads[:, 2] = self._event_bytes / len(loads) / (_EVENTS * self._memory)
        by_bucket = loads.reshape(buckets, parts, 3).sum(axis=1)
        for first, last in _packed(by_bucket):
            low, high = first * parts, last * parts
            if last - first > 1 or (by_bucket[first] <= 1).all():
                yield list(self._passes(low, high))
            else:
                spans = _packed(loads[low:high])
                yield [p for a, b in spans for p in self._passes(low + a, low + b)]

    def _passes(self, first: int, last: int) -> Iterator[JoinPart]:
        """Yield partitions that are joined together: once, or in passes over some chunks each."""
        rows = self._counts[:, first:last].sum(axis=1)
        for begin, end in _packed(rows[:, None] / self._rows_at_once):
            if rows[begin:end].any():
                yield JoinPart(first, last, begin, end)

    @property
    def _rows_at_once(self) -> int:
        return max(int(_ROWS * self._memory) // self.read.row_bytes, _MIN_ROWS)

    # -- joining ---------------------------------------------------------------------------

    def _run(self, scan: ViewScan, tick: Callable[[int], None]) -> None:
        blocks = [block for block in self._blocks() if block]
        columns = empty_join(self.read)
        alone = len(blocks) == 1 and len(blocks[0]) == 1
        with SpillFile(self._folder) as events_spill:
            events = None
            if not alone:
                tables = scan.events(columns.event_columns, self._scan_rows)
                spans = [part for block in blocks for part in block]
                events = self._spilled(tables, spans, events_spill, self._needed_events)
            for block in blocks:
                with SpillFile(self._folder) as tiles_spill:
                    first, last = block[0].first // self.parts, -(-block[-1].last // self.parts)
                    buckets = range(first, last)
                    tiles = None
                    if len(block) > 1 and self.read.tiles is not None:
                        tables = scan.tiles(buckets, columns.tile_columns, self._scan_rows)
                        tiles = self._spilled(tables, block, tiles_spill, self._needed_tiles)
                    for part in block:
                        self._join(part, scan, buckets, events, tiles)
                        tick(int(self._counts[part.begin : part.end, part.first : part.last].sum()))

    def _join(
        self,
        part: JoinPart,
        scan: ViewScan,
        buckets: range,
        events: SpilledPartitions | None,
        tiles: SpilledPartitions | None,
    ) -> None:
        """Join the rows of one part, and spill the results by chunk."""
        cells = [
            self._cells.read(int(self._places[chunk, partition]))
            for chunk in range(part.begin, part.end)
            for partition in range(part.first, part.last)
            if self._counts[chunk, partition]
        ]
        rows = pa.concat_tables(cells).combine_chunks()
        join = self.read.join(rows.drop_columns(["q"]), rows.column("q").to_numpy())
        columns = join.event_columns
        for table in (
            scan.events(columns, self._scan_rows) if events is None else events.tables(part)
        ):
            join.add_events(table)
        if self.read.tiles is not None:
            join.join_tiles(
                scan.tiles(buckets, join.tile_columns, self._scan_rows)
                if tiles is None
                else tiles.tables(part)
            )
        results = join.table()
        start = 0
        for chunk in range(part.begin, part.end):
            size = int(self._counts[chunk, part.first : part.last].sum())
            if size:
                place = self._answers.append(results.slice(start, size))
                self._pieces[chunk].append((part.first, place))
                start += size

    @property
    def _scan_rows(self) -> int:
        """Rows of a table per chunk."""
        return int(min(max(self._memory // 20 // 100, 1000), CHUNK_ROWS))

    def _needed_events(self, hashes: Ints, table: pa.Table) -> Bools:
        time = Column.from_arrow(table.column(self.read.event_time))
        needed = self._needs.events(hashes, time.values)
        return needed if time.valid is None else needed & time.valid

    def _needed_tiles(self, hashes: Ints, table: pa.Table) -> Bools:
        return self._needs.entities(hashes)

    def _spilled(
        self,
        tables: Iterator[pa.Table],
        parts: Sequence[JoinPart],
        spill: SpillFile,
        needed: Callable[[Ints, pa.Table], Bools],
    ) -> SpilledPartitions:
        """Partition tables like the rows, without data that no row needs."""
        spilled = SpilledPartitions(spill, parts, self._memory // 16)
        for table in tables:
            hashes = self._hash.of(table)
            some = np.flatnonzero((hashes >= 0) & needed(hashes, table))
            if len(some):
                needed_rows = table.take(pa.array(some))
                spilled.add(needed_rows, self._hash.partitions(hashes[some], self.parts))
        spilled.flush()
        return spilled


class SpilledPartitions:
    """A table read once and partitioned like the rows, for each part.

    Rows of a part keep their order; passes over one part share them. About ``held_bytes`` are
    buffered before writing, so that pieces are not too small.
    """

    def __init__(self, spill: SpillFile, parts: Sequence[JoinPart], held_bytes: int) -> None:
        self._spill, self._held_bytes = spill, held_bytes
        spans = sorted({(part.first, part.last) for part in parts})
        self._firsts = np.array([first for first, _ in spans], np.int64)
        self._lasts = np.array([last for _, last in spans], np.int64)
        self._places: list[list[int]] = [[] for _ in self._firsts]
        self._held: list[tuple[pa.Table, Ints]] = []
        self._bytes = 0

    def add(self, table: pa.Table, partitions: Ints) -> None:
        """Add rows with their partitions; rows of no part are dropped."""
        self._held.append((table, partitions))
        self._bytes += table.nbytes
        if self._bytes >= self._held_bytes:
            self.flush()

    def flush(self) -> None:
        """Write buffered rows, a piece per span."""
        if not self._held:
            return
        table = pa.concat_tables([table for table, _ in self._held])
        partitions = np.concatenate([partitions for _, partitions in self._held])
        self._held, self._bytes = [], 0
        spans = np.searchsorted(self._firsts, partitions, side="right") - 1
        inside = np.flatnonzero((spans >= 0) & (partitions < self._lasts[spans]))
        order = inside[np.argsort(spans[inside].astype(np.int16), kind="stable")]
        sizes = np.bincount(spans[inside], minlength=len(self._firsts))
        table = table.take(pa.array(order))
        starts = np.cumsum(sizes) - sizes
        for span in np.flatnonzero(sizes).tolist():
            piece = table.slice(starts[span], sizes[span])
            self._places[span].append(self._spill.append(piece))

    def tables(self, part: JoinPart) -> Iterator[pa.Table]:
        """Return the rows of a part's span, in the order of ``add``."""
        span = int(np.searchsorted(self._firsts, part.first))
        return (self._spill.read(place) for place in self._places[span])


def _packed(loads: Floats) -> list[tuple[int, int]]:
    """Group neighbours as long as no column of their summed loads exceeds 1.

    >>> _packed(np.array([[0.5], [0.5], [0.1], [3.0], [0.2]]))
    [(0, 2), (2, 3), (3, 4), (4, 5)]
    """
    ranges = []
    start, total = 0, np.zeros(loads.shape[1])
    for i, load in enumerate(loads):
        if i > start and (total + load > 1).any():
            ranges.append((start, i))
            start, total = i, np.zeros(loads.shape[1])
        total = total + load
    return [*ranges, (start, len(loads))] if len(loads) else ranges
