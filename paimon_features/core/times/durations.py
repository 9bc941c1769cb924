"""Durations as text and in milliseconds, and the range of times.

>>> parse_duration("90min"), format_duration(5_400_000)
(5400000, '90min')
"""

from __future__ import annotations

import functools
import re
from datetime import timedelta
from typing import TYPE_CHECKING, overload

from paimon_features.core.errors import DefinitionError, shortened

if TYPE_CHECKING:
    from paimon_features.core.types.array_types import Ints

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

MIN_TIME_MS = -62_135_596_800_000
"""0001-01-01T00:00:00Z, the earliest event time that enters a tile."""
MAX_TIME_MS = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z, the latest event time that enters a tile."""
_LONGEST_MS = MAX_TIME_MS - MIN_TIME_MS

_DURATION = re.compile(r"([0-9]+)\s*(ms|s|min|h|d|w)")
_WORDS = re.compile(
    r"([0-9]+)\s*(ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?"
    r"|h|hrs?|hours?|d|days?|w|weeks?)",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"([0-9]+)")
_MILLISECONDS = ("ms", "millisecond", "milliseconds")
_MEANT = {"s": "s", "m": "min", "h": "h", "d": "d", "w": "w"}
_UNITS = {"ms": 1, "s": SECOND_MS, "min": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS, "w": 7 * DAY_MS}


def parse_duration(text: str) -> int:
    """Return the milliseconds of a duration such as ``"500ms"``, ``"5min"``, ``"1h"``, ``"30d"``.

    Raises
    ------
    DefinitionError
        For anything but a positive integer and a unit, and for more than 9999 years.
    """
    # cached: each read parses the half-life of each decayed feature
    return _parsed(text) if type(text) is str else _parse(text)


def _parse(text: str) -> int:
    if is_zero(text):
        raise DefinitionError(f"duration {text!r} is zero; the shortest is '1ms'")
    match = _DURATION.fullmatch(str(text))
    if match is None:
        raise DefinitionError(
            f"duration {text!r}: expected a positive integer and a unit "
            f"({', '.join(_UNITS)}), for example '5min' or '30d'{_meant(text)}"
        )
    digits = match[1].lstrip("0")
    # Python refuses to convert thousands of digits
    if len(digits) <= 18 and (found_ms := int(digits) * _UNITS[match[2]]) <= _LONGEST_MS:
        return found_ms
    raise DefinitionError(f"duration {shortened(repr(text))} is longer than the years 1 to 9999")


def is_zero(text: object) -> bool:
    """Return True if a text is zero in any notation, which ``parse_duration`` refuses.

    >>> [is_zero(text) for text in ("0s", "0 hours", "00", 0, "1s")]
    [True, True, True, True, False]
    """
    if isinstance(text, timedelta) or type(text) in (int, float):
        return not text
    match = _WORDS.fullmatch(str(text)) or _NUMBER.fullmatch(str(text))
    return match is not None and not match[1].strip("0")


def option_ms(option: str, text: str) -> int:
    """Return the milliseconds of an option's duration.

    Raises
    ------
    DefinitionError
        As ``parse_duration``, with the name of the option.
    """
    try:
        return parse_duration(text)
    except DefinitionError as error:
        raise DefinitionError(f"{option}: {error}") from None


def optional_ms(option: str, text: str | None) -> int | None:
    """Return the milliseconds of an option's duration, None without one; raises as ``option_ms``.

    >>> optional_ms("ttl", "1d"), optional_ms("ttl", None)
    (86400000, None)
    """
    if text is None:
        return None
    try:
        return option_ms(option, text)
    except DefinitionError as error:
        if not is_zero(text):
            raise
        raise DefinitionError(f"{error}; for no {option}, leave it out") from None


def _meant(text: object) -> str:
    """Return the end of a message: how other notations are written here."""
    written = None
    whole = isinstance(text, timedelta) and not text % timedelta(milliseconds=1)
    if isinstance(text, timedelta) and whole and text > timedelta():
        written = format_duration(text // timedelta(milliseconds=1))
    elif isinstance(text, str) and (match := _WORDS.fullmatch(text)):
        unit = match[2].lower()
        written = match[1] + ("ms" if unit in _MILLISECONDS else _MEANT[unit[0]])
    return "" if written is None else f"; did you mean {written!r}?"


def is_duration(text: str) -> bool:
    """Return True if a text is a duration, in our notation or another common one.

    >>> [is_duration(text) for text in ("7d", "24 hours", "price", "d7")]
    [True, True, False, False]
    """
    return bool(_DURATION.fullmatch(text) or _WORDS.fullmatch(text))


_parsed = functools.lru_cache(maxsize=1_024)(_parse)


def format_duration(duration_ms: int) -> str:
    """Return the shortest text that ``parse_duration`` reads as ``duration_ms``; weeks stay days.

    >>> [format_duration(ms) for ms in (86_400_000, 7 * 86_400_000, 3_600_000, 1_500)]
    ['1d', '7d', '1h', '1500ms']
    """
    for unit in ("d", "h", "min", "s"):
        if duration_ms % _UNITS[unit] == 0:
            # 90 minutes read better than 5400 seconds, and a day than 24 hours
            return f"{duration_ms // _UNITS[unit]}{unit}"
    return f"{duration_ms}ms"


@overload
def floor_ms(time_ms: int, step_ms: int) -> int: ...
@overload
def floor_ms(time_ms: Ints, step_ms: int) -> Ints: ...
def floor_ms(time_ms: int | Ints, step_ms: int) -> int | Ints:
    """Return the greatest multiple of ``step_ms`` that is not above ``time_ms``, also below zero.

    >>> floor_ms(-1, 300_000)
    -300000
    """
    # every integer is a multiple of 1: skip the division of an array
    return time_ms if step_ms == 1 else time_ms // step_ms * step_ms


@overload
def ceil_ms(time_ms: int, step_ms: int) -> int: ...
@overload
def ceil_ms(time_ms: Ints, step_ms: int) -> Ints: ...
def ceil_ms(time_ms: int | Ints, step_ms: int) -> int | Ints:
    """Return the least multiple of ``step_ms`` that is not below ``time_ms``.

    >>> ceil_ms(1, 300_000), ceil_ms(-1, 300_000)
    (300000, 0)
    """
    return -floor_ms(-time_ms, step_ms)
