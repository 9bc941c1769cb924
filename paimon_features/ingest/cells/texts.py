"""One text as a value: exactly, or the reason why it is none.

This is the definition that the vectorised conversions of ``text_values`` are faster cases of. The
table of accepted texts is in ``docs/reference/ingestion.md``.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from paimon_features.core.types.schema import DataType, DecimalType
from paimon_features.core.windows import (
    DAY_MS,
    HOUR_MS,
    MAX_TIME_MS,
    MIN_TIME_MS,
    MINUTE_MS,
    SECOND_MS,
)
from paimon_features.ingest import patterns
from paimon_features.lake.events.rejects import NOT_FINITE, WRONG_TYPE

_INTEGER, _FLOAT, _DATE, _TIME, _INFINITE = (
    re.compile(pattern, re.ASCII)
    for pattern in (
        patterns.INTEGER,
        patterns.FLOAT,
        patterns.DATE,
        patterns.TIME,
        patterns.NOT_FINITE,
    )
)
_TRUE, _FALSE = ("t", "true", "y", "yes", "1"), ("f", "false", "n", "no", "0")
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()


class UnusableError(Exception):
    """A text that is no value of its column's type; the message is the reason."""


def reader_of(kind: DataType, is_time: bool) -> Callable[[str], Any]:
    """Return the function from a text without surrounding blanks, not empty, to a value of
    ``kind``.

    ``is_time``: the column is an Int64 time of events or versions, so texts of times are read as
    well. The function raises UnusableError. Times are milliseconds since 1970, dates days.

    >>> reader_of(DataType("int64", "BIGINT"), False)("17850.0")
    17850
    >>> reader_of(DataType("bool", "BOOLEAN"), False)("maybe")
    Traceback (most recent call last):
    paimon_features.ingest.cells.texts.UnusableError: wrong_type
    """
    if isinstance(kind, DecimalType):
        return _decimal_reader(kind)
    if is_time:
        return _event_time
    readers: dict[str, Callable[[str], Any]] = {
        "bool": _boolean,
        "date": _date,
        "timestamp": _timestamp,
        "int32": lambda text: _integer(text, 31),
        "int64": lambda text: _integer(text, 63),
        "float32": lambda text: _floating(text, pa.float32()),
        "float64": lambda text: _floating(text, pa.float64()),
    }
    return readers[kind.text]


def _numeric(text: str, pattern: re.Pattern[str]) -> None:
    if not pattern.fullmatch(text):
        raise UnusableError(NOT_FINITE if _INFINITE.fullmatch(text) else WRONG_TYPE)


def _integer(text: str, bits: int) -> int:
    _numeric(text, _INTEGER)
    digits = text.partition(".")[0]
    # int() refuses very long texts, and no number of more digits fits
    if len(digits.lstrip("+-").lstrip("0")) > 19:
        raise UnusableError(WRONG_TYPE)
    value = int(digits)
    if not -(1 << bits) <= value < 1 << bits:
        raise UnusableError(WRONG_TYPE)
    return value


def _floating(text: str, kind: pa.DataType) -> float:
    _numeric(text, _FLOAT)
    # Arrow rounds once, also to four bytes
    value: float = pa.array([text]).cast(kind)[0].as_py()
    if not math.isfinite(value):
        raise UnusableError(NOT_FINITE)
    return value


def _decimal_reader(kind: DecimalType) -> Callable[[str], Decimal]:
    pattern = re.compile(patterns.decimal_pattern(kind.scale), re.ASCII)

    def read(text: str) -> Decimal:
        _numeric(text, pattern)
        digits = text.lstrip("+-")
        whole, _, fraction = digits.partition(".")
        whole = whole.lstrip("0")
        if len(whole) > kind.precision - kind.scale:
            raise UnusableError(WRONG_TYPE)
        number = int((whole + fraction[: kind.scale].ljust(kind.scale, "0")) or "0")
        sign = 1 if text.startswith("-") and number else 0
        return Decimal((sign, tuple(map(int, str(number))), -kind.scale))

    return read


def _boolean(text: str) -> bool:
    lower = text.lower()
    if lower in _TRUE:
        return True
    if lower in _FALSE:
        return False
    raise UnusableError(WRONG_TYPE)


def _day(text: str) -> int:
    try:
        return dt.date(int(text[:4]), int(text[5:7]), int(text[8:10])).toordinal() - _EPOCH_DAY
    except ValueError:
        raise UnusableError(WRONG_TYPE) from None


def _date(text: str) -> int:
    if not _DATE.fullmatch(text):
        raise UnusableError(WRONG_TYPE)
    return _day(text)


def _written_time(text: str) -> int | None:
    """Return milliseconds of a time with date, None for another text."""
    if not _TIME.fullmatch(text):
        return None
    clock, sign, offset = _parts(text)
    hours, minutes, seconds, fraction = clock[:2], clock[3:5], clock[6:8], clock[9:12]
    offset = offset.replace(":", "")
    behind = int(offset[:2] or 0) * HOUR_MS + int(offset[2:] or 0) * MINUTE_MS
    written = (
        _day(text) * DAY_MS
        + int(hours or 0) * HOUR_MS
        + int(minutes or 0) * MINUTE_MS
        + int(seconds or 0) * SECOND_MS
        + int(fraction.ljust(3, "0"))
        + (behind if sign == "-" else -behind)
    )
    if seconds == "60" and (written < 0 or written % DAY_MS >= SECOND_MS):
        raise UnusableError(WRONG_TYPE)
    return written


def _parts(text: str) -> tuple[str, str, str]:
    """Return the clock of a time, the sign and the digits of its offset."""
    clock = text[11:].rstrip("Zz ")
    for sign in "+-":
        before, separator, offset = clock.partition(sign)
        if separator:
            return before.rstrip(" "), sign, offset
    return clock, "", ""


def _event_time(text: str) -> int:
    written = _written_time(text)
    return _integer(text, 63) if written is None else written


def _timestamp(text: str) -> int:
    written = _written_time(text)
    if written is None:
        try:
            written = _integer(text, 63)
        except UnusableError:
            raise UnusableError(WRONG_TYPE) from None
    if not MIN_TIME_MS <= written <= MAX_TIME_MS:
        raise UnusableError(WRONG_TYPE)
    return written
