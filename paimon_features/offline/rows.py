"""Entity rows: what a point-in-time read asks for, checked and brought to Arrow."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.definitions import CompiledView
from paimon_features.errors import RequestError
from paimon_features.windows import MAX_TIME_MS, MIN_TIME_MS

EVENT_TIME_MS = "event_time_ms"
"""The column of entity rows that holds the time of each row."""

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def arrow_table(rows: Any) -> pa.Table:
    """Rows as an Arrow table: an Arrow table or batch, a pandas or Polars DataFrame, a reader,
    anything that gives an Arrow stream, or a mapping of columns.

    >>> arrow_table({"user": [1], "event_time_ms": [0]}).num_rows
    1

    Raises
    ------
    RequestError
        For anything else, and for two columns of one name.
    """
    try:
        if isinstance(rows, pa.Table):
            table = rows
        elif isinstance(rows, pa.RecordBatch):
            table = pa.Table.from_batches([rows])
        elif isinstance(rows, pa.RecordBatchReader):
            table = rows.read_all()
        elif type(rows).__module__.partition(".")[0] == "pandas":
            table = pa.Table.from_pandas(rows, preserve_index=False)
        elif hasattr(rows, "to_arrow"):  # Polars
            table = rows.to_arrow()
        elif hasattr(rows, "__arrow_c_stream__") or isinstance(rows, dict):
            table = pa.table(rows)
        else:
            raise RequestError(
                f"entity rows of type {type(rows).__name__}; expected an Arrow table, a pandas or "
                "Polars DataFrame, or something with an Arrow stream"
            )
    except (pa.ArrowException, TypeError) as error:
        raise RequestError(f"entity rows cannot be read as Arrow: {error}") from error
    double = sorted({name for name in table.column_names if table.column_names.count(name) > 1})
    if double:
        raise RequestError(f"entity rows have two columns {double[0]!r}; rename one of them")
    # pandas leaves notes about its index, which would make equal rows differ
    return table.replace_schema_metadata(None)


def event_times(table: pa.Table) -> npt.NDArray[np.int64]:
    """The times of the rows in UTC milliseconds; finer timestamps are rounded down.

    Raises
    ------
    RequestError
        If the column is missing, null somewhere, no time, or outside the years 1 to 9999.
    """
    column = _column(table, EVENT_TIME_MS, "the time of each row, UTC milliseconds or a timestamp")
    kind = column.type
    if column.null_count:
        first = pc.index(pc.is_null(column), True).as_py()
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
            f"entity rows: {EVENT_TIME_MS!r} is {times[absurd[0]]} in row {absurd[0]}; expected "
            "milliseconds since 1970 within the years 1 to 9999"
        )
    return np.ascontiguousarray(times)


def key_columns(table: pa.Table, view: CompiledView) -> pa.Table:
    """The entity keys of a view, in their declared types.

    Raises
    ------
    RequestError
        If a key is missing, or does not fit its type without a loss.
    """
    columns = {}
    for key, kind in view.keys.items():
        column = _column(table, key, f"a key of entity {view.entity.name!r} ({kind!r})")
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
                f"entity rows: the key {key!r} is {column.type}, but entity "
                f"{view.entity.name!r} has it as {kind!r}: {error}"
            ) from error
    return pa.table(columns)


def _column(table: pa.Table, name: str, what: str) -> pa.ChunkedArray:
    if name not in table.column_names:
        raise RequestError(
            f"entity rows have no column {name!r}, {what}; "
            f"they have: {', '.join(table.column_names) or 'none'}"
        )
    return table.column(name)
