"""Avro records as batches whose types are those of the file's schema, not of its first rows.

Schemas are rejected of which a few bytes stand for any number of values.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

from paimon_features.ingest.inputs.pieces import pieces

_SIMPLE: Mapping[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_LOGICAL: Mapping[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
    ("string", "uuid"): pa.string(),
}
_NESTED: Mapping[str, pa.DataType] = {
    "array": pa.list_(pa.string()),
    "map": pa.map_(pa.string(), pa.string()),
    "record": pa.struct([("value", pa.string())]),
}
"""Types that no column of a source has; their values are not read."""
_LEAST_BYTES = {"null": 0, "float": 4, "double": 8}
"""The least bytes of a value of a type; 1 where it is not here."""
_WIDER = ({"int", "long"}, {"float", "double"})


def avro_columns(schema: Any) -> pa.Schema:
    """Return the columns of a file with this writer's schema; text for values of several types.

    Raises
    ------
    ValueError
        As ``avro_fields``.
    """
    names = avro_fields(schema)
    named: dict[str, Any] = {}
    kinds = [_type_of(field["type"], named) for field in schema["fields"]]
    return pa.schema(list(zip(names, kinds, strict=True)))


def avro_batches(
    rows: Iterable[Mapping[str, Any]], schema: pa.Schema, size: int
) -> Iterator[pa.RecordBatch]:
    """Yield the records in batches of a schema of ``avro_columns``."""
    converts = [_converter(field.type) for field in schema]
    for piece in pieces(rows, size):
        columns = [
            pa.array([convert(row[field.name]) for row in piece], field.type)
            if convert is not None
            else pa.nulls(len(piece), field.type)
            for field, convert in zip(schema, converts, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _type_of(schema: Any, named: dict[str, Any]) -> pa.DataType:
    if isinstance(schema, list):
        return _union(schema, named)
    if isinstance(schema, str):
        definition = named.get(schema)
        return _SIMPLE.get(schema, pa.string()) if definition is None else _type_of(definition, {})
    kind = schema["type"]
    if "name" in schema:
        space = schema.get("namespace")
        named[schema["name"]] = schema
        named[f"{space}.{schema['name']}" if space else schema["name"]] = schema
    if kind in ("record", "error"):
        for field in schema["fields"]:
            _type_of(field["type"], named)  # may define a name that a later field has
        return _NESTED["record"]
    if not isinstance(kind, str):
        return _type_of(kind, named)
    if kind in ("array", "map"):
        _type_of(schema.get("items", schema.get("values")), named)
        return _NESTED[kind]
    logical = schema.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = int(schema["precision"]), int(schema.get("scale", 0))
        return pa.decimal128(precision, scale) if precision <= 38 else pa.string()
    if (kind, logical) in _LOGICAL:
        return _LOGICAL[kind, logical]
    return _SIMPLE[kind] if kind in _SIMPLE else _type_of(kind, named)


def _union(branches: list[Any], named: dict[str, Any]) -> pa.DataType:
    values = [branch for branch in branches if branch != "null"]
    kinds = list(dict.fromkeys(_type_of(branch, named) for branch in values))
    if len(kinds) == 1:
        return kinds[0]
    if not kinds:
        return pa.null()
    if any(set(map(str, values)) <= wider for wider in _WIDER):
        return kinds[0] if kinds[0] in (pa.int64(), pa.float64()) else kinds[1]
    nested = next((kind for kind in kinds if kind in _NESTED.values()), None)
    if nested is not None:
        return nested
    # a float is no exact long, nor the other way round; bytes have no text
    return _NESTED["array"] if pa.binary() in kinds else pa.string()


def _converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    if kind in _NESTED.values():
        return None
    return _text if pa.types.is_string(kind) else lambda value: value


def _text(value: Any) -> Any:
    """Return a value with all its digits."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    return str(value)


def avro_fields(schema: Any) -> list[str]:
    """Return the names of the fields of a file's records.

    >>> avro_fields({"type": "record", "name": "r", "fields": [{"name": "x", "type": "int"}]})
    ['x']

    Raises
    ------
    ValueError
        If it is not of records, if a record or the items of an array take no bytes, so that a
        count of them is not bounded by the file, and if a record contains itself.
    """
    if not isinstance(schema, dict) or schema.get("type") not in ("record", "error"):
        kind = schema.get("type") if isinstance(schema, dict) else schema
        raise ValueError(f"its values are {str(kind)[:80]!r}; expected records")
    if not _least_bytes(schema, {}):
        raise ValueError(
            "its records take no bytes, so that it can stand for any number of them; expected a "
            "field with values"
        )
    return [field["name"] for field in schema["fields"]]


def _least_bytes(schema: Any, known: dict[str, float]) -> float:
    """Return the least bytes of a value.

    ``known`` are those of named types, infinite while open.
    """
    if isinstance(schema, list):
        for branch in schema:
            _within(branch, known)
        return 1  # which of them it is
    if isinstance(schema, str):
        least = known.get(schema, _LEAST_BYTES.get(schema, 1))
        if math.isinf(least):
            raise ValueError(f"its record {schema[:80]!r} contains itself, so it never ends")
        return least
    kind = schema["type"]
    if kind in ("record", "error"):
        known[schema["name"]] = math.inf
        known[schema["name"]] = sum(_least_bytes(f["type"], known) for f in schema["fields"])
        return known[schema["name"]]
    if kind == "fixed":
        known[schema["name"]] = schema["size"]
        return float(schema["size"])
    if kind == "array" and not _within(schema["items"], known):
        raise ValueError(
            "the items of an array take no bytes, so that it can stand for any number of them"
        )
    if kind == "map":
        _within(schema["values"], known)
    return 1 if kind in ("array", "map", "enum") else _least_bytes(kind, known)


def _within(schema: Any, known: dict[str, float]) -> float:
    """Return the least bytes of what may be left out, so that it may be of a record around it."""
    around = {name: 1.0 for name, least in known.items() if math.isinf(least)}
    return _least_bytes(schema, known | around)
