"""Small files that are created exclusively: what leases need of a storage.

On a file system a file is created by a hard link; an object store would use a conditional put
(``If-None-Match: *``). No operation lists a folder, and none compares times.
"""

from __future__ import annotations

import os
import secrets
from abc import ABC, abstractmethod
from pathlib import Path


class ExclusiveFiles(ABC):
    """The files of one folder, by name. A file that was created is found by all hosts at once.

    All methods raise OSError if the storage is unreachable.
    """

    @abstractmethod
    def read(self, name: str) -> str | None:
        """The content of a file, None if it does not exist."""

    def where(self, name: str) -> str:
        """The address of a file, for messages."""
        return name

    @abstractmethod
    def create(self, name: str, text: str) -> bool:
        """Create a file with its content; False, without any change, if it exists.

        Of several concurrent callers one gets True. ``text`` is unique to the caller. A file that
        was created survives a power failure.
        """

    @abstractmethod
    def replace(self, name: str, text: str) -> None:
        """Replace a file atomically, or create it."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""

    def changed_ms(self, name: str) -> int | None:
        """When a file was last replaced by the storage's clock, UTC ms; None if that is unknown."""
        return None


class FolderFiles(ExclusiveFiles):
    """Files of a folder, which ``create`` creates.

    The file system must support hard links. One that is mounted by several hosts must not cache
    that a name does not exist (NFS: ``lookupcache=positive``).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def where(self, name: str) -> str:
        return str(self.folder / name)

    def read(self, name: str) -> str | None:
        try:
            return (self.folder / name).read_text("utf-8", "replace")
        except FileNotFoundError:
            return None

    def create(self, name: str, text: str) -> bool:
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self._temporary(name)
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(temporary, self.folder / name)
            except FileExistsError:
                # a network file system may repeat a link whose reply was lost
                return self.read(name) == text
        finally:
            temporary.unlink(missing_ok=True)
        _sync(self.folder)
        return True

    def replace(self, name: str, text: str) -> None:
        temporary = self._temporary(name)
        try:
            temporary.write_text(text, "utf-8")
            os.replace(temporary, self.folder / name)
        finally:
            temporary.unlink(missing_ok=True)

    def delete(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def changed_ms(self, name: str) -> int | None:
        try:
            return (self.folder / name).stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return None

    def _temporary(self, name: str) -> Path:
        return self.folder / f".{name}.{secrets.token_hex(6)}.tmp"


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
