"""Schemas of Avro files: those are rejected of which a few bytes stand for any number of values."""

from __future__ import annotations

import math
from typing import Any

_BYTES = {"null": 0, "float": 4, "double": 8}
"""The least bytes of a value of a type; 1 where it is not here."""


def avro_fields(schema: Any) -> list[str]:
    """The names of the fields of a file's records.

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
    """The least bytes of a value; ``known`` are those of named types, infinite while open."""
    if isinstance(schema, list):
        for each in schema:
            _within(each, known)
        return 1  # which of them it is
    if isinstance(schema, str):
        least = known.get(schema, _BYTES.get(schema, 1))
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
    """The least bytes of what may be left out, so that it may be of a record around it."""
    around = {name: 1.0 for name, least in known.items() if math.isinf(least)}
    return _least_bytes(schema, known | around)
