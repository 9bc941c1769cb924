"""Small JSON files beside the tables: written atomically, changed under a file lock.

They hold what has to outlive a table's snapshots: leases, generations, commit identifiers.
They live in ``<warehouse>/_paimon_features``, which no catalog takes for a database.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from paimon_features.errors import TableError

LOCK_TIMEOUT_S = 60.0


def read_json(path: Path) -> Any | None:
    """The content of a JSON file, or None where there is no such file.

    Raises
    ------
    TableError
        For a file that is no JSON: it was not written by ``write_json``.
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise TableError(
            f"{path} is not readable as JSON ({error}); restore it from a copy, or delete it if "
            "what it records (see its folder's name) is no longer in use"
        ) from error


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file in one step: a reader sees the old content or the new one.

    Of several writers at the same time the last one wins, whole.

    The content is on the disk when this returns, so that a record that a job relies on is not
    lost with the power.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=1, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def locked(path: Path, what: str, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Hold the lock file ``path`` alone among the processes and threads of this host.

    The operating system lets go of it when its holder dies, also by ``kill -9``.

    Raises
    ------
    TableError
        When another process holds it for longer than ``timeout_s``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, timeout=timeout_s)
    try:
        lock.acquire(poll_interval=0.005)
    except Timeout:
        raise TableError(
            f"{what}: another process has held {path} for more than {timeout_s:g} s; "
            "stop it, or wait until it is done"
        ) from None
    try:
        yield
    finally:
        lock.release()
