"""Small JSON files next to the tables: written atomically, changed under a file lock.

They contain what must outlive a table's snapshots: leases, generations, commit identifiers, in
``<warehouse>/_paimon_features``, which no catalog considers a database.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from paimon_features.core.documents.sealed_json import read_document, resealed
from paimon_features.core.errors import TableError
from paimon_features.lake.storage.write_errors import write_errors

LOCK_TIMEOUT_S = 60.0


def read_json(path: Path) -> Any | None:
    """The content of a JSON file, None if it does not exist.

    Raises
    ------
    DamagedFileError
        For a file that is not JSON, or not what ``write_json`` wrote.
    """
    found = read_document(path)
    return None if found is None else found.value


def write_json(path: Path, value: Mapping[str, Any], after: int = 0) -> None:
    """Replace a JSON file, with a digest and the number of its writes (see ``sealed_json``).

    The number is greater than that of the content before, and than ``after``.

    Raises
    ------
    StorageWriteError
        If the file system refuses the write; the old content stays.
    DamagedFileError
        If the file is not what was written before.
    """
    write_plain_json(path, resealed(path, value, after))


def write_plain_json(path: Path, value: Any) -> None:
    """Replace a JSON file atomically: a reader sees the old content or the new one.

    Of several concurrent writers the last one wins.

    The content is synced to disk, so that a record is not lost in a power failure.

    Raises
    ------
    StorageWriteError
        If the file system refuses the write; the old content stays.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    with write_errors(f"{path} cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("w", encoding="utf-8") as file:
                json.dump(value, file, indent=1, sort_keys=True)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def locked(path: Path, what: str, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Lock the file ``path`` exclusively among the processes and threads of this host.

    The operating system releases it when its holder dies, also by ``kill -9``.

    Raises
    ------
    TableError
        If another process holds it for longer than ``timeout_s``.
    """
    lock = FileLock(path, timeout=timeout_s)
    try:
        with write_errors(f"{what}: {path} cannot be locked"):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(poll_interval=0.005)
    except Timeout:
        raise TableError(
            f"{what}: another process has held {path} for more than {timeout_s:g} s; "
            "stop it, or wait until it has finished"
        ) from None
    try:
        yield
    finally:
        lock.release()
