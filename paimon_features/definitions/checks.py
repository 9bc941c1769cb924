"""Check of column types, with what to write instead."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Mapping
from typing import Any

from paimon_features.core._arrow import pa
from paimon_features.core.configuration.arguments import shown
from paimon_features.core.errors import DefinitionError
from paimon_features.core.types.schema import (
    Bool,
    Bytes,
    DataType,
    Date,
    Decimal,
    Float32,
    Float64,
    Int32,
    Int64,
    List,
    Map,
    String,
    Timestamp,
)

_MEANT: Mapping[Any, str] = {
    **{kind.text: repr(kind) for kind in (Bool, Bytes, Date, Float32, Float64, Int32, Int64)},
    **{kind.text: repr(kind) for kind in (String, Timestamp)},
    "int": "Int64",
    "long": "Int64",
    "bigint": "Int64",
    "integer": "Int32",
    "float": "Float64",
    "double": "Float64",
    "str": "String",
    "text": "String",
    "varchar": "String",
    "boolean": "Bool",
    "datetime": "Timestamp",
    "binary": "Bytes",
    int: "Int64",
    float: "Float64",
    str: "String",
    bool: "Bool",
    bytes: "Bytes",
    dt.date: "Date",
    dt.datetime: "Timestamp",
    decimal.Decimal: "Decimal(precision, scale)",
    list: "List(item, length)",
    dict: "Map(String, item)",
    Decimal: "Decimal(10, 2)",
    List: "List(Float32, 3)",
    Map: "Map(String, Int64)",
}
"""Types of Python and SQL, and what they are here."""


def _meant_by_arrow(kind: pa.DataType) -> str | None:
    if pa.types.is_timestamp(kind):
        return "Timestamp"
    if kind == pa.large_string():
        return "String"
    plain = (Bool, Bytes, Date, Float32, Float64, Int32, Int64, String)
    return next((repr(data_type) for data_type in plain if data_type.arrow == kind), None)


def check_types(what: str, columns: Any) -> None:
    """Check that ``columns`` maps names to column types.

    Raises
    ------
    DefinitionError
        If it does not; the message names the first wrong column and the type that may be meant.
    """
    if not isinstance(columns, Mapping):
        raise DefinitionError(
            f"{what}: got {shown(columns)}; expected a dict of columns and their types, for "
            'example {"user_id": pf.Int64, "price": pf.Float64}'
        )
    for name, kind in columns.items():
        if not isinstance(kind, DataType):
            raise DefinitionError(f"{what}: column {name!r} is {_named(kind)}; {_expected(kind)}")


def _named(kind: Any) -> str:
    if kind is Decimal or kind is List or kind is Map:
        return f"{kind.__name__} without arguments"
    return shown(kind)


def _expected(kind: Any) -> str:
    key = kind.lower() if isinstance(kind, str) else kind
    try:
        from_arrow = type(kind).__module__.startswith("pyarrow") and isinstance(kind, pa.DataType)
        meant = _meant_by_arrow(kind) if from_arrow else _MEANT.get(key)
    except TypeError:  # not hashable
        meant = None
    if meant is not None:
        return f"write pf.{meant}"
    return (
        "expected a type such as pf.Int64, pf.Float64, pf.String, pf.Bool, pf.Date, pf.Timestamp, "
        "pf.Decimal(10, 2), pf.List(pf.Float32, 3)"
    )
