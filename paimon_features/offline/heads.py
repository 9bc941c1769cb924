"""Heads: the raw events between the last tile border before a row's time and that time.

The tile that contains ``q`` also holds events after ``q``, so a point-in-time join leaves it
out and reads these events instead::

    tiles   ---[-------)[-------)[-------)
    q                          |
    taken      ^tiles^^^^^^^^^^ ^^^head^^ only the events in [floor(q, tile), q)

An event is worked into partials by the same expressions as the tile job's, so that a head is
one more row of partials.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from paimon_features.aggregates import EVENT_TIME, TILE_END, Partial
from paimon_features.aggregates.fold import Columns
from paimon_features.columns import Column, Mask, numpy_type
from paimon_features.definitions import CompiledView
from paimon_features.expressions import Expression, evaluate
from paimon_features.offline.keys import Entities, Ints, TimeKeys, positions, sort_order
from paimon_features.offline.ranges import RangeIndex
from paimon_features.windows import DAY_MS, floor_ms


def enters(view: CompiledView, columns: Columns, rows: int) -> Mask:
    """Which events enter the view's tiles: members that no skip rule keeps out."""
    inside = np.ones(rows, np.bool_)
    conditions = [rule.condition for rule in view.skip_rules]
    for condition in conditions if view.where is None else [view.where, *conditions]:
        told = evaluate(condition, columns, rows)
        inside &= told.values.astype(np.bool_) if told.valid is None else told.valid & told.values
    return inside


def partials_of(
    view: CompiledView, partials: Sequence[Partial], events: Columns, time_ms: Ints
) -> dict[str, Column]:
    """The partials of single events, each relative to the end of its own tile."""
    rows = len(time_ms)
    tile_end = floor_ms(time_ms, view.tile_ms) + view.tile_ms
    columns = {**events, EVENT_TIME: Column(time_ms), TILE_END: Column(tile_end)}
    return {p.name: evaluate(view.expressions[p.name], columns, rows) for p in partials}


class Heads:
    """The heads of many rows, sorted by entity and tile; events come in any order.

    ``codes``, ``q_ms`` and ``floor_ms`` are the rows' entities, times, and times rounded down
    to the tile. Call ``add`` for all events, then ``close``, then ``ranges``.
    """

    def __init__(
        self,
        view: CompiledView,
        partials: Sequence[Partial],
        entities: Entities,
        codes: Ints,
        q_ms: Ints,
        floor_ms: Ints,
    ) -> None:
        self.view, self.partials, self.entities = view, partials, entities
        # a cell is one tile of one entity; rows of a cell share their head's events
        begins = np.ones(len(codes), np.bool_)
        begins[1:] = (codes[1:] != codes[:-1]) | (floor_ms[1:] != floor_ms[:-1])
        first = np.flatnonzero(begins)
        self._cell = np.cumsum(begins) - 1
        self._codes, self._tiles = codes[first], floor_ms[first]
        self._until = np.maximum.reduceat(q_ms, first) if len(first) else q_ms
        self._time_keys = TimeKeys(self._tiles, entities.count, view.tile_ms)
        self._keys = self._time_keys.of(self._codes, self._tiles)
        self._high = self._cell * view.tile_ms + (q_ms - floor_ms)
        self._found: list[tuple[Ints, dict[str, Column]]] = []
        self._sorted: Ints = np.zeros(0, np.int64)
        self.index: RangeIndex | None = None

    @property
    def days(self) -> Ints:
        """Days since 1970 (ascending, distinct) whose events the heads need."""
        days: Ints = self._tiles[self._until > self._tiles] // DAY_MS
        if not len(days):
            return days
        # four million days are all there are: counting them takes less than sorting
        first = int(days.min())
        seen: Ints = np.flatnonzero(np.bincount(days - first)) + first
        return seen

    @property
    def columns(self) -> list[str]:
        """The columns of the source that ``add`` needs, in the source's order."""
        view = self.view
        expressions: list[Expression] = [view.expressions[p.name] for p in self.partials]
        expressions += [rule.condition for rule in view.skip_rules]
        if view.where is not None:
            expressions.append(view.where)
        names = {view.source.event_time, *view.keys}
        names = names.union(*(e.columns for e in expressions))
        return [name for name in view.source.schema if name in names]

    def add(self, events: pa.Table) -> None:
        """Take from these events those that are in a head."""
        time = Column.from_arrow(events.column(self.view.source.event_time))
        codes = self.entities.codes_of(events)
        cells = self._cells(codes, time)
        chosen = np.flatnonzero(cells >= 0)
        if not len(chosen):
            return
        taken = events.take(pa.array(chosen))
        columns = {name: Column.from_arrow(taken.column(name)) for name in self.columns}
        inside = np.flatnonzero(enters(self.view, columns, len(chosen)))
        if len(inside) < len(chosen):
            chosen = chosen[inside]
            columns = {name: column.take(inside) for name, column in columns.items()}
        times, cells = time.values[chosen], cells[chosen]
        keys = cells * self.view.tile_ms + (times - self._tiles[cells])
        self._found.append((keys, partials_of(self.view, self.partials, columns, times)))

    def close(self) -> None:
        """All events have been added."""
        keys = np.concatenate([np.zeros(0, np.int64), *(keys for keys, _ in self._found)])
        order, self._sorted = sort_order(keys)
        sizes = np.bincount(self._sorted // self.view.tile_ms, minlength=len(self._tiles))
        self._ends = np.cumsum(sizes)
        self._begins = self._ends - sizes
        columns = {}
        for partial in self.partials:
            parts = [found[partial.name] for _, found in self._found]
            columns[partial.name] = concat(partial, parts).take(order)
        self._found.clear()
        self.index = RangeIndex(self.partials, columns, sizes, self.view.tile_ms)

    def ranges(self, rows: Ints | slice) -> tuple[Ints, Ints, Ints]:
        """Which of these rows have a head, as positions in ``rows``, and its range in ``index``."""
        cells = self._cell[rows]
        lo = self._begins[cells]
        some = np.flatnonzero(self._ends[cells] > lo)
        lo, hi = lo[some], np.searchsorted(self._sorted, self._high[rows][some])
        inside = np.flatnonzero(hi > lo)
        return some[inside], lo[inside], hi[inside]

    def _cells(self, codes: Ints, time: Column) -> Ints:
        """The cell of each event, -1 for an event in no head."""
        out = np.full(len(codes), -1, np.int64)
        asked = np.flatnonzero((codes >= 0) & time.mask)
        if not len(asked) or not len(self._keys):
            return out
        codes, times = codes[asked], time.values[asked]
        tiles = floor_ms(times, self.view.tile_ms)
        keys = self._time_keys.of(codes, tiles)
        cells = positions(self._keys, keys).clip(max=len(self._keys) - 1)
        inside = self._codes[cells] == codes
        inside &= (self._tiles[cells] == tiles) & (times < self._until[cells])
        out[asked[inside]] = cells[inside]
        return out


def concat(partial: Partial, parts: Sequence[Column]) -> Column:
    """Columns of one partial, one after another."""
    if not parts:
        return Column(np.zeros(0, numpy_type(partial.type)))
    if len(parts) == 1:
        return parts[0]
    whole = all(part.valid is None for part in parts)
    return Column(
        np.concatenate([part.values for part in parts]),
        None if whole else np.concatenate([part.mask for part in parts]),
    )
