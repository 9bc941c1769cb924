"""Entity rows and events, checked: their columns in the declared types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.columns.column import one_array
from paimon_features.core.errors import RequestError
from paimon_features.core.times.utc_ms import conform, utc_ms
from paimon_features.core.types.foreign_types import plain_column
from paimon_features.core.types.schema import DataType, arrow_schema
from paimon_features.core.windows import MAX_TIME_MS, MIN_TIME_MS
from paimon_features.definitions import CompiledView
from paimon_features.definitions.event_partials import event_columns

EVENT_TIME_MS = "event_time_ms"
"""The column of entity rows that contains the time of each row."""


def event_times(table: pa.Table, first_row: int = 0) -> npt.NDArray[np.int64]:
    """Return the times of the rows in UTC milliseconds, by the rule of ``core.times.utc_ms``.

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
    try:
        times = utc_ms(one_array(column)).to_numpy()
    except pa.ArrowInvalid as error:
        raise RequestError(
            f"entity rows: {EVENT_TIME_MS!r} is {kind}; expected int64 UTC milliseconds, "
            f"a timestamp or a date, within the years 1 to 9999: {error}"
        ) from error
    absurd = np.flatnonzero((times < MIN_TIME_MS) | (times > MAX_TIME_MS))
    if len(absurd):
        raise RequestError(
            f"entity rows: {EVENT_TIME_MS!r} is {times[absurd[0]]} in row "
            f"{first_row + absurd[0]}; expected "
            "milliseconds since 1970 within the years 1 to 9999"
        )
    return np.ascontiguousarray(times)


def key_columns(table: pa.Table, keys: Mapping[str, DataType], entity: str) -> pa.Table:
    """Return the keys of an entity, in their declared types.

    Raises
    ------
    RequestError
        If a key is missing, or does not fit its type without a loss.
    """
    columns = {}
    for key, kind in keys.items():
        column = _column(table, key, f"a key of entity {entity!r} ({kind!r})")
        try:
            column = plain_column(column)
            number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
            if number != kind.is_integer and not pa.types.is_null(column.type):
                raise pa.ArrowInvalid("the types differ")
            columns[key] = conform(one_array(column), kind.arrow)
        except pa.ArrowException as error:
            raise RequestError(
                f"entity rows: the key {key!r} is {column.type}, but entity {entity!r} has it as "
                f"{kind!r}: {error}"
            ) from error
    return pa.table(columns)


def event_table(view: CompiledView, events: pa.Table) -> pa.Table:
    """Return the columns of events that a view needs, in their declared types.

    Raises
    ------
    RequestError
        If a column is missing, or does not fit its type without a loss.
    """
    check_event_columns(view, events.column_names)
    schema = arrow_schema({name: view.source.schema[name] for name in event_columns(view)})
    columns = []
    for field in schema:
        column = events.column(field.name)
        try:
            is_event_time = field.name == view.source.event_time
            columns.append(conform(one_array(column), field.type, event_time=is_event_time))
        except pa.ArrowException as error:
            raise RequestError(
                f"events: the column {field.name!r} is {column.type}; source "
                f"{view.source.name!r} has it as {field.type}: {error}"
            ) from error
    return pa.Table.from_arrays(columns, schema=schema)


def check_event_columns(view: CompiledView, names: Sequence[str]) -> None:
    """Raise RequestError if events with columns of these names lack one that a view needs."""
    missing = [name for name in event_columns(view) if name not in names]
    if missing:
        raise RequestError(
            f"events: missing column {missing[0]!r}, which view {view.name!r} needs; available: "
            f"{', '.join(names) or 'none'}"
        )


def _column(table: pa.Table, name: str, what: str) -> pa.ChunkedArray:
    if name not in table.column_names:
        raise RequestError(
            f"entity rows: missing column {name!r}, {what}; "
            f"available: {', '.join(table.column_names) or 'none'}"
        )
    return table.column(name)
