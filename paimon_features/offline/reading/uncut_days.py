"""Where the windows of rows cut the time axis: what lies between two cuts is taken or left whole.

A span of days may be read as one row per entity if no window of any row begins or ends within it:
then each window holds all of its tiles, or none. Cuts at the border of two days are told apart
from those within a day::

    days      |  d  | d+1 | d+2 | d+3 |
    cuts      ^        ^              ^        border of d, within d+1, border of d+4
    whole     |-----|     |-----------|
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from paimon_features.array_types import Ints
from paimon_features.definitions import CompiledFeature, CompiledView
from paimon_features.windows import DAY_MS, ceil_ms, floor_ms

_COUNTED = 8_000_000
"""Numbers in a range up to so large are told apart by counting, which is faster than sorting."""


class UncutDays:
    """The days that the windows of these features cut, for rows that are observed in chunks."""

    def __init__(self, view: CompiledView, features: Sequence[CompiledFeature]) -> None:
        self._view = view
        self._windows = tuple(dict.fromkeys(feature.window for feature in features))
        self._within: Ints = np.zeros(0, np.int64)
        self._borders: Ints = np.zeros(0, np.int64)

    def observe(self, as_of_ms: Ints) -> None:
        """Rows at these times."""
        if not len(as_of_ms):
            return
        tile_ms = self._view.tile_ms
        first = distinct(as_of_ms // tile_ms) * tile_ms
        # a window's edges never go back as q grows, and move once within a tile, or twice where
        # a tile of a day meets a day of 23 hours: its ends and its middle tell all of them
        for ahead_ms in sorted({0, tile_ms // 2, tile_ms - 1}):
            for cut in self._cuts(first + ahead_ms):
                days, within = cut // DAY_MS, cut % DAY_MS > 0
                self._within = np.union1d(self._within, distinct(days[within]))
                self._borders = np.union1d(self._borders, distinct(days[~within]))

    def whole(self, first_day: int, end_day: int) -> bool:
        """Whether no window begins or ends within the days ``[first_day, end_day)``."""
        return not _any(self._within, first_day, end_day) and not _any(
            self._borders, first_day + 1, end_day
        )

    def _cuts(self, q: Ints) -> Iterator[Ints]:
        """The times between tiles at which a join cuts them (``point_in_time``)."""
        tile_ms = self._view.tile_ms
        for window in self._windows:
            if window.length is not None:
                yield ceil_ms(window.start(q), tile_ms)
            yield floor_ms(window.end(q), tile_ms)
        yield floor_ms(self._view.horizon(q), tile_ms)


def distinct(numbers: Ints) -> Ints:
    """The distinct ones of some numbers, ascending."""
    if not len(numbers):
        return numbers
    first = int(numbers.min())
    if int(numbers.max()) - first > _COUNTED:
        return np.unique(numbers)
    found: Ints = np.flatnonzero(np.bincount(numbers - first)) + first
    return found


def _any(days: Ints, first: int, end: int) -> bool:
    low, high = np.searchsorted(days, [first, end])
    return bool(high > low)
