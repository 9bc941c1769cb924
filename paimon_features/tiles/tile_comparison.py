"""The tiles of raw events, computed again in NumPy, and how those of a table differ from them.

The same expressions as the tile job's, evaluated by another engine and merged by ``fold``. A day
of events is read in batches; what is held in memory is the day's tiles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.columns.column import Column
from paimon_features.core.times.partition_days import first_days
from paimon_features.core.types.array_types import Ints
from paimon_features.core.windows import DAY_MS, floor_ms
from paimon_features.definitions import CompiledView
from paimon_features.definitions.aggregates import Merge, Partial
from paimon_features.definitions.aggregates.fold import canonical, fold
from paimon_features.definitions.event_partials import concat, enters, event_columns, partials_of
from paimon_features.lake import Lake, iter_batches, read_arrow, table_options
from paimon_features.lake.metadata.snapshots import ref_of
from paimon_features.lake.specs import EVENT_DAY, TILE_DAY, TILE_START

FOLD_ROWS = 2_000_000
"""Rows that are held before they are folded to their tiles."""
EXAMPLES = 20
EPS = 2.0**-52


@dataclass(frozen=True, slots=True)
class CellChange:
    """One partial of one tile: what the table contains, and what the events yield.

    Where the tile is missing or too much, ``partial`` is ``p_rows`` and one side is None.
    """

    keys: tuple[Any, ...]
    tile_start: int
    partial: str
    found: Any
    expected: Any

    def __str__(self) -> str:
        keys = ", ".join(map(repr, self.keys))
        return f"({keys}) {self.tile_start} {self.partial}: {self.found!r} -> {self.expected!r}"


@dataclass(frozen=True, slots=True)
class DayComparison:
    """A day, or ``days`` from it on: the tiles as they have to be, and how the table differs.

    ``missing`` tiles are not in the table, ``spurious`` ones no event explains, of ``changed``
    ones some partial differs; ``partials`` counts the differing values of changed tiles.
    """

    day: int
    events: int
    tiles: pa.Table
    missing: int = 0
    spurious: int = 0
    changed: int = 0
    entities: int = 0
    partials: Counter[str] = field(default_factory=Counter)
    examples: tuple[CellChange, ...] = ()
    days: int = 1

    @property
    def differs(self) -> bool:
        return bool(self.missing or self.spurious or self.changed)


def compare_day(
    lake: Lake,
    view: CompiledView,
    table: str,
    day: int,
    events_snapshot: int | None,
    tiles_snapshot: int | None,
    days: int = 1,
) -> DayComparison:
    """Return the tiles of one day, or of ``days`` days from it on, from the events, next to those
    of the table, each at a snapshot. They have to be all days of some partitions of the tile table.

    Exact partials must be equal; sums of floats may differ by ``(n + 8) * eps * sum(|v|)``,
    because they were added in a different order.

    Raises
    ------
    SnapshotExpiredError
        If a snapshot is gone.
    """
    keys = [*view.keys, TILE_START]
    expected = _ExpectedTiles(view)
    events = 0
    if events_snapshot is not None:
        columns = event_columns(view)
        # the partition of a day can begin before it
        before = table_options.partition_days(lake, view.source.table) - 1
        partition = {EVENT_DAY: (day - before, day + days)}
        pin = ref_of(lake, view.source.table, events_snapshot)
        low, high = (pa.scalar(bound * DAY_MS, pa.int64()) for bound in (day, day + days))
        for batch in iter_batches(lake, view.source.table, columns, pin, partition):
            times = batch.column(view.source.event_time)
            inside = batch.filter(pc.and_(pc.greater_equal(times, low), pc.less(times, high)))
            events += inside.num_rows
            expected.add(pa.Table.from_batches([inside]))
    expected.fold()
    partitions = {TILE_DAY: (day, day + days)}
    names = [*keys, *(p.name for p in view.partials)]
    actual = (
        pa.schema([lake.schema(table).field(name) for name in names]).empty_table()
        if tiles_snapshot is None
        else read_arrow(lake, table, names, ref_of(lake, table, tiles_snapshot), partitions)
    )
    table_tiles = expected.table(lake.schema(table), table_options.partition_days(lake, table))
    result = DayComparison(day, events, table_tiles, days=days)
    return _compared(view, result, expected, actual)


def _compared(
    view: CompiledView, day: DayComparison, expected: _ExpectedTiles, found: pa.Table
) -> DayComparison:
    keys = [*view.keys, TILE_START]
    mine = expected.keys
    both = pa.concat_tables([mine, found.select(keys).cast(mine.schema)])
    codes = _codes(len(both), [both.column(name) for name in keys])
    count = len(mine)
    width = int(codes.max(initial=-1)) + 1
    place = np.full((2, width), -1, np.int64)  # axes: (expected | found, tile)
    place[0, codes[:count]] = np.arange(count)
    place[1, codes[count:]] = np.arange(len(found))
    missing, spurious = (place[1] < 0) & (place[0] >= 0), (place[0] < 0) & (place[1] >= 0)
    common = np.flatnonzero((place[0] >= 0) & (place[1] >= 0))
    left, right = place[1, common], place[0, common]
    wrong = np.zeros(len(common), np.bool_)
    by_partial: Counter[str] = Counter()
    examples: list[CellChange] = []

    def example(tile: int, partial: str, old: Any, new: Any) -> None:
        if len(examples) < EXAMPLES:
            source, row = (found, place[1, tile]) if place[1, tile] >= 0 else (mine, place[0, tile])
            values = [source.column(name)[int(row)].as_py() for name in keys]
            examples.append(CellChange(tuple(values[:-1]), values[-1], partial, old, new))

    kept = {p.name: Column.from_arrow(found.column(p.name)) for p in view.partials}
    of_table = canonical(expected.whole, kept)
    for partial in view.partials:
        new, old = expected.partials[partial.name], of_table[partial.name]
        bad = _differ(old.take(left), new.take(right), expected.bound(partial, right))
        by_partial[partial.name] += int(bad.sum())
        wrong |= bad
        for i in np.flatnonzero(bad)[:EXAMPLES].tolist():
            example(int(common[i]), partial.name, _value(old, left[i]), _value(new, right[i]))
    rows = expected.partials["p_rows"]
    for tile in np.flatnonzero(missing)[:EXAMPLES].tolist():
        example(tile, "p_rows", None, _value(rows, place[0, tile]))
    for tile in np.flatnonzero(spurious)[:EXAMPLES].tolist():
        example(tile, "p_rows", _value(of_table["p_rows"], place[1, tile]), None)
    touched = np.zeros(width, np.bool_)
    touched[common[wrong]] = True
    touched |= missing | spurious
    who = _codes(len(both), [both.column(name) for name in view.keys])
    return replace(
        day,
        missing=int(missing.sum()),
        spurious=int(spurious.sum()),
        changed=int(wrong.sum()),
        entities=len(np.unique(who[touched[codes]])),
        partials=+by_partial,
        examples=tuple(examples),
    )


class _ExpectedTiles:
    """Tiles of some events: add batches, fold, read."""

    def __init__(self, view: CompiledView) -> None:
        self.view = view
        # next to each float sum the sum of its absolute values, which bounds the rounding error
        self._sizes = [
            Partial(f"{p.name}|", p.type, Merge.SUM, "")
            for p in view.partials
            if p.type.is_float and p.merge in (Merge.SUM, Merge.DECAYED_SUM)
        ]
        self._counted = Partial("n|", view.partial["p_rows"].type, Merge.SUM, "")
        # the lake keeps all items of a list, however few a feature wants
        self.whole = tuple(replace(p, limit=None) for p in view.partials)
        self._all = (*self.whole, *self._sizes, self._counted)
        self._held: list[tuple[pa.Table, dict[str, Column]]] = []
        self._rows = 0
        self.keys = _key_schema(view).empty_table()
        self.partials: dict[str, Column] = {p.name: concat(p, []) for p in self._all}

    def add(self, events: pa.Table) -> None:
        """Take the events that enter the view's tiles."""
        view = self.view
        columns = {name: Column.from_arrow(events.column(name)) for name in events.column_names}
        inside = np.flatnonzero(enters(view, columns, events.num_rows))
        columns = {name: column.take(inside) for name, column in columns.items()}
        times = columns[view.source.event_time].values
        partials = partials_of(view, view.partials, columns, times)
        for size in self._sizes:
            of = partials[size.name[:-1]]
            partials[size.name] = Column(np.abs(of.values), of.valid)
        partials[self._counted.name] = Column(np.ones(len(inside), np.int64))
        rows = events.take(pa.array(inside)).select(list(view.keys))
        starts = pa.array(floor_ms(times, view.tile_ms), pa.int64())
        keys = rows.append_column(TILE_START, starts).cast(_key_schema(view))
        self._held.append((keys, partials))
        self._rows += len(inside)
        if self._rows >= FOLD_ROWS:
            self.fold()

    def fold(self) -> None:
        """Fold partial rows to one row for each tile."""
        parts = [(self.keys, self.partials), *self._held]
        keys = pa.concat_tables([some for some, _ in parts]).combine_chunks()
        self._held = []
        if not len(keys):
            return
        rows = {p.name: concat(p, [some[p.name] for _, some in parts]) for p in self._all}
        codes = _codes(len(keys), [keys.column(name) for name in keys.column_names])
        order = np.argsort(codes, kind="stable")
        first = np.flatnonzero(np.diff(codes[order], prepend=-1))
        offsets = np.append(first, len(codes)).astype(np.int64)
        sorted_rows = {name: column.take(order) for name, column in rows.items()}
        self.partials = fold(self._all, sorted_rows, offsets, self.view.tile_ms)
        self.keys = keys.take(pa.array(order[first]))
        self._rows = len(self.keys)

    def bound(self, partial: Partial, rows: Ints) -> npt.NDArray[np.float64] | None:
        """Return how far a value may be off by rounding; None where it has to be equal."""
        size = self.partials.get(f"{partial.name}|")
        if size is None:
            return None
        terms = self.partials[self._counted.name].values[rows] + 8
        bound: npt.NDArray[np.float64] = terms * EPS * np.where(size.mask, size.values, 0.0)[rows]
        return bound

    def table(self, schema: pa.Schema, partition_days: int) -> pa.Table:
        """Return the rows as the tile table stores them."""
        view = self.view
        days = first_days(self.keys.column(TILE_START).to_numpy() // DAY_MS, partition_days)
        arrays: dict[str, Any] = {TILE_DAY: pa.array(days)}
        arrays |= {name: self.keys.column(name) for name in self.keys.column_names}
        for p in view.partials:
            arrays[p.name] = self.partials[p.name].to_arrow(schema.field(p.name).type)
        return pa.table(arrays)


def _key_schema(view: CompiledView) -> pa.Schema:
    fields = [pa.field(name, kind.arrow) for name, kind in view.keys.items()]
    return pa.schema([*fields, pa.field(TILE_START, pa.int64())])


def _codes(rows: int, columns: Sequence[pa.ChunkedArray]) -> Ints:
    """Return a number for each row, equal for equal keys, dense from 0.

    Without keys all are equal.
    """
    code = np.zeros(rows, np.int64)
    for column in _encoded(columns):
        # made dense at every step, so that the product cannot overflow
        _, code = np.unique(code * (int(column.max(initial=0)) + 1) + column, return_inverse=True)
    return code


def _encoded(columns: Sequence[pa.ChunkedArray]) -> Iterator[Ints]:
    for column in columns:
        encoded = pa.chunked_array(column.chunks, column.type).combine_chunks()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.chunk(0) if encoded.num_chunks else pa.array([], column.type)
        yield encoded.dictionary_encode().indices.to_numpy().astype(np.int64)


def _differ(
    old: Column, new: Column, bound: npt.NDArray[np.float64] | None
) -> npt.NDArray[np.bool_]:
    """Return where two columns of partials are not the same; false zeros are zeros."""
    unequal = np.asarray(old.values != new.values, np.bool_)
    if bound is not None:
        unequal &= ~(np.abs(old.values - new.values) <= bound)
    both = old.mask & new.mask
    result: npt.NDArray[np.bool_] = (old.mask != new.mask) | (both & unequal)
    return result


def _value(column: Column, row: int) -> Any:
    if not column.mask[row]:
        return None
    value = column.values[row]
    return value.item() if isinstance(value, np.generic) else value
