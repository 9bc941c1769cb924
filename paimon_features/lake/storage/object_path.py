"""Paths in an object store, with the part of ``pathlib.Path`` that records need."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from paimon_features.lake.storage.conditional import ConditionalStore


@dataclass(frozen=True, slots=True)
class ObjectPath:
    """An object, or a folder of objects, by its key relative to the warehouse.

    Folders need not be created: they exist while an object is below them.
    """

    store: ConditionalStore = field(compare=False)
    key: str

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(self.store, f"{self.key}/{name}")

    def __str__(self) -> str:
        return f"{self.store.address}/{self.key}"

    @property
    def name(self) -> str:
        return posixpath.basename(self.key)

    @property
    def suffix(self) -> str:
        return posixpath.splitext(self.key)[1]

    @property
    def stem(self) -> str:
        return posixpath.splitext(self.name)[0]

    @property
    def parent(self) -> ObjectPath:
        return ObjectPath(self.store, posixpath.dirname(self.key))

    def with_suffix(self, suffix: str) -> ObjectPath:
        return ObjectPath(self.store, posixpath.splitext(self.key)[0] + suffix)

    def is_file(self) -> bool:
        return self.store.get(self.key) is not None

    def is_dir(self) -> bool:
        folders, objects = self.store.entries(self.key)
        return bool(folders or objects)

    def exists(self) -> bool:
        return self.is_file() or self.is_dir()

    def iterdir(self) -> Iterator[ObjectPath]:
        """Yield what is directly in this folder; nothing if it does not exist."""
        folders, objects = self.store.entries(self.key)
        yield from (self / name for name in [*folders, *objects])

    def glob(self, pattern: str) -> Iterator[ObjectPath]:
        """Yield what is directly in this folder, and whose name fits."""
        yield from (path for path in self.iterdir() if fnmatchcase(path.name, pattern))

    def rglob(self, pattern: str) -> Iterator[ObjectPath]:
        """Yield the objects below this folder whose name fits."""
        paths = (ObjectPath(self.store, key) for key in self.store.below(self.key))
        yield from (path for path in paths if fnmatchcase(path.name, pattern))

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return its content; FileNotFoundError if it does not exist."""
        stored = self.store.get(self.key)
        if stored is None:
            raise FileNotFoundError(str(self))
        return stored.text

    def write_text(self, text: str) -> None:
        """Create or replace it, atomically."""
        self.store.put(self.key, text)

    def create_text(self, text: str) -> bool:
        """Create it; False, without any change, if it exists. ``text`` is unique to the caller."""
        return self.store.create(self.key, text)

    def unlink(self, missing_ok: bool = False) -> None:
        """Delete it. In an object store that it did not exist is no error in any case."""
        self.store.delete(self.key)


SidePath = Path | ObjectPath
"""A path of the side folder: of a file system, or of the object store of the warehouse."""
