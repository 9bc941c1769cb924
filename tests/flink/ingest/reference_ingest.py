"""Reference implementation of reading rows: by character, cell and row.

The reference implementation of the ingest job's SQL. It shares only the names of reasons with it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any

import numpy as np

from paimon_features.core.types.schema import DataType, DecimalType, Float32, Timestamp
from paimon_features.definitions import EventSource

EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True)
class Bad:
    """The reason for rejecting a cell or row; of a held row, its later values."""

    reason: str
    values: Any = field(default=None, compare=False)


WRONG_TYPE = Bad("wrong_type")
NOT_FINITE = Bad("not_finite")
TEXTS = (
    "0", "12", "-3", "+4", "007", "17850.0", "17850.", "12.7", ".5", "-.5", "1e3", "1E+2", "-1e-3",
    "-62135596800000", "-62135596800001", "253402300799999", "253402300800000",
    "2147483647", "2147483648", "-2147483649", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "-9223372036854775809", "9223372036854775807.00", "1" * 40, "-0.0",
    "1.005", "1.00", "1.000", "99999999.99", "100000000", "0.00001", "0.1", "0.12345", "0.1234",
    "999", "1000", "3.4028235e38", "3.5e38", "1e39", "1.7976931348623157e308", "1e309", "5e-324",
    "1e-400", "nan", "NaN", "-nan", "inf", "-Infinity", "+INF", "infinit", "0x1p3", "5f", "5d",
    "1_000", "1,5", "--1", "+-1", "+", "-", ".", "e5", "1e", "", " ", "  12  ", "1 2", "\t1",
    "1\u00a0", "٣", "true", "True", "FALSE", "t", "f", "yes", "No", "y", "n", "1.0", "on", "tru",
    "2010-12-01", "2011-02-29", "2012-02-29", "2011-02-30", "2011-13-01", "2011-00-10",
    "0000-01-01", "0001-01-01", "9999-12-31", "99999-01-01", "2010-1-1", "20101201", "2010/12/01",
    "-001-01-01",
    "2010-12-01 08:26", "2010-12-01T08:26", "2010-12-01 08:26:59", "2010-12-01T08:26:30.125Z",
    "2010-12-01 08:26:30.1", "2010-12-01 08:26:30.12", "2010-12-01 08:26:30.999999999",
    "2010-12-01 08:26:30.9999999999", "2010-12-01 08:26:30.", "2010-12-01 08:26.5",
    "2010-12-01 24:00", "2010-12-01 08:60", "2010-12-01 08:26:60", "2010-12-01 8:26", "2010-12-01 ",
    "2010-12-01Z", "2010-12-01 08:26+01:00", "2010-12-01t08:26", "2010-12-01 08:26 ",
    "1969-12-31 23:59:59.999", "1960-02-29 12:00", "9999-12-31 23:59:59.999", "it's", "ä€😀",
    "2010-12-01T08:26:30+00:00", "2010-12-01T08:26:30.123456+00:00", "2010-12-01t08:26:30z",
    "2010-12-01 08:26:30-08:00", "2010-12-01 08:26+0530", "2010-12-01T08:26:30.5-03",
    "2010-12-01 08:26:30 +0100", "2010-12-01T08:26:30-00:30", "2010-12-01T08:26:30+24:00",
    "2010-12-01T08:26:30+01:60", "2010-12-01+01:00", "2010-12-01T08:26:30+1:00",
    "2010-12-01T08:26:30Z+01:00", "2010-12-01T08:26:30.+01:00", "2010-12-01T08+01:00",
    "2010-12-01T08:26:30 Z", "2010-12-01T08:26:30  Z", "2010-12-01T08:26:30+01:00:00",
    "0001-01-01T00:00:00+05:00", "0001-01-01T05:00:00+05:00", "9999-12-31T23:59:59-05:00",
    "2016-12-31T23:59:60Z", "2016-12-31 23:59:60.75", "2016-12-31T15:59:60-08:00",
    "2017-01-01T05:29:60+05:30", "2016-12-31T22:59:60Z", "2016-12-31T23:59:61Z",
    "1960-12-31T23:59:60Z", "2016-12-31T23:59:60+01:00", "2010-12-01T08:26:30.12345678901234Z",
    "null",
)  # fmt: skip


def split_csv(line: str) -> list[str | None] | None:
    """Return the cells of a CSV line, None for empty ones; None for a malformed line."""
    cells: list[str | None] = []
    place = 0
    while True:
        if line[place : place + 1] == '"':
            text, place = "", place + 1
            while True:
                if place == len(line):
                    return None  # the quote is not closed
                if line[place] != '"':
                    text, place = text + line[place], place + 1
                elif line[place + 1 : place + 2] == '"':
                    text, place = text + '"', place + 2
                else:
                    place += 1
                    break
            cells.append(text)
        else:
            end = line.find(",", place)
            end = len(line) if end < 0 else end
            cells.append(line[place:end] or None)
            place = end
        if place == len(line):
            return cells
        if line[place] != ",":
            return None  # characters after a closing quote
        place += 1


def value_of(text: str | None, kind: DataType, is_time: bool = False) -> Any:
    """Return the value of a text; None for null, Bad if it cannot be converted."""
    if kind.text == "string" or text is None:
        return text
    text = text.strip(" ")
    if not text:
        return None
    if is_time:
        written = time_ms(text)
        return integer(text, 64) if written is None else written
    if kind.is_integer:
        return integer(text, int(kind.text[3:]))
    if kind.is_float:
        return floating(text, kind)
    if isinstance(kind, DecimalType):
        return decimal(text, kind)
    if kind.text == "bool":
        meanings = {"true": ("t", "true", "y", "yes", "1"), "false": ("f", "false", "n", "no", "0")}
        found = [name for name, texts in meanings.items() if text.lower() in texts]
        return found[0] == "true" if found else WRONG_TYPE
    if kind.text == "date":
        day = iso_date(text)
        return WRONG_TYPE if day is None else day
    assert kind.text == "timestamp"
    written = time_ms(text)
    if written is None:
        whole = integer(text, 64)
        if isinstance(whole, Bad):
            return WRONG_TYPE
        written = whole
    try:
        return EPOCH + timedelta(milliseconds=written)
    except OverflowError:
        return WRONG_TYPE  # not in the years 1 to 9999


def is_infinite(text: str) -> bool:
    """Return whether a text is NaN or an infinity."""
    return (text[1:] if text[0] in "+-" else text).lower() in ("nan", "inf", "infinity")


def only(text: str, characters: str) -> bool:
    return all(character in characters for character in text)


def integer(text: str, bits: int) -> Any:
    if is_infinite(text):
        return NOT_FINITE
    digits = text[1:] if text[0] in "+-" else text
    whole, _, fraction = digits.partition(".")
    if not whole or not only(whole, "0123456789") or not only(fraction, "0"):
        return WRONG_TYPE
    value = int(text[: len(text) - len(digits)] + whole)
    return value if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) else WRONG_TYPE


def floating(text: str, kind: DataType) -> Any:
    if is_infinite(text):
        return NOT_FINITE
    if not only(text, "0123456789+-.eE"):
        return WRONG_TYPE
    try:
        value = float(text)
    except ValueError:
        return WRONG_TYPE
    if kind.text == "float32":
        with np.errstate(over="ignore"):
            value = float(np.float32(value))
    return value if math.isfinite(value) else NOT_FINITE


def decimal(text: str, kind: DecimalType) -> Any:
    if is_infinite(text):
        return NOT_FINITE
    digits = text[1:] if text[0] in "+-" else text
    whole, _, fraction = digits.partition(".")
    if not only(whole + fraction, "0123456789") or not whole + fraction:
        return WRONG_TYPE
    if (
        not only(fraction[kind.scale :], "0")
        or len(whole.lstrip("0")) > kind.precision - kind.scale
    ):
        return WRONG_TYPE
    sign = text[: len(text) - len(digits)]
    value = Decimal(f"{sign}{whole or 0}.{fraction[: kind.scale].ljust(kind.scale, '0')}")
    return value or value.copy_abs()  # a decimal has no negative zero


def iso_date(text: str) -> date | None:
    if len(text) != 10 or not only(text[:4] + text[5:7] + text[8:], "0123456789"):
        return None
    if text[4] != "-" or text[7] != "-":
        return None
    try:
        return date(int(text[:4]), int(text[5:7]), int(text[8:]))
    except ValueError:
        return None


def time_ms(text: str) -> int | None:
    """Parse a time to UTC ms; None if the text is not a time."""
    day = iso_date(text[:10])
    if day is None:
        return None
    ms = (day - EPOCH.date()).days * 86_400_000
    clock = text[10:]
    if clock in ("", "Z", "z"):
        return ms
    if clock[0] not in " Tt":
        return None
    split = split_offset(clock[1:])
    if split is None:
        return None
    clock, offset_ms = split
    clock, dot, fraction = clock.partition(".")
    parts = clock.split(":")
    if len(parts) not in (2, 3) or any(len(p) != 2 or not only(p, "0123456789") for p in parts):
        return None
    if dot and (len(parts) == 2 or not fraction or not only(fraction, "0123456789")):
        return None
    numbers = [int(part) for part in parts]
    if any(number >= limit for number, limit in zip(numbers, (24, 60, 61), strict=False)):
        return None
    for number, unit in zip(numbers, (3_600_000, 60_000, 1_000), strict=False):
        ms += number * unit
    ms += int(fraction[:3].ljust(3, "0") or 0) - offset_ms
    if numbers[2:] == [60]:
        # a leap second is the last one of a day of UTC, and there was none before 1972
        at = EPOCH + timedelta(milliseconds=ms)
        if ms < 0 or (at.hour, at.minute, at.second) != (0, 0, 0):
            return None
    return ms


def split_offset(clock: str) -> tuple[str, int] | None:
    """Return the clock of a time and its offset to UTC in ms; None if the offset is none."""
    if clock[-1:] in ("Z", "z"):
        return clock[:-1].removesuffix(" "), 0
    at = max(clock.find("+"), clock.find("-"))
    if at < 0:
        return clock, 0
    offset = clock[at + 1 :]
    if len(offset) == 5 and offset[2] == ":":
        offset = offset[:2] + offset[3:]
    if len(offset) not in (2, 4) or not only(offset, "0123456789"):
        return None
    hours, minutes = int(offset[:2]), int(offset[2:] or 0)
    if hours > 23 or minutes > 59:
        return None
    sign = -1 if clock[at] == "-" else 1
    return clock[:at].removesuffix(" "), sign * (hours * 60 + minutes) * 60_000


def judged(cells: Mapping[str, str | None], source: EventSource, now_ms: int) -> Any:
    """Return the event of a row's cells, or why it is rejected."""
    values = {
        name: value_of(cells.get(name), kind, name == source.event_time)
        for name, kind in source.schema.items()
    }
    bad = [value for value in values.values() if isinstance(value, Bad)]
    return bad[0] if bad else timed(values, source, now_ms)


def timed(values: dict[str, Any], source: EventSource, now_ms: int) -> Any:
    """Return the values, or why their time is rejected."""
    time = values[source.event_time]
    if time is None:
        return Bad("missing_time")
    first, last = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_000)
    low, high = ((t - EPOCH) // timedelta(milliseconds=1) for t in (first, last))
    if not low <= time <= high:
        return Bad("time_out_of_range")
    if time > now_ms + source.max_skew_ms:
        return Bad("time_in_future", values)
    return values


def stored_integer(value: int, kind: DataType) -> Any:
    """Convert a stored integer to the type of a column."""
    if kind.is_float:
        return np.float32(value) if kind == Float32 else float(value)
    if kind == Timestamp:
        return EPOCH + timedelta(milliseconds=value)
    return value_of(str(value), kind)


def stored_float(value: float, kind: DataType) -> Any:
    """Convert a stored double to the type of a column."""
    if kind.is_float:
        with np.errstate(over="ignore"):
            number = float(np.float32(value)) if kind == Float32 else value
        return number if math.isfinite(number) else NOT_FINITE
    if not math.isfinite(value):
        return NOT_FINITE
    if isinstance(kind, DecimalType):
        try:
            near = Decimal(repr(value)).quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP)
        except InvalidOperation:
            return WRONG_TYPE
        fits = abs(near) < Decimal(10) ** (kind.precision - kind.scale)
        return near if fits and float(near) == value else WRONG_TYPE
    return value_of(str(int(value)), kind) if value == int(value) else WRONG_TYPE


def csv_rows(data: bytes, source: EventSource, now_ms: int) -> Iterator[tuple[str, Any]]:
    """Return each line after the header with its result; columns have the names of the source."""
    lines = [line.rstrip(b"\r") for line in data.split(b"\n")]
    header = lines[0].decode("utf-8-sig").split(",")
    for line in lines[1:]:
        if not line or line == lines[0]:
            continue
        text = line.decode("utf-8", "replace")
        cells = split_csv(text)
        if cells is None:
            yield text, Bad("unreadable")
        elif len(cells) != len(header):
            yield text, Bad("too_few_columns" if len(cells) < len(header) else "too_many_columns")
        elif text.encode() != line:
            yield text, Bad("unreadable")
        else:
            yield text, judged(dict(zip(header, cells, strict=True)), source, now_ms)


def json_rows(data: bytes, source: EventSource, now_ms: int) -> Iterator[tuple[str, Any]]:
    """Return each line that is not blank with its result."""
    for line in data.split(b"\n"):
        line = line.rstrip(b"\r")
        text = line.decode("utf-8", "replace")
        if not text.strip(" "):
            continue
        try:
            row = json.loads(text, parse_int=str, parse_float=str, parse_constant=_no_json)
            # half of a surrogate pair is no character: no bytes stand for it
            json.dumps(row, ensure_ascii=False).encode()
        except ValueError:
            row = None
        if not isinstance(row, dict) or text.encode() != line:
            yield text, Bad("unreadable")
        else:
            yield text, judged({k: _json_text(v) for k, v in row.items()}, source, now_ms)


def _no_json(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _json_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, separators=(",", ":"))
