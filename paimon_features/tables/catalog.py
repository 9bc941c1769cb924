"""The lake: a warehouse folder with one database, in which all tables of a project live."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from paimon_features.errors import ConfigurationError, TableError, UnknownNameError
from paimon_features.tables.ddl import arrow_schema, paimon_schema
from paimon_features.tables.files import locked
from paimon_features.tables.specs import TableSpec

SIDE_FOLDER = "_paimon_features"
PROPERTY_PREFIX = "paimon-features."

_READ_OPTIONS = {
    "read.batch-size": "65536",
    "read.native.enabled": "true",
    "scan.native-plan.enabled": "true",
    "write.native.enabled": "true",
    "commit.native.enabled": "true",
}
"""Set on each handle, never stored: they are about this process, not about the table."""

_FIXED_OPTIONS = ("bucket", "bucket-key", "merge-engine", "changelog-producer")


class Lake:
    """Tables of one database in one warehouse folder.

    Cheap to open (pypaimon, whose import takes two seconds, is loaded with the first table);
    safe to use from several threads and processes. The warehouse has to be a folder that all
    writers of a table see (leases and commit locks are files in it).
    """

    def __init__(self, warehouse: Path, database: str) -> None:
        self.warehouse = str(warehouse)
        self.database = database
        self._handles: dict[str, tuple[tuple[int, int], Any]] = {}

    def __repr__(self) -> str:
        return f"Lake({self.warehouse!r}, {self.database!r})"

    @classmethod
    def open(cls, warehouse: str | Path, database: str) -> Lake:
        """Open a warehouse (a path, or a ``file:`` address) and make the database if need be.

        Raises
        ------
        ConfigurationError
            For an address of another scheme.
        """
        text = os.fspath(warehouse)
        parts = urlsplit(text)
        if parts.scheme not in ("", "file"):
            raise ConfigurationError(
                f"warehouse {text!r}: only a local or mounted folder can be a warehouse, because "
                "leases and commit locks are files in it; mount the bucket, or give a path"
            )
        folder = Path(unquote(parts.path) if parts.scheme else text).expanduser().resolve()
        (folder / f"{database}.db").mkdir(parents=True, exist_ok=True)
        return cls(folder, database)

    @cached_property
    def catalog(self) -> Any:
        """pypaimon's catalog of the warehouse."""
        from pypaimon import CatalogFactory

        return CatalogFactory.create({"warehouse": self.warehouse})

    @property
    def side_folder(self) -> Path:
        """Where leases, generation records and locks live, beside the databases."""
        return Path(self.warehouse) / SIDE_FOLDER

    def path(self, name: str) -> str:
        """The folder of a table, whether or not it exists."""
        return f"{self.warehouse}/{self.database}.db/{name}"

    def exists(self, name: str) -> bool:
        return os.path.isdir(f"{self.path(name)}/schema")

    def list(self) -> list[str]:
        """The names of all tables, sorted."""
        names = os.listdir(f"{self.warehouse}/{self.database}.db")
        return sorted(name for name in names if self.exists(name))

    def lock_path(self, name: str) -> Path:
        """The lock file of Python's commits to a table."""
        return self.side_folder / "locks" / f"{self.database}.{name}.lock"

    def rollup_folder(self, name: str) -> Path:
        """Where the rolled-up tiles of a table are (``rollups``), whether or not there are any."""
        return self.side_folder / "rollups" / f"{self.database}.{name}"

    def create(self, spec: TableSpec, ignore_existing: bool = True) -> None:
        """Make the table; where it exists, check that it is the same.

        Raises
        ------
        TableError
            If it exists and ``ignore_existing`` is false, or with other columns, keys,
            partitions, buckets or merge functions; the message names each difference.
        """
        with locked(self.lock_path(spec.name), f"creating table {spec.name!r}"):
            if not self.exists(spec.name):
                self.catalog.create_table(self._identifier(spec.name), paimon_schema(spec), False)
                return
        if not ignore_existing:
            raise TableError(f"table {spec.name!r} exists already in {self.path(spec.name)}")
        differences = _differences(self.schema(spec.name), self.table(spec.name), spec)
        if differences:
            raise TableError(
                f"table {spec.name!r} exists and is another one: {'; '.join(differences)}. "
                "Use another name (for a feature view: a new generation), or drop the table"
            )

    def drop(self, name: str) -> None:
        """Delete a table with all its data; harmless where there is none."""
        self._handles.pop(name, None)
        shutil.rmtree(self.path(name), ignore_errors=True)
        shutil.rmtree(self.rollup_folder(name), ignore_errors=True)

    def table(self, name: str) -> Any:
        """The pypaimon table, with the native routes and large batches switched on.

        Raises
        ------
        UnknownNameError
            If there is no such table.
        """
        try:
            status = os.stat(f"{self.path(name)}/schema")
        except FileNotFoundError:
            raise UnknownNameError.of("table", name, self.list()) from None
        stamp = (status.st_ino, status.st_mtime_ns)  # another schema: another handle
        cached = self._handles.get(name)
        if cached is not None and cached[0] == stamp:
            return cached[1]
        handle = self.catalog.get_table(self._identifier(name)).copy(_READ_OPTIONS)
        self._handles[name] = (stamp, handle)
        return handle

    def schema(self, name: str) -> pa.Schema:
        """The Arrow schema of a table."""
        from pypaimon.schema.data_types import PyarrowFieldParser

        return PyarrowFieldParser.from_paimon_schema(self.table(name).fields)

    def properties(self, name: str) -> dict[str, str]:
        """What ``set_properties`` stored with the table, keys without their common prefix."""
        options = self.table(name).table_schema.options
        return {
            key.removeprefix(PROPERTY_PREFIX): value
            for key, value in options.items()
            if key.startswith(PROPERTY_PREFIX)
        }

    def set_properties(self, name: str, properties: Mapping[str, str | None]) -> None:
        """Store texts with the table, as options ``paimon-features.<key>``; None removes one."""
        from pypaimon.schema.schema_change import SchemaChange

        changes = [
            SchemaChange.remove_option(PROPERTY_PREFIX + key)
            if value is None
            else SchemaChange.set_option(PROPERTY_PREFIX + key, value)
            for key, value in properties.items()
        ]
        with locked(self.lock_path(name), f"setting properties of table {name!r}"):
            self.catalog.alter_table(self._identifier(name), changes)
        self._handles.pop(name, None)

    def _identifier(self, name: str) -> str:
        return f"{self.database}.{name}"


def _same_type(got: pa.DataType, expected: pa.DataType) -> bool:
    if pa.types.is_list(got) and pa.types.is_list(expected):
        return _same_type(got.value_type, expected.value_type)
    return bool(got == expected)


def _differences(actual: pa.Schema, table: Any, spec: TableSpec) -> list[str]:
    found: dict[str, pa.DataType] = {f.name: f.type for f in actual}
    wanted: dict[str, pa.DataType] = {f.name: f.type for f in arrow_schema(spec)}
    texts = [f"column {n!r} is missing" for n in wanted if n not in found]
    texts += [f"column {n!r} is not declared" for n in found if n not in wanted]
    texts += [
        f"column {n!r} is {found[n]}, expected {wanted[n]}"
        for n in wanted
        if n in found and not _same_type(found[n], wanted[n])
    ]
    if not texts and list(found) != list(wanted):
        texts.append(f"columns are in the order {', '.join(found)}")
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
