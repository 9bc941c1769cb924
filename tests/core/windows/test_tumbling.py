"""Tumbling windows: where they begin and end, compared with a walk through time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.windows import (
    CALENDAR_SIZES,
    DAY_MS,
    HOUR_MS,
    MAX_TIME_MS,
    MIN_TIME_MS,
    MINUTE_MS,
    Tumbling,
    step_of,
)
from tests.generators import ZONES
from tests.reference.derived_views import tumbling_bounds

TIMES = st.one_of(
    st.integers(-500 * DAY_MS, 20_000 * DAY_MS),
    st.integers(-9_600, 480_000).map(lambda quarters: quarters * 15 * MINUTE_MS),
    st.sampled_from([MIN_TIME_MS, MAX_TIME_MS]),
)


def calendar(size: str, zone: str, tile_ms: int = 1) -> Tumbling:
    return Tumbling(CALENDAR_SIZES[size], max(tile_ms, step_of(zone)), zone)


@given(
    size=st.sampled_from([*CALENDAR_SIZES]),
    zone=st.sampled_from(ZONES),
    tile_ms=st.sampled_from([1, HOUR_MS, DAY_MS]),
    time_ms=TIMES,
)
def test_bounds_equal_the_oracle(size: str, zone: str, tile_ms: int, time_ms: int) -> None:
    windows = calendar(size, zone, tile_ms)
    start, end = tumbling_bounds(windows, time_ms)
    assert (windows.start(time_ms), windows.end(start)) == (start, end)
    assert start <= time_ms < end
    assert windows.first_from(start) == start
    assert windows.first_from(start + 1) == end
    arrays = windows.start(np.array([time_ms])), windows.end(np.array([start, start]))
    assert [a.tolist() for a in arrays] == [[start], [end, end]]


@pytest.mark.parametrize("zone", ZONES)
def test_windows_follow_one_another_without_a_gap(zone: str) -> None:
    days = calendar("day", zone)
    start = days.start(1_325_000_000_000 - 400 * DAY_MS)  # over the end of 2011
    for _ in range(800):
        end = days.end(start)
        assert start < end
        assert (days.start(end - 1), days.start(end)) == (start, end)
        start = end


def test_a_day_has_as_many_hours_as_the_clocks_show() -> None:
    london = calendar("day", "Europe/London")
    lengths = {}
    for date in ("2013-03-30", "2013-03-31", "2013-10-27"):
        start = london.start(int(np.datetime64(f"{date}T12", "ms").astype(int)))
        lengths[date] = (london.end(start) - start) // HOUR_MS
    assert lengths == {"2013-03-30": 24, "2013-03-31": 23, "2013-10-27": 25}


def test_lengths_count_from_1970_so_seven_days_begin_on_thursday() -> None:
    week = Tumbling(7 * DAY_MS, 7 * DAY_MS)
    assert (week.start(-1), week.start(0), week.end(0)) == (-7 * DAY_MS, 0, 7 * DAY_MS)
    monday = calendar("week", "UTC").start(0)
    assert monday == -3 * DAY_MS
