"""Windows: which events a feature is computed from, in UTC milliseconds."""

from paimon_features.core.times.durations import (
    DAY_MS,
    HOUR_MS,
    MAX_TIME_MS,
    MIN_TIME_MS,
    MINUTE_MS,
    SECOND_MS,
    ceil_ms,
    floor_ms,
    format_duration,
    is_duration,
    parse_duration,
)
from paimon_features.core.windows.calendars import CalendarUnit, check_time_zone, step_of
from paimon_features.core.windows.tumbling import CALENDAR_SIZES, Tumbling
from paimon_features.core.windows.window import (
    KINDS,
    Kind,
    Length,
    Window,
    format_length,
    hop_of,
    parse_length,
)

__all__ = [
    "CALENDAR_SIZES",
    "DAY_MS",
    "HOUR_MS",
    "KINDS",
    "MAX_TIME_MS",
    "MINUTE_MS",
    "MIN_TIME_MS",
    "SECOND_MS",
    "CalendarUnit",
    "Kind",
    "Length",
    "Tumbling",
    "Window",
    "ceil_ms",
    "check_time_zone",
    "floor_ms",
    "format_duration",
    "format_length",
    "hop_of",
    "is_duration",
    "parse_duration",
    "parse_length",
    "step_of",
]
