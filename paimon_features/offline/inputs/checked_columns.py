"""Entity rows, checked: their times and their keys in the types of an entity."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.errors import RequestError
from paimon_features.schema import DataType
from paimon_features.windows import MAX_TIME_MS, MIN_TIME_MS

EVENT_TIME_MS = "event_time_ms"
"""The column of entity rows that holds the time of each row."""

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def event_times(table: pa.Table, first_row: int = 0) -> npt.NDArray[np.int64]:
    """The times of the rows in UTC milliseconds; finer timestamps are rounded down.

    ``first_row`` is the number of the table's first row, for messages.

    Raises
    ------
    RequestError
        If the column is missing, null somewhere, no time, or outside the years 1 to 9999.
    """
    column = _column(table, EVENT_TIME_MS, "the time of each row, UTC milliseconds or a timestamp")
    kind = column.type
    if column.null_count:
        first = first_row + pc.index(pc.is_null(column), True).as_py()
        raise RequestError(
            f"entity rows: {EVENT_TIME_MS!r} is null in {column.null_count} of {len(column)} "
            f"rows, first in row {first}; each row needs the time at which its features are wanted"
        )
    if pa.types.is_timestamp(kind):
        ticks = column.cast(pa.int64()).to_numpy()
        per_second = _PER_SECOND[kind.unit]
        # Arrow's own cast would round times before 1970 up
        times = ticks * (1000 // per_second) if per_second < 1000 else ticks // (per_second // 1000)
    elif pa.types.is_integer(kind):
        # a uint64 beyond int64 becomes a number that is refused below
        times = column.cast(pa.int64(), safe=False).to_numpy()
    else:
        raise RequestError(
            f"entity rows: {EVENT_TIME_MS!r} is {kind}; expected int64 UTC milliseconds, "
            "or a timestamp"
        )
    absurd = np.flatnonzero((times < MIN_TIME_MS) | (times > MAX_TIME_MS))
    if len(absurd):
        raise RequestError(
            f"entity rows: {EVENT_TIME_MS!r} is {times[absurd[0]]} in row "
            f"{first_row + absurd[0]}; expected "
            "milliseconds since 1970 within the years 1 to 9999"
        )
    return np.ascontiguousarray(times)


def key_columns(table: pa.Table, keys: Mapping[str, DataType], entity: str) -> pa.Table:
    """The keys of an entity, in their declared types.

    Raises
    ------
    RequestError
        If a key is missing, or does not fit its type without a loss.
    """
    columns = {}
    for key, kind in keys.items():
        column = _column(table, key, f"a key of entity {entity!r} ({kind!r})")
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
        fits = number == kind.is_integer or pa.types.is_null(column.type)
        try:
            if not fits:
                raise pa.ArrowInvalid("the types differ")
            columns[key] = column.cast(kind.arrow)
        except pa.ArrowException as error:
            raise RequestError(
                f"entity rows: the key {key!r} is {column.type}, but entity {entity!r} has it as "
                f"{kind!r}: {error}"
            ) from error
    return pa.table(columns)


def _column(table: pa.Table, name: str, what: str) -> pa.ChunkedArray:
    if name not in table.column_names:
        raise RequestError(
            f"entity rows have no column {name!r}, {what}; "
            f"they have: {', '.join(table.column_names) or 'none'}"
        )
    return table.column(name)
