"""Sources of a data frame: Parquet files, or a snapshot of a table."""

from __future__ import annotations

import fnmatch
import glob
import logging
import os
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from paimon_features.core.errors import ConfigurationError, TableError
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.snapshots import SnapshotRef
from paimon_features.lake.storage.filesystems import SCHEMES, make_filesystem, settings
from paimon_features.lake.storage.remote import place_in
from paimon_features.lake.storage.retries import Retries
from paimon_features.lake.table_folders import merge_folder
from trainer_bridge.blocks.open_layout import read_layout
from trainer_bridge.readers.pins import pinned_snapshot

LOG = logging.getLogger(__name__)

Files = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


class Source(Protocol):
    """A source of rows, read in pieces."""

    name: str
    schema: pa.Schema

    def __len__(self) -> int:
        """Return the number of pieces."""

    def read(
        self, piece: int, schema: pa.Schema, optional: Collection[str] = ()
    ) -> pa.Table | None:
        """Read these columns of a piece; None if it is skipped as damaged.

        An optional column that the piece does not have is filled with nulls.
        """


class ParquetSource:
    """The row groups of Parquet files, in the order of the files.

    ``schema`` has the columns of all files, each with its type in the first file that has it.
    ``skipped`` counts the damaged row groups that were skipped.

    Raises
    ------
    ConfigurationError
        If there is no matching file.
    TableError
        If a file is damaged, or its types differ from those of the first file.
    """

    def __init__(
        self,
        files: Files,
        *,
        filesystem: pafs.FileSystem | None = None,
        skip_corrupted_data: bool = False,
    ) -> None:
        self._filesystem, self._paths = _resolved(files, filesystem)
        self._skip = skip_corrupted_data
        self.skipped = 0
        self.name = self._paths[0] if len(self._paths) == 1 else f"{self._paths[0]}, ..."
        columns: dict[str, pa.Field] = {}
        self._groups: list[tuple[str, int]] = []
        for path in self._paths:
            try:
                with self._open(path) as file:
                    for column in file.schema_arrow.remove_metadata():
                        columns.setdefault(column.name, column)
                    self._groups += [(path, i) for i in range(file.num_row_groups)]
            except (OSError, pa.ArrowException) as error:
                self._damaged(path, None, error)
        if not columns:
            raise TableError(f"none of the Parquet files can be read: {', '.join(self._paths)}")
        self.schema = pa.schema(columns.values())

    def __len__(self) -> int:
        return len(self._groups)

    def read(
        self, piece: int, schema: pa.Schema, optional: Collection[str] = ()
    ) -> pa.Table | None:
        path, group = self._groups[piece]
        try:
            with self._open(path) as file:
                in_file = file.schema_arrow.names
                missing = [name for name in schema.names if name not in in_file]
                for name in missing:
                    if name not in optional:
                        raise TableError(
                            f"it has no column {name!r}; it has: {', '.join(in_file)}. Read only "
                            "fields that all files have, or declare a default_value for it"
                        )
                names = [name for name in schema.names if name in in_file]
                table = file.read_row_group(group, names, use_threads=False)
                rows = file.metadata.row_group(group).num_rows
            columns = dict(zip(names, table.select(names).columns, strict=True))
            nulls = {name: pa.nulls(rows, schema.field(name).type) for name in missing}
            table = pa.table({**columns, **nulls}).select(schema.names)
            return table if table.schema.equals(schema) else table.cast(schema)
        except (OSError, pa.ArrowException, TableError) as error:
            self._damaged(path, group, error)
            return None

    def _open(self, path: str) -> pq.ParquetFile:
        if isinstance(self._filesystem, pafs.LocalFileSystem):
            return pq.ParquetFile(path, memory_map=True)
        return pq.ParquetFile(path, filesystem=self._filesystem, pre_buffer=True)

    def _damaged(self, path: str, group: int | None, error: Exception) -> None:
        where = f"file {path}" + ("" if group is None else f", row group {group}")
        if not self._skip:
            raise TableError(
                f"{where}: {str(error).strip()}; skip_corrupted_data=True skips such parts"
            ) from error
        self.skipped += 1
        LOG.warning("%s is skipped: %s", where, error)


class LakeSource:
    """The blocks of a table at one snapshot, the latest one by default.

    The snapshot is pinned, and ``where`` filters, as in ``SnapshotReader``.
    """

    def __init__(
        self,
        lake: Lake,
        table: str,
        snapshot_id: SnapshotRef | None = None,
        *,
        tag: str | None = None,
        as_of_ms: int | None = None,
        where: str | None = None,
        block_rows: int = 65_536,
    ) -> None:
        pinned = pinned_snapshot(lake, table, snapshot_id, tag, as_of_ms)
        self.name = table
        self.schema = pa.schema([field.with_nullable(True) for field in lake.schema(table)])
        cache = merge_folder(lake, table)
        self._layout = read_layout(lake, table, pinned.id, block_rows, where=where, cache=cache)
        self.snapshot_id = pinned.id

    def __len__(self) -> int:
        return len(self._layout.blocks)

    def read(self, piece: int, schema: pa.Schema, optional: Collection[str] = ()) -> pa.Table:
        return self._layout.decode(piece, schema)


def _resolved(
    files: Files, filesystem: pafs.FileSystem | None
) -> tuple[pafs.FileSystem, list[str]]:
    """Resolve names, globs, folders or URIs of one store to a file system and paths."""
    given = [files] if isinstance(files, str | os.PathLike) else list(files)
    names = [os.fspath(name) for name in given]
    paths: list[str] = []
    store = filesystem
    opened: dict[str, pafs.FileSystem] = {}
    for name in names:
        own_store, path = _store_of(name, opened) if filesystem is None else (filesystem, name)
        if store is not None and not own_store.equals(store):
            raise ConfigurationError(
                f"{name!r} and {names[0]!r} are in different stores; read one store at a time"
            )
        store = own_store
        paths += _matching(own_store, path)
    if not paths or store is None:
        raise ConfigurationError(f"no Parquet file matches {', '.join(names) or '?'}")
    return store, paths


def _store_of(name: str, opened: dict[str, pafs.FileSystem]) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a name (from the environment, as for tables) and the path.

    ``opened`` keeps the file system of each bucket: names of one bucket share it.
    """
    scheme, colon, _ = name.partition("://")
    if not colon:
        return pafs.LocalFileSystem(), name
    if scheme in SCHEMES:
        bucket = "/".join(name.split("/")[:3])
        if bucket not in opened:
            opened[bucket] = make_filesystem(name, settings(name, {}), Retries().attempts)
        return opened[bucket], place_in(opened[bucket], name)
    try:
        resolved: tuple[pafs.FileSystem, str] = pafs.FileSystem.from_uri(name)
    except (pa.ArrowException, OSError) as error:
        raise ConfigurationError(
            f"{name!r} is not a URI that Arrow reads ({error}); for another file system pass "
            "one of Arrow or fsspec: filesystem="
        ) from error
    return resolved


def _matching(filesystem: pafs.FileSystem, path: str) -> Sequence[str]:
    if any(sign in path for sign in "*?["):
        if isinstance(filesystem, pafs.LocalFileSystem):
            return sorted(glob.glob(path, recursive=True))
        folder = path[: min(path.index(sign) for sign in "*?[" if sign in path)].rpartition("/")[0]
        return _below(filesystem, folder, path)
    info = filesystem.get_file_info(path)
    if info.type == pafs.FileType.Directory:
        return _below(filesystem, path, None)
    return [path] if info.type == pafs.FileType.File else []


def _below(filesystem: pafs.FileSystem, folder: str, pattern: str | None) -> list[str]:
    infos = filesystem.get_file_info(pafs.FileSelector(folder, recursive=True))
    names = [info.path for info in infos if info.type == pafs.FileType.File]
    if pattern is not None:
        return sorted(name for name in names if fnmatch.fnmatch(name, pattern))
    return sorted(name for name in names if name.endswith(".parquet"))


def matched(name: str, known: Collection[str], ignore_case: bool) -> str | None:
    """Return the column that a field refers to."""
    if name in known:
        return name
    lower = [other for other in known if other.lower() == name.lower()]
    return lower[0] if ignore_case and len(lower) == 1 else None
