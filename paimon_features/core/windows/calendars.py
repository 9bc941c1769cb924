"""Calendar units in a time zone: when did today, this week, this month, this year begin?

A local day begins at the first instant at which the clocks of the zone show it. That is
midnight, also where midnight occurs twice (then the first one), and where clocks jump over it
(then the instant of the jump)::

    São Paulo, October 2018:   23:59  |  01:00      the day begins at 01:00
    Havana, November 2018:     00:59  |  00:00      ... at the first 00:00

So days never overlap, each begins after the one before, and a time belongs to the last day that
has begun. Weeks begin on Monday. Zones and their history come from the IANA database
(``zoneinfo``) of the host, or of the package ``tzdata``.
"""

from __future__ import annotations

import datetime as dt
import difflib
import enum
from functools import lru_cache
from typing import overload
from zoneinfo import ZoneInfo, available_timezones

import numpy as np

from paimon_features.core.errors import DefinitionError
from paimon_features.core.times.durations import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from paimon_features.core.types.array_types import Ints

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_ORDINAL = _EPOCH.toordinal()
_CYCLE_DAYS = 146_097
"""Days in 400 years: the calendar repeats, including weekdays."""
_FIRST_DAY = dt.date(2, 1, 1).toordinal() - _EPOCH_ORDINAL
_LAST_DAY = dt.date(9998, 12, 31).toordinal() - _EPOCH_ORDINAL
_STEPS_MS = (HOUR_MS, 30 * MINUTE_MS, 15 * MINUTE_MS)


class CalendarUnit(enum.Enum):
    """The unit of a calendar window: from its first local midnight to the read."""

    TODAY = "today"
    THIS_WEEK = "this_week"
    THIS_MONTH = "this_month"
    THIS_YEAR = "this_year"

    @property
    def longest_ms(self) -> int:
        """An upper bound of the unit's duration, whatever the clocks do."""
        # clocks have been set back by up to a whole day, in Alaska in 1867
        return ({"today": 1, "this_week": 7, "this_month": 31}.get(self.value, 366) + 1) * DAY_MS

    def first_day(self, day: int) -> int:
        """Return the first day of the unit that contains ``day``; days count from 1970-01-01.

        >>> [unit.first_day(45) for unit in CalendarUnit]  # Sunday, 15 February 1970
        [45, 39, 31, 0]
        """
        if self is CalendarUnit.TODAY:
            return day
        if self is CalendarUnit.THIS_WEEK:
            return day - (day + 3) % 7  # 1970 began on a Thursday
        shift = _shift_days(day)
        date = dt.date.fromordinal(day + shift + _EPOCH_ORDINAL).replace(day=1)
        if self is CalendarUnit.THIS_YEAR:
            date = date.replace(month=1)
        return date.toordinal() - _EPOCH_ORDINAL - shift

    def next_first_day(self, day: int) -> int:
        """Return the first day of the unit after the one that contains ``day``.

        >>> [unit.next_first_day(45) for unit in CalendarUnit]  # Sunday, 15 February 1970
        [46, 46, 59, 365]
        """
        first = self.first_day(day)
        if self in (CalendarUnit.TODAY, CalendarUnit.THIS_WEEK):
            return first + (1 if self is CalendarUnit.TODAY else 7)
        # that many days after its first one a unit has ended, and the next one has not
        return self.first_day(first + (31 if self is CalendarUnit.THIS_MONTH else 366))


def check_time_zone(name: str) -> None:
    """Raise DefinitionError for a name that is not in the IANA database."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        zones = available_timezones()
        if not zones:
            raise DefinitionError(
                f"time_zone={name!r}: this host has no time zone database; "
                "install the package tzdata"
            ) from None
        near = difflib.get_close_matches(name, zones, n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise DefinitionError(
            f"time_zone={name!r} is not in the IANA database; expected a name such as "
            f"'Europe/London'{hint}"
        ) from None


@lru_cache(maxsize=256)
def step_of(time_zone: str) -> int:
    """Return the greatest step at whose multiples the zone's days begin, in ms.

    It divides every offset from UTC that the zone has had since 2000: an hour, 30 minutes or 15
    minutes; a day if the zone is UTC and always was. Days before 2000 may begin between two
    multiples, as may days of a zone with other offsets.

    >>> [step_of(z) // 60_000 for z in ("UTC", "Europe/London", "Asia/Kolkata", "Asia/Kathmandu")]
    [1440, 60, 30, 15]
    """
    offsets = {
        year: {_offset_ms(time_zone, year, month) for month in range(1, 13)}
        for year in range(1850, 2038)
    }
    if set().union(*offsets.values()) == {0}:
        return DAY_MS
    recent = set().union(*(of_year for year, of_year in offsets.items() if year >= 2000))
    fitting = [step for step in _STEPS_MS if all(offset % step == 0 for offset in recent)]
    return fitting[0] if fitting else _STEPS_MS[-1]


@overload
def unit_start(unit: CalendarUnit, time_zone: str, time_ms: int) -> int: ...
@overload
def unit_start(unit: CalendarUnit, time_zone: str, time_ms: Ints) -> Ints: ...
def unit_start(unit: CalendarUnit, time_zone: str, time_ms: int | Ints) -> int | Ints:
    """Return the start of the unit that contains ``time_ms``, UTC ms; never after ``time_ms``.

    >>> summer = 1_720_000_000_000  # 2024-07-03 10:46:40 in London, where it is UTC + 1
    >>> unit_start(CalendarUnit.TODAY, "Europe/London", summer)
    1719961200000
    """
    if isinstance(time_ms, int):
        day = _day_at(time_zone, time_ms)
        return day_start(time_zone, unit.first_day(day))
    if not len(time_ms):
        return time_ms
    # each UTC day that occurs is computed once; three local days can overlap it
    days = time_ms // DAY_MS
    first = int(days.min())
    if int(days.max()) - first > 4 * len(days) + 4096:
        distinct, place = np.unique(days, return_inverse=True)
    else:
        distinct = np.flatnonzero(np.bincount(days - first)) + first
        places = np.zeros(int(distinct[-1]) - first + 1, np.int64)
        places[distinct - first] = np.arange(len(distinct))
        place = places[days - first]
    # axes: distinct days, (yesterday, today, tomorrow)
    near = [[day - 1, day, day + 1] for day in distinct.tolist()]
    begins = np.array([[day_start(time_zone, d) for d in of_day] for of_day in near])
    starts = np.array(
        [[day_start(time_zone, unit.first_day(d)) for d in of_day] for of_day in near]
    )
    begun = (time_ms >= begins[place, 1]).astype(np.int64) + (time_ms >= begins[place, 2])
    unit_starts: Ints = starts[place, begun]
    return unit_starts


def unit_end(unit: CalendarUnit, time_zone: str, time_ms: int) -> int:
    """Return the end of the unit that contains ``time_ms``, the start of the next; after
    ``time_ms``.

    >>> summer = 1_720_000_000_000  # 2024-07-03 10:46:40 in London, where it is UTC + 1
    >>> unit_end(CalendarUnit.TODAY, "Europe/London", summer)
    1720047600000
    """
    return day_start(time_zone, unit.next_first_day(_day_at(time_zone, time_ms)))


@lru_cache(maxsize=1 << 15)
def day_start(time_zone: str, day: int) -> int:
    """Return the first instant (UTC ms) at which the zone's clocks show ``day``, or a later one."""
    shift = _shift_days(day)
    if shift:
        return day_start(time_zone, day + shift) - shift * DAY_MS
    date = dt.date.fromordinal(day + _EPOCH_ORDINAL)
    midnight = dt.datetime(date.year, date.month, date.day, tzinfo=ZoneInfo(time_zone))
    offset = midnight.utcoffset()  # of the first midnight, where there are two
    assert offset is not None
    start_ms = day * DAY_MS - _ms(offset)
    if _shown_day(time_zone, start_ms) >= day > _shown_day(time_zone, start_ms - 1):
        return start_ms
    # the clocks jumped over midnight from before it: search the jump, which is at a full second
    low, high = start_ms // SECOND_MS - 2 * 86_400, start_ms // SECOND_MS
    while high - low > 1:
        middle = (low + high) // 2
        if _shown_day(time_zone, middle * SECOND_MS) >= day:
            high = middle
        else:
            low = middle
    return high * SECOND_MS


def _day_at(time_zone: str, time_ms: int) -> int:
    """Return the last local day that has begun at ``time_ms``."""
    day = time_ms // DAY_MS + 1  # no zone is a day or more away from UTC
    while day_start(time_zone, day) > time_ms:
        day -= 1
    return day


def _shown_day(time_zone: str, time_ms: int) -> int:
    """Return the day that the zone's clocks show."""
    shown = (_EPOCH + dt.timedelta(milliseconds=time_ms)).astimezone(ZoneInfo(time_zone))
    return shown.toordinal() - _EPOCH_ORDINAL


def _offset_ms(time_zone: str, year: int, month: int) -> int:
    offset = dt.datetime(year, month, 15, tzinfo=ZoneInfo(time_zone)).utcoffset()
    assert offset is not None
    return _ms(offset)


def _ms(duration: dt.timedelta) -> int:
    return (duration.days * 86_400 + duration.seconds) * SECOND_MS


def _shift_days(day: int) -> int:
    """Return the shift that moves a day into the years that ``datetime`` and all zones support."""
    beyond = max(_FIRST_DAY - day, 0) - max(day - _LAST_DAY, 0)
    cycles = -(-abs(beyond) // _CYCLE_DAYS)  # rounded up
    return cycles * _CYCLE_DAYS if beyond > 0 else -cycles * _CYCLE_DAYS
