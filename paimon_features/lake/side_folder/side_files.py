"""JSON files and locks of the side folder, wherever it is: in a file system, or an object store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paimon_features.core.documents.sealed_json import read_document, resealed
from paimon_features.lake.storage import json_files
from paimon_features.lake.storage.exclusive import ExclusiveFiles, FolderFiles
from paimon_features.lake.storage.json_files import LOCK_TIMEOUT_S
from paimon_features.lake.storage.object_path import ObjectFiles, ObjectPath, SidePath
from paimon_features.lake.storage.store_lock import StoreLock


def read_json(path: SidePath) -> Any | None:
    """The content of a JSON file or object, None if it does not exist.

    Raises
    ------
    DamagedFileError
        If it is not JSON, or not what ``write_json`` wrote.
    """
    found = read_document(path)
    return None if found is None else found.value


def write_json(path: SidePath, value: Mapping[str, Any], after: int = 0) -> None:
    """``json_files.write_json``, also for an object."""
    if isinstance(path, Path):
        json_files.write_json(path, value, after)
        return
    document = resealed(path, value, after)
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


@contextmanager
def locked(
    path: SidePath, what: str, timeout_s: float = LOCK_TIMEOUT_S
) -> Iterator[Callable[[], None]]:
    """Hold a lock inside the ``with`` block: ``json_files.locked``, or a ``StoreLock``.

    Yields a function that raises LeaseLostError if the lock was taken over, which only one of an
    object store can be. Call it immediately before a change.

    Raises
    ------
    TableError
        If another process holds it for longer than ``timeout_s``.
    """
    if isinstance(path, Path):
        with json_files.locked(path, what, timeout_s):
            yield lambda: None
        return
    lock = StoreLock(path, what)
    lock.acquire(timeout_s)
    try:
        yield lock.check
    finally:
        lock.release()


def exclusive_files(folder: SidePath) -> ExclusiveFiles:
    """The files of a folder, each of which only one caller can create."""
    return ObjectFiles(folder) if isinstance(folder, ObjectPath) else FolderFiles(folder)
