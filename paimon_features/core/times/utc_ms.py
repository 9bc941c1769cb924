"""Times of any unit, zone and type as this project stores them: UTC milliseconds.

One rule at every entrance (event writer, local engine, entity rows, training sets, request inputs,
clients, feedback, conditions of loaders, monitoring): a timestamp counts ticks of its unit since
1970 in UTC, whether it has a zone or not; finer ticks are rounded down, before 1970 too (Arrow's
own cast rounds towards zero); a date is its midnight in UTC; an integer is milliseconds. Nothing
else is a time. The times of a ``TableSource`` are rounded up: a version never counts before its
time.

============================  ======================  ===============================
given                         as a Timestamp column   as an Int64 column
============================  ======================  ===============================
timestamp[s, ms, us, ns]      rounded down to ms      rounded down, ms since 1970
date32, date64                midnight                midnight, for event times only
integer                       ms since 1970           itself
duration, time32, time64      rejected                rejected
boolean                       rejected                rejected for event times
extension (pandas' Period)    rejected                rejected
============================  ======================  ===============================

The items of lists and maps follow the same rule. Types of other programs are converted before, by
:mod:`paimon_features.core.types.foreign_types`: extension types say what their stored integers
mean (a Period of days counts days), so only those are read whose meaning is known.

pandas and Polars columns and NumPy's datetime64 become one of the types of the table in Arrow.
"""

from __future__ import annotations

import numpy as np

from paimon_features.core._arrow import pa, pc
from paimon_features.core.types.array_types import Bools
from paimon_features.core.types.foreign_types import is_plain, plain_array

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
FINER_TEXT = r":[0-9]{2}\.[0-9]{3}[0-9]*[1-9]"
"""Regular expression (of RE2 and Java) of the digits after the milliseconds of a time."""


def floor_times(array: pa.Array, unit: str = "ms") -> pa.Array:
    """Return timestamps (of any zone) or dates as UTC ``timestamp[unit]`` without zone.

    Finer ticks are rounded down. Zero copy where the unit is the same.

    Raises
    ------
    pyarrow.ArrowInvalid
        If a time is outside the range of the unit.

    Examples
    --------
    >>> floor_times(pa.array([-1, 1999], pa.timestamp("us"))).cast(pa.int64()).to_pylist()
    [-1, 1]
    """
    kind = array.type
    if pa.types.is_date(kind):
        return array.cast(pa.timestamp("s")).cast(pa.timestamp(unit))
    bare = array.view(pa.timestamp(kind.unit))
    have, want = _PER_SECOND[kind.unit], _PER_SECOND[unit]
    if have <= want:
        return bare.cast(pa.timestamp(unit))
    ticks = bare.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    mask = np.asarray(array.is_null()) if array.null_count else None
    return pa.array(ticks // (have // want), pa.int64(), mask=mask).view(pa.timestamp(unit))


def finer_than_ms(array: pa.Array) -> Bools:
    """Return the mask of times with digits after the milliseconds, which ``floor_times`` drops.

    Of texts those with such digits after a second; other types have none.

    >>> finer_than_ms(pa.array([1_000, 1_001, None], pa.timestamp("us"))).tolist()
    [False, True, False]
    >>> finer_than_ms(pa.array(["2026-01-01 00:00:00.0009Z", "2026-01-01 00:00:00.0010"])).tolist()
    [True, False]
    """
    kind = array.type
    if pa.types.is_timestamp(kind) and _PER_SECOND[kind.unit] > _PER_SECOND["ms"]:
        ticks = array.view(pa.timestamp(kind.unit)).view(pa.int64()).fill_null(0)
        per_ms = _PER_SECOND[kind.unit] // _PER_SECOND["ms"]
        return np.asarray(ticks.to_numpy(zero_copy_only=False) % per_ms != 0)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        is_finer = pc.match_substring_regex(array, FINER_TEXT).fill_null(False)
        return np.asarray(is_finer.to_numpy(zero_copy_only=False), np.bool_)
    return np.zeros(len(array), np.bool_)


def ceil_times(array: pa.Array) -> pa.Array:
    """Return timestamps finer than milliseconds rounded up to them; other arrays unchanged.

    >>> ceil_times(pa.array([-1, 1999, None], pa.timestamp("us"))).cast(pa.int64()).to_pylist()
    [0, 2, None]
    """
    finer = finer_than_ms(array)
    if not (pa.types.is_timestamp(array.type) and finer.any()):
        return array
    whole = floor_times(array)
    ticks = whole.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False) + finer
    mask = np.asarray(array.is_null()) if array.null_count else None
    return pa.array(ticks, pa.int64(), mask=mask).view(whole.type)


def utc_ms(array: pa.Array) -> pa.Array:
    """Return times as int64 milliseconds since 1970, from timestamps, dates or integers.

    Raises
    ------
    pyarrow.ArrowInvalid
        For any other type, and for a time outside int64 milliseconds.

    Examples
    --------
    >>> import datetime as dt
    >>> utc_ms(pa.array([dt.date(1970, 1, 2), None])).to_pylist()
    [86400000, None]
    """
    array = plain_array(array)
    if is_time(array.type):
        return floor_times(array).view(pa.int64())
    if not (pa.types.is_integer(array.type) or pa.types.is_null(array.type)):
        raise pa.ArrowInvalid(f"{array.type} is not a time")
    return array.cast(pa.int64())


def is_time(kind: pa.DataType) -> bool:
    """Return True if values of an Arrow type are points in time: timestamps and dates."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def conform(array: pa.Array, kind: pa.DataType, *, event_time: bool = False) -> pa.Array:
    """Cast to a column's type without loss; times by the rule of this module.

    ``event_time``: an int64 column is the time of an event, so dates are accepted.

    Raises
    ------
    pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError
        If a value does not fit, a text is not UTF-8, or the type has no meaning for the column.

    Examples
    --------
    >>> seconds = pa.array([2], pa.timestamp("s"))
    >>> conform(seconds, pa.int64()).to_pylist()
    [2000]
    >>> conform(seconds, pa.float64())
    Traceback (most recent call last):
    pyarrow.lib.ArrowInvalid: timestamp[s] as double: times are read into timestamp or int64 columns
    """
    converted = _cast(array, kind, event_time)
    if not pa.types.is_primitive(kind):
        # neither Parquet nor Arrow files guarantee it, and one bad text makes a table unreadable
        _validate(converted)
    return converted


def _validate(array: pa.Array) -> None:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        if not pa.types.is_nested(array.type):
            raise
        # the items of a slice are those of its neighbours too: a copy has its own only
        array.take(pa.array(range(len(array)), pa.int64())).validate(full=True)


def _cast(array: pa.Array, kind: pa.DataType, event_time: bool) -> pa.Array:
    given = array.type
    if given == kind:
        return array
    if not is_plain(given):
        return _cast(plain_array(array), kind, event_time)
    if pa.types.is_list(given) and pa.types.is_list(kind):
        return _cast_list(array, kind)
    if pa.types.is_map(given) and pa.types.is_map(kind):
        return _cast_map(array, kind)
    if pa.types.is_boolean(given) and (event_time or pa.types.is_timestamp(kind)):
        raise pa.ArrowInvalid(f"{given} is not a time")
    if pa.types.is_timestamp(kind) and (is_time(given) or pa.types.is_integer(given)):
        return floor_times(utc_ms(array).view(pa.timestamp("ms")), kind.unit)
    if pa.types.is_int64(kind) and (
        pa.types.is_timestamp(given) or (event_time and is_time(given))
    ):
        return utc_ms(array)
    if is_time(given) and not pa.types.is_date(kind):
        raise pa.ArrowInvalid(f"{given} as {kind}: times are read into timestamp or int64 columns")
    if pa.types.is_timestamp(given):
        raise pa.ArrowInvalid(f"{given} as {kind}: a time of day would be lost")
    if pa.types.is_temporal(given) and not pa.types.is_temporal(kind):
        raise pa.ArrowInvalid(
            f"{given} is not a point in time, and its unit would be lost as {kind}"
        )
    return array.cast(kind)


def _cast_list(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a list of other items: Arrow's cast would take a time's ticks for milliseconds."""
    plain = array.cast(pa.list_(array.type.value_type))
    items = _cast(plain.flatten(), kind.value_type, False)
    converted = pa.ListArray.from_arrays(_offsets(plain), items, mask=_nulls(plain))
    return converted if converted.type == kind else converted.cast(kind)


def _cast_map(array: pa.Array, kind: pa.DataType) -> pa.Array:
    given = array.type
    entries = pa.struct([("key", given.key_type), ("value", given.item_type)])
    lists = array.cast(pa.list_(entries))
    flat = lists.flatten()
    keys = _cast(flat.field("key"), kind.key_type, False)
    items = _cast(flat.field("value"), kind.item_type, False)
    converted = pa.MapArray.from_arrays(_offsets(lists), keys, items)
    if array.null_count:
        missing = np.asarray(array.is_null())
        converted = converted.take(pa.array(np.arange(len(array)), mask=missing))
    return converted if converted.type == kind else converted.cast(kind)


def _offsets(lists: pa.Array) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None
