"""Rows of a derived view: each window with an end, from the tiles that lie in it.

Tiles are sorted by entity and time and cut into windows, which are folded and finished, all of
them at once. A tumbling window is the tiles that begin in it; a session ends where a tile's first
event is a gap or more behind the last event of the tile before::

    tiles      [--a-b---)[-------)[c------)[---d---)        one entity
    sessions    <-----gap->        <---------gap->           d - c < gap <= c - b

Work goes through the starts of windows, some days at a time, and within them bucket by bucket;
a session is followed into later days for as long as it may continue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import RequestError
from paimon_features.core.types.array_types import Bools, Ints
from paimon_features.core.windows import DAY_MS, MAX_TIME_MS, MIN_TIME_MS, Tumbling, floor_ms
from paimon_features.definitions import CompiledDerived
from paimon_features.definitions.aggregates import EVENT_TIME_MAX, ROWS
from paimon_features.definitions.aggregates.fold import fold
from paimon_features.definitions.derived import FIRST_EVENT_TIME
from paimon_features.definitions.event_partials import concat
from paimon_features.definitions.finishing import finish
from paimon_features.lake import Lake
from paimon_features.lake.reading.deltas import DataFile, live_files, read_file
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.lake.specs import TILE_DAY, TILE_START
from paimon_features.offline.joins.entity_codes import EntityCodes, TimeKeys, sort_order
from paimon_features.offline.reading.pinning import AsOf, Pinner, check_contents
from paimon_features.offline.reading.spill import memory_bytes
from paimon_features.offline.reading.view_reads import width


@dataclass(frozen=True, slots=True)
class SortedTiles:
    """Tiles sorted by entity, then time, each once."""

    keys: pa.Table
    codes: Ints
    starts: Ints
    columns: dict[str, Column]

    def take(self, rows: Ints) -> SortedTiles:
        """Return some of them, in this order."""
        return SortedTiles(
            self.keys.take(pa.array(rows)),
            self.codes[rows],
            self.starts[rows],
            {name: column.take(rows) for name, column in self.columns.items()},
        )


@dataclass(frozen=True, slots=True)
class WindowRanges:
    """Windows as ranges of tiles ``offsets[i]:offsets[i + 1]``, with start and end (exclusive)."""

    offsets: Ints
    starts: Ints
    ends: Ints


class DerivedRead:
    """The rows of a derived view at one snapshot of its view's tiles.

    ``from_ms`` (inclusive) and ``to_ms`` (exclusive) bound the starts of windows, UTC ms; a
    window that starts inside is whole, wherever it ends. Windows that can still grow, because
    they end after the newest event in the tiles, are left out unless ``include_open``.

    Raises
    ------
    RequestError
        If there is no time between ``from_ms`` and ``to_ms``.
    SnapshotExpiredError
        If the snapshot of ``as_of`` is gone.
    GenerationError
        If the tiles of that time lack something that the rows are computed from.
    """

    def __init__(
        self,
        lake: Lake,
        derived: CompiledDerived,
        record: GenerationRecord,
        *,
        from_ms: int | None = None,
        to_ms: int | None = None,
        include_open: bool = False,
        as_of: AsOf = None,
        memory_mb: float | None = None,
    ) -> None:
        if from_ms is not None and to_ms is not None and from_ms >= to_ms:
            raise RequestError(f"from {from_ms} to {to_ms} ms: expected a time between them")
        self.lake, self.derived, self.view = lake, derived, derived.view
        self.from_ms, self.to_ms, self.include_open = from_ms, to_ms, include_open
        pinner = Pinner(lake, as_of)
        chosen, self.pin = pinner.tiles(self.view, lambda _: record)
        check_contents(self.view, chosen, derived.partials)
        pinner.done()
        self.not_included = pinner.not_included.get(self.view.name, 0)
        """Commits of events that the tiles do not contain yet."""
        self._buckets = range(chosen.buckets)
        self._partials = [self.view.partial[name] for name in derived.partials]
        widths = [*(p.type for p in self._partials), *derived.view.keys.values()]
        self._chunk_rows = memory_bytes(memory_mb) // (4 * sum(map(width, widths)) + 60)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        columns = self.derived.columns
        return pa.schema([pa.field(name, kind.arrow) for name, kind in columns.items()])

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows, some days of starts at a time, in the order of start, then keys."""
        for low, high in self._chunks():
            parts = [part for bucket in self._buckets for part in self._rows(bucket, low, high)]
            if parts:
                table = pa.concat_tables(parts)
                order = [self.derived.start, *self.view.keys]
                yield table.sort_by([(name, "ascending") for name in order]).combine_chunks()
        self.pin.check(self.lake)  # files are found by the snapshot's number

    def table(self) -> pa.Table:
        """Return all rows at once."""
        return pa.concat_tables([self.schema.empty_table(), *self.tables()])

    def reader(self) -> pa.RecordBatchReader:
        """Return the rows as a stream, computed as it is read."""
        batches = (batch for table in self.tables() for batch in table.to_batches())
        return pa.RecordBatchReader.from_batches(self.schema, batches)

    @cached_property
    def newest_ms(self) -> int:
        """Time of the newest event in the tiles: no window that ends by then is open."""
        if not self._partitions:
            return MIN_TIME_MS
        first = self._partitions[-1].start
        last = self._table(self._of_days(first, first), [EVENT_TIME_MAX.name])
        newest: int = pc.max(last.column(0)).as_py()
        return newest

    # -- which tiles are read --------------------------------------------------------------

    @cached_property
    def _files(self) -> list[DataFile]:
        if self.pin.snapshot_id is None:
            return []
        return live_files(self.lake, self.pin.table, self.pin.snapshot_id)

    @cached_property
    def _partitions(self) -> list[range]:
        """The days of the partitions that have tiles, ascending."""
        days = {file.days(TILE_DAY) for file in self._files}
        return sorted((d for d in days if d is not None), key=lambda d: d.start)

    def _of_days(self, first: int, last: int, bucket: int | None = None) -> list[DataFile]:
        """Return the files that may have tiles of days ``first`` to ``last`` (inclusive)."""
        return [
            file
            for file in self._files
            if file.overlaps(TILE_DAY, first, last) and bucket in (None, file.bucket)
        ]

    def _chunks(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of starts, ``[low, high)`` ms, that are worked on one after another."""
        if not self._partitions:
            return
        begin, end = max(self._partitions[0].start * DAY_MS, MIN_TIME_MS), self._end_ms
        if self.derived.windows is not None:
            begin = self.derived.windows.start(begin)
        low = begin if self.from_ms is None else max(begin, self.from_ms)
        end = end if self.to_ms is None else min(end, self.to_ms)
        yield from self._days_at_once(None, low, end)

    def _rows(self, bucket: int, low: int, high: int) -> Iterator[pa.Table]:
        """Yield the rows of one bucket whose windows start in ``[low, high)``."""
        windows, gap_ms = self.derived.windows, self.derived.gap_ms
        if windows is not None:
            first, last = windows.first_from(low), windows.first_from(high)
            if first < last:
                tiles = self._tumbling(windows, bucket, first, last)
                starts = tiles.starts
                ranges = WindowRanges(np.arange(len(starts) + 1), starts, windows.end(starts))
                yield from self._finished(tiles, ranges)
            return
        assert gap_ms is not None
        # an event that is a gap before the first start can no longer be of its session
        since, until = low - gap_ms, high + gap_ms
        while True:
            tiles = self._tiles(bucket, since, until)
            retracted = tiles.columns[ROWS.name].values <= 0
            if retracted.any():
                tiles = tiles.take(np.flatnonzero(~retracted))
            cut = _sessions(gap_ms, tiles, self.view.tile_ms)
            inside = (cut.starts >= low) & (cut.starts < high)
            ends = cut.ends[inside]
            if until >= self._end_ms or not (ends > until).any():
                yield from self._finished(tiles, cut, inside)
                return
            until += max(until - low, DAY_MS)  # twice as far

    @property
    def _end_ms(self) -> int:
        return min(self._partitions[-1].stop * DAY_MS, MAX_TIME_MS + 1)

    # -- reading ---------------------------------------------------------------------------

    def _tiles(self, bucket: int, low: int, high: int) -> SortedTiles:
        """Return the tiles of a bucket that may hold events in ``[low, high)``, sorted and
        merged."""
        tile_ms, names = self.view.tile_ms, [p.name for p in self._partials]
        low, high = max(low, MIN_TIME_MS - DAY_MS), min(high, MAX_TIME_MS + DAY_MS)
        files = self._of_days(floor_ms(low, tile_ms) // DAY_MS, (high - 1) // DAY_MS, bucket)
        table = self._table(files, [*self.view.keys, TILE_START, *names])
        starts = table.column(TILE_START)
        bounds = pc.greater(starts, low - tile_ms), pc.less(starts, high)
        table = table.filter(pc.and_(*bounds)).combine_chunks()
        return self._merged(
            table.select(list(self.view.keys)),
            Column.from_arrow(table.column(TILE_START)).values,
            {name: Column.from_arrow(table.column(name)) for name in names},
        )

    def _merged(self, keys: pa.Table, starts: Ints, columns: dict[str, Column]) -> SortedTiles:
        """Return rows sorted by entity and start, those of one entity and start made one."""
        entities = EntityCodes(keys, self.view.keys)
        time_keys = TimeKeys(starts, entities.count, self.view.tile_ms)
        order, sorted_keys = sort_order(time_keys.of(entities.codes, starts))
        columns = {name: column.take(order) for name, column in columns.items()}
        first = np.flatnonzero(np.diff(sorted_keys, prepend=-1))
        columns = fold(self._partials, columns, np.append(first, len(order)), self.view.tile_ms)
        rows = order[first]
        return SortedTiles(keys.take(pa.array(rows)), entities.codes[rows], starts[rows], columns)

    def _tumbling(self, windows: Tumbling, bucket: int, first: int, last: int) -> SortedTiles:
        """Return the windows of a bucket from one start to another, as if each were one tile.

        Each day's tiles are folded first, then the days of a window: a window may be longer
        than what fits into memory at once, and has the same bits however days are read.
        """
        parts = []
        for begin, end in self._days_at_once(bucket, first, last):
            tiles = self._tiles(bucket, begin, end)
            starts = windows.start(tiles.starts)
            new = _differs(tiles.codes) | _differs(starts) | _differs(tiles.starts // DAY_MS)
            rows = np.flatnonzero(new)
            offsets = np.append(rows, len(starts))
            columns = fold(self._partials, tiles.columns, offsets, self.view.tile_ms)
            parts.append((tiles.keys.take(pa.array(rows)), starts[rows], columns))
        return self._merged(
            pa.concat_tables([keys for keys, _, _ in parts]),
            np.concatenate([starts for _, starts, _ in parts]),
            {p.name: concat(p, [c[p.name] for _, _, c in parts]) for p in self._partials},
        )

    def _days_at_once(self, bucket: int | None, low: int, high: int) -> Iterator[tuple[int, int]]:
        """``[low, high)`` cut where a partition begins, so that the tiles of a part fit into
        memory."""
        rows: dict[int, int] = {}
        for file in self._files:
            if bucket in (None, file.bucket):
                first = file.partition[TILE_DAY]
                rows[first] = rows.get(first, 0) + file.rows
        held = 0
        for days in self._partitions:
            partition_rows, begin = rows.get(days.start, 0), days.start * DAY_MS
            if held and held + partition_rows > self._chunk_rows and low < begin < high:
                yield low, begin
                low, held = begin, 0
            held += partition_rows if low < days.stop * DAY_MS else 0
        if low < high:
            yield low, high

    def _table(self, files: Sequence[DataFile], columns: Sequence[str]) -> pa.Table:
        full = self.lake.schema(self.pin.table)
        schema = pa.schema([full.field(column).with_nullable(True) for column in columns])
        parts = [read_file(file, columns).cast(schema) for file in files]
        return pa.concat_tables(parts) if parts else schema.empty_table()

    # -- finishing -------------------------------------------------------------------------

    def _finished(
        self, tiles: SortedTiles, cut: WindowRanges, inside: Bools | None = None
    ) -> Iterator[pa.Table]:
        """Yield the rows of windows; those without an event, and open ones, are left out."""
        if not len(cut.starts):
            return
        merged = fold(self._partials, tiles.columns, cut.offsets, self.view.tile_ms)
        wanted = merged[ROWS.name].values > 0
        if inside is not None:
            wanted &= inside
        if not self.include_open:
            wanted &= cut.ends <= self.newest_ms
        chosen = np.flatnonzero(wanted)
        if not len(chosen):
            return
        merged = {name: column.take(chosen) for name, column in merged.items()}
        starts, ends = cut.starts[chosen], cut.ends[chosen]
        windows = self.derived.windows
        length_ms = None if windows is None else windows.length_ms
        arrays = [*tiles.keys.take(pa.array(cut.offsets[:-1][chosen])).columns]
        arrays += [pa.array(starts), pa.array(ends)]
        if self.derived.count is not None:
            arrays.append(pa.array(merged[ROWS.name].values))
        features = self.derived.features
        results = finish(self.view, features, merged, ends, length_ms)
        for feature, finished in zip(features, results, strict=True):
            column = finished.column
            if finished.ill_conditioned is not None:
                column = Column(column.values, column.mask & ~finished.ill_conditioned)
            arrays.append(column.to_arrow(feature.type.arrow))
        yield pa.Table.from_arrays(
            [array.cast(field.type) for array, field in zip(arrays, self.schema, strict=True)],
            schema=self.schema,
        )


def _sessions(gap_ms: int, tiles: SortedTiles, tile_ms: int) -> WindowRanges:
    """Tiles of one entity continue a session while less than the gap lies between events."""
    newest: Ints = tiles.columns[EVENT_TIME_MAX.name].values
    # a tile of a millisecond is its own first event
    oldest: Ints = tiles.starts if tile_ms == 1 else tiles.columns[FIRST_EVENT_TIME].values
    new = _differs(tiles.codes)
    new[1:] |= oldest[1:] - newest[:-1] >= gap_ms
    first = np.flatnonzero(new)
    offsets = np.append(first, len(newest))
    return WindowRanges(offsets, oldest[first], newest[offsets[1:] - 1] + gap_ms)


def _differs(values: Ints) -> Bools:
    """Return where a value is another one than that before it; the first one is."""
    out = np.ones(len(values), np.bool_)
    out[1:] = values[1:] != values[:-1]
    return out
