"""Many windows over one sorted list of tiles, each folded in a few gathers.

The rows of an entity are contiguous and sorted by time, so a window is a row range
``[lo, hi)``. Integer sums of a range are the difference of two prefix sums, exact even where
the prefix wraps. Everything else is read from a dyadic tree: level ``k`` contains the folds of
``2^k`` neighbouring rows, and a range consists of at most two nodes per level.

::

    rows     0   1   2   3   4   5   6   7          [1, 7) = 1 | 2-3 | 4-5 | 6
    level 1  (0-1)   (2-3)   (4-5)   (6-7)
    level 2  (0 to 3)        (4 to 7)

Differences of float prefixes would suffer cancellation: a small window after a large sum would
inherit the error of the large one. A tree adds only what is in the range,
within ``n * eps * sum(|v|)``.
Each entity has its own tree, so that sums are bit-identical whichever other entities are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.columns.column import Column
from paimon_features.core.types.array_types import Array, Bools, Ints
from paimon_features.definitions.aggregates.bags import BagColumn, Bags, bag_column, is_bag
from paimon_features.definitions.aggregates.base import EVENT_TIME_MAX, Merge, Partial
from paimon_features.definitions.aggregates.fold import (
    Columns,
    filled,
    neutral_of,
    newest_tile_end,
    ufunc_of,
)


class TreeStep(NamedTuple):
    """On one level, the nodes ``nodes`` that the ranges ``rows`` include."""

    level: int
    rows: Ints
    nodes: Ints


class RangeIndex:
    """Folds of row ranges over rows of partials that are sorted by entity, then time.

    ``columns`` contains ``partials`` and ``EVENT_TIME_MAX``; ``sizes`` are the row counts of the
    entities, in order. A range must lie within one entity: its last row is its newest tile, to
    which decayed values are relative.

    >>> from paimon_features.definitions.aggregates.base import ROWS
    >>> rows = {"p_rows": Column(np.array([1, 2, 4])), "p_event_time_max": Column(np.arange(3))}
    >>> index = RangeIndex([ROWS], rows, sizes=np.array([3]), tile_ms=300_000)
    >>> folded = index.fold(np.array([0, 1, 2]), np.array([2, 3, 2]))["p_rows"]
    >>> folded.values[folded.mask].tolist(), folded.mask.tolist()
    ([3, 6], [True, True, False])
    """

    def __init__(
        self, partials: Sequence[Partial], columns: Columns, sizes: Ints, tile_ms: int
    ) -> None:
        self._sizes = sizes
        self._ends: Ints | None = None
        if any(p.merge is Merge.DECAYED_SUM for p in partials):
            self._ends = newest_tile_end(columns, tile_ms)
        self._folds = {p.name: self._fold_of(p, columns[p.name]) for p in partials}

    @cached_property
    def _layout(self) -> _Layout:
        """Created with the first tree: integer sums need none."""
        return _Layout(self._sizes)

    def _fold_of(self, partial: Partial, column: Column) -> _Fold:
        if partial.name == EVENT_TIME_MAX.name:
            return _Newest(column)
        if partial.merge is Merge.DECAYED_SUM:
            assert self._ends is not None
            assert partial.half_life_ms is not None
            return _Decayed(column, self._ends, partial.half_life_ms, self._layout)
        if is_bag(partial.merge):
            return _BagTree(column, bag_column(partial, column), self._layout)
        if partial.merge is Merge.SUM and np.issubdtype(column.values.dtype, np.integer):
            return _Prefix(column)
        if column.values.dtype == object:
            return _Texts(column, partial.merge, self._layout)
        return _Tree(column, partial.merge, self._layout)

    def fold(self, lo: Ints, hi: Ints, names: Iterable[str] | None = None) -> dict[str, Column]:
        """Fold rows ``lo[i]:hi[i]`` to row ``i``, for the partials ``names`` (all by default).

        An empty range (``hi <= lo``), or one with nulls only, is null. A decayed partial is
        relative to the end of the range's newest tile.
        """
        ranges = _Ranges(lo, hi, lambda: self._layout)
        chosen = self._folds if names is None else names
        return {name: self._folds[name].fold(ranges) for name in chosen}


class _Layout:
    """Positions of rows in the trees: each entity starts at a multiple of a power of two.

    Entities are laid out from largest to smallest, each padded to the next power of two, so that
    each starts on its own boundary and at most half of the space is padding.
    """

    def __init__(self, sizes: Ints) -> None:
        largest = int(sizes.max(initial=1))
        powers = 1 << np.arange(largest.bit_length() + 1)
        space = powers[np.searchsorted(powers, sizes)] * (sizes > 0)
        order = np.argsort(-space, kind="stable")
        begin = np.empty(len(sizes), np.int64)
        begin[order] = np.cumsum(space[order]) - space[order]
        self.shift = np.repeat(begin - (np.cumsum(sizes) - sizes), sizes)
        self.size = int(space.sum())

    def place(self, values: Array, neutral: Any) -> Array:
        """Return the values at their positions, padded with the neutral value."""
        out = np.full(self.size, neutral, values.dtype)
        out[np.arange(len(values)) + self.shift] = values
        return out


class _Ranges:
    """Row ranges and their tree nodes, computed once for all partials."""

    def __init__(self, lo: Ints, hi: Ints, layout: Callable[[], _Layout]) -> None:
        self._layout = layout
        self.lo = lo
        self.hi = np.maximum(hi, lo)
        self.full: Bools = self.hi > self.lo
        self._steps: list[TreeStep] | None = None

    def __len__(self) -> int:
        return len(self.lo)

    @property
    def last(self) -> Ints:
        """The last row of each range; for an empty one the row before it, or row 0."""
        return np.maximum(self.hi - 1, 0)

    def steps(self) -> list[TreeStep]:
        """Return the nodes of each range, level by level, bottom up (a segment tree)."""
        if self._steps is None:
            self._steps = []
            rows = np.flatnonzero(self.full)
            lo, hi = self.lo[rows], self.hi[rows]
            shift = self._layout().shift[lo]
            lo, hi = lo + shift, hi + shift
            level = 0
            while len(rows):
                # as booleans: flatnonzero of integers is half as fast
                left = np.flatnonzero((lo & 1).astype(np.bool_))
                if len(left):
                    self._steps.append(TreeStep(level, rows[left], lo[left]))
                right = np.flatnonzero((hi & 1).astype(np.bool_))
                if len(right):
                    self._steps.append(TreeStep(level, rows[right], hi[right] - 1))
                lo, hi = (lo + 1) >> 1, hi >> 1
                level += 1
                more = lo < hi
                if not more.all():
                    rows, lo, hi = rows[more], lo[more], hi[more]
        return self._steps

    def valid(self, counts: Ints | None) -> Bools | None:
        """Return the mask of ranges with a value, from the running count (None: no nulls)."""
        # a separate mask per column: the caller may write to it
        seen = self.full.copy() if counts is None else counts[self.hi] > counts[self.lo]
        return None if seen.all() else seen


class _Fold:
    """Folds ranges of one partial."""

    def __init__(self, column: Column) -> None:
        self.counts = None if column.valid is None else _running(column.valid)

    def fold(self, ranges: _Ranges) -> Column:
        return Column(self.values(ranges), ranges.valid(self.counts))

    def values(self, ranges: _Ranges) -> Array:
        raise NotImplementedError


class _Newest(_Fold):
    """The newest event of a range is that of its last row."""

    def __init__(self, column: Column) -> None:
        super().__init__(Column(column.values))
        self.times = column.values

    def values(self, ranges: _Ranges) -> Array:
        if not len(self.times):
            return np.zeros(len(ranges), np.int64)
        return self.times[ranges.last]


class _Prefix(_Fold):
    """Sums of integers: two running sums, whose wrapped difference is the wrapped sum."""

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        self.sums = _running(filled(column, 0))

    def values(self, ranges: _Ranges) -> Array:
        difference: Array = self.sums[ranges.hi] - self.sums[ranges.lo]
        return difference


class _Tree(_Fold):
    """Minima, maxima and float sums, from a dyadic tree whose levels are built on demand."""

    def __init__(self, column: Column, merge: Merge, layout: _Layout) -> None:
        super().__init__(column)
        self.ufunc = ufunc_of(merge)
        self.neutral = neutral_of(merge, column.values.dtype)
        self.levels = [layout.place(filled(column, self.neutral), self.neutral)]

    def level(self, k: int) -> Array:
        while len(self.levels) <= k:
            below = self.levels[-1]
            half = len(below) // 2 * 2
            self.levels.append(self.ufunc(below[0:half:2], below[1:half:2]))
        return self.levels[k]

    def values(self, ranges: _Ranges) -> Array:
        out = np.full(len(ranges), self.neutral, self.levels[0].dtype)
        for level, rows, nodes in ranges.steps():
            out[rows] = self.ufunc(out[rows], self.level(level)[nodes])
        return out


class _Texts(_Fold):
    """Smallest or greatest texts: a tree over their integer ranks."""

    def __init__(self, column: Column, merge: Merge, layout: _Layout) -> None:
        super().__init__(column)
        encoded = pa.array(column.values, pa.string(), mask=~column.mask).dictionary_encode()
        # Arrow sorts texts by UTF-8 bytes, which equals code point order
        order = pc.sort_indices(encoded.dictionary).to_numpy()
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        ranks = rank[encoded.indices.fill_null(0).to_numpy()] if len(order) else _zeros(column)
        self.texts = encoded.dictionary.take(pa.array(order)).to_numpy(zero_copy_only=False)
        self.tree = _Tree(Column(ranks, column.valid), merge, layout)

    def values(self, ranges: _Ranges) -> Array:
        out = np.empty(len(ranges), np.object_)
        if len(self.texts):
            ranks = self.tree.values(ranges)
            clipped = ranks.clip(0, len(self.texts) - 1)  # a range of nulls has a neutral rank
            out[:] = self.texts[clipped]
        return out


class _Decayed(_Fold):
    """Decayed sums: a node is relative to the end of its last row's tile."""

    def __init__(self, column: Column, ends: Ints, half_life_ms: int, layout: _Layout) -> None:
        super().__init__(column)
        self.half_life_ms = half_life_ms
        self.ends = ends
        self.levels = [(layout.place(filled(column, 0.0), 0.0), layout.place(ends, 0))]

    def level(self, k: int) -> tuple[Array, Ints]:
        while len(self.levels) <= k:
            values, ends = self.levels[-1]
            half = len(values) // 2 * 2
            newest = ends[1:half:2]
            # nodes that are incomplete or span entities are garbage: no range uses them
            age = np.maximum(newest - ends[0:half:2], 0)
            older = values[0:half:2] * np.exp2(-age / self.half_life_ms)
            self.levels.append((older + values[1:half:2], newest))
        return self.levels[k]

    def values(self, ranges: _Ranges) -> Array:
        out = np.zeros(len(ranges))
        if not len(self.ends):
            return out
        newest = self.ends[ranges.last]
        for level, rows, nodes in ranges.steps():
            values, node_ends = self.level(level)
            age = newest[rows] - node_ends[nodes]
            out[rows] += values[nodes] * np.exp2(-age / self.half_life_ms)
        return out


class _BagTree(_Fold):
    """Lists and sketches: a node is the merged bag of its rows."""

    def __init__(self, column: Column, rows: BagColumn, layout: _Layout) -> None:
        super().__init__(column)
        self.rows = rows
        groups = rows.merge_groups(np.arange(len(column) + 1))
        places = np.arange(len(column)) + layout.shift
        self.levels = [rows.merge(places[groups.owners], groups.codes, groups.weights, layout.size)]

    def level(self, k: int) -> Bags:
        while len(self.levels) <= k:
            below = self.levels[-1]
            # an element without a neighbour is in no node
            nodes = len(below) // 2
            owners = below.owners >> 1
            inside = slice(below.offsets[2 * nodes])
            self.levels.append(
                self.rows.merge(owners[inside], below.codes[inside], below.weights[inside], nodes)
            )
        return self.levels[k]

    def values(self, ranges: _Ranges) -> Array:
        owners, codes, weights = [_no_ints()], [_no_ints()], [_no_ints()]
        for level, rows, nodes in ranges.steps():
            bags = self.level(level)
            places, sizes = bags.positions(nodes)
            owners.append(np.repeat(rows, sizes))
            codes.append(bags.codes[places])
            weights.append(bags.weights[places])
        merged = self.rows.merge(
            np.concatenate(owners), np.concatenate(codes), np.concatenate(weights), len(ranges)
        )
        return self.rows.write(merged).values


def _no_ints() -> Ints:
    return np.zeros(0, np.int64)


def _running(values: Array) -> Ints:
    """Return the sums of the first ``0, 1, ... n`` values; integers wrap."""
    out = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=out[1:])
    return out


def _zeros(column: Column) -> Ints:
    return np.zeros(len(column), np.int64)
