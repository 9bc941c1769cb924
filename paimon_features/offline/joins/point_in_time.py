"""The point-in-time join: features of entities at given times, from tiles and raw events.

A row ``(entity, q)`` sees the tiles that lie completely in a window, and the raw events where a
window starts or ends within a tile (``edge_events``), never an event at or after ``q``. Everything
is sorted once, by entity and time; then a window is a range of rows, found by binary search and
folded in a few gathers (``range_index``). Nothing here depends on a table or an engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from paimon_features.core.columns.column import Column, take_rows
from paimon_features.core.types.array_types import Array, Bools, Ints
from paimon_features.core.windows import Window, ceil_ms, floor_ms
from paimon_features.definitions import CompiledFeature, CompiledView
from paimon_features.definitions.aggregates import EVENT_TIME_MAX, Merge
from paimon_features.definitions.aggregates.fold import (
    NEVER_MS,
    decay_to,
    fold,
    merge_rows,
    newest_tile_end,
)
from paimon_features.definitions.aggregates.range_index import RangeIndex
from paimon_features.definitions.event_partials import concat
from paimon_features.definitions.finishing import by_window
from paimon_features.definitions.own_events import OwnEvents
from paimon_features.lake.specs import TILE_START
from paimon_features.offline.joins.edge_events import NO_INTS, EdgeEvents
from paimon_features.offline.joins.entity_codes import EntityCodes, TimeKeys, positions, sort_order
from paimon_features.offline.joins.result_builder import JoinResult, ResultBuilder
from paimon_features.offline.joins.window_edges import WindowEdges, need_other_tiles

__all__ = ["JoinResult", "PointInTimeJoin", "tile_range"]

BLOCK_ROWS = 1 << 17
"""Rows per block: its working set fits into the processor's caches."""


class PointInTimeJoin:
    """The features of one view for many rows ``(entity keys, as_of_ms)``.

    ``rows`` are the key columns, in the types of the entity; duplicates and nulls are allowed, a
    row with a null key is MISSING. Call ``add_events`` for the events of ``edge_days``, then
    ``join_tiles`` for groups of tiles (all tiles of an entity in one group, for example a
    bucket), then ``results``. With ``own_events`` the rows are events of the view's source, each of
    which counts itself.

    Memory is bounded by the rows, the edge events, and the tiles of requested entities in one
    group.
    """

    def __init__(
        self,
        view: CompiledView,
        features: Sequence[CompiledFeature],
        rows: pa.Table,
        as_of_ms: Ints,
        own_events: OwnEvents | None = None,
    ) -> None:
        self.view, self.features, self._own = view, tuple(features), own_events
        needed = {EVENT_TIME_MAX.name}.union(*(f.partials for f in features))
        self.partials = [p for p in view.partials if p.name in needed]
        self.entities = EntityCodes(rows, view.keys)
        codes = self.entities.codes
        present = np.flatnonzero(codes >= 0)
        times = as_of_ms
        if len(present) < len(codes):
            codes, times = codes[present], as_of_ms[present]
        self._windows = by_window(self.features)
        # rows of one tile stay together; their order within it matters only where window edges
        # lie in tiles other than that of q
        step_ms = 1 if need_other_tiles(view.windows) else view.tile_ms
        steps = floor_ms(times, step_ms)
        time_keys = TimeKeys(steps, self.entities.count, step_ms)
        order, keys = sort_order(time_keys.of(codes, steps))
        self._order = order if len(present) == len(as_of_ms) else present[order]
        # recomputed rather than gathered: cheaper than two more random reads per row
        self._codes, self._q = time_keys.codes(keys), times[order]
        self._floor = floor_ms(self._q, view.tile_ms)
        self._spans = WindowEdges(view, self._windows, self._q, self._floor)
        self._edges = EdgeEvents(view, self.partials, self.entities, self._codes, self._spans.found)
        self._computed = np.zeros(self.entities.count, np.bool_)
        self._builder = ResultBuilder(view, self.features, len(as_of_ms), own_events)
        self.held_tiles = 0

    @property
    def edge_days(self) -> Ints:
        """Days since 1970 whose events are needed, ascending."""
        return self._edges.days

    @property
    def event_columns(self) -> list[str]:
        """Required columns of the events table."""
        return self._edges.columns

    @property
    def tile_columns(self) -> list[str]:
        """Required columns of the tile table."""
        return [*self.view.keys, TILE_START, *(p.name for p in self.partials)]

    @property
    def tile_range(self) -> tuple[int, int]:
        """Range of relevant tile starts: from (inclusive), to (exclusive), both ms."""
        if not len(self._q):
            return 0, 0
        return tile_range(self.view, int(self._q.min()), int(self._q.max()))

    @property
    def held_events(self) -> int:
        """Number of added events at edges."""
        return self._edges.held

    def add_events(self, events: pa.Table) -> None:
        """Add the events of heads and tails; all others are ignored."""
        self._edges.add(events)

    def join_tiles(self, tables: Iterable[pa.Table]) -> int:
        """Compute the rows of entities with tiles in this group.

        Returns the number of rows computed. An entity must be in one group only.
        """
        tiles = _TileGroup(self, tables)
        mine = tiles.present[self._codes]
        self._computed |= tiles.present
        return self._compute_all(np.flatnonzero(mine), tiles)

    def results(self) -> JoinResult:
        """Compute the rows of entities without tiles, and return all results."""
        if not self._computed.all():
            rest = np.flatnonzero(~self._computed[self._codes])
            self._compute_all(rest, _TileGroup(self, ()))
        return self._builder.results()

    def _compute_all(self, rows: Ints, tiles: _TileGroup) -> int:
        if self._edges.index is None:
            self._edges.close()
        for start in range(0, len(rows), BLOCK_ROWS):
            block = rows[start : start + BLOCK_ROWS]
            whole = block[-1] - block[0] == len(block) - 1
            self._compute(slice(block[0], block[-1] + 1) if whole else block, tiles)
        return len(rows)

    def _compute(self, rows: Ints | slice, tiles: _TileGroup) -> None:
        """Compute a block of rows; positions refer to the sorted rows."""
        block = _RowBlock(self, rows, tiles)
        as_of_ms, target = block.as_of_ms, self._order[rows]
        newest = block.newest_before(self.view.horizon(as_of_ms))
        present = self._builder.set_status(target, as_of_ms, newest)
        for window, features in self._windows.items():
            names = {EVENT_TIME_MAX.name}.union(*(f.partials for f in features))
            some, merged = block.fold(window, names)
            if self._own is not None:
                some, merged = _including(self._own.member[target], some, merged)
            self._builder.mark_empty(window, target, some)
            self._builder.finish(target[some], features, merged, as_of_ms[some], present[some])


class _RowBlock:
    """A block of rows; what several windows share is computed once."""

    def __init__(self, join: PointInTimeJoin, rows: Ints | slice, tiles: _TileGroup) -> None:
        self._rows, self._tiles = rows, tiles
        self._spans, self._edges = join._spans, join._edges
        self._view, self._tile_ms = join.view, join.view.tile_ms
        self.codes, self.as_of_ms = join._codes[rows], join._q[rows]
        self._floor = join._floor[rows]
        self._his: dict[tuple[int, int], Ints] = {}
        self._edge_of: dict[int, _FoldedEdge] = {}

    def newest_before(self, horizon: Ints) -> Ints:
        """Return the time of each row's newest event before the horizon; NEVER_MS where there is
        none."""
        last = self._view.ending_last
        hi = self._hi(last[0]) if len(last) == 1 else self._before(horizon)
        newest = self._tiles.newest_before(self.codes, hi)
        if self._spans.newest is not None:
            head = self._edge(self._spans.newest)
            newest[head.rows] = head.columns[EVENT_TIME_MAX.name].values
        return newest

    def fold(self, window: Window, names: Iterable[str]) -> tuple[Ints | slice, dict[str, Column]]:
        """Return the rows whose window has events, and its merged partials there.

        Includes tiles, and raw events at the window's edges.
        """
        start = window.start(self.as_of_ms)
        if window.needs_tail:
            start = ceil_ms(start, self._tile_ms)
        lo, hi = self._tiles.before(self.codes, start), self._hi(window)
        spans = (self._spans.heads.get(window), self._spans.tails.get(window))
        edges = [self._edge(span) for span in spans if span is not None]
        seen = hi > lo
        for edge in edges:
            seen[edge.rows] = True
        if seen.all():
            some: Ints | slice = slice(None)
        else:
            some = np.flatnonzero(seen)
            lo, hi = lo[some], hi[some]
        merged = self._tiles.index.fold(lo, hi, names)
        place = np.cumsum(seen) - 1 if edges else NO_INTS
        for edge in edges:
            edge.merge_into(merged, place[edge.rows])
        return some, merged

    def _hi(self, window: Window) -> Ints:
        """Return how many tiles sort before the first one not completely in the window."""
        end = window.offset_ms, window.end_step_ms
        if end not in self._his:
            self._his[end] = self._before(window.end(self.as_of_ms))
        return self._his[end]

    def _before(self, end: Ints) -> Ints:
        floor = self._floor if end is self.as_of_ms else floor_ms(end, self._tile_ms)
        return self._tiles.before(self.codes, floor)

    def _edge(self, span: int) -> _FoldedEdge:
        if span not in self._edge_of:
            self._edge_of[span] = _FoldedEdge(self._edges, span, self._rows)
        return self._edge_of[span]


def _including(
    rows: Bools, some: Ints | slice, merged: dict[str, Column]
) -> tuple[Ints | slice, dict[str, Column]]:
    """Return the folds of some rows, and of ``rows``, whose windows may have no stored event."""
    if isinstance(some, slice):
        return some, merged
    chosen = rows.copy()
    chosen[some] = True
    all_rows = np.flatnonzero(chosen)
    if len(all_rows) == len(some):
        return some, merged
    places = (np.cumsum(chosen) - 1)[some]
    out = {}
    for name, column in merged.items():
        values, valid = np.zeros(len(all_rows), column.values.dtype), np.zeros(len(all_rows), bool)
        values[places], valid[places] = column.values, column.mask
        out[name] = Column(values, valid)
    return all_rows, out


def tile_range(view: CompiledView, first_ms: int, last_ms: int) -> tuple[int, int]:
    """Return the range of tile starts, from (inclusive) to (exclusive), that rows at these times
    can need."""
    return floor_ms(view.known_from(first_ms), view.tile_ms), floor_ms(last_ms, view.tile_ms)


class _TileGroup:
    """A group of tiles, sorted by entity and time."""

    def __init__(self, join: PointInTimeJoin, tables: Iterable[pa.Table]) -> None:
        codes, starts, columns = _read(join, tables)
        count = join.entities.count
        self._time_keys = TimeKeys(starts, count, join.view.tile_ms)
        keys = self._time_keys.of(codes, starts)
        order, keys = sort_order(keys)
        codes = self._time_keys.codes(keys)
        columns = {name: column.take(order) for name, column in columns.items()}
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        if len(first) < len(keys):  # several rows of one tile, not merged by the lake yet
            offsets = np.append(first, len(keys))
            columns = fold(join.partials, columns, offsets, join.view.tile_ms)
            keys, codes = keys[first], codes[first]
        self._keys = keys
        sizes = np.bincount(codes, minlength=count)
        self.present: Bools = sizes > 0
        self._first = np.cumsum(sizes) - sizes
        self._newest: Array = columns[EVENT_TIME_MAX.name].values
        self.index = RangeIndex(join.partials, columns, sizes, join.view.tile_ms)

    def before(self, codes: Ints, time_ms: Ints) -> Ints:
        """Return how many tiles sort before the tile of each entity that starts at that time."""
        return positions(self._keys, self._time_keys.of(codes, time_ms))

    def newest_before(self, codes: Ints, hi: Ints) -> Ints:
        """Return the time of each entity's newest event in the tiles before ``hi``."""
        if not len(self._newest):
            return np.full(len(codes), NEVER_MS)
        some = hi > self._first[codes]
        return np.where(some, self._newest[np.maximum(hi - 1, 0)], NEVER_MS)


class _FoldedEdge:
    """The folded heads or tails of a block of rows; most rows have none."""

    def __init__(self, edges: EdgeEvents, span: int, rows: Ints | slice) -> None:
        assert edges.index is not None
        self.rows, lo, hi = edges.ranges(span, rows)
        self.columns = edges.index.fold(lo, hi)
        self._partials = {p.name: p for p in edges.partials}
        self._tile_ms = edges.view.tile_ms

    def merge_into(self, merged: dict[str, Column], rows: Ints) -> None:
        """Merge them into these rows of a window's partials, like one more tile."""
        if not len(rows):
            return
        current = {name: column.take(rows) for name, column in merged.items()}
        ends = newest_tile_end(current, self._tile_ms), newest_tile_end(self.columns, self._tile_ms)
        newest = np.maximum(*ends)
        for name, column in merged.items():
            partial, sides = self._partials[name], (current[name], self.columns[name])
            if partial.merge is Merge.DECAYED_SUM:
                assert partial.half_life_ms is not None
                left, right = (
                    decay_to(side, newest - end, partial.half_life_ms)
                    for side, end in zip(sides, ends, strict=True)
                )
                sides = left, right
            both = merge_rows(partial, *sides)
            column.values[rows] = both.values
            if column.valid is not None:
                column.valid[rows] = both.mask


def _read(
    join: PointInTimeJoin, tables: Iterable[pa.Table]
) -> tuple[Ints, Ints, dict[str, Column]]:
    """Return entity codes, starts and partials of the tiles of requested entities."""
    join.held_tiles = 0
    codes, starts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    columns: dict[str, list[Column]] = {p.name: [] for p in join.partials}
    for table in tables:
        table_codes = join.entities.codes_of(table)
        requested = np.flatnonzero(table_codes >= 0)
        if len(requested) < len(table_codes):
            table, table_codes = take_rows(table, requested), table_codes[requested]
        join.held_tiles += len(table_codes)
        codes.append(table_codes)
        starts.append(Column.from_arrow(table.column(TILE_START)).values)
        for name, parts in columns.items():
            parts.append(Column.from_arrow(table.column(name)))
    return (
        np.concatenate(codes),
        np.concatenate(starts),
        {p.name: concat(p, columns[p.name]) for p in join.partials},
    )
