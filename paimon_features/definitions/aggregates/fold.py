"""Merging rows of partials: the one NumPy implementation behind every path except the lake's own.

Rows are grouped in segments (an entity's cell, an entity's window, a row of a point-in-time
join), and each segment is folded to one row. Integer sums wrap as the lake's do; an empty segment
has no value. A decayed partial is relative to the end of its row's newest tile, which follows
from ``EVENT_TIME_MAX``; in a folded row it is relative to the newest tile of the segment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core.columns.column import Column
from paimon_features.core.types.array_types import Array, Ints
from paimon_features.core.windows import floor_ms
from paimon_features.definitions.aggregates.bags import bag_column, is_bag
from paimon_features.definitions.aggregates.base import EVENT_TIME_MAX, Merge, Partial

Columns = Mapping[str, Column]

NEVER_MS = -(2**62)
"""Stands for the time of the newest event where there is none."""


def newest_tile_end(columns: Columns, tile_ms: int) -> Ints:
    """Return the end (exclusive, ms) of each row's newest tile, the origin of decayed partials."""
    newest = columns[EVENT_TIME_MAX.name]
    times = filled(newest, NEVER_MS)
    return floor_ms(times.astype(np.int64, copy=False), tile_ms) + tile_ms


def fold(
    partials: Sequence[Partial], columns: Columns, offsets: Ints, tile_ms: int
) -> dict[str, Column]:
    """Fold rows ``offsets[i]:offsets[i + 1]`` to row ``i``, for each of ``partials``.

    ``columns`` contains those partials, and ``EVENT_TIME_MAX`` if one of them decays. Returns
    columns of ``len(offsets) - 1`` rows. A sum of no values is null here; ``finish`` decides
    which aggregates return zero for it.

    >>> from paimon_features.definitions.aggregates.base import ROWS
    >>> rows = {"p_rows": Column(np.array([1, 2, 4]))}
    >>> folded = fold([ROWS], rows, np.array([0, 2, 2, 3]), 300_000)["p_rows"]
    >>> folded.values[folded.mask].tolist(), folded.mask.tolist()
    ([3, 4], [True, False, True])
    """
    segments = Segments(offsets)
    out: dict[str, Column] = {}
    ends: Ints | None = None
    for partial in partials:
        column = columns[partial.name]
        if partial.merge is Merge.DECAYED_SUM:
            if ends is None:
                ends = newest_tile_end(columns, tile_ms)
                newest = segments.reduce(np.maximum, ends, NEVER_MS)
            assert partial.half_life_ms is not None
            column = decay_to(column, segments.spread(newest) - ends, partial.half_life_ms)
        out[partial.name] = _fold_column(partial, column, offsets, segments)
    return out


def canonical(partials: Sequence[Partial], columns: Columns) -> dict[str, Column]:
    """Return each row merged with nothing: lists sorted and cut as a merge leaves them."""
    out = dict(columns)
    for partial in partials:
        if is_bag(partial.merge):
            bags = bag_column(partial, columns[partial.name])
            out[partial.name] = bags.write(bags.merge_groups(np.arange(len(bags.bags) + 1)))
    return out


def merge_rows(partial: Partial, left: Column, right: Column) -> Column:
    """Merge a partial of each row with that of another, row by row; a null changes nothing.

    Decayed partials have to be relative to the same time.
    """
    if is_bag(partial.merge):
        both = Column(
            np.concatenate([left.values, right.values]), np.concatenate([left.mask, right.mask])
        )
        rows = np.arange(2 * len(left)).reshape(2, -1).T.ravel()
        bags = bag_column(partial, both.take(rows))
        return bags.write(bags.merge_groups(np.arange(0, 2 * len(left) + 1, 2)))
    neutral = neutral_of(partial.merge, left.values.dtype)
    sides = [filled(column, neutral) for column in (left, right)]
    whole = left.valid is None or right.valid is None
    return Column(ufunc_of(partial.merge)(*sides), None if whole else left.mask | right.mask)


def decay_to(column: Column, age_ms: Ints, half_life_ms: int) -> Column:
    """Return a decayed partial ``age_ms`` (not negative) later: times ``2^(-age / h)``."""
    if not age_ms.any():
        return column
    return Column(column.values * np.exp2(-age_ms / half_life_ms), column.valid)


class Segments:
    """Consecutive row ranges ``offsets[i]:offsets[i + 1]``, some of which may be empty."""

    def __init__(self, offsets: Ints) -> None:
        self.lengths = np.diff(offsets)
        self.full = self.lengths > 0
        self.starts = offsets[:-1][self.full]
        self.all_full = bool(self.full.all())

    def reduce(self, ufunc: np.ufunc, values: npt.NDArray[Any], empty: Any) -> npt.NDArray[Any]:
        """Return ``ufunc`` over each segment; ``empty`` for a segment without rows."""
        if self.all_full:
            return ufunc.reduceat(values, self.starts) if len(self.starts) else values[:0]
        out = np.full(len(self.lengths), empty, values.dtype)
        if len(self.starts):
            out[self.full] = ufunc.reduceat(values, self.starts)
        return out

    def spread(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return each segment's value on each of its rows."""
        return np.repeat(values, self.lengths)


def _fold_column(partial: Partial, column: Column, offsets: Ints, segments: Segments) -> Column:
    merge = partial.merge
    if is_bag(merge):
        bags = bag_column(partial, column)
        return bags.write(bags.merge_groups(offsets))
    ufunc, neutral = ufunc_of(merge), neutral_of(merge, column.values.dtype)
    if column.valid is None:
        values = segments.reduce(ufunc, column.values, neutral)
        return Column(values, None if segments.all_full else segments.full)
    # reduceat has no mask: nulls become the neutral value first
    seen = segments.reduce(np.logical_or, column.valid, False)
    values = segments.reduce(ufunc, filled(column, neutral), neutral)
    return Column(values, None if seen.all() else seen)


def filled(column: Column, neutral: Any) -> Array:
    """Return the values, with the neutral value for nulls."""
    return column.values if column.valid is None else np.where(column.valid, column.values, neutral)


def ufunc_of(merge: Merge) -> np.ufunc:
    """Return the function that merges two values of a partial that is one number or text."""
    return {Merge.MIN: np.minimum, Merge.MAX: np.maximum}.get(merge, np.add)


def neutral_of(merge: Merge, kind: np.dtype[Any]) -> Any:
    """Return the value that changes nothing when it is merged."""
    if merge in (Merge.SUM, Merge.DECAYED_SUM):
        return kind.type(0)
    if kind.kind == "O":  # text: nothing is below "", nothing is above the last code point
        return "" if merge is Merge.MAX else "\U0010ffff"
    if kind.kind == "f":
        return kind.type(-np.inf if merge is Merge.MAX else np.inf)
    info = np.iinfo(kind)
    return kind.type(info.min if merge is Merge.MAX else info.max)
