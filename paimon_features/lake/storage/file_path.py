"""Folders of checkpoints: paths of a file system, or of an object store."""

from __future__ import annotations

import posixpath
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

from paimon_features.core.configuration.project_config import (
    FlinkConfig,
    ProjectConfig,
    find_root,
    read_config,
)
from paimon_features.core.errors import ConfigurationError
from paimon_features.core.installation.jars import need_checkpoint_store, need_jars
from paimon_features.lake.storage.filesystems import checkpoint_store
from paimon_features.lake.storage.opening import open_remote
from paimon_features.lake.storage.remote import RemoteStorage

CHECKPOINTS, SAVEPOINTS = "checkpoints", "savepoints"
"""The folders below ``job_state_folder``."""


@dataclass(frozen=True, slots=True)
class RemotePath:
    """A file or folder of an object store, with the part of ``pathlib.Path`` that is needed.

    A folder exists while an object is below it.
    """

    storage: RemoteStorage = field(compare=False, repr=False)
    address: str

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(self.storage, f"{self.address}/{name}")

    def __str__(self) -> str:
        return self.address

    @property
    def name(self) -> str:
        return posixpath.basename(self.address)

    @property
    def parent(self) -> RemotePath:
        return RemotePath(self.storage, posixpath.dirname(self.address))

    def as_uri(self) -> str:
        return self.address

    def is_dir(self) -> bool:
        return self.storage.is_folder(self.address)

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """Yield what is below this folder and fits, part by part; ``*`` alone lists one level."""
        if "/" not in pattern:
            names = self.storage.names(self.address)
            yield from (self / name for name in names if fnmatchcase(name, pattern))
            return
        parts = pattern.split("/")
        start = len(self.storage.place(self.address)) + 1
        for path in self.storage.sizes(self.address):
            segments = path[start:].split("/")
            if len(segments) == len(parts) and all(map(fnmatchcase, segments, parts)):
                yield self / path[start:]


FilePath = Path | RemotePath


def job_state_folder(state_dir: Path, flink: FlinkConfig) -> FilePath:
    """Return the folder of a project's checkpoints and savepoints: its state folder, or that on S3.

    Raises
    ------
    ConfigurationError, TableError
        If the store is not reachable.
    """
    if flink.checkpoints is None:
        return state_dir
    note_checkpoints(flink)
    return _opened(flink.checkpoints, flink.checkpoint_options)


def note_checkpoints(flink: FlinkConfig) -> None:
    """Note that JVMs that this process starts from now on keep their checkpoints on S3, if so."""
    if flink.checkpoints is not None:
        need_checkpoint_store(checkpoint_store(flink.checkpoints, flink.checkpoint_options))


def note_stores(config: ProjectConfig) -> None:
    """Note what JVMs that this process starts from now on need for a project's warehouse and
    checkpoints."""
    need_jars(config.warehouse)
    note_checkpoints(config.flink)


def note_stores_here() -> None:
    """Call ``note_stores`` for the project of the working folder, if there is one."""
    with suppress(ConfigurationError):
        note_stores(read_config(find_root(Path("."))))


def checkpoint_path(state_dir: Path, flink: FlinkConfig, path: str | Path) -> FilePath:
    """Return a checkpoint's folder as it was recorded: one on S3 if it has an address there."""
    text = str(path)
    if "://" not in text:
        return Path(text)
    base = job_state_folder(state_dir, flink)
    if isinstance(base, RemotePath) and text.startswith(f"{base}/"):
        return RemotePath(base.storage, text.rstrip("/"))
    return _opened(text.rstrip("/"), flink.checkpoint_options)


def first_bytes(path: FilePath, count: int) -> bytes:
    """Return the first bytes of a file; FileNotFoundError if it does not exist."""
    if isinstance(path, Path):
        with path.open("rb") as file:
            return file.read(count)
    return path.storage.first_bytes(path.address, count)


def read_bytes(path: FilePath) -> bytes:
    """Return the content of a file; FileNotFoundError if it does not exist."""
    if isinstance(path, Path):
        return path.read_bytes()
    return path.storage.first_bytes(path.address, path.storage.size(path.address))


def modified_ns(path: FilePath) -> int:
    """Return when a file was written, in UTC ns; FileNotFoundError if it does not exist."""
    if isinstance(path, Path):
        return path.stat().st_mtime_ns
    return path.storage.modified_ns(path.address)


def delete_folder(path: FilePath) -> None:
    """Delete a folder with its contents, if it exists."""
    if isinstance(path, Path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.storage.delete_folder(path.address)


def _opened(address: str, options: Mapping[str, str]) -> RemotePath:
    return RemotePath(_storage(address, tuple(sorted(options.items()))), address)


@lru_cache(maxsize=8)
def _storage(address: str, options: tuple[tuple[str, str], ...]) -> RemoteStorage:
    return open_remote(address, dict(options), None, for_lake=False)
