"""Texts of times as milliseconds, many at once: those of one length are a matrix of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.types.array_types import Bools
from paimon_features.core.windows import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS

_ZERO = ord("0")
_MINUTES = len("2010-12-01 08:26")
_LONGEST = len("2010-12-01T08:26:30.123456789+01:00")
"""Longer texts, with more digits, are read one by one."""
_LOWER = np.uint8(0x20)
"""Makes an upper case letter lower."""
_DAYS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])


def times(cells: pa.Array) -> pa.Array | None:
    """Return the times of texts like ``2010-12-01T08:26:30.125Z``, int64 ms; null where a cell is
    null.

    None if a cell is anything else (also an empty text, blanks around a time, or a day that does
    not exist). Digits after the milliseconds are truncated.

    >>> times(pa.array(["1970-01-02", None, "1969-12-31 23:59:59.9999"])).to_pylist()
    [86400000, None, -1]
    >>> times(pa.array(["1970-01-02", "86400000"])) is None
    True
    """
    data = cells.buffers()[2]
    if data is None:
        return pa.nulls(len(cells), pa.int64())
    offsets = np.frombuffer(cells.buffers()[1], np.int32)
    offsets = offsets[cells.offset : cells.offset + len(cells) + 1]
    mask = np.asarray(cells.is_null()) if cells.null_count else None
    lengths = np.diff(offsets)
    if mask is not None:
        lengths[mask] = 0
    present = np.bincount(lengths[lengths <= _LONGEST], minlength=_LONGEST + 1)
    nulls = 0 if mask is None else int(mask.sum())
    if present[0] != nulls or present.sum() != len(cells):
        return None
    text = np.frombuffer(data, np.uint8)
    times_ms = np.zeros(len(cells), np.int64)
    for length in np.flatnonzero(present[1:]) + 1:
        rows = np.flatnonzero(lengths == length)
        group_ms = _of_length(text, offsets[rows], int(length))
        if group_ms is None:
            return None
        times_ms[rows] = group_ms
    return pa.array(times_ms, pa.int64(), mask=mask)


def _of_length(text: Any, starts: Any, length: int) -> Any:
    """Return the times of texts that all have this length, None if one is none."""
    # index: (position in the text, row)
    letters = np.stack([text[starts + place] for place in range(length)])
    forms = _offset_forms(letters)
    first = forms[0] if len(forms) else 0
    if (forms == first).all():
        return _of_form(letters, int(first))
    times_ms = np.zeros(letters.shape[1], np.int64)
    for form in np.unique(forms):
        rows = forms == form
        group_ms = _of_form(letters[:, rows], int(form))
        if group_ms is None:
            return None
        times_ms[rows] = group_ms
    return times_ms


def _offset_forms(letters: Any) -> Any:
    """Return how many characters the offset of each text has: 0 without one, 1 of ``Z``, 6 of
    ``+01:00``.

    No other text is taken for one with an offset: a day has no sign so far back.
    """
    length = len(letters)
    forms = np.zeros(letters.shape[1], np.int8)
    forms[(letters[-1] | _LOWER) == ord("z")] = 1
    for size in (6, 5, 3):
        if length - size >= _MINUTES:
            sign = letters[length - size]
            forms[(sign == ord("+")) | (sign == ord("-"))] = size
    return forms


def _of_form(letters: Any, offset: int) -> Any:
    """Return the times of texts of one length, whose last ``offset`` characters are an offset."""
    length = len(letters) - offset
    if length not in (10, _MINUTES, 19) and length < 21:
        return None
    fixed = {4: "-", 7: "-", 13: ":", 16: ":", 19: "."}
    for place, letter in fixed.items():
        if place < length and not (letters[place] == ord(letter)).all():
            return None
    if length > 10 and not ((letters[10] == ord(" ")) | ((letters[10] | _LOWER) == ord("t"))).all():
        return None
    signs = [*fixed, 10]
    digits = letters - np.uint8(_ZERO)  # other characters become large numbers
    if any((digits[place] > 9).any() for place in range(length) if place not in signs):
        return None

    def number(start: int, end: int) -> Any:
        value = digits[start].astype(np.int32)
        for place in range(start + 1, end):
            value = value * 10 + digits[place]
        return value

    year, month, day = number(0, 4), number(5, 7), number(8, 10)
    if not _exist(year, month, day).all():
        return None
    times_ms = _days(year, month, day) * DAY_MS
    if length > 10:
        hour, minute = number(11, 13), number(14, 16)
        second = number(17, 19) if length > _MINUTES else np.zeros_like(hour)
        if (hour > 23).any() or (minute > 59).any() or (second > 59).any():
            return None  # a leap second is left to the definition
        times_ms += hour.astype(np.int64) * HOUR_MS
        times_ms += minute.astype(np.int64) * MINUTE_MS + second.astype(np.int64) * SECOND_MS
    if length > 20:
        end = min(length, 23)
        times_ms += number(20, end) * 10 ** (23 - end)
    if offset > 1:
        places = [length + n for n in range(1, offset) if offset != 6 or n != 3]
        if offset == 6 and not (letters[length + 3] == ord(":")).all():
            return None
        if (digits[places] > 9).any():
            return None
        hours = digits[places[0]].astype(np.int64) * 10 + digits[places[1]]
        minutes = np.zeros_like(hours)
        if len(places) > 2:
            minutes = digits[places[2]].astype(np.int64) * 10 + digits[places[3]]
        if (hours > 23).any() or (minutes > 59).any():
            return None
        times_ms += np.where(letters[length] == ord("-"), 1, -1) * (
            hours * HOUR_MS + minutes * MINUTE_MS
        )
    return times_ms


def _exist(year: Any, month: Any, day: Any) -> Bools:
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    valid = (year > 0) & (month > 0) & (month < 13) & (day > 0)
    longest = _DAYS[np.clip(month, 1, 12) - 1] + (leap & (month == 2))
    result: Bools = valid & (day <= longest)
    return result


def _days(year: Any, month: Any, day: Any) -> Any:
    """Return days since 1970 in the Gregorian calendar, int64.

    After H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", days_from_civil.
    """
    years = year.astype(np.int64) - (month <= 2)
    era = years // 400
    of_era = years - era * 400
    of_year = (153 * (month + np.where(month > 2, -3, 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468
