"""Heads and tails: raw events of a window in tiles that it covers only partly.

The tile that contains ``q`` also includes events after ``q``, so a point-in-time join skips it
and reads these raw events instead; likewise where an exact window starts within a tile::

    tiles   ---[-------)[-------)[-------)[-------)
    window         [----------------------------)
    taken          tail ^^^^^^tiles^^^^^^^ head     only the events inside

Events are converted to partials by the tile job's expressions, so that a head or a tail is one
more row of partials.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from paimon_features.core.columns.column import Column, take_rows
from paimon_features.core.types.array_types import Ints
from paimon_features.core.windows import DAY_MS, floor_ms
from paimon_features.definitions import CompiledView
from paimon_features.definitions.aggregates import Partial
from paimon_features.definitions.aggregates.range_index import RangeIndex
from paimon_features.definitions.event_partials import concat, enters, event_columns, partials_of
from paimon_features.offline.joins.entity_codes import (
    EntityCodes,
    TimeKeys,
    distinct,
    positions,
    sort_order,
)
from paimon_features.offline.joins.window_edges import EdgeSpan

NO_INTS: Ints = np.zeros(0, np.int64)


class EdgeEvents:
    """The raw events at the edges of many rows' windows, sorted by entity and tile.

    ``codes`` are the rows' entities, ascending; ``spans`` are the events that each row needs, with
    tiles ascending within an entity. Call ``add`` for all events in any order, then ``close``,
    then ``ranges``.
    """

    def __init__(
        self,
        view: CompiledView,
        partials: Sequence[Partial],
        entities: EntityCodes,
        codes: Ints,
        spans: Sequence[EdgeSpan],
    ) -> None:
        self.view, self.partials, self.entities = view, partials, entities
        tile_ms = view.tile_ms
        # a cell is one tile of one entity; rows of a cell share its events
        cells_by_span = [_cells(codes, span.tile_ms) for span in spans]
        tiles = np.concatenate([NO_INTS, *(cells.tiles for cells in cells_by_span)])
        self._time_keys = TimeKeys(tiles, entities.count, tile_ms)
        self._codes = np.concatenate([NO_INTS, *(cells.codes for cells in cells_by_span)])
        self._keys, self._tiles = self._time_keys.of(self._codes, tiles), tiles
        self._since, self._until = _needed_range(spans, cells_by_span)
        # axes: spans, rows
        self._cell = [cells.of_row for cells in cells_by_span]
        if len(spans) > 1:
            places = self._unite([len(cells.tiles) for cells in cells_by_span])
            self._cell = [place[cell] for place, cell in zip(places, self._cell, strict=True)]
        self._low: list[Ints | None] = []
        self._high: list[Ints] = []
        for cell, span in zip(self._cell, spans, strict=True):
            border = cell * tile_ms
            whole = span.low_ms is span.tile_ms
            self._low.append(None if whole else border + (span.low_ms - span.tile_ms))
            self._high.append(border + (span.high_ms - span.tile_ms))
        self._found: list[tuple[Ints, dict[str, Column]]] = []
        self.held = 0
        """Number of added events."""
        self._sorted: Ints = NO_INTS
        self.index: RangeIndex | None = None

    def _unite(self, sizes: Sequence[int]) -> list[Ints]:
        """Deduplicate the cells of several spans; returns the new index of each span's cells."""
        self._keys, first, place = np.unique(self._keys, return_index=True, return_inverse=True)
        since, until = self._since, self._until
        self._since, self._until = since[first], until[first]
        np.minimum.at(self._since, place, since)
        np.maximum.at(self._until, place, until)
        self._codes, self._tiles = self._codes[first], self._tiles[first]
        return np.split(place, np.cumsum(sizes)[:-1])

    @property
    def days(self) -> Ints:
        """Days since 1970 (ascending, distinct) whose events are needed."""
        return distinct(self._tiles[self._until > self._since] // DAY_MS)

    @property
    def columns(self) -> list[str]:
        """The columns of the source that ``add`` needs, in the source's order."""
        return event_columns(self.view, self.partials)

    def add(self, events: pa.Table) -> None:
        """Add the events that lie at an edge; all others are ignored."""
        time = Column.from_arrow(events.column(self.view.source.event_time))
        codes = self.entities.codes_of(events)
        cells = self._cells_of(codes, time)
        chosen = np.flatnonzero(cells >= 0)
        if not len(chosen):
            return
        edge_rows = take_rows(events, chosen)
        columns = {name: Column.from_arrow(edge_rows.column(name)) for name in self.columns}
        inside = np.flatnonzero(enters(self.view, columns, len(chosen)))
        if len(inside) < len(chosen):
            chosen = chosen[inside]
            columns = {name: column.take(inside) for name, column in columns.items()}
        self.held += len(chosen)
        times, cells = time.values[chosen], cells[chosen]
        keys = cells * self.view.tile_ms + (times - self._tiles[cells])
        self._found.append((keys, partials_of(self.view, self.partials, columns, times)))

    def close(self) -> None:
        """Sort the added events and index them; call once, after all ``add``."""
        keys = np.concatenate([NO_INTS, *(keys for keys, _ in self._found)])
        order, self._sorted = sort_order(keys)
        sizes = np.bincount(self._sorted // self.view.tile_ms, minlength=len(self._tiles))
        self._ends = np.cumsum(sizes)
        self._begins = self._ends - sizes
        columns = {}
        for partial in self.partials:
            parts = [partials[partial.name] for _, partials in self._found]
            columns[partial.name] = concat(partial, parts).take(order)
        self._found.clear()
        self.index = RangeIndex(self.partials, columns, sizes, self.view.tile_ms)

    def ranges(self, span: int, rows: Ints | slice) -> tuple[Ints, Ints, Ints]:
        """Return which of these rows have events in a span: positions in ``rows``, ranges of
        ``index``."""
        cells = self._cell[span][rows]
        lo, low = self._begins[cells], self._low[span]
        some = np.flatnonzero(self._ends[cells] > lo)
        lo = lo[some] if low is None else np.searchsorted(self._sorted, low[rows][some])
        hi = np.searchsorted(self._sorted, self._high[span][rows][some])
        inside = np.flatnonzero(hi > lo)
        return some[inside], lo[inside], hi[inside]

    def _cells_of(self, codes: Ints, time: Column) -> Ints:
        """Return the cell of each event, -1 if it lies at no edge."""
        out = np.full(len(codes), -1, np.int64)
        requested = np.flatnonzero((codes >= 0) & time.mask)
        if not len(requested) or not len(self._keys):
            return out
        codes, times = codes[requested], time.values[requested]
        tiles = floor_ms(times, self.view.tile_ms)
        keys = self._time_keys.of(codes, tiles)
        cells = positions(self._keys, keys).clip(max=len(self._keys) - 1)
        inside = self._codes[cells] == codes
        inside &= (self._tiles[cells] == tiles) & (times < self._until[cells])
        inside &= times >= self._since[cells]
        out[requested[inside]] = cells[inside]
        return out


class _Cells(NamedTuple):
    """The distinct (entity, tile) cells that rows need, and the cell of each row."""

    codes: Ints
    tiles: Ints
    first: Ints
    of_row: Ints


def _cells(codes: Ints, tiles: Ints) -> _Cells:
    begins = np.ones(len(codes), np.bool_)
    begins[1:] = (codes[1:] != codes[:-1]) | (tiles[1:] != tiles[:-1])
    first = np.flatnonzero(begins)
    return _Cells(codes[first], tiles[first], first, np.cumsum(begins) - 1)


def _needed_range(spans: Sequence[EdgeSpan], found: Sequence[_Cells]) -> tuple[Ints, Ints]:
    """Return the time range of events that any row needs of each cell: from (inclusive), to
    (exclusive)."""
    since, until = [NO_INTS], [NO_INTS]
    for span, cells in zip(spans, found, strict=True):
        if len(cells.first):
            since.append(np.minimum.reduceat(span.low_ms, cells.first))
            until.append(np.maximum.reduceat(span.high_ms, cells.first))
    return np.concatenate(since), np.concatenate(until)
