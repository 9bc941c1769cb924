"""A published document: in the online store, under its key prefix, or a file.

::

    pf:{shop}#bundle           the document
    pf:{shop}#bundle-digest    its digest, by which a server notices a new one
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from paimon_features.core.documents.published_document import DocumentKind
from paimon_features.core.errors import ConfigurationError, OnlineStoreError, PaimonFeaturesError
from paimon_features.online.store.store import OnlineStore, Write

ONLINE = "online"
"""In place of a file: the document in the online store."""
_TRIES = 5
_HEADER = 128
"""So many bytes of a document contain its digest."""


class DocumentPlace:
    """Where a document of a project is: ``online``, or the path of a file.

    ``name`` is part of its keys, and ``title`` names it in errors. ``open_store`` opens the online
    store; it is called at the first use of one.
    """

    def __init__(
        self,
        kind: DocumentKind,
        project: str,
        name: str,
        where: str,
        title: str,
        open_store: Callable[[], OnlineStore],
    ) -> None:
        self.kind, self.project, self.name, self.where = kind, project, name, where
        self.title = title
        self._open_store = open_store
        self._store: OnlineStore | None = None

    def __str__(self) -> str:
        return self.title

    @property
    def is_online(self) -> bool:
        return self.where == ONLINE

    @property
    def store(self) -> OnlineStore:
        """The online store."""
        if self._store is None:
            self._store = self._open_store()
        return self._store

    def key(self, name: str) -> bytes:
        """Return a key next to those of the document: ``pf:{shop}#name``."""
        return f"{self.store.key_prefix}{{{self.project}}}#{name}".encode()

    def publish(self, data: bytes) -> None:
        """Replace the document atomically.

        Raises
        ------
        OnlineStoreError, ConfigurationError
            If the store is unavailable or others publish at the same time; a file that cannot
            be written.
        """
        if not self.is_online:
            write_file(Path(self.where), data, str(self))
            return
        for _ in range(_TRIES):
            if self.replace(self.read(), data):
                return
        raise OnlineStoreError(f"{self}: others keep publishing it; try again")

    def replace(self, before: bytes | None, data: bytes) -> bool:
        """Replace the document if it is still ``before``; of a file, without that condition."""
        if not self.is_online:
            write_file(Path(self.where), data, str(self))
            return True
        key, digest_key = self.key(self.name), self.key(f"{self.name}-digest")
        [digest] = self.store.get_many([digest_key])
        expected = None if before is None else before[:_HEADER]
        [done] = self.store.compare_and_set_many([Write(key, expected, data)])
        if not done:
            return False
        new = self.kind.digest_of(data).encode()
        # a reader that sees the digest finds this document, or a later one
        [noticed] = self.store.compare_and_set_many([Write(digest_key, digest, new)])
        return noticed

    def read(self) -> bytes | None:
        """Return the document, None if there is none; its content is not checked."""
        if self.is_online:
            return self.store.get_many([self.key(self.name)])[0]
        return read_file(Path(self.where), self.kind.max_bytes, str(self), self.kind.error)

    def stamp(self) -> str:
        """Return what differs after another one was published; empty without one."""
        if self.is_online:
            [digest] = self.store.get_many([self.key(f"{self.name}-digest")])
            return "" if digest is None else digest.decode()
        try:
            status = Path(self.where).stat()
        except OSError:
            return ""
        return f"{status.st_mtime_ns}:{status.st_size}:{status.st_ino}"


def write_file(path: Path, data: bytes, what: str) -> None:
    """Replace a file atomically; ConfigurationError if it cannot be written."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ConfigurationError(f"{what} cannot be written: {error}") from error


def read_file(
    path: Path, most: int, what: str, error_type: type[PaimonFeaturesError]
) -> bytes | None:
    """Return the content of a file, at most one byte more than ``most``.

    None if it does not exist.
    """
    try:
        with path.open("rb") as file:
            return file.read(most + 1)  # no more of a file that is another one
    except FileNotFoundError:
        return None
    except OSError as error:
        raise error_type(f"{what} cannot be read: {error}") from error
