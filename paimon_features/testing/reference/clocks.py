"""What clocks show, by searches over ``zoneinfo``: the oracle of functions of date and time."""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from importlib import resources
from zoneinfo import ZoneInfo

from paimon_features.core.windows import HOUR_MS, MAX_TIME_MS, MIN_TIME_MS

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_YEAR_1 = dt.datetime(1, 1, 1)
_FIRST_MS, _END_MS = -2_208_988_800_000, 4_102_444_800_000
_FARTHEST_MS = 26 * HOUR_MS
_STEP_MS = 2 * HOUR_MS
"""Shorter than the time between two changes of one zone."""


@lru_cache(maxsize=64)
def zone_info(name: str) -> ZoneInfo:
    """Return the zone of the package ``tzdata``, whatever the host has."""
    with resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


@lru_cache(maxsize=1 << 16)
def offset_ms(time_ms: int, zone: str) -> int:
    """Return the offset from UTC; before 1900 and from 2100 on it is the nearest one."""
    within = min(max(time_ms, _FIRST_MS), _END_MS - 1)
    offset = (_EPOCH + dt.timedelta(milliseconds=within)).astimezone(zone_info(zone)).utcoffset()
    assert offset is not None
    return offset // dt.timedelta(milliseconds=1)


def shown(time_ms: int, zone: str) -> int | None:
    """Return the local time as ms since 1970; None outside of years 1 to 9999, there or in UTC."""
    local = time_ms + offset_ms(time_ms, zone)
    inside = all(MIN_TIME_MS <= time <= MAX_TIME_MS for time in (time_ms, local))
    return local if inside else None


def unit_start(unit: str, time_ms: int, zone: str) -> int | None:
    """Return the start of the last unit that has begun; None outside of years 1 to 9999."""
    if shown(time_ms, zone) is None:
        return None
    start = _first_shown(_floor(unit, _latest_shown(time_ms, zone)), zone)
    return start if start >= MIN_TIME_MS else None


def _floor(unit: str, local_ms: int) -> int:
    local = _YEAR_1 + dt.timedelta(milliseconds=local_ms - MIN_TIME_MS)
    if unit == "week":
        local -= dt.timedelta(days=local.weekday())
        unit = "day"
    first = {
        "microsecond": 0, "second": 0, "minute": 0, "hour": 0, "day": 1, "month": 1,
    }  # fmt: skip
    finer = [*first][: [*first, "year"].index(unit)]
    floor = local.replace(**{name: first[name] for name in finer})  # type: ignore[arg-type]
    return (floor - _YEAR_1) // dt.timedelta(milliseconds=1) + MIN_TIME_MS


def _spans(middle_ms: int, zone: str) -> list[tuple[int, int, int]]:
    """Return begin, end and offset of the times around one between two changes of the offset."""
    first, last = middle_ms - _FARTHEST_MS, middle_ms + _FARTHEST_MS
    spans = []
    begin = first
    for low in range(first, last, _STEP_MS):
        high, offset = low + _STEP_MS, offset_ms(low, zone)
        if offset_ms(high, zone) == offset:
            continue
        while high - low > 1:
            middle = (low + high) // 2
            same = offset_ms(middle, zone) == offset
            low, high = (middle, high) if same else (low, middle)
        spans.append((begin, high, offset))
        begin = high
    return [*spans, (begin, last, offset_ms(last, zone))]


def _latest_shown(time_ms: int, zone: str) -> int:
    return max(
        min(time_ms, end - 1) + offset
        for begin, end, offset in _spans(time_ms, zone)
        if begin <= time_ms
    )


def _first_shown(local_ms: int, zone: str) -> int:
    """Return the first instant at which the clocks show a time or a later one."""
    return next(
        max(begin, local_ms - offset)
        for begin, end, offset in _spans(local_ms, zone)
        if local_ms - offset < end
    )
