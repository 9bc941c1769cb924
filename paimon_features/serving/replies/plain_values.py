"""Columns as the plain Python values that replies are written from.

==================  =====================================================================
int32, int64        int, all digits (beyond 2^53 many readers of JSON round: JavaScript does)
float32, float64    float, of which the shortest text that reads back is written
bool                bool
string              str
bytes               bytes; in JSON base64 text, as Feast has it
decimal             str, all digits: "12.50"
date                str: "2023-11-14"
timestamp           str, UTC: "2023-11-14T22:13:20Z", with milliseconds where there are any
list, map           list, dict of such values
null                None
==================  =====================================================================

No float is infinite or NaN: neither enters a tile, sums are bounded, and an interaction that
leaves its type is null with a status of its own.
"""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.types.schema import DataType, ListType, MapType

_DIRECT = ("bool", "int32", "int64", "float32", "float64", "string")
_EPOCH = dt.datetime(1970, 1, 1)


def plain_column(kind: DataType, column: Column, *, binary: bool) -> Sequence[Any]:
    """Return the values of a column; ``binary`` leaves bytes as they are."""
    if kind.text in _DIRECT:
        values: list[Any] = column.values.tolist()
        if column.valid is not None:
            for row in np.flatnonzero(~column.valid).tolist():
                values[row] = None
        return values
    return plain_values(kind, column.to_pylist(kind), binary=binary)


def plain_values(kind: DataType, values: Sequence[Any], *, binary: bool) -> Sequence[Any]:
    """Return the same from Python values: dates, decimals, lists of pairs."""
    convert = _converter(kind, binary)
    if convert is None:
        return values
    return [None if value is None else convert(value) for value in values]


def time_text(time_ms: int) -> str:
    """Return a time as Feast writes it (RFC 3339).

    >>> time_text(1_700_000_000_000), time_text(-1)
    ('2023-11-14T22:13:20Z', '1969-12-31T23:59:59.999Z')
    """
    return _moment(_EPOCH + dt.timedelta(milliseconds=time_ms))


def _moment(at: dt.datetime) -> str:
    return at.isoformat(timespec="milliseconds" if at.microsecond else "seconds") + "Z"


def _converter(kind: DataType, binary: bool) -> Callable[[Any], Any] | None:
    """Return the conversion of a Python value; None where that is plain already."""
    if kind.is_decimal:
        return lambda value: format(value, "f")
    if kind.text == "bytes" and not binary:
        return lambda value: base64.b64encode(value).decode()
    if kind.text == "timestamp":
        return _moment
    if kind.text == "date":
        return dt.date.isoformat
    if isinstance(kind, ListType):
        item = kind.item
        return lambda values: plain_values(item, values, binary=binary)
    if isinstance(kind, MapType):
        return lambda pairs: dict(
            zip(
                [key for key, _ in pairs],
                plain_values(kind.item, [value for _, value in pairs], binary=binary),
                strict=True,
            )
        )
    return None
