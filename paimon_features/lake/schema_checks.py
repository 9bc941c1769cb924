"""Checks of schemas: that they are what was written, have allowed options, and match a spec."""

from __future__ import annotations

import json
import re
import zlib
from typing import Any

import pyarrow as pa

from paimon_features.core.documents.typed_json import mapping
from paimon_features.core.errors import TableError, unknown_name
from paimon_features.lake.ddl import arrow_schema
from paimon_features.lake.metadata_damage import metadata_damage
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.table_folders import SIDE_FOLDER, TableFolders, schema_ids

_DEFAULT = "default-aggregate-function"
_FIXED_OPTIONS = ("bucket", "bucket-key", "merge-engine", "changelog-producer")
_OUTSIDE = re.compile(
    r"(commit|tag)\.callbacks?\b|commit\.custom-listeners|partition\.mark-done-action"
    r"|data-file\.(external-paths|path-directory)|global-index\.external-path|blob-external"
    r"|object-location|.*(\.class|-impl|\.impl)$"
)
"""Options of Paimon by which a table names classes that Flink builds, or other folders."""


def record_checksum(lake: TableFolders, name: str) -> None:
    """Store the CRC32 of the newest schema with the table, which moves and goes with it."""
    newest = schema_ids(lake, name)[-1]
    path = _checksums_path(lake, name)
    checksums = _checksums(lake, name) if lake.storage.is_file(path) else {}
    lake.storage.write_json(path, {**checksums, str(newest): _checksum(lake, name, newest)})


def check_schema(lake: TableFolders, name: str, table: Any) -> None:
    """Raise ValueError if the schema is not what was written, as far as that is known.

    Schemas that Flink wrote have no CRC32.
    """
    _check_options(table)
    try:
        checksums = _checksums(lake, name)
    except FileNotFoundError:
        return
    schema_id = table.table_schema.id
    actual = _checksum(lake, name, schema_id)
    if actual != checksums.get(str(schema_id), actual):
        raise ValueError(f"schema-{schema_id} does not match its CRC32")


def _checksum(lake: TableFolders, name: str, schema_id: int) -> int:
    return zlib.crc32(
        lake.storage.read_text(f"{lake.path(name)}/schema/schema-{schema_id}").encode()
    )


def _checksums(lake: TableFolders, name: str) -> dict[str, int]:
    """Return the CRC32 of each schema that was written here, by number."""
    path = _checksums_path(lake, name)
    with metadata_damage(path, f"table {name!r}"):
        checksums = dict(mapping(json.loads(lake.storage.read_text(path))))
        if not all(number.isdigit() and type(crc) is int for number, crc in checksums.items()):
            raise ValueError("expected a CRC32 by number of the schema")
        return checksums


def _checksums_path(lake: TableFolders, name: str) -> str:
    return f"{lake.path(name)}/{SIDE_FOLDER}/schemas.json"


def _check_options(table: Any) -> None:
    """Raise ValueError for an option of a column that does not exist, or keys that do not."""
    names = [field.name for field in table.fields]
    options = table.table_schema.options
    for option in options:
        if _OUTSIDE.match(option):
            raise ValueError(
                f"option {option!r} names a class, or a place outside of the table, which tables "
                "of this package do not have"
            )
        kind, _, rest = option.partition(".")
        column = rest.rpartition(".")[0]
        if kind == "fields" and column and not set(column.split(",")) <= {*names, _DEFAULT}:
            unknown = next(c for c in column.split(",") if c not in {*names, _DEFAULT})
            raise ValueError(f"option {option!r}: {unknown_name('column', unknown, names)}")
    aggregates = any(option.endswith(".aggregate-function") for option in options)
    if aggregates and options.get("merge-engine") not in ("aggregation", "partial-update"):
        raise ValueError(f"it has aggregate functions, but merges by {options.get('merge-engine')}")
    for column in (*table.primary_keys, *table.partition_keys):
        if column not in names:
            raise ValueError(f"key: {unknown_name('column', column, names)}")


def check_matches(spec: TableSpec, actual: pa.Schema, table: Any) -> None:
    """Raise TableError if an existing table differs from the spec; the message lists how."""
    differences = _differences(spec, actual, table)
    if differences:
        raise TableError(
            f"table {spec.name!r} exists with a different definition: {'; '.join(differences)}. "
            "Use another name (for a feature view, a new generation), or drop the table"
        )


def check_columns(name: str, expected: pa.Schema, actual: pa.Schema, table: Any) -> None:
    """Raise TableError if an existing table has other columns, or a primary key."""
    same = actual.names == expected.names and all(map(_same_type, actual.types, expected.types))
    if not same or table.primary_keys:
        raise TableError(
            f"table {name!r} exists with a different definition: its columns are "
            f"{', '.join(f'{f.name} {f.type}' for f in actual)}; expected "
            f"{', '.join(f'{f.name} {f.type}' for f in expected)} and no primary key"
        )


def _same_type(got: pa.DataType, expected: pa.DataType) -> bool:
    if pa.types.is_list(got) and pa.types.is_list(expected):
        return _same_type(got.value_type, expected.value_type)
    return bool(got == expected)


def _differences(spec: TableSpec, actual: pa.Schema, table: Any) -> list[str]:
    actual_types: dict[str, pa.DataType] = {f.name: f.type for f in actual}
    wanted: dict[str, pa.DataType] = {f.name: f.type for f in arrow_schema(spec)}
    texts = [f"column {n!r} is missing" for n in wanted if n not in actual_types]
    texts += [f"column {n!r} is unexpected" for n in actual_types if n not in wanted]
    texts += [
        f"column {n!r} is {actual_types[n]}, expected {wanted[n]}"
        for n in wanted
        if n in actual_types and not _same_type(actual_types[n], wanted[n])
    ]
    if not texts and list(actual_types) != list(wanted):
        texts.append(f"the column order is {', '.join(actual_types)}")
    for role, got, expected in (
        ("primary key", table.primary_keys, spec.primary_key),
        ("partition", table.partition_keys, spec.partition_by),
    ):
        if tuple(got) != expected:
            texts.append(f"{role} is ({', '.join(got)}), expected ({', '.join(expected)})")
    options = table.table_schema.options
    names = [*_FIXED_OPTIONS, *(k for k in spec.options if k.startswith("fields."))]
    texts += [
        f"option {name!r} is {options.get(name)!r}, expected {spec.options[name]!r}"
        for name in names
        if name in spec.options and options.get(name) != spec.options[name]
    ]
    return texts
