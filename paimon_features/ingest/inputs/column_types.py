"""What a column of an input is: its type, its role, and what is ambiguous.

The type is decided by the column's type in the input, or by all different texts of a sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.configuration.input_settings import InputSettings
from paimon_features.core.types.schema import (
    Bool,
    DataType,
    Date,
    Decimal,
    Float64,
    Int64,
    String,
    Timestamp,
)
from paimon_features.ingest.inputs.column_names import has_key_word, names_key
from paimon_features.ingest.inputs.different_texts import DifferentTexts
from paimon_features.ingest.inputs.numbers import (
    EXACT_DIGITS,
    MOST_DECIMALS,
    MOST_DIGITS,
    number_type,
)
from paimon_features.ingest.inputs.time_formats import Rfc3339Times, find_formats, rfc3339_times
from paimon_features.ingest.inputs.time_texts import TimeTexts, swapped

_UNITS = (("s", 1), ("ms", 1_000), ("us", 1_000_000), ("ns", 1_000_000_000))
_YEARS = (631_152_000.0, 4_102_444_800.0)
"""1990 and 2100, in seconds: numbers between them are taken for times."""
_NO_ZONE = "no time zone: read as UTC (--input time_zone=Europe/Berlin for another)"
_LONG_INTEGERS = "integers of more than {} bits: kept as texts"


Role = Literal["event time", "key", "event id", "measure", "category", "flag", "other", "skipped"]


@dataclass(frozen=True, slots=True)
class InputColumnProfile:
    """A column of an input: its name there and as a column of a source, its type and role.

    ``type`` is None for a column that cannot be one of a source; ``notes`` say why, and what is
    ambiguous. ``per_value`` is the mean number of rows of a value, 0 without values.
    ``time_format`` is None for texts that ``ingest`` reads as they are.
    """

    field: str
    name: str
    stored: str
    type: DataType | None
    nulls: int
    distinct: int
    example: str
    role: Role = "other"
    decimals: int | None = None
    per_value: float = 0.0
    time_format: str | None = None
    time_unit: str | None = None
    days_only: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The type of a column, with the notes and fields of ``InputColumnProfile`` that belong to it.

    ``type`` is None for a column that cannot be one of a source; ``notes`` say why.
    """

    type: DataType | None
    notes: tuple[str, ...] = ()
    decimals: int | None = None
    time_format: str | None = None
    time_unit: str | None = None
    days_only: bool = False


def column_type(
    column: pa.ChunkedArray, name: str, settings: InputSettings, parser: TimeTexts
) -> ColumnType:
    """Return the type of a column that has a value; ``name`` is its name in the input."""
    kind = column.type
    if pa.types.is_string(kind):
        return _text_type(column, name, settings, parser)
    if pa.types.is_timestamp(kind):
        is_zoned = kind.tz or settings.time_zone != "UTC"
        notes = () if is_zoned else ("no time zone: read as UTC",)
        return ColumnType(Timestamp, notes, time_unit="ms")
    if pa.types.is_date(kind):
        note = "days: midnight in UTC is the time"
        return ColumnType(Date, (note,), time_unit="ms", days_only=True)
    if pa.types.is_boolean(kind):
        return ColumnType(Bool)
    if pa.types.is_uint64(kind):
        if pc.max(column).as_py() >= 2**63:
            return ColumnType(String, (_LONG_INTEGERS.format(63),))
        note = "unsigned: ingest rejects rows with numbers of more than 63 bits"
        return ColumnType(Int64, (note,))
    if pa.types.is_integer(kind):
        return ColumnType(Int64, time_unit=None if has_key_word(name) else _unit(column))
    if pa.types.is_floating(kind):
        return _float_type(column, name)
    if pa.types.is_decimal(kind):
        return _decimal_type(column)
    reason = f"skipped: {kind} cannot be a column of a source; flatten or convert it"
    return ColumnType(None, (reason,))


def _float_type(column: pa.ChunkedArray, name: str) -> ColumnType:
    # Arrow compares no half floats
    finite = column.drop_null().cast(pa.float64())
    finite = finite.filter(pc.is_finite(finite))
    odd = len(column) - column.null_count - len(finite)
    if not len(finite):
        return ColumnType(None, ("skipped: no value is a finite number",))
    note = "values are NaN or infinite: ingest rejects these rows; write null for no value"
    notes = (f"{odd:,} {note}",) if odd else ()
    if names_key(name) and _are_exact_integers(finite):
        return ColumnType(Int64, (*notes, "integers stored as floats: read as integers"))
    return ColumnType(Float64, notes, _decimals_of(finite), time_unit=_unit(finite))


def _are_exact_integers(finite: pa.ChunkedArray) -> bool:
    plain = finite.to_numpy()
    return bool((plain == np.floor(plain)).all() and (np.abs(plain) <= 2.0**53).all())


def _decimals_of(column: pa.ChunkedArray) -> int | None:
    values = column.slice(0, 20_000).to_numpy()
    for scale in range(5):
        if np.allclose(np.round(values * 10**scale), values * 10**scale, rtol=0, atol=1e-6):
            return scale
    return None


def _decimal_type(column: pa.ChunkedArray) -> ColumnType:
    """Return the first of Int64, text, decimal and float that has all digits of each value."""
    precision, scale = column.type.precision, column.type.scale
    if scale <= 0:
        values = column.drop_null()
        if not (pc.min(values).as_py() >= -(2**63) and pc.max(values).as_py() < 2**63):
            return ColumnType(String, (_LONG_INTEGERS.format(64),))
        note = "ingest rejects rows with integers of more than 64 bits"
        return ColumnType(Int64, (note,) if precision > 18 else ())
    decimals = scale if scale <= MOST_DECIMALS else None
    if precision <= EXACT_DIGITS or precision > MOST_DIGITS:
        return ColumnType(Float64, (), decimals)
    return ColumnType(Decimal(precision, scale), (), decimals)


def _text_type(
    column: pa.ChunkedArray, name: str, settings: InputSettings, parser: TimeTexts
) -> ColumnType:
    values = DifferentTexts.of(column)
    if not len(values.bare):
        return ColumnType(String)
    times = rfc3339_times(values) if not settings.time_format else None
    if times is not None:
        return _rfc3339_type(times, settings)
    formats = find_formats(values, parser, settings.time_format)
    if formats and not values.are_all(r"^[0-9]+$"):
        return _formatted_time_type(formats, settings)
    is_key = names_key(name)
    number = number_type(values, settings, is_key=is_key)
    if number is None:
        lower = set(pc.utf8_lower(values.bare).to_pylist()) if len(values.bare) <= 4 else set()
        is_flag = lower and lower <= {"true", "false", "t", "f", "yes", "no", "y", "n"}
        return ColumnType(Bool if is_flag and len(lower) <= 2 else String)
    unit = time_format = None
    if not is_key and number.type in (Int64, Float64):
        unit = _unit(pa.chunked_array([number.values]))
        if formats and number.type is Int64 and unit is None:
            time_format = formats[0]
    return ColumnType(number.type, number.notes, number.decimals, time_format, unit)


def _rfc3339_type(times: Rfc3339Times, settings: InputSettings) -> ColumnType:
    notes = []
    if settings.time_zone == "UTC" and times.has_naive:
        notes.append(_NO_ZONE)
    if times.broken:
        notes.append(f"{times.broken} different values are not times: ingest rejects these rows")
    kind = Date if times.only_days else Timestamp
    return ColumnType(kind, tuple(notes), days_only=times.only_days)


def _formatted_time_type(formats: list[str], settings: InputSettings) -> ColumnType:
    """Return the type of times in the first of some formats, which all fit."""
    time_format, *others = formats
    days_only = "%H" not in time_format and "%I" not in time_format
    notes = []
    if swapped(time_format) in others:
        notes.append(
            f"day and month could be swapped: read as {time_format!r}; for the other order: "
            f"--input time_format='{swapped(time_format)}'"
        )
    if settings.time_zone == "UTC" and not time_format.endswith(("%z", "Z")):
        notes.append(_NO_ZONE)
    kind = Date if days_only else Timestamp
    return ColumnType(kind, tuple(notes), time_format=time_format, days_only=days_only)


def _unit(column: pa.ChunkedArray) -> str | None:
    """Return the unit in which all numbers are times between 1990 and 2100, None if there is
    none."""
    numbers = column.drop_null()
    if not len(numbers):
        return None
    least, greatest = float(pc.min(numbers).as_py()), float(pc.max(numbers).as_py())
    for unit, per_second in _UNITS:
        if _YEARS[0] * per_second <= least and greatest <= _YEARS[1] * per_second:
            return unit
    return None
