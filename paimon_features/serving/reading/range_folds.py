"""Folds over windows whose cells are a few ranges, without copying the cells for each window.

Sums of integers are differences of running sums, exact even where they wrap; extremes and sums of
floats are reduced range by range, and so are decayed sums where each cell has one age, whatever
the window. Everything else (strings, lists) uses the general fold (``WindowCells.fold``); the
results are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.types.array_types import Bools, Ints
from paimon_features.core.windows import floor_ms
from paimon_features.definitions.aggregates import EVENT_TIME_MAX, Merge, Partial
from paimon_features.definitions.aggregates.fold import NEVER_MS, neutral_of, ufunc_of
from paimon_features.online.store.codec import Cells, RecordLayout


def is_running_sum(partial: Partial) -> bool:
    """Whether ``RangeFolds.sums`` folds it."""
    return partial.merge is Merge.SUM and partial.type.text == "int64"


def is_decayed(partial: Partial) -> bool:
    """Whether ``RangeFolds.decayed`` folds it."""
    return partial.merge is Merge.DECAYED_SUM


def is_reduced(partial: Partial) -> bool:
    """Whether ``RangeFolds.reduced`` folds it."""
    plain = partial.merge in (Merge.SUM, Merge.MIN, Merge.MAX)
    return plain and partial.type.is_numeric and not is_running_sum(partial)


class RangeFolds:
    """Folds of some cells over windows; ``places`` is what ``WindowCells.places`` gave.

    The cells of row ``i`` are ``offsets[i]:offsets[i + 1]``.
    """

    def __init__(self, layout: RecordLayout, cells: Cells, offsets: Ints, places: Ints) -> None:
        self._layout, self._cells, self._offsets, self._places = layout, cells, offsets, places
        # axes: windows, rows, ranges
        self._full: Bools = places[..., 0] < places[..., 1]
        self._seen: Bools = _over_ranges(np.logical_or, self._full)

    def sums(self, names: Sequence[str]) -> dict[str, Column]:
        """Integer sums over all windows, shape ``(windows * rows,)``, rows side by side."""
        if not names:
            return {}
        rows = self._cells.rows
        masks = {name: self._layout.column(self._cells, name).valid for name in names}
        nullable = {name: valid for name, valid in masks.items() if valid is not None}
        # axes: columns, cells; a slot without a value is zero
        running = np.zeros((len(names) + len(nullable), len(rows) + 1), np.int64)
        for column, name in zip(running, names, strict=False):
            column[1:] = rows[name]
        for column, valid in zip(running[len(names) :], nullable.values(), strict=True):
            column[1:] = valid
        np.cumsum(running, axis=1, out=running)
        # axes: columns, windows * rows, ranges, (from, to)
        at = running.take(self._places, axis=1).reshape(len(running), -1, *self._places.shape[2:])
        folded = _over_ranges(np.add, at[..., 1] - at[..., 0])
        seen = _unless_all(self._seen)
        out = {name: Column(values, seen) for name, values in zip(names, folded, strict=False)}
        for name, count in zip(nullable, folded[len(names) :], strict=True):
            out[name] = Column(out[name].values, _unless_all(count > 0))
        return out

    def reduced(self, name: str, windows: Sequence[int]) -> Column:
        """A minimum, maximum or sum of floats over some windows."""
        merge = self._layout.view.partial[name].merge
        return self._merged(merge, self._layout.column(self._cells, name), windows)

    def _merged(self, merge: Merge, column: Column, windows: Sequence[int]) -> Column:
        ufunc, neutral = ufunc_of(merge), neutral_of(merge, column.values.dtype)
        known, seen = column.values, self._seen[windows]
        if column.valid is not None:
            known = np.where(column.valid, known, neutral)
            seen = self._reduce(np.logical_or, column.valid, False, windows)
        return Column(self._reduce(ufunc, known, neutral, windows).ravel(), _unless_all(seen))

    def decayed(self, name: str, windows: Sequence[int]) -> Column | None:
        """A decayed sum over some windows, from the end of the newest tile of each.

        None where the windows of one row have different newest tiles: then each cell has a weight
        for each window, and the general fold is as fast.
        """
        partial = self._layout.view.partial[name]
        assert partial.half_life_ms is not None
        newest = self.newest[windows]
        latest = newest.max(axis=0)
        if not (self._seen[windows] <= (newest == latest)).all():
            return None
        tile_ms = self._layout.view.tile_ms
        column = self._layout.column(self._cells, name)
        ages_ms = self._of_rows(floor_ms(latest, tile_ms)) - floor_ms(self._event_times, tile_ms)
        # cells behind the windows' end have no age; they are in no window
        weights = np.exp2(np.maximum(ages_ms, 0) / -partial.half_life_ms)
        return self._merged(
            Merge.DECAYED_SUM, Column(column.values * weights, column.valid), windows
        )

    @cached_property
    def newest(self) -> Ints:
        """The newest event time in each window, shape ``(windows, rows)``; NEVER_MS: none.

        Cells are ascending, so it is that of the last one of some range.
        """
        if not len(self._cells):
            return np.full(self._seen.shape, NEVER_MS, np.int64)
        last = self._event_times.take(np.maximum(self._places[..., 1] - 1, 0))
        newest: Ints = _over_ranges(np.maximum, np.where(self._full, last, NEVER_MS))
        return newest

    @cached_property
    def _event_times(self) -> Ints:
        """The newest event time of each cell."""
        return np.ascontiguousarray(self._cells.rows[EVENT_TIME_MAX.name])

    def _of_rows(self, values: Ints) -> Ints:
        """Each row's value on each of its cells."""
        return values.repeat(np.diff(self._offsets))

    def _reduce(self, ufunc: np.ufunc, values: Any, neutral: Any, windows: Sequence[int]) -> Any:
        """Each window's values merged, shape ``(windows, rows)``."""
        places = self._places[windows]
        # a place behind the last cell has to exist
        padded = np.append(values, np.asarray(neutral, values.dtype))
        # axes: windows, rows, ranges; what lies between two ranges is skipped
        of_ranges = ufunc.reduceat(padded, places.ravel())[::2].reshape(places.shape[:3])
        return _over_ranges(ufunc, np.where(self._full[windows], of_ranges, neutral))


def _over_ranges(ufunc: np.ufunc, values: Any) -> Any:
    """The last axis merged. It is short, and NumPy's own reduction has an overhead for each row."""
    merged = values[..., 0]
    for place in range(1, values.shape[-1]):
        merged = ufunc(merged, values[..., place])
    return merged


def _unless_all(seen: Bools) -> Bools | None:
    return None if seen.all() else seen.ravel()
