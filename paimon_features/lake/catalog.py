"""The lake: a warehouse with one database that contains all tables of a project."""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from paimon_features.core.documents.checksummed_json import add_checksum, stored_document
from paimon_features.core.documents.typed_json import mapping
from paimon_features.core.errors import (
    ConfigurationError,
    RecordLostError,
    StorageWriteError,
    TableError,
    UnknownNameError,
)
from paimon_features.core.extras import require
from paimon_features.core.process.light_imports import before_pypaimon
from paimon_features.core.times.clock import now_ms
from paimon_features.core.times.partition_days import WHOLE_HISTORY
from paimon_features.lake.ddl import arrow_schema, paimon_schema, paimon_schema_like
from paimon_features.lake.metadata.live_cache import LiveCache
from paimon_features.lake.metadata_damage import metadata_damage
from paimon_features.lake.ownership.fence import held
from paimon_features.lake.ownership.locks import locked
from paimon_features.lake.side_folder import format_version, removals
from paimon_features.lake.side_folder.removals import Removal
from paimon_features.lake.specs import PARTITION_DAYS_OPTION, TABLE_OPTIONS, TableSpec
from paimon_features.lake.storage import LocalStorage, RemoteStorage, Storage
from paimon_features.lake.storage.commit_guard import guarding
from paimon_features.lake.storage.filesystems import check_warehouse, paimon_options
from paimon_features.lake.storage.object_path import ObjectPath, SidePath
from paimon_features.lake.storage.opening import open_remote, remote_catalog
from paimon_features.lake.storage.rest_catalog import RestCatalog, RestTables, attach
from paimon_features.lake.storage.write_errors import write_errors
from paimon_features.lake.writing.checksums import write_checksums

SIDE_FOLDER = "_paimon_features"
PROPERTY_PREFIX = "paimon-features."
_SNAPSHOT_FILE = re.compile(r"snapshot-(\d+)")
SCHEMA_FILE = re.compile(r"schema-(\d+)")

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

_DEFAULT = "default-aggregate-function"
_FIXED_OPTIONS = ("bucket", "bucket-key", "merge-engine", "changelog-producer")


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
    def side_folder(self) -> SidePath:
        """The folder of leases, generation records and locks, next to the databases.

        Raises
        ------
        TableError
            For a remote warehouse that has no conditional puts and was opened without one: it is
            read-only.
        """
        if not self.storage.is_remote:
            return Path(self.warehouse) / SIDE_FOLDER
        if self._side_folder is not None:
            return self._side_folder
        if isinstance(self.storage, RemoteStorage) and self.storage.conditional is not None:
            return ObjectPath(self.storage.conditional, SIDE_FOLDER)
        raise TableError(
            f"warehouse {self.warehouse!r} is read-only: commits and leases require file "
            "locks or conditional puts, which it does not support. "
            "Lake.open(..., side_folder=PATH) sets a folder "
            "for them, which all writers to this warehouse must share"
        )

    def flink_options(self) -> dict[str, str]:
        """Return the options of Paimon's catalog in Flink; keys are among them.

        Raises
        ------
        ConfigurationError
            For a warehouse that Flink cannot open.
        """
        catalog = {"warehouse": self.warehouse} if self.rest is None else self.rest.options()
        if not isinstance(self.storage, RemoteStorage):
            return catalog
        if self.storage.settings is None:
            raise ConfigurationError(
                f"Flink cannot open the warehouse {self.warehouse!r} through the file system of "
                "Python that was given for it: open it by its address and options"
            )
        return {**catalog, **paimon_options(self.warehouse, self.storage.settings)}

    def path(self, name: str) -> str:
        """Return the path of a table, which need not exist."""
        return f"{self.warehouse}/{self.database}.db/{name}"

    def exists(self, name: str) -> bool:
        """Return True if there is a table of this name: one that is being created is none yet.

        With snapshots and without a schema it is a damaged one.
        """
        path = self.path(name)
        return any(map(SCHEMA_FILE.fullmatch, self.storage.names(f"{path}/schema"))) or all(
            self.storage.is_folder(f"{path}/{folder}") for folder in ("schema", "snapshot")
        )

    def list(self) -> list[str]:
        """Return the names of all tables, sorted."""
        names = self.storage.names(f"{self.warehouse}/{self.database}.db")
        return sorted(name for name in names if self.exists(name))

    def lock_path(self, name: str) -> SidePath:
        """Return the lock file for Python's commits to a table."""
        return self.side_folder / "locks" / f"{self.database}.{name}.lock"

    def lease_folder(self, name: str) -> SidePath:
        """Return the folder of a table's lease."""
        return self.side_folder / "leases" / f"{self.database}.{name}"

    def lease_key(self, name: str) -> str:
        """Return the address of the folder of a table's lease."""
        return str(self.lease_folder(name))

    @contextmanager
    def committing(self, name: str, what: str) -> Iterator[Callable[[], None]]:
        """Hold the commit lock of a table inside the ``with`` block.

        Yields a function to call immediately before the change becomes visible: where this process
        has acquired the table's lease, it checks that nobody has taken it over since, for
        example because the process was paused. Nobody can do that while the lock is held.

        Raises
        ------
        LeaseLostError
            If the lease was taken over; also from the function.
        TableError
            If another process holds the lock for longer than 60 s.
        """
        with locked(self.lock_path(name), what) as check_lock, self._guarded(name):
            fence = held.fence(self.lease_key(name))

            def check() -> None:
                check_lock()
                if fence is not None:
                    fence.check()

            if fence is not None:
                fence.check()
            yield check

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """Where a lock can be taken over, or another one's commit cannot be overwritten, let no
        commit follow a snapshot of somebody else."""
        if self.rest is None and not isinstance(self.side_folder, ObjectPath):
            yield
            return
        with guarding(self.path(name), max(self.snapshot_ids(name), default=0)):
            yield

    def snapshot_ids(self, name: str) -> tuple[int, ...]:
        """Return the numbers of the snapshots in a table's folder, ascending; none for an unknown
        table.

        Those of an object store include what was committed after a listing that the store repeats:
        such a listing would let a writer commit again what it has committed.
        """
        folder = f"{self.path(name)}/snapshot"
        entries = self.storage.names(folder)
        ids = sorted(int(match[1]) for match in map(_SNAPSHOT_FILE.fullmatch, entries) if match)
        if self.storage.is_remote:
            following = ids[-1] + 1 if ids else 1
            while self.storage.is_file(f"{folder}/snapshot-{following}"):
                ids.append(following)
                following += 1
        return tuple(ids)

    def commit_mark(self, name: str) -> int | None:
        """Return a number that changes with each commit: when the snapshot folder changed, in ns.

        None for an unknown table and a remote warehouse.
        """
        if self.storage.is_remote:
            return None
        try:
            return os.stat(f"{self.path(name)}/snapshot").st_mtime_ns
        except FileNotFoundError:
            return None

    def rollup_folder(self, name: str) -> Path | None:
        """Return the folder of a table's rollups (see ``rollups``), which need not exist.

        None in an object store, which has none.
        """
        if self.storage.is_remote and self._side_folder is None:
            return None
        folder = self.side_folder / "rollups" / f"{self.database}.{name}"
        return folder if isinstance(folder, Path) else None

    def merge_folder(self, name: str) -> Path | None:
        """Return the cache folder for merged keys of a table; can be deleted at any time.

        None for a remote warehouse that was opened without a side folder.
        """
        if self.storage.is_remote and self._side_folder is None:
            return None
        folder = self.side_folder / "merges" / f"{self.database}.{name}"
        return folder if isinstance(folder, Path) else None

    def create(self, spec: TableSpec, ignore_existing: bool = True) -> None:
        """Create the table; if it exists, verify that it matches the spec.

        Raises
        ------
        TableError
            If it exists and ``ignore_existing`` is false, or differs in columns, keys,
            partitions, buckets or merge functions; the message lists the differences.
        """
        with locked(self.lock_path(spec.name), f"creating table {spec.name!r}"):
            if not self.exists(spec.name):
                self._create(spec.name, paimon_schema(spec))
                return
        if not ignore_existing:
            raise TableError(f"table {spec.name!r} already exists in {self.path(spec.name)}")
        differences = _differences(self.schema(spec.name), self.table(spec.name), spec)
        if differences:
            raise TableError(
                f"table {spec.name!r} exists with a different definition: "
                f"{'; '.join(differences)}. "
                "Use another name (for a feature view, a new generation), or drop the table"
            )

    def create_like(
        self, name: str, schema: pa.Schema, options: Mapping[str, str] | None = None
    ) -> None:
        """Create an append table with the columns of an Arrow schema, nested lists included.

        Raises
        ------
        TableError
            If it exists with other columns or with a primary key.
        """
        with locked(self.lock_path(name), f"creating table {name!r}"):
            if not self.exists(name):
                table_schema = paimon_schema_like(schema, {**TABLE_OPTIONS, **(options or {})})
                self._create(name, table_schema)
                return
        columns = {field.name: field.type for field in self.schema(name)}
        same = list(columns) == schema.names and all(
            _same_type(columns[field.name], field.type) for field in schema
        )
        if not same or self.table(name).primary_keys:
            raise TableError(
                f"table {name!r} exists with a different definition: its columns are "
                f"{', '.join(f'{n} {t}' for n, t in columns.items())}; expected "
                f"{', '.join(f'{f.name} {f.type}' for f in schema)} and no primary key"
            )

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
        self._record_schema(name)

    def drop(self, name: str, *, how: str | None = "dropped") -> None:
        """Delete a table with all its data; does nothing if it does not exist.

        Its snapshots are recorded as removed, so that a table of the same name is never taken for
        this one: errors say that it was ``how``. None is for names that are never used again.
        """
        self._handles.pop(name, None)
        rollups, merges = self.rollup_folder(name), self.merge_folder(name)
        with self.committing(name, f"dropping table {name!r}"):
            if how is not None and self.exists(name):
                self._record_drop(name, how)
            if self.rest_tables is not None:
                self.rest_tables.drop(name)
            # first what refers to all else: what is left of an interrupted drop is an empty table,
            # and one that is created in its place has none of its snapshots
            self.storage.delete_folder(f"{self.path(name)}/snapshot")
            self.storage.delete_folder(self.path(name))
        for folder in (rollups, merges):
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def created_ms(self, name: str) -> int:
        """Return when the table was created, UTC ms: a table that was created again has another
        time.

        Raises
        ------
        UnknownNameError
            If the table does not exist.
        """
        try:
            return self._time_of(f"{self.path(name)}/schema/schema-0")
        except FileNotFoundError:
            raise UnknownNameError.of("table", name, self.list()) from None

    def removals(self, name: str) -> tuple[Removal, ...]:
        """Return what was removed from the history of the tables of this name, oldest first.

        Raises
        ------
        RecordLostError
            If something was removed, and the record of it does not exist.
        """
        path = self._removals_path(name)
        recorded = removals.load(self.storage, path)
        marked = self._removals_marked(name)
        if len(recorded) < marked:
            recorded = removals.load(self.storage, path)  # it may have been written in between
        if len(recorded) < marked:
            problem = f"is older than the tables ({len(recorded)} of {marked} removals)"
            raise RecordLostError(
                f"table {name!r}: its record {path} "
                f"{problem if recorded else 'does not exist, but was written before'}. It "
                "contained which snapshots of the table were removed, so an earlier time or a "
                "snapshot's number could be read from another table. Restore it from the same "
                "backup as the tables, or, if nobody reads the past before now, accept the loss by "
                "'paimon-features check records --accept-loss'"
            )
        return recorded

    def history_mark(self, name: str) -> str:
        """Return a mark that readers store with a snapshot's number to resume; see ``continues``.

        Raises
        ------
        UnknownNameError
            If the table does not exist.
        """
        return f"{self.created_ms(name)}.{len(self.removals(name))}"

    def continues(self, name: str, mark: str, snapshot_id: int) -> bool:
        """Return True if the table still has the history that it had up to a snapshot, expired or
        not.

        It has not if the table was created again since the mark was taken, or rolled back to
        before that snapshot.
        """
        created_ms, _, removal_count = mark.partition(".")
        if not self.exists(name) or self.created_ms(name) != int(created_ms):
            return False
        return not any(r.reuses(snapshot_id) for r in self.removals(name)[int(removal_count) :])

    def record_removal(self, name: str, removal: Removal) -> None:
        """Record that snapshots are removed, before they are. The caller holds the table's lock."""
        self.removals(name)  # must not begin a record again that was lost
        removals.append(self.storage, self._removals_path(name), removal)
        # the record first and its mark second: a crash in between loses nothing
        content = {"record": "removals", "name": name, "accepted": False}
        content["serial"] = len(self.removals(name))
        path = self._removals_mark(name)
        self.storage.write_json(path, add_checksum(content, path.rpartition("/")[2]))

    def _record_schema(self, name: str) -> None:
        """Store the CRC32 of the newest schema with the table, which moves and goes with it."""
        folder = f"{self.path(name)}/schema"
        matches = (SCHEMA_FILE.fullmatch(entry) for entry in self.storage.names(folder))
        newest = max(int(match[1]) for match in matches if match)
        path = self._schemas_path(name)
        checksums = self._schema_sums(name) if self.storage.is_file(path) else {}
        text = self.storage.read_text(f"{folder}/schema-{newest}")
        self.storage.write_json(path, {**checksums, str(newest): zlib.crc32(text.encode())})

    def _check_schema(self, name: str, table: Any) -> None:
        """Raise ValueError if the schema is not what was written, as far as that is known.

        Schemas that Flink wrote have no CRC32.
        """
        _check_options(table)
        try:
            checksums = self._schema_sums(name)
        except FileNotFoundError:
            return
        number = table.table_schema.id
        text = self.storage.read_text(f"{self.path(name)}/schema/schema-{number}")
        if zlib.crc32(text.encode()) != checksums.get(str(number), zlib.crc32(text.encode())):
            raise ValueError(f"schema-{number} does not match its CRC32")

    def _schema_sums(self, name: str) -> dict[str, int]:
        """Return the CRC32 of each schema that was written here, by number."""
        path = self._schemas_path(name)
        with metadata_damage(path, f"table {name!r}"):
            sums = dict(mapping(json.loads(self.storage.read_text(path))))
            if not all(number.isdigit() and type(crc) is int for number, crc in sums.items()):
                raise ValueError("expected a CRC32 by number of the schema")
            return sums

    def _schemas_path(self, name: str) -> str:
        return f"{self.path(name)}/{SIDE_FOLDER}/schemas.json"

    def _removals_path(self, name: str) -> str:
        return f"{self.warehouse}/{SIDE_FOLDER}/removals/{self.database}.{name}.json"

    def _removals_mark(self, name: str) -> str:
        # not in the table's folder: it survives the table
        return f"{self.path(SIDE_FOLDER)}/removals-of.{name}.json"

    def _removals_marked(self, name: str) -> int:
        """Return how much was removed at least; 0 if the loss of its record was accepted since."""
        path = self._removals_mark(name)
        mark = stored_document(self.storage, path)
        if mark is None:
            return 0
        with metadata_damage(path, f"table {name!r}"):
            content = mapping(mark.value, "record")
            accepted = content.get("accepted", False)
            if type(accepted) is not bool or content["record"] != "removals":
                raise ValueError("it is no mark of removals")
            return 0 if accepted else int(content.get("serial", 1))

    def _time_of(self, file: str) -> int:
        """Return the time in a schema or snapshot file, UTC ms."""
        with metadata_damage(file, f"database {self.database!r}"):
            return int(json.loads(self.storage.read_text(file))["timeMillis"])

    def _record_drop(self, name: str, how: str) -> None:
        ids = self.snapshot_ids(name)
        if ids:
            # before the first commit, whose time is known unless it has expired, nothing was there
            first = "snapshot/snapshot-1" if min(ids) == 1 else "schema/schema-0"
            from_ms = self._time_of(f"{self.path(name)}/{first}")
            self.record_removal(name, Removal(how, from_ms, now_ms(), 1, max(ids)))

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
        routes = _REMOTE_OPTIONS if self.storage.is_remote else {}
        options = {**_READ_OPTIONS, **routes}
        with metadata_damage(f"a schema in {self.path(name)}/schema", f"table {name!r}"):
            handle = self._opened(name)
            self._check_schema(name, handle)
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

    def properties(self, name: str) -> dict[str, str]:
        """Return the properties stored by ``set_properties``, keys without their common prefix."""
        options = self.table(name).table_schema.options
        return {
            key.removeprefix(PROPERTY_PREFIX): value
            for key, value in options.items()
            if key.startswith(PROPERTY_PREFIX)
        }

    def set_properties(self, name: str, properties: Mapping[str, str | None]) -> None:
        """Store strings with the table, as options ``paimon-features.<key>``; None removes one."""
        from pypaimon.schema.schema_change import SchemaChange

        changes = [
            SchemaChange.remove_option(PROPERTY_PREFIX + key)
            if value is None
            else SchemaChange.set_option(PROPERTY_PREFIX + key, value)
            for key, value in properties.items()
        ]
        with self.committing(name, f"setting properties of table {name!r}"):
            if self.rest_tables is None:
                self.catalog.alter_table(self._identifier(name), changes)
            else:
                self.rest_tables.alter(name, changes)
            self._record_schema(name)
        self._handles.pop(name, None)

    def partition_days(self, name: str) -> int:
        """Return how many days a partition of a table of events or tiles contains.

        Older partitions of a table of events may contain fewer.

        Raises
        ------
        UnknownNameError
            If the table does not exist.
        DamagedFileError
            If its option is no number of days.
        """
        return self.defined_partition_days(name) or 1

    def defined_partition_days(self, name: str) -> int | None:
        """``partition_days``, None for a table for which they were not set."""
        text = self.table(name).table_schema.options.get(PARTITION_DAYS_OPTION)
        if text is None:
            return None
        with metadata_damage(f"a schema in {self.path(name)}/schema", f"table {name!r}"):
            days = int(text)
            if not 1 <= days <= WHOLE_HISTORY:
                raise ValueError(f"option {PARTITION_DAYS_OPTION!r} is {text}")
            return days

    def set_partition_days(self, name: str, days: int) -> None:
        """Let partitions that are written from now on contain this number of days.

        Only for a table without rows; or, for more days than before, for a table of events: the
        partitions that it has remain, and are within one of the new ones each.
        """
        key = PARTITION_DAYS_OPTION.removeprefix(PROPERTY_PREFIX)
        self.set_properties(name, {key: str(days)})

    def _identifier(self, name: str) -> str:
        return f"{self.database}.{name}"


_OUTSIDE = re.compile(
    r"(commit|tag)\.callbacks?\b|commit\.custom-listeners|partition\.mark-done-action"
    r"|data-file\.(external-paths|path-directory)|global-index\.external-path|blob-external"
    r"|object-location|.*(\.class|-impl|\.impl)$"
)
"""Options of Paimon by which a table names classes that Flink builds, or other folders."""


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
            raise ValueError(
                f"option {option!r} names an unknown column; available: {', '.join(names)}"
            )
    aggregates = any(option.endswith(".aggregate-function") for option in options)
    if aggregates and options.get("merge-engine") not in ("aggregation", "partial-update"):
        raise ValueError(f"it has aggregate functions, but merges by {options.get('merge-engine')}")
    for column in (*table.primary_keys, *table.partition_keys):
        if column not in names:
            raise ValueError(f"key: unknown column {column!r}; available: {', '.join(names)}")


def _same_type(got: pa.DataType, expected: pa.DataType) -> bool:
    if pa.types.is_list(got) and pa.types.is_list(expected):
        return _same_type(got.value_type, expected.value_type)
    return bool(got == expected)


def _differences(actual: pa.Schema, table: Any, spec: TableSpec) -> list[str]:
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
