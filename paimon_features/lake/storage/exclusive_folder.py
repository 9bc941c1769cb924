"""Files that are created exclusively: compare-and-swap for file systems, which have none."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


class ExclusiveFolder:
    """The files of a folder, by name. A file that was created is found by all hosts at once.

    ``create`` is a hard link, which the file system must support. One that is mounted by several
    hosts must not cache that a name does not exist (NFS: ``lookupcache=positive``). No method lists
    the folder or compares times; all raise OSError if the file system is unreachable.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def where(self, name: str) -> str:
        """Return the path of a file, for messages."""
        return str(self.folder / name)

    def read(self, name: str) -> str | None:
        """Return the content of a file, None if it does not exist."""
        try:
            return (self.folder / name).read_text("utf-8", "replace")
        except FileNotFoundError:
            return None

    def create(self, name: str, text: str) -> bool:
        """Create a file with its content; return False, without any change, if it exists.

        Of several concurrent callers one gets True. ``text`` is unique to the caller. A file that
        was created survives a power failure.
        """
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
        sync_folder(self.folder)
        return True

    def replace(self, name: str, text: str) -> None:
        """Replace a file atomically, or create it."""
        temporary = self._temporary(name)
        try:
            temporary.write_text(text, "utf-8")
            os.replace(temporary, self.folder / name)
        finally:
            temporary.unlink(missing_ok=True)

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        (self.folder / name).unlink(missing_ok=True)

    def changed_ms(self, name: str) -> int | None:
        """Return when a file was last replaced, by the file system's clock in UTC ms; None if it
        does not exist."""
        try:
            return (self.folder / name).stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return None

    def _temporary(self, name: str) -> Path:
        return self.folder / f".{name}.{secrets.token_hex(6)}.tmp"


def sync_folder(folder: Path) -> None:
    """Write the names of a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
