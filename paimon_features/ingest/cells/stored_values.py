"""A column that is stored with a type, in Parquet, as values of the source's type."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.times.utc_ms import floor_times
from paimon_features.core.types.array_types import Bools
from paimon_features.core.types.schema import DataType, DecimalType, Timestamp
from paimon_features.core.windows import DAY_MS, MAX_TIME_MS, MIN_TIME_MS
from paimon_features.ingest.cells.converted import Converted, numbers_of
from paimon_features.ingest.cells.java_text import texts_of
from paimon_features.ingest.cells.text_values import text_values
from paimon_features.ingest.physical import Physical

_GREATEST = {"float32": float(np.finfo(np.float32).max), "float64": float(np.finfo(np.float64).max)}
_TWO_63 = 2.0**63
"""The first double beyond int64; its negative is the least int64."""


def stored_values(
    cells: pa.Array, physical: Physical, kind: DataType, is_time: bool = False
) -> Converted:
    """Return the values of stored cells: exact counterparts, or none.

    ``is_time``: the column is an Int64 time of events or versions, so dates are read as well. Times
    of finer units are rounded down to milliseconds.
    """
    stored = physical.kind
    whole = kind.is_integer or kind.text == "timestamp"
    if stored == "timestamp[int96]":
        # such a time has a calendar, unlike a number of milliseconds
        converted = _from_ms(_ms(cells), Timestamp)
        return Converted(converted.values.cast(kind.arrow), converted.wrong)
    if stored.startswith("timestamp["):
        return _from_ms(_ms(cells), kind)
    if stored == "date" and (is_time or kind.text == "timestamp"):
        return _from_ms(_ms(cells), kind)
    if pa.types.is_null(cells.type):
        return Converted(pa.nulls(len(cells), kind.arrow))
    if stored == "integer" and whole:
        return _from_ms(cells.cast(pa.int64()), kind)
    if stored == "float" and whole:
        return _whole(cells, kind)
    if stored == "float" and isinstance(kind, DecimalType):
        return _decimals(cells, kind)
    if stored in ("integer", "float") and kind.is_float:
        return _floats(cells, kind)
    if stored == "date" and kind.text == "date":
        bad = _flags_outside(_ms(cells))
        days = _masked(numbers_of(cells.cast(pa.int32())), pa.int32(), bad, cells)
        return Converted.of(days.cast(kind.arrow), bad)
    if stored in ("boolean", "bytes") and kind.text in ({"boolean": "bool"}.get(stored, stored)):
        return Converted(cells.cast(kind.arrow))
    if stored == "text":
        return text_values(cells.cast(pa.string()), kind, is_time)
    texts = pa.array(texts_of(cells), pa.string())
    converted = text_values(texts, kind, is_time)
    if stored == "float":
        infinite = ~np.isfinite(numbers_of(cells)) & _valid(cells)
        wrong = np.asarray(converted.values.is_null()) & _valid(cells)
        return Converted.of(converted.values, wrong & ~infinite, infinite & wrong)
    bad = np.asarray(converted.values.is_null()) & _valid(cells)
    return Converted.of(converted.values, bad)


def _valid(cells: pa.Array) -> Any:
    return np.asarray(cells.is_valid())


def _masked(values: Any, kind: pa.DataType, bad: Any, cells: pa.Array) -> pa.Array:
    """Return values, null where a cell is null or bad."""
    mask = bad if not cells.null_count else bad | np.asarray(cells.is_null())
    return pa.array(values, kind, mask=mask if mask.any() else None)


def _ms(cells: pa.Array) -> pa.Array:
    if pa.types.is_date(cells.type):
        days = numbers_of(cells.cast(pa.int32())).astype(np.int64)
        return _masked(days * DAY_MS, pa.int64(), np.zeros(len(cells), np.bool_), cells)
    return floor_times(cells).view(pa.int64())


def _flags_outside(ms: pa.Array) -> Bools:
    """Return which times are outside of the years 1 to 9999."""
    plain = numbers_of(ms)
    outside: Bools = (plain < MIN_TIME_MS) | (plain > MAX_TIME_MS)
    return outside


def _from_ms(numbers: pa.Array, kind: DataType) -> Converted:
    """Convert integers of 64 bits to an integer or a timestamp, where they fit."""
    if kind.text == "int64":
        return Converted(numbers)
    least, greatest = (
        (MIN_TIME_MS, MAX_TIME_MS) if kind.text == "timestamp" else (-(2**31), 2**31 - 1)
    )
    plain = numbers_of(numbers)
    bad = (plain < least) | (plain > greatest)
    if not bad.any():
        return Converted(numbers.cast(kind.arrow))
    kept = np.where(bad, 0, plain)
    return Converted(_masked(kept, pa.int64(), bad, numbers).cast(kind.arrow), bad)


def _whole(cells: pa.Array, kind: DataType) -> Converted:
    """Convert floats without a fraction."""
    numbers = numbers_of(cells).astype(np.float64)
    infinite = ~np.isfinite(numbers)
    with np.errstate(invalid="ignore"):
        fits = (numbers == np.floor(numbers)) & (numbers >= -_TWO_63) & (numbers < _TWO_63)
    converted = _from_ms(
        _masked(np.where(fits, numbers, 0).astype(np.int64), pa.int64(), ~fits, cells), kind
    )
    wrong = ~fits if converted.wrong is None else converted.wrong | ~fits
    return Converted.of(converted.values, wrong & ~infinite, infinite)


def _floats(cells: pa.Array, kind: DataType) -> Converted:
    numbers = numbers_of(cells)
    if numbers.dtype.kind != "f":
        bad = np.zeros(len(cells), np.bool_)
    else:
        with np.errstate(invalid="ignore"):
            bad = ~(np.abs(numbers.astype(np.float64)) <= _GREATEST[kind.text])
    if not bad.any() and cells.type == kind.arrow:
        return Converted(cells)
    target = np.float32 if kind.text == "float32" else np.float64
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.where(bad, 0, numbers).astype(target)
    return Converted.of(
        _masked(values, kind.arrow, bad, cells), np.zeros(len(cells), np.bool_), bad
    )


def _decimals(cells: pa.Array, kind: DecimalType) -> Converted:
    """Return the decimal that a person would write for the float, if it is that float again."""
    encoded = cells.dictionary_encode()
    quantum = Decimal(1).scaleb(-kind.scale)
    limit = Decimal(10) ** (kind.precision - kind.scale)
    values: list[Decimal | None] = []
    for number in encoded.dictionary.to_pylist():
        values.append(_decimal(number, quantum, limit))
    decimals = pa.array(values, kind.arrow).take(encoded.indices)
    infinite = ~np.isfinite(numbers_of(cells)) & _valid(cells)
    wrong = np.asarray(decimals.is_null()) & _valid(cells) & ~infinite
    return Converted.of(decimals, wrong, infinite)


def _decimal(number: float, quantum: Decimal, limit: Decimal) -> Decimal | None:
    if not np.isfinite(number):
        return None
    try:
        with localcontext() as context:
            context.prec = 400  # of a double: up to 309 digits before the point
            near = Decimal(repr(number)).quantize(quantum, ROUND_HALF_UP)
    except InvalidOperation:
        return None
    if abs(near) >= limit or float(near) != number:
        return None
    return near if near else near.copy_abs()
