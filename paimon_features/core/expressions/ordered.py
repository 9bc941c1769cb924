"""Texts that sort like ``(ts, value)``, so that ``max`` over strings returns the last value.

::

    ordered(ts, value) = ts - MIN_TIME_MS, 15 digits | value

    int64, float64    sign (0 below zero, else 1), 19 digits of the value, below zero + 2^63;
                      for floats of the signed IEEE bits, zero being one value
    decimal(p, s)     sign, p + 2 characters, digits complemented below zero
    bool              0 or 1
    date, timestamp   YYYY-MM-DD, YYYY-MM-DD HH:MM:SS.mmm
    string            itself

Bytes of two such texts compare as their times, and at equal times as their values; strings
compare by code point. The text of a NULL value is NULL.
"""

from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core.columns.column import Column, numpy_type
from paimon_features.core.errors import DamagedValueError
from paimon_features.core.types.array_types import Array, Bools, Ints
from paimon_features.core.types.schema import DataType, DecimalType
from paimon_features.core.windows import MIN_TIME_MS

TIME_DIGITS = 15
_INT_DIGITS = 19
_INT64_MIN = np.int64(-(2**63))


def encode_ordered(times_ms: Ints, values: Array, kind: DataType) -> Array:
    """Return the texts of times and values of equal shape, without nulls (object array)."""
    times = _digits((times_ms - MIN_TIME_MS).view(np.uint64), TIME_DIGITS)
    if kind.text in ("int64", "float64"):
        signed = values if kind.text == "int64" else _signed_bits(values)
        below = signed < 0
        number = np.where(below, signed - _INT64_MIN, signed).view(np.uint64)
        sign = np.where(below, b"0", b"1").astype("S1").view(np.uint8)[:, None]
        return _text(np.hstack([times, sign, _digits(number, _INT_DIGITS)]))
    if kind.text == "bool":
        return _text(np.hstack([times, values.astype(np.uint8)[:, None] + ord("0")]))
    prefix = _text(times)
    joined: Array = prefix + _value_texts(values, kind)
    return joined


def decode_ordered(strings: npt.NDArray[np.object_], value_type: DataType) -> tuple[Ints, Column]:
    """Decode times and values from texts that ``ordered`` encoded from ``value_type``.

    A null text results in time 0 and a null value. The values have the NumPy type of
    ``value_type``, which may be a narrow type as declared in the schema.

    >>> from paimon_features.core.types.schema import Int64
    >>> texts = encode_ordered(np.array([0, 5]), np.array([-7, 7]), Int64)
    >>> texts[0]
    '06213559680000009223372036854775801'
    >>> times_ms, values = decode_ordered(texts, Int64)
    >>> times_ms.tolist(), values.values.tolist()
    ([0, 5], [-7, 7])

    Raises
    ------
    DamagedValueError
        For texts that ``ordered`` did not encode.
    """
    present: Bools = np.array([text is not None for text in strings], np.bool_)
    present_texts = strings[present]
    times = np.zeros(len(strings), np.int64)
    values = np.zeros(len(strings), numpy_type(value_type))
    if len(present_texts):
        try:
            times[present], values[present] = _decode(present_texts, value_type)
        except (ValueError, LookupError, ArithmeticError) as error:
            raise DamagedValueError(f"not a time and a {value_type!r} ({error})") from error
    return times, Column(values, None if present.all() else present)


def _decode(strings: npt.NDArray[np.object_], kind: DataType) -> tuple[Ints, Array]:
    if kind.is_integer or kind.is_float or kind.text == "bool":
        # characters: (rows, length), all of one length
        characters = strings.astype("S").view(np.uint8).reshape(len(strings), -1)
        times = _number(characters[:, :TIME_DIGITS])
        sign = characters[:, TIME_DIGITS]
        if kind.text == "bool":
            return times + MIN_TIME_MS, sign == ord("1")
        number = _number(characters[:, TIME_DIGITS + 1 :])
        signed = np.where(sign == ord("0"), number + _INT64_MIN, number)
        return times + MIN_TIME_MS, signed if kind.is_integer else _float_of(signed)
    times = _number(
        np.array([text[:TIME_DIGITS] for text in strings], "S")
        .view(np.uint8)
        .reshape(len(strings), -1)
    )
    rest = [text[TIME_DIGITS:] for text in strings]
    return times + MIN_TIME_MS, _values_of(rest, kind)


def _signed_bits(values: npt.NDArray[np.float64]) -> Ints:
    """Return integers in the order of the floats; both zeros are 0."""
    bits = np.abs(values).view(np.int64)
    return np.where(values < 0, -bits, bits)


def _float_of(signed: Ints) -> npt.NDArray[np.float64]:
    size = np.abs(signed).view(np.float64)
    return np.where(signed < 0, -size, size)


_GROUP = 4
_GROUPS = np.array([f"{number:04d}" for number in range(10**_GROUP)], "S4").view("(4,)u1")
"""Digits as characters of 0 to 9999, shape ``(10000, 4)``."""


def _digits(numbers: npt.NDArray[np.uint64], count: int) -> npt.NDArray[np.uint8]:
    """Return the last ``count`` decimal digits as characters, shape ``(rows, count)``."""
    groups = -(-count // _GROUP)
    out = np.empty((len(numbers), groups, _GROUP), np.uint8)
    rest = numbers
    for group in range(groups - 1, -1, -1):
        higher = rest // np.uint64(10**_GROUP)
        out[:, group] = _GROUPS[(rest - higher * np.uint64(10**_GROUP)).astype(np.intp)]
        rest = higher
    return out.reshape(len(numbers), groups * _GROUP)[:, -count:]


def _number(characters: npt.NDArray[np.uint8]) -> Ints:
    """Return the number of each row of digits, shape ``(rows, digits)``."""
    out = np.zeros(len(characters), np.int64)
    for place in range(characters.shape[1]):
        out = out * 10 + (characters[:, place].astype(np.int64) - ord("0"))
    return out


def _text(characters: npt.NDArray[np.uint8]) -> Array:
    rows, length = characters.shape
    joined = np.ascontiguousarray(characters).view(f"S{length}").reshape(rows)
    return joined.astype(f"U{length}").astype(object)


_COMPLEMENT = str.maketrans("0123456789", "9876543210")


def _value_texts(values: Array, kind: DataType) -> Array:
    if kind.text == "string":
        return values
    if kind.text == "date":
        return np.datetime_as_string(values.astype("datetime64[D]")).astype(object)
    if kind.text == "timestamp":
        text = np.datetime_as_string(values.astype("datetime64[ms]"))
        return np.char.replace(text, "T", " ").astype(object)
    assert isinstance(kind, DecimalType)
    out = np.empty(len(values), object)
    for row, value in enumerate(values):
        # copy_abs, as abs rounds to the digits of the current decimal context
        digits = f"{value.copy_abs():.{kind.scale}f}".zfill(kind.precision + 2)
        out[row] = "0" + digits.translate(_COMPLEMENT) if value < 0 else "1" + digits
    return out


def _values_of(texts: list[str], kind: DataType) -> Array:
    if kind.text == "date":
        return np.array(texts, "datetime64[D]").astype(np.int32)
    if kind.text == "timestamp":
        return np.array(texts, "datetime64[ms]").astype(np.int64)
    out: npt.NDArray[Any] = np.empty(len(texts), object)
    for row, text in enumerate(texts):
        out[row] = text if kind.text == "string" else _decimal_of(text)
    return out


def _decimal_of(text: str) -> decimal.Decimal:
    if text[0] == "1":
        return decimal.Decimal(text[1:])
    return decimal.Decimal(text[1:].translate(_COMPLEMENT)).copy_negate()
