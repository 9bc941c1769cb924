"""A few windows of each entity, each of a few ranges of rows, folded without copying the rows.

Sums of integers are differences of running sums, exact even where they wrap; extremes and sums of
floats are reduced range by range, and so are decayed sums where each row has one age, whatever
the window. Everything else (strings, lists) uses the general fold; the results are the same.
Many windows of each entity are folded by ``range_index``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.types.array_types import Bools, Ints
from paimon_features.core.windows import floor_ms
from paimon_features.definitions.aggregates.base import EVENT_TIME_MAX, Merge, Partial
from paimon_features.definitions.aggregates.fold import (
    NEVER_MS,
    filled,
    fold,
    neutral_of,
    ufunc_of,
)


def is_running_sum(partial: Partial) -> bool:
    """Return True if ``RangeFolds.sums`` folds it."""
    return partial.merge is Merge.SUM and partial.type.text == "int64"


def is_decayed(partial: Partial) -> bool:
    """Return True if ``RangeFolds.decayed`` folds it."""
    return partial.merge is Merge.DECAYED_SUM


def is_reduced(partial: Partial) -> bool:
    """Return True if ``RangeFolds.reduced`` folds it."""
    plain = partial.merge in (Merge.SUM, Merge.MIN, Merge.MAX)
    return plain and partial.type.is_numeric and not is_running_sum(partial)


class PartialRows(Protocol):
    """Rows of partials; those of entity ``i`` are ``offsets[i]:offsets[i + 1]``, in time order."""

    @property
    def offsets(self) -> Ints: ...
    def column(self, name: str) -> Column:
        """Return a partial of all rows."""
        ...

    def taken(self, name: str, rows: Ints) -> Column:
        """Return a partial of these rows."""
        ...


class FoldPlan:
    """Which partials are folded over which windows, and how.

    ``windows_of`` are the numbers of the windows for which each partial is folded: at least those
    of ``needed``.
    """

    def __init__(
        self, partials: Mapping[str, Partial], needed: Mapping[str, set[int]], windows: int
    ) -> None:
        needed_partials = [partials[name] for name in needed]
        self._sums = [p.name for p in needed_partials if is_running_sum(p)]
        self._reduced = [p.name for p in needed_partials if is_reduced(p)]
        self._decayed = [p.name for p in needed_partials if is_decayed(p)]
        # a running sum serves all windows at the cost of one
        self.windows_of = {
            name: list(range(windows)) if name in self._sums else sorted(numbers)
            for name, numbers in needed.items()
        }
        self._general: dict[tuple[int, ...], list[str]] = {}
        for name in needed.keys() - {*self._sums, *self._reduced, *self._decayed}:
            self._general.setdefault(tuple(self.windows_of[name]), []).append(name)

    def fold(self, folds: RangeFolds) -> dict[str, Column]:
        """Return each partial over its windows, shape ``(windows * entities,)``."""
        merged = folds.sums(self._sums)
        for name in self._reduced:
            merged[name] = folds.reduced(name, self.windows_of[name])
        for name in self._decayed:
            windows = self.windows_of[name]
            column = folds.decayed(name, windows)
            merged[name] = folds.general([name], windows)[name] if column is None else column
        for numbers, names in self._general.items():
            merged.update(folds.general(names, list(numbers)))
        return merged


class RangeFolds:
    """Folds of rows over the windows of each entity.

    ``places`` are the ranges of rows of which a window consists, shape ``(windows, entities,
    ranges, 2)``; the last axis is from (inclusive) and to (exclusive).
    """

    def __init__(
        self, partials: Mapping[str, Partial], rows: PartialRows, places: Ints, tile_ms: int
    ) -> None:
        self._partials, self._rows, self._places = partials, rows, places
        self._tile_ms = tile_ms
        # axes: windows, entities, ranges
        self._full: Bools = places[..., 0] < places[..., 1]
        self._seen: Bools = _over_ranges(np.logical_or, self._full)

    def sums(self, names: Sequence[str]) -> dict[str, Column]:
        """Return integer sums over all windows, shape ``(windows * entities,)``."""
        if not names:
            return {}
        columns = {name: self._rows.column(name) for name in names}
        nullable = {name: c.valid for name, c in columns.items() if c.valid is not None}
        # axes: columns, rows
        running = np.zeros((len(names) + len(nullable), self._rows.offsets[-1] + 1), np.int64)
        for sums, column in zip(running, columns.values(), strict=False):
            sums[1:] = filled(column, 0)
        for counts, valid in zip(running[len(names) :], nullable.values(), strict=True):
            counts[1:] = valid
        np.cumsum(running, axis=1, out=running)
        # axes: columns, windows * entities, ranges, (from, to)
        at = running.take(self._places, axis=1).reshape(len(running), -1, *self._places.shape[2:])
        folded = _over_ranges(np.add, at[..., 1] - at[..., 0])
        seen = _unless_all(self._seen)
        out = {name: Column(values, seen) for name, values in zip(names, folded, strict=False)}
        for name, count in zip(nullable, folded[len(names) :], strict=True):
            out[name] = Column(out[name].values, _unless_all(count > 0))
        return out

    def reduced(self, name: str, windows: Sequence[int]) -> Column:
        """Return a minimum, maximum or sum of floats over some windows."""
        return self._merged(self._partials[name].merge, self._rows.column(name), windows)

    def _merged(self, merge: Merge, column: Column, windows: Sequence[int]) -> Column:
        ufunc, neutral = ufunc_of(merge), neutral_of(merge, column.values.dtype)
        seen = self._seen[windows]
        if column.valid is not None:
            seen = self._reduce(np.logical_or, column.valid, False, windows)
        values = self._reduce(ufunc, filled(column, neutral), neutral, windows)
        return Column(values.ravel(), _unless_all(seen))

    def decayed(self, name: str, windows: Sequence[int]) -> Column | None:
        """Return a decayed sum over some windows, from the end of the newest tile of each.

        None where the windows of an entity have different newest tiles: then each row has a weight
        for each window, and the general fold is as fast.
        """
        partial = self._partials[name]
        assert partial.half_life_ms is not None
        newest = self.newest[windows]
        latest = newest.max(axis=0)
        if not (self._seen[windows] <= (newest == latest)).all():
            return None
        column, tile_ms = self._rows.column(name), self._tile_ms
        latest_ms = floor_ms(latest, tile_ms).repeat(np.diff(self._rows.offsets))
        ages_ms = latest_ms - floor_ms(self._event_times, tile_ms)
        # rows behind the windows' end have no age; they are in no window
        weights = np.exp2(np.maximum(ages_ms, 0) / -partial.half_life_ms)
        return self._merged(
            Merge.DECAYED_SUM, Column(column.values * weights, column.valid), windows
        )

    def general(self, names: Sequence[str], windows: Sequence[int]) -> dict[str, Column]:
        """Return partials of any kind over some windows."""
        places = self._places[windows]
        begins = places[..., 0].ravel()
        sizes = places[..., 1].ravel() - begins
        ends = sizes.cumsum()
        tile_rows = (begins - (ends - sizes)).repeat(sizes) + np.arange(
            ends[-1] if len(ends) else 0
        )
        count, entities, ranges, _ = places.shape
        offsets = np.zeros(count * entities + 1, np.int64)
        offsets[1:] = ends[ranges - 1 :: ranges]
        partials = [self._partials[name] for name in names]
        needed = dict.fromkeys(names)
        if any(map(is_decayed, partials)):
            needed[EVENT_TIME_MAX.name] = None  # decay counts from the newest tile
        columns = {name: self._rows.taken(name, tile_rows) for name in needed}
        return fold(partials, columns, offsets, self._tile_ms)

    @cached_property
    def newest(self) -> Ints:
        """The newest event time in each window, shape ``(windows, entities)``; NEVER_MS: none.

        Rows are in time order, so it is that of the last one of some range.
        """
        if not self._rows.offsets[-1]:
            return np.full(self._seen.shape, NEVER_MS, np.int64)
        last = self._event_times.take(np.maximum(self._places[..., 1] - 1, 0))
        newest: Ints = _over_ranges(np.maximum, np.where(self._full, last, NEVER_MS))
        return newest

    @cached_property
    def _event_times(self) -> Ints:
        """The newest event time of each row."""
        return np.ascontiguousarray(self._rows.column(EVENT_TIME_MAX.name).values)

    def _reduce(self, ufunc: np.ufunc, values: Any, neutral: Any, windows: Sequence[int]) -> Any:
        """Return each window's values merged, shape ``(windows, entities)``."""
        places = self._places[windows]
        # a place behind the last row has to exist
        padded = np.append(values, np.asarray(neutral, values.dtype))
        # axes: windows, entities, ranges; what lies between two ranges is skipped
        of_ranges = ufunc.reduceat(padded, places.ravel())[::2].reshape(places.shape[:3])
        return _over_ranges(ufunc, np.where(self._full[windows], of_ranges, neutral))


def _over_ranges(ufunc: np.ufunc, values: Any) -> Any:
    """Return the last axis merged.

    It is short, and NumPy's own reduction has an overhead for each row.
    """
    merged = values[..., 0]
    for place in range(1, values.shape[-1]):
        merged = ufunc(merged, values[..., place])
    return merged


def _unless_all(seen: Bools) -> Bools | None:
    return None if seen.all() else seen.ravel()
