"""The NumPy part of the join on Flink: bounds before it, finished values after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from paimon_features.core.columns.column import Column
from paimon_features.core.types.array_types import Ints
from paimon_features.core.types.schema import arrow_schema
from paimon_features.core.windows import DAY_MS, ceil_ms, floor_ms
from paimon_features.definitions.aggregates import EVENT_TIME_MAX, Merge, Partial
from paimon_features.definitions.aggregates.fold import NEVER_MS, fold, newest_tile_end
from paimon_features.definitions.event_partials import concat
from paimon_features.definitions.own_events import OwnEvents
from paimon_features.offline.flink.history_sql import (
    BYTES_SEPARATOR,
    CHUNK,
    HIGH,
    LOW,
    NEWEST,
    REF,
    ROW,
    SPAN,
    JoinLayout,
)
from paimon_features.offline.joins.result_builder import ResultBuilder
from paimon_features.offline.joins.window_edges import WindowEdges

_NO_DAY = 2**40
BLOCK_ROWS = 1 << 17
"""Number of rows that are finished at a time."""


@dataclass
class NeededDays:
    """The days of tiles and of events that the staged rows need, in days since 1970."""

    rows: int = 0
    low_ms: int = 0
    high_ms: int = 0
    event_days: set[int] = field(default_factory=set)

    @property
    def tile_days(self) -> tuple[int, int] | None:
        """First and last relevant day of tiles (inclusive); None if there is none."""
        if self.high_ms <= self.low_ms:
            return None
        return self.low_ms // DAY_MS, (self.high_ms - 1) // DAY_MS


def rows_to_stage(
    layout: JoinLayout, chunk: int, keys: pa.Table, as_of_ms: Ints, needed: NeededDays
) -> pa.Table:
    """Return the rows of a chunk with their bounds, without those that have a null key: these are
    MISSING.
    """
    view = layout.view
    has_keys = np.ones(len(as_of_ms), np.bool_)
    for key in view.keys:
        has_keys &= np.asarray(keys.column(key).is_valid())
    some = np.flatnonzero(has_keys)
    as_of_ms = as_of_ms[some]
    low = floor_ms(view.known_from(as_of_ms), view.tile_ms)
    high = floor_ms(view.horizon(as_of_ms), view.tile_ms)
    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        CHUNK: pa.array(np.full(len(some), chunk, np.int32)),
        ROW: pa.array(some),
    }
    staged_keys = keys.take(pa.array(some))
    columns.update({f"k{i}": staged_keys.column(key) for i, key in enumerate(view.keys)})
    columns.update({LOW: pa.array(low), HIGH: pa.array(high)})
    for i, window in enumerate(layout.windows):
        start = window.start(as_of_ms)
        if window.needs_tail:
            start = ceil_ms(start, view.tile_ms)
        columns[f"start_{i}"] = pa.array(start)
    for i, window in enumerate(layout.ends.values()):
        columns[f"end_{i}"] = pa.array(floor_ms(window.end(as_of_ms), view.tile_ms))
    seen: list[Ints] = []
    for i, name in enumerate(layout.cut_by):
        times = np.asarray(columns[name])
        days = times // DAY_MS
        # a time at midnight cuts no day; a day that is cut twice is read once
        cuts = times % DAY_MS > 0
        for other in seen:
            cuts &= days != other
        seen.append(np.where(cuts, days, _NO_DAY))
        columns[f"day_{i}"] = pa.array(days.astype(np.int32), mask=~cuts)
    spans = WindowEdges(view, layout.windows, as_of_ms, floor_ms(as_of_ms, view.tile_ms))
    for i, span in enumerate(spans.found):
        columns[f"tile_{i}"] = pa.array(span.tile_ms)
        columns[f"from_{i}"] = pa.array(span.low_ms)
        columns[f"until_{i}"] = pa.array(span.high_ms)
        requested = span.tile_ms[span.high_ms > span.low_ms]
        needed.event_days.update(np.unique(requested // DAY_MS).tolist())
    if len(some):
        bounds = int(low.min()), int(high.max())
        if needed.rows:
            bounds = min(bounds[0], needed.low_ms), max(bounds[1], needed.high_ms)
        needed.low_ms, needed.high_ms = bounds
        needed.rows += len(some)
    return pa.table(columns, schema=arrow_schema(layout.rows_columns))


def finish_features(
    layout: JoinLayout,
    as_of_ms: Ints,
    tiles: pa.Table,
    edges: pa.Table,
    own_events: OwnEvents | None = None,
) -> pa.Table:
    """Return the features of a chunk's rows from the partials of Flink, like ``ViewJoin.table``."""
    sheet = ResultBuilder(layout.view, layout.features, len(as_of_ms), own_events)
    sides = _Gathered(tiles, (ROW, REF)), _Gathered(edges, (ROW, SPAN))
    for start in range(0, len(as_of_ms), BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, len(as_of_ms))
        block = _Block(layout, start, stop, *(side.between(start, stop) for side in sides))
        target, times = slice(start, stop), as_of_ms[start:stop]
        present = sheet.set_status(target, times, block.newest())
        for number, features in enumerate(layout.windows.values()):
            sheet.finish(target, features, block.merged(number), times, present)
    return sheet.results().table(layout.features)


class _Gathered:
    """One of the two result tables, sorted by row."""

    def __init__(self, table: pa.Table, by: Sequence[str]) -> None:
        self._table = table.sort_by([(name, "ascending") for name in by])
        self._rows: Ints = self._table.column(ROW).to_numpy()

    def between(self, start: int, stop: int) -> pa.Table:
        """Return the part for the rows ``[start, stop)``."""
        low, high = np.searchsorted(self._rows, [start, stop])
        return self._table.slice(low, high - low)


class _Block:
    """A block of rows to finish, with the partials gathered for them."""

    def __init__(
        self, layout: JoinLayout, start: int, stop: int, tiles: pa.Table, edges: pa.Table
    ) -> None:
        self._layout, self._tiles, self._edges = layout, tiles, edges
        self._count = stop - start
        self._tile_rows: Ints = tiles.column(ROW).to_numpy() - start
        self._edge_rows: Ints = edges.column(ROW).to_numpy() - start
        self._spans: Ints = edges.column(SPAN).to_numpy()
        self._partials = [
            _column(partial, edges.column(f"p{n}")) for n, partial in enumerate(layout.partials)
        ]

    def newest(self) -> Ints:
        """Return the time of each row's newest event before the horizon, not before
        ``known_from``."""
        newest = np.full(self._count, NEVER_MS, np.int64)
        np.maximum.at(newest, self._tile_rows, self._tiles.column(NEWEST).to_numpy())
        if self._layout.spans.newest is not None:
            some = np.flatnonzero(self._spans == self._layout.spans.newest)
            names = [p.name for p in self._layout.partials]
            times = self._partials[names.index(EVENT_TIME_MAX.name)].values
            np.maximum.at(newest, self._edge_rows[some], times[some])
        return newest

    def merged(self, number: int) -> dict[str, Column]:
        """Return the partials of a window, from tiles and raw events, merged to one line per
        row."""
        layout = self._layout
        window = list(layout.windows)[number]
        numbered = layout.partials_of(window)
        tiles = self._window(number)
        spans = [s[window] for s in (layout.spans.heads, layout.spans.tails) if window in s]
        some = np.flatnonzero(np.isin(self._spans, spans))
        lines = np.concatenate([self._tile_rows[tiles.lines], self._edge_rows[some]])
        order = np.argsort(lines, kind="stable")
        columns = {
            p.name: concat(p, [tiles.columns[p.name], self._partials[n].take(some)]).take(order)
            for n, p in numbered
        }
        offsets = np.searchsorted(lines[order], np.arange(self._count + 1))
        return fold([p for _, p in numbered], columns, offsets, layout.view.tile_ms)

    def _window(self, number: int) -> _Lines:
        """Return the lines with tiles of a window and its partials, decayed like those of tiles."""
        layout = self._layout
        numbered = layout.partials_of(list(layout.windows)[number])
        newest = next(n for n, p in numbered if p.name == EVENT_TIME_MAX.name)
        lines = np.flatnonzero(np.asarray(self._tiles.column(f"w{number}_{newest}").is_valid()))
        tiles = self._tiles.take(pa.array(lines))
        columns = {p.name: _column(p, tiles.column(f"w{number}_{n}")) for n, p in numbered}
        refs = tiles.column(REF).to_numpy()
        ends = newest_tile_end(columns, layout.view.tile_ms)
        for _, partial in numbered:
            if partial.half_life_ms is not None:
                column = columns[partial.name]
                later = np.exp2((refs - ends) / partial.half_life_ms)
                columns[partial.name] = Column(column.values * later, column.valid)
        return _Lines(lines, columns)


@dataclass(frozen=True, slots=True)
class _Lines:
    lines: Ints
    columns: dict[str, Column]


def _column(partial: Partial, array: pa.ChunkedArray) -> Column:
    """Decode a gathered partial to its format in the lake."""
    column = Column.from_arrow(array)
    if partial.merge is not Merge.REGISTERS:
        return column
    # one string may contain several sketches: merge them
    parts = list(_sketches(column))
    offsets = np.cumsum([0, *map(len, parts)])
    pieces = np.empty(int(offsets[-1]), np.object_)
    pieces[:] = [piece for part in parts for piece in part]
    return fold([partial], {partial.name: Column(pieces)}, offsets, 1)[partial.name]


def _sketches(column: Column) -> Iterator[list[bytes]]:
    for text, valid in zip(column.values, column.mask, strict=True):
        yield [piece.encode("latin-1") for piece in text.split(BYTES_SEPARATOR)] if valid else []
