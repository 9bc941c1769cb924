"""The lake: a warehouse with one database that contains all tables of a project."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from paimon_features.core.errors import (
    StorageWriteError,
    TableError,
    UnknownNameError,
)
from paimon_features.core.extras import require
from paimon_features.core.process.light_imports import before_pypaimon
from paimon_features.lake.ddl import paimon_schema, paimon_schema_like
from paimon_features.lake.metadata.live_cache import LiveCache
from paimon_features.lake.metadata.table_history import record_drop
from paimon_features.lake.metadata_damage import metadata_damage
from paimon_features.lake.ownership.commit_lock import commit_lock
from paimon_features.lake.ownership.locks import locked
from paimon_features.lake.schema_checks import (
    check_columns,
    check_matches,
    check_schema,
    record_checksum,
)
from paimon_features.lake.side_folder import format_version
from paimon_features.lake.specs import TABLE_OPTIONS, TableSpec
from paimon_features.lake.storage import LocalStorage, RemoteStorage, Storage
from paimon_features.lake.storage.filesystems import check_warehouse
from paimon_features.lake.storage.object_path import ObjectPath, SidePath
from paimon_features.lake.storage.opening import open_remote, remote_catalog
from paimon_features.lake.storage.rest_catalog import RestCatalog, RestTables, attach
from paimon_features.lake.storage.write_errors import write_errors
from paimon_features.lake.table_folders import SIDE_FOLDER, delete_caches, lock_path, schema_ids
from paimon_features.lake.writing.checksums import write_checksums

_READ_OPTIONS = {
    "read.batch-size": "65536",
    "read.native.enabled": "true",
    "scan.native-plan.enabled": "true",
    "write.native.enabled": "true",
    # only tables of a REST catalog are committed natively, and to find that out pypaimon resolves
    # the path of every file of a commit: 0.4 ms each
    "commit.native.enabled": "false",
}
"""Set on each table handle, never stored: they configure this process, not the table."""

_NO_RETRIES = {"commit.max-retries": "0"}
"""A commit that another one has preceded is not repeated (see ``commit_guard``)."""
_REMOTE_OPTIONS = {
    **{name: "false" for name in _READ_OPTIONS if name.endswith("enabled")},
    **_NO_RETRIES,
}
"""For remote warehouses: the native routes use other file systems and settings."""


class Lake:
    """The tables of one database in one warehouse: a folder, or a URI of S3, OSS or HDFS.

    Opening is cheap (pypaimon, whose import takes two seconds, is loaded with the first table).
    Safe to use from several threads and processes.

    Leases, commit locks and generation records are inside the warehouse, in ``_paimon_features``:
    files with file locks in a folder, objects of conditional puts in an object store (S3, OSS). Any
    other remote warehouse can be read without them; writing to it requires a folder for them that
    all writers share (``side_folder``).
    """

    def __init__(
        self,
        warehouse: str | Path,
        database: str,
        storage: Storage | None = None,
        side_folder: Path | None = None,
        rest: RestCatalog | None = None,
    ) -> None:
        self.warehouse = str(warehouse)
        self.database = database
        self.storage = storage or LocalStorage()
        self.rest = rest
        self._side_folder = side_folder
        self._handles: dict[str, tuple[Hashable, Any]] = {}
        self.live_cache = LiveCache()

    def __repr__(self) -> str:
        return f"Lake({self.warehouse!r}, {self.database!r})"

    def __getstate__(self) -> dict[str, Any]:
        # another process opens its own catalog and tables of pypaimon
        unpicklable = ("catalog", "rest_tables")
        left = {name: value for name, value in self.__dict__.items() if name not in unpicklable}
        return {**left, "_handles": {}}

    @classmethod
    def open(
        cls,
        warehouse: str | Path,
        database: str,
        *,
        options: Mapping[str, str] | None = None,
        filesystem: Any = None,
        side_folder: str | Path | None = None,
        rest: RestCatalog | None = None,
    ) -> Lake:
        """Open a warehouse; create the database if it does not exist (in a REST catalog, with its
        first table).

        Parameters
        ----------
        warehouse
            A path or a ``file:`` URI; or a URI with ``s3:``, ``oss:`` or ``hdfs:``.
        options
            Endpoint, credentials and other options of a remote warehouse
            (``docs/reference/warehouse.md``); they override the environment.
        filesystem
            A file system of pyarrow or fsspec to use instead, for any other URI.
        side_folder
            A folder for leases, locks and records in place of the warehouse's own, for a remote
            warehouse without conditional puts; all writers must use the same one.

        Raises
        ------
        ConfigurationError
            For an invalid URI, option or credentials, or a bucket that does not exist.
        TableError
            If the object store is unreachable, or a later release has changed the records of the
            side folder.
        MissingExtraError
            If pypaimon is not installed.
        """
        require("pypaimon", "lake", "reading and writing the lake")
        text = os.fspath(warehouse)
        parts = urlsplit(text)
        if filesystem is None and parts.scheme in ("", "file"):
            check_warehouse(text, options or {}, side_folder)
            folder = Path(unquote(parts.path) if parts.scheme else text).expanduser().resolve()
            format_version.check(folder / SIDE_FOLDER)
            if rest is None:  # else its server makes the folders of its databases
                (folder / f"{database}.db").mkdir(parents=True, exist_ok=True)
            return cls(folder, database, rest=rest)
        storage = open_remote(text, options or {}, filesystem)
        address = text.rstrip("/")
        if rest is None and not storage.is_folder(f"{address}/{database}.db"):
            storage.make_folder(f"{address}/{database}.db")
        side = None if side_folder is None else Path(side_folder).expanduser().resolve()
        if side is not None:
            format_version.check(side)
        return cls(address, database, storage, side, rest)

    def of_database(self, database: str) -> Lake:
        """Return the same warehouse with another database, which exists."""
        return Lake(self.warehouse, database, self.storage, self._side_folder, self.rest)

    @cached_property
    def catalog(self) -> Any:
        """pypaimon's catalog of the warehouse."""
        before_pypaimon()
        from pypaimon import CatalogFactory

        if isinstance(self.storage, RemoteStorage):
            return remote_catalog(self.warehouse, self.storage)
        return CatalogFactory.create({"warehouse": self.warehouse})

    @cached_property
    def rest_tables(self) -> RestTables | None:
        """The requests to the REST catalog, None without one; opens it."""
        return None if self.rest is None else RestTables(self.rest, self.database)

    def _opened_rest(self) -> RestTables:
        assert self.rest_tables is not None
        return self.rest_tables

    @property
    def local_side_folder(self) -> Path | None:
        """The side folder; None if it is in an object store, or missing."""
        return self._side_folder if self.storage.is_remote else Path(self.warehouse) / SIDE_FOLDER

    @property
    def side_folder(self) -> SidePath:
        """The folder of leases, generation records and locks, next to the databases.

        Raises
        ------
        TableError
            For a remote warehouse that has no conditional puts and was opened without one: it is
            read-only.
        """
        if self.local_side_folder is not None:
            return self.local_side_folder
        if isinstance(self.storage, RemoteStorage) and self.storage.conditional is not None:
            return ObjectPath(self.storage.conditional, SIDE_FOLDER)
        raise TableError(
            f"warehouse {self.warehouse!r} is read-only: commits and leases require file "
            "locks or conditional puts, which it does not support. "
            "Lake.open(..., side_folder=PATH) sets a folder "
            "for them, which all writers to this warehouse must share"
        )

    def path(self, name: str) -> str:
        """Return the path of a table, which need not exist."""
        return f"{self.warehouse}/{self.database}.db/{name}"

    def exists(self, name: str) -> bool:
        """Return True if there is a table of this name: one that is being created is none yet.

        With snapshots and without a schema it is a damaged one.
        """
        return bool(schema_ids(self, name)) or all(
            self.storage.is_folder(f"{self.path(name)}/{folder}")
            for folder in ("schema", "snapshot")
        )

    def list(self) -> list[str]:
        """Return the names of all tables, sorted."""
        names = self.storage.names(f"{self.warehouse}/{self.database}.db")
        return sorted(name for name in names if self.exists(name))

    def create(self, spec: TableSpec, ignore_existing: bool = True) -> None:
        """Create the table; if it exists, verify that it matches the spec.

        Raises
        ------
        TableError
            If it exists and ``ignore_existing`` is false, or differs in columns, keys,
            partitions, buckets or merge functions; the message lists the differences.
        """
        with locked(lock_path(self, spec.name), f"creating table {spec.name!r}"):
            if not self.exists(spec.name):
                self._create(spec.name, paimon_schema(spec))
                return
        if not ignore_existing:
            raise TableError(f"table {spec.name!r} already exists in {self.path(spec.name)}")
        check_matches(spec, self.schema(spec.name), self.table(spec.name))

    def create_like(
        self, name: str, schema: pa.Schema, options: Mapping[str, str] | None = None
    ) -> None:
        """Create an append table with the columns of an Arrow schema, nested lists included.

        Raises
        ------
        TableError
            If it exists with other columns or with a primary key.
        """
        with locked(lock_path(self, name), f"creating table {name!r}"):
            if not self.exists(name):
                table_schema = paimon_schema_like(schema, {**TABLE_OPTIONS, **(options or {})})
                self._create(name, table_schema)
                return
        check_columns(name, schema, self.schema(name), self.table(name))

    def _create(self, name: str, schema: Any) -> None:
        try:
            with write_errors(f"table {name!r} cannot be created"):
                if self.rest_tables is None:
                    self.catalog.create_table(self._identifier(name), schema, False)
                else:
                    self.rest_tables.create(name, schema, self.path(name))
        except StorageWriteError:
            self.storage.delete_folder(self.path(name))  # a folder without a schema is no table
            raise
        record_checksum(self, name)

    def drop(self, name: str, *, how: str | None = "dropped") -> None:
        """Delete a table with all its data; does nothing if it does not exist.

        Its snapshots are recorded as removed, so that a table of the same name is never taken for
        this one: errors say that it was ``how``. None is for names that are never used again.
        """
        self._handles.pop(name, None)
        with commit_lock(self, name, f"dropping table {name!r}"):
            if how is not None and self.exists(name):
                record_drop(self, name, how)
            if self.rest_tables is not None:
                self.rest_tables.drop(name)
            # first what refers to all else: what is left of an interrupted drop is an empty table,
            # and one that is created in its place has none of its snapshots
            self.storage.delete_folder(f"{self.path(name)}/snapshot")
            self.storage.delete_folder(self.path(name))
        delete_caches(self, name)

    def table(self, name: str) -> Any:
        """Return the pypaimon table, with native routes and large batches enabled.

        Raises
        ------
        UnknownNameError
            If the table does not exist.
        """
        try:
            # a new schema needs a new handle
            stamp = self.storage.stamp(f"{self.path(name)}/schema")
        except FileNotFoundError:
            raise UnknownNameError.of("table", name, self.list()) from None
        cached = self._handles.get(name)
        if cached is not None and cached[0] == stamp:
            return cached[1]
        options = _READ_OPTIONS | (_REMOTE_OPTIONS if self.storage.is_remote else {})
        with metadata_damage(f"a schema in {self.path(name)}/schema", f"table {name!r}"):
            handle = self._opened(name)
            check_schema(self, name, handle)
        if self.rest is not None:
            options |= _NO_RETRIES
            attach(handle, name, self.path(name), self._opened_rest)
        if not handle.primary_keys:
            options["write.native.enabled"] = "false"  # see ``checksums``
        handle = handle.copy(options)
        write_checksums(handle.file_io)
        self._handles[name] = (stamp, handle)
        return handle

    def _opened(self, name: str) -> Any:
        from pypaimon.catalog.catalog_exception import TableNotExistException

        try:
            return self.catalog.get_table(self._identifier(name))
        except TableNotExistException:  # its folder of schemas is empty
            if not self.exists(name):
                raise UnknownNameError.of("table", name, self.list()) from None
            return self.catalog.get_table(self._identifier(name))  # created since, or damaged

    def schema(self, name: str) -> pa.Schema:
        """Return the Arrow schema of a table."""
        from pypaimon.schema.data_types import PyarrowFieldParser

        fields = self.table(name).fields
        with metadata_damage(f"a schema in {self.path(name)}/schema", f"table {name!r}"):
            return PyarrowFieldParser.from_paimon_schema(fields)

    def set_options(self, name: str, options: Mapping[str, str | None]) -> None:
        """Set options of a table; None removes one."""
        from pypaimon.schema.schema_change import SchemaChange

        changes = [
            SchemaChange.remove_option(key)
            if value is None
            else SchemaChange.set_option(key, value)
            for key, value in options.items()
        ]
        with commit_lock(self, name, f"setting options of table {name!r}"):
            if self.rest_tables is None:
                self.catalog.alter_table(self._identifier(name), changes)
            else:
                self.rest_tables.alter(name, changes)
            record_checksum(self, name)
        self._handles.pop(name, None)

    def _identifier(self, name: str) -> str:
        return f"{self.database}.{name}"
