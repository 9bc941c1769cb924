"""Calendar units begin at local midnight, whatever the clocks of the zone do."""

from __future__ import annotations

import datetime as dt
import random
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.errors import DefinitionError
from paimon_features.core.windows import (
    DAY_MS,
    HOUR_MS,
    MAX_TIME_MS,
    MIN_TIME_MS,
    MINUTE_MS,
    CalendarUnit,
    Window,
    calendars,
    check_time_zone,
    step_of,
)
from paimon_features.core.windows.calendars import unit_start
from paimon_features.testing.reference import windows as naive_windows
from tests.generators import ZONES

TODAY, WEEK, MONTH, YEAR = CalendarUnit


def ms(text: str, zone: str = "UTC") -> int:
    """Milliseconds of a written local time; of a time that comes twice, the first one."""
    return int(dt.datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def start(unit: CalendarUnit, zone: str, time_ms: int) -> int:
    """By both ways, which have to agree."""
    one = unit_start(unit, zone, time_ms)
    assert unit_start(unit, zone, np.array([time_ms])).tolist() == [one]
    return one


@pytest.mark.parametrize(
    ("zone", "change", "begin", "hours"),
    [
        #  the day          begins at (UTC)          and has so many hours
        ("Europe/London", "2024-03-31", "2024-03-31T00:00", 23),
        ("Europe/London", "2024-10-27", "2024-10-26T23:00", 25),
        ("America/New_York", "2024-03-10", "2024-03-10T05:00", 23),
        ("America/New_York", "2024-11-03", "2024-11-03T04:00", 25),
        # south of the equator, summer begins in October
        ("Australia/Sydney", "2024-10-06", "2024-10-05T14:00", 23),
        ("Australia/Sydney", "2024-04-07", "2024-04-06T13:00", 25),
        # offsets of half and quarter hours; half an hour of summer time
        ("Australia/Lord_Howe", "2024-10-06", "2024-10-05T13:30", 23.5),
        ("Australia/Lord_Howe", "2024-04-07", "2024-04-06T13:00", 24.5),
        ("Pacific/Chatham", "2024-09-29", "2024-09-28T11:15", 23),
        ("Asia/Kathmandu", "2024-02-29", "2024-02-28T18:15", 24),
        ("Asia/Kolkata", "2023-12-31", "2023-12-30T18:30", 24),
        # clocks set from 00:00 to 01:00, from 01:00 to 00:00, from 00:00 to 23:00
        ("America/Sao_Paulo", "2018-11-04", "2018-11-04T03:00", 23),
        ("America/Sao_Paulo", "2018-02-17", "2018-02-17T02:00", 25),
        ("America/Havana", "2018-11-04", "2018-11-04T04:00", 25),
        # from 00:01 to 23:01 the day before: the day begins at its first midnight
        ("America/St_Johns", "2010-11-07", "2010-11-07T02:30", 25),
        # from 23:30 to 00:30: no midnight at all
        ("America/Toronto", "1919-03-31", "1919-03-31T04:30", 23.5),
        # the zone's first offset, in seconds
        ("Asia/Kathmandu", "1910-06-01", "1910-05-31T18:18:44", 24),
    ],
)
def test_a_day_begins_and_ends_with_the_clocks(
    zone: str, change: str, begin: str, hours: float
) -> None:
    first, length = ms(begin), int(hours * HOUR_MS)
    for inside in (first, first + 1, first + length - 1):
        assert start(TODAY, zone, inside) == first, change
    assert start(TODAY, zone, first - 1) < first
    assert start(TODAY, zone, first + length) == first + length


def test_a_skipped_day_has_no_start() -> None:
    # Samoa crossed the date line: after Thursday, 29 December 2011 came Saturday
    jump = ms("2011-12-30T10:00")
    assert start(TODAY, "Pacific/Apia", jump - 1) == jump - DAY_MS
    assert start(TODAY, "Pacific/Apia", jump) == jump
    assert start(TODAY, "Pacific/Apia", jump + DAY_MS) == jump + DAY_MS
    assert start(WEEK, "Pacific/Apia", jump + DAY_MS) == ms("2011-12-26T10:00")


@pytest.mark.parametrize(
    ("unit", "zone", "at", "begin"),
    [
        (WEEK, "UTC", "2024-07-07T23:59:59.999", "2024-07-01"),
        (WEEK, "UTC", "2024-07-08", "2024-07-08"),
        (WEEK, "UTC", "1969-12-31", "1969-12-29"),
        (WEEK, "Europe/London", "2024-03-31T12:00", "2024-03-25"),
        (MONTH, "UTC", "2024-02-29T12:00", "2024-02-01"),
        (MONTH, "UTC", "2024-03-01", "2024-03-01"),
        (MONTH, "UTC", "1900-02-28T23:00", "1900-02-01"),
        (MONTH, "UTC", "1900-03-01", "1900-03-01"),  # 1900 had no 29 February
        (MONTH, "America/New_York", "2024-03-31T12:00", "2024-03-01"),
        (YEAR, "Asia/Kathmandu", "2023-12-31T23:59:59.999", "2023-01-01"),
        (YEAR, "Asia/Kathmandu", "2024-01-01", "2024-01-01"),
        (YEAR, "Australia/Sydney", "2024-07-01", "2024-01-01"),
        (YEAR, "Europe/London", "1968-10-27T12:00", "1968-01-01"),
        (YEAR, "UTC", "0001-01-01", "0001-01-01"),
        (YEAR, "UTC", "9999-12-31T23:59:59.999", "9999-01-01"),
    ],
)
def test_weeks_begin_on_monday_months_and_years_on_their_first(
    unit: CalendarUnit, zone: str, at: str, begin: str
) -> None:
    assert start(unit, zone, ms(at, zone)) == ms(begin, zone)


@pytest.mark.parametrize("zone", ZONES)
def test_both_ends_of_time_have_units(zone: str) -> None:
    for time_ms in (MIN_TIME_MS, MIN_TIME_MS + DAY_MS, MAX_TIME_MS - DAY_MS, MAX_TIME_MS):
        for unit in CalendarUnit:
            begin = start(unit, zone, time_ms)
            assert begin <= time_ms < begin + unit.longest_ms
            assert begin == naive_windows.unit_start(unit, zone, time_ms)


@given(st.integers(0, 2**32))
def test_any_time_in_any_zone_equals_the_oracle(seed: int) -> None:
    rng = random.Random(seed)
    zone = rng.choice(ZONES)
    middle = rng.randrange(ms("1850-01-01"), ms("2200-01-01"))
    spread = rng.choice((DAY_MS, 40 * DAY_MS, 3000 * DAY_MS))
    times = [middle + rng.randrange(-spread, spread) for _ in range(6)]
    unit = rng.choice(tuple(CalendarUnit))
    begins = [naive_windows.unit_start(unit, zone, time) for time in times]
    times += [begin + rng.choice((-1, 0, 1)) for begin in begins]
    expected = [naive_windows.unit_start(unit, zone, time) for time in times]
    assert [unit_start(unit, zone, time) for time in times] == expected
    assert unit_start(unit, zone, np.array(times)).tolist() == expected


@pytest.mark.parametrize("zone", ZONES)
def test_starts_are_monotonic_in_time(zone: str) -> None:
    #  cells are pruned by the start of the earliest read: no later one may reach further back
    times = np.arange(ms("2008-01-01"), ms("2013-01-01"), 30 * MINUTE_MS) - 1
    for unit in CalendarUnit:
        begins = unit_start(unit, zone, times)
        assert (np.diff(begins) >= 0).all()
        assert (begins <= times).all()
        assert (times - begins < unit.longest_ms).all()


@pytest.mark.parametrize("zone", ZONES)
def test_days_since_2000_begin_on_a_multiple_of_the_step(zone: str) -> None:
    times = np.arange(ms("2000-01-03"), ms("2030-01-01"), 6 * HOUR_MS)
    assert not (unit_start(TODAY, zone, times) % step_of(zone)).any()


def test_a_start_between_two_steps_is_rounded_down() -> None:
    # until 1986 Kathmandu was at UTC + 5:30; before 1920 at 5:41:16
    window = Window(TODAY, 15 * MINUTE_MS, 5 * MINUTE_MS, time_zone="Asia/Kathmandu")
    assert window.start(ms("1980-06-01T12:00", "Asia/Kathmandu")) == ms("1980-05-31T18:30")
    assert window.start(ms("1910-06-01T12:00", "Asia/Kathmandu")) == ms("1910-05-31T18:15")


def test_an_empty_array_of_times_is_returned_unchanged() -> None:
    assert not len(unit_start(TODAY, "Europe/London", np.array([], np.int64)))


def test_times_far_apart_need_only_their_own_days() -> None:
    times = np.array([MAX_TIME_MS, 0, MIN_TIME_MS, 0])
    begins = unit_start(TODAY, "UTC", times)
    assert begins.tolist() == [MAX_TIME_MS - DAY_MS + 1, 0, MIN_TIME_MS, 0]


def test_a_host_without_time_zones_gets_an_error_with_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing(name: str) -> ZoneInfo:
        raise ZoneInfoNotFoundError(name)

    monkeypatch.setattr(calendars, "ZoneInfo", nothing)
    monkeypatch.setattr(calendars, "available_timezones", set)
    with pytest.raises(DefinitionError, match="no time zone database; install the package tzdata"):
        check_time_zone("Europe/London")


@pytest.mark.parametrize("cycles", [-(10**6), -30_000, -5, 19, 30_000, 10**6])
def test_days_of_any_year_repeat_every_400_years(cycles: int) -> None:
    # the newest event of an empty bucket is at the least int64
    days = 146_097 * cycles
    for day in (0, 45, 19_999):
        expected = (day + days) * DAY_MS
        assert calendars.day_start("UTC", day + days) == expected
        assert [unit.first_day(day + days) - days for unit in CalendarUnit] == [
            unit.first_day(day) for unit in CalendarUnit
        ]
