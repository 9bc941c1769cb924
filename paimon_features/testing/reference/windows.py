"""The oracle of windows: which events belong to one, by arithmetic on single times.

Nothing here uses arrays, cells or precomputed steps. ``members`` is what
every path is compared with.

::

    kind       at               start            end
    sawtooth   q - o            floor(at - w, h) q, or floor(at, t) with an offset o
    hop        floor(q - o, h)  floor(at - w, h) at
    exact      q - o            at - w           at
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable
from functools import lru_cache
from zoneinfo import ZoneInfo

from paimon_features.core.windows import CalendarUnit, Window

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_HOUR = dt.timedelta(hours=1)
_MINUTE = dt.timedelta(minutes=1)
_SECOND = dt.timedelta(seconds=1)
_DAY = dt.timedelta(days=1)
_CYCLE_MS = 146_097 * 86_400_000
_EARLY_MS = -_CYCLE_MS * 4
_LATE_MS = _CYCLE_MS * 19
_MS = dt.timedelta(milliseconds=1)


def bounds(window: Window, as_of_ms: int, *, online: bool = False) -> tuple[float, int]:
    """Start (inclusive, minus infinity for a lifetime) and end (exclusive) at ``as_of_ms``.

    ``online`` takes the open tile whole, as an online read of a sawtooth window does: it also
    counts what has arrived with a later event time.
    """
    at = as_of_ms - window.offset_ms
    if window.kind == "hop":
        at = at // window.hop_ms * window.hop_ms
    start: float
    if window.length is None:
        return -math.inf, _end(window, as_of_ms, at, online)
    if isinstance(window.length, CalendarUnit):
        assert window.time_zone is not None
        start = unit_start(window.length, window.time_zone, at)
    else:
        start = at - window.length
    if window.kind != "exact":
        start = start // window.hop_ms * window.hop_ms
    return start, _end(window, as_of_ms, at, online)


def _end(window: Window, as_of_ms: int, at: int, online: bool) -> int:
    if window.kind == "sawtooth" and window.offset_ms:
        return at // window.tile_ms * window.tile_ms
    if window.kind == "sawtooth" and online:
        return -(-as_of_ms // window.tile_ms) * window.tile_ms
    return at


def members(
    times_ms: Iterable[int], as_of_ms: int, window: Window, *, online: bool = False
) -> list[int]:
    """Return positions of the events that are in the window read at ``as_of_ms``.

    ::

        floor(q - w, hop)                        q
               [---------------------------------)
             in                                  out

    >>> window = Window(600_000, hop_ms=300_000, tile_ms=300_000)
    >>> members([0, 299_999, 300_000, 899_999, 900_000], 900_000, window)
    [2, 3]
    """
    start, end = bounds(window, as_of_ms, online=online)
    return [position for position, ts in enumerate(times_ms) if start <= ts < end]


def read_time(window: Window, as_of_ms: int) -> int:
    """Return the time to which decay counts: that of the read, which a hop window rounds down
    first."""
    if window.kind != "hop":
        return as_of_ms
    return (as_of_ms - window.offset_ms) // window.hop_ms * window.hop_ms + window.offset_ms


def unit_start(unit: CalendarUnit, time_zone: str, time_ms: int) -> int:
    """Return when the unit began that ``time_ms`` is in, UTC ms.

    A time belongs to the last local day that has begun; a day begins when the clocks of the
    zone first show it. After 400 years the calendar repeats, and at both ends of time zones
    are as they were, or will be, 400 years off.
    """
    for is_outside, back in ((time_ms < _EARLY_MS, _CYCLE_MS), (time_ms > _LATE_MS, -_CYCLE_MS)):
        if is_outside:
            return unit_start(unit, time_zone, time_ms + back) - back
    day = (_EPOCH + time_ms * _MS).date() + _DAY
    while _day_start(time_zone, day) > time_ms:
        day -= _DAY
    if unit is CalendarUnit.THIS_WEEK:
        while day.isoweekday() != 1:
            day -= _DAY
    if unit is CalendarUnit.THIS_MONTH:
        while day.day != 1:
            day -= _DAY
    if unit is CalendarUnit.THIS_YEAR:
        while (day.month, day.day) != (1, 1):
            day -= _DAY
    return _day_start(time_zone, day)


@lru_cache(maxsize=1 << 14)
def _day_start(time_zone: str, day: dt.date) -> int:
    """Return the first instant at which clocks show ``day`` or later: minute by minute from
    before."""
    zone = ZoneInfo(time_zone)
    # no zone was ever 16 hours ahead of UTC
    at = dt.datetime(day.year, day.month, day.day, tzinfo=dt.UTC) - 16 * _HOUR
    while at.astimezone(zone).date() < day:
        at += _MINUTE
    at -= _MINUTE
    while at.astimezone(zone).date() < day:
        at += _SECOND
    return (at - _EPOCH) // _MS
