"""The folder of verified files: what is in it was checked once and is known by size and time.

Hashing the jars takes a second at every start. So the hash is taken once, when a file enters
the cache, and ``.verified.json`` beside the files keeps hash, size and modification time; a
file whose size or time differs is hashed again. ``paimon-features doctor`` always hashes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

_CHUNK = 1 << 20


def cache_root() -> Path:
    """The user's cache: ``PAIMON_FEATURES_CACHE``, else ``~/.cache/paimon-features``."""
    named = os.environ.get("PAIMON_FEATURES_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "paimon-features"


def sha256_of(path: Path) -> str:
    """The file's sha256 in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


class VerifiedFolder:
    """Files of one folder, each known by its sha256."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._notes_path = folder / ".verified.json"

    def holds(self, name: str, sha256: str) -> bool:
        """Whether the file is there with this hash; reads it only if it is not known yet."""
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
        """Remember that the file as it is now has this hash; harmless to repeat.

        Two processes that note at the same time may lose one note: the file is hashed again
        at the next look.
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
            # a cache that somebody else filled and we may only read serves as well
            draft.unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes of this host from filling the folder at the same time."""
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
