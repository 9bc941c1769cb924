"""A cache of verified files: each is hashed once, then recognized by size and modification time.

Hashing the jars at every start would take a second. Therefore a file is hashed once, when it is
added to the cache, and ``.verified.json`` in the same folder records its hash, size and
modification time; a file whose size or time differs is hashed again. ``paimon-features check
installation`` always hashes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock


def cache_root() -> Path:
    """Return the user's cache folder: ``PAIMON_FEATURES_CACHE``, else
    ``~/.cache/paimon-features``."""
    named = os.environ.get("PAIMON_FEATURES_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "paimon-features"


def sha256_of(path: Path) -> str:
    """Return the file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class VerifiedFolder:
    """Files of one folder, each verified by its SHA-256."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._notes_path = folder / ".verified.json"

    def contains(self, name: str, sha256: str) -> bool:
        """Return whether the file exists and has this hash; a file that is already recorded is
        not read."""
        fingerprint = self._fingerprint(name)
        if fingerprint is None:
            return False
        if self._notes().get(name) == [sha256, *fingerprint]:
            return True
        if sha256_of(self.folder / name) != sha256:
            return False
        self.note(name, sha256)
        return True

    def note(self, name: str, sha256: str) -> None:
        """Record that the file in its current state has this hash; idempotent.

        Of two processes that record at the same time, one record may be lost: that file is
        hashed again at the next check.
        """
        fingerprint = self._fingerprint(name)
        if fingerprint is None:
            raise FileNotFoundError(self.folder / name)
        notes = self._notes() | {name: [sha256, *fingerprint]}
        draft = self._notes_path.with_suffix(f".{os.getpid()}")
        try:
            draft.write_text(json.dumps(notes, indent=1, sort_keys=True))
            draft.replace(self._notes_path)
        except OSError:
            # a read-only cache that another user has filled is usable, too; on a read-only file
            # system even the removal of a missing file fails
            with suppress(OSError):
                draft.unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against other processes of this host that write to it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / ".lock"):
            yield

    def _fingerprint(self, name: str) -> list[int] | None:
        try:
            status = (self.folder / name).stat()
        except OSError:
            return None
        return [status.st_size, status.st_mtime_ns]

    def _notes(self) -> dict[str, list[str | int]]:
        try:
            notes = json.loads(self._notes_path.read_text())
        except (OSError, ValueError):
            return {}
        return notes if isinstance(notes, dict) else {}
