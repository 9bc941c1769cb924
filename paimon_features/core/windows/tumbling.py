"""Tumbling windows: each time is in exactly one, and they follow one another without a gap.

::

    size="1d"      |--------|--------|--------|      multiples of the size since 1970, UTC
    size="day"     |--------|-------|---------|      local days: of 24, 23 and 25 hours

A calendar window begins where its unit begins, rounded down to a step as the start of any
calendar window is, and ends where the next one begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import overload

import numpy as np

from paimon_features.core.times.durations import ceil_ms, floor_ms, format_duration
from paimon_features.core.types.array_types import Ints
from paimon_features.core.windows.calendars import CalendarUnit, unit_end, unit_start

CALENDAR_SIZES: Mapping[str, CalendarUnit] = {
    "day": CalendarUnit.TODAY,
    "week": CalendarUnit.THIS_WEEK,
    "month": CalendarUnit.THIS_MONTH,
    "year": CalendarUnit.THIS_YEAR,
}
"""The calendar sizes of tumbling windows."""


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of one size, ms or a calendar unit, whose starts are multiples of ``step_ms``.

    For a length in ms the step is that length; a calendar unit needs a ``time_zone``.

    >>> hours = Tumbling(3_600_000, 3_600_000)
    >>> hours.start(-1), hours.end(-3_600_000), hours.first_from(1)
    (-3600000, 0, 3600000)
    """

    size: int | CalendarUnit
    step_ms: int
    time_zone: str | None = None

    @overload
    def start(self, time_ms: int) -> int: ...
    @overload
    def start(self, time_ms: Ints) -> Ints: ...
    def start(self, time_ms: int | Ints) -> int | Ints:
        """Return the start (inclusive) of the window of a time; monotonic in time."""
        if not isinstance(self.size, CalendarUnit):
            return floor_ms(time_ms, self.size)
        assert self.time_zone is not None
        # a unit that begins within a step takes the whole step
        last = floor_ms(time_ms, self.step_ms) + (self.step_ms - 1)
        return floor_ms(unit_start(self.size, self.time_zone, last), self.step_ms)

    @overload
    def end(self, start_ms: int) -> int: ...
    @overload
    def end(self, start_ms: Ints) -> Ints: ...
    def end(self, start_ms: int | Ints) -> int | Ints:
        """Return the end (exclusive) of the window that begins at ``start_ms``."""
        if not isinstance(self.size, CalendarUnit):
            return start_ms + self.size
        assert self.time_zone is not None
        if isinstance(start_ms, int):
            end = unit_end(self.size, self.time_zone, start_ms + self.step_ms - 1)
            return floor_ms(end, self.step_ms)
        # there are few windows compared with the rows in them
        distinct, place = np.unique(start_ms, return_inverse=True)
        ends = np.array([self.end(start) for start in distinct.tolist()], np.int64)
        row_ends: Ints = ends[place]
        return row_ends

    def first_from(self, time_ms: int) -> int:
        """Return the first start that is not before ``time_ms``."""
        if not isinstance(self.size, CalendarUnit):
            return ceil_ms(time_ms, self.size)
        start = self.start(time_ms)
        return start if start == time_ms else self.end(start)

    @property
    def length_ms(self) -> int | None:
        """The length of every window; None for a calendar unit, which has no fixed one."""
        return None if isinstance(self.size, CalendarUnit) else self.size

    @property
    def name(self) -> str:
        """The size as a definition writes it."""
        if not isinstance(self.size, CalendarUnit):
            return format_duration(self.size)
        return next(name for name, unit in CALENDAR_SIZES.items() if unit is self.size)
