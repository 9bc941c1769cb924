"""Where the files of a table are: its folder in the warehouse, locks, leases and caches."""

from __future__ import annotations

import builtins
import os
import re
import shutil
from pathlib import Path
from typing import Protocol

from paimon_features.lake.storage import Storage
from paimon_features.lake.storage.object_path import SidePath
from paimon_features.lake.storage.rest_catalog import RestCatalog

SIDE_FOLDER = "_paimon_features"
_SNAPSHOT_FILE = re.compile(r"snapshot-(\d+)")
_SCHEMA_FILE = re.compile(r"schema-(\d+)")


class TableFolders(Protocol):
    """The part of ``Lake`` that says where its tables are."""

    warehouse: str
    database: str
    storage: Storage
    rest: RestCatalog | None

    @property
    def side_folder(self) -> SidePath: ...

    @property
    def local_side_folder(self) -> Path | None: ...

    def path(self, name: str) -> str: ...

    def exists(self, name: str) -> bool: ...

    def list(self) -> builtins.list[str]: ...


def schema_ids(lake: TableFolders, name: str) -> list[int]:
    """Return the ids of the schemas in a table's folder, ascending; none for an unknown table."""
    entries = lake.storage.names(f"{lake.path(name)}/schema")
    return sorted(int(match[1]) for match in map(_SCHEMA_FILE.fullmatch, entries) if match)


def stored_snapshot_ids(lake: TableFolders, name: str) -> list[int]:
    """Return the ids of the snapshots in a table's folder, ascending; none for an unknown table.

    Those of an object store include what was committed after a listing that the store repeats:
    such a listing would let a writer commit again what it has committed.
    """
    folder = f"{lake.path(name)}/snapshot"
    entries = lake.storage.names(folder)
    ids = sorted(int(match[1]) for match in map(_SNAPSHOT_FILE.fullmatch, entries) if match)
    if lake.storage.is_remote:
        following = ids[-1] + 1 if ids else 1
        while lake.storage.is_file(f"{folder}/snapshot-{following}"):
            ids.append(following)
            following += 1
    return ids


def commit_mark(lake: TableFolders, name: str) -> int | None:
    """Return a number that changes with each commit: when the snapshot folder changed, in ns.

    None for an unknown table and a remote warehouse.
    """
    if lake.storage.is_remote:
        return None
    try:
        return os.stat(f"{lake.path(name)}/snapshot").st_mtime_ns
    except FileNotFoundError:
        return None


def lock_path(lake: TableFolders, name: str) -> SidePath:
    """Return the lock file for Python's commits to a table."""
    return lake.side_folder / "locks" / f"{lake.database}.{name}.lock"


def lease_folder(lake: TableFolders, name: str) -> SidePath:
    """Return the folder of a table's lease."""
    return lake.side_folder / "leases" / f"{lake.database}.{name}"


def rollup_folder(lake: TableFolders, name: str) -> Path | None:
    """Return the folder of a table's rollups (see ``rollups``), which need not exist.

    None in an object store, which has none.
    """
    side_folder = lake.local_side_folder
    return None if side_folder is None else side_folder / "rollups" / f"{lake.database}.{name}"


def merge_folder(lake: TableFolders, name: str) -> Path | None:
    """Return the cache folder for merged keys of a table; can be deleted at any time.

    None for a remote warehouse that was opened without a side folder.
    """
    side_folder = lake.local_side_folder
    return None if side_folder is None else side_folder / "merges" / f"{lake.database}.{name}"


def delete_caches(lake: TableFolders, name: str) -> None:
    """Delete the rollups and merged keys of a table."""
    for folder in (rollup_folder(lake, name), merge_folder(lake, name)):
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
