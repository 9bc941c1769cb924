"""Where window edges of rows cut the time axis; between two cuts, tiles are read all or not at all.

A range of days may be read as one row per entity if no window of any row starts or ends within it:
then each window contains all of its tiles, or none. Cuts at day borders are tracked separately
from those within a day::

    days      |  d  | d+1 | d+2 | d+3 |
    cuts      ^        ^              ^        border of d, within d+1, border of d+4
    uncut     |-----|     |-----------|
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from paimon_features.core.types.array_types import Ints
from paimon_features.core.windows import DAY_MS, ceil_ms, floor_ms
from paimon_features.definitions import CompiledFeature, CompiledView
from paimon_features.offline.joins.entity_codes import distinct


class UncutDays:
    """The days that the windows of these features cut, for rows observed in chunks."""

    def __init__(self, view: CompiledView, features: Sequence[CompiledFeature]) -> None:
        self._view = view
        self._windows = tuple(dict.fromkeys(feature.window for feature in features))
        self._within: Ints = np.zeros(0, np.int64)
        self._borders: Ints = np.zeros(0, np.int64)

    def observe(self, as_of_ms: Ints) -> None:
        """Record rows at these times."""
        if not len(as_of_ms):
            return
        tile_ms = self._view.tile_ms
        first = distinct(as_of_ms // tile_ms) * tile_ms
        # window edges are monotonic in q and move once within a tile, or twice where a tile of a
        # day meets a day of 23 hours: its ends and its middle cover all of them
        for ahead_ms in sorted({0, tile_ms // 2, tile_ms - 1}):
            for cut in self._cuts(first + ahead_ms):
                days, within = cut // DAY_MS, cut % DAY_MS > 0
                self._within = np.union1d(self._within, distinct(days[within]))
                self._borders = np.union1d(self._borders, distinct(days[~within]))

    def is_uncut(self, first_day: int, end_day: int) -> bool:
        """Return True if no window starts or ends within the days ``[first_day, end_day)``."""
        return not _any(self._within, first_day, end_day) and not _any(
            self._borders, first_day + 1, end_day
        )

    def _cuts(self, q: Ints) -> Iterator[Ints]:
        """Yield the tile borders at which a join splits tiles (``point_in_time``)."""
        tile_ms = self._view.tile_ms
        for window in self._windows:
            if window.length is not None:
                yield ceil_ms(window.start(q), tile_ms)
            yield floor_ms(window.end(q), tile_ms)
        yield floor_ms(self._view.horizon(q), tile_ms)


def _any(days: Ints, first: int, end: int) -> bool:
    low, high = np.searchsorted(days, [first, end])
    return bool(high > low)
