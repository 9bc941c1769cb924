"""Bundles where serving hosts read them: in the online store, under its key prefix, or a file.

::

    pf:{shop}#bundle           the bundle
    pf:{shop}#bundle-digest    its digest, by which a server notices a new one
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from paimon_features.definitions.bundle import MAX_BYTES, Bundle, digest_of
from paimon_features.errors import ConfigurationError, DefinitionError, OnlineStoreError
from paimon_features.online.store import OnlineStore, Write

ONLINE = "online"
"""In place of a file: the bundle in the online store."""
_TRIES = 5
_HEADER = 128
"""So many bytes of a bundle contain its digest."""


class BundlePlace:
    """Where the bundle of a project is: ``online``, or the path of a file.

    ``open_store`` opens the online store; it is called at the first use of one.
    """

    def __init__(self, project: str, where: str, open_store: Callable[[], OnlineStore]) -> None:
        self.project, self.where = project, where
        self._open_store = open_store
        self._store: OnlineStore | None = None

    def __str__(self) -> str:
        if self.where == ONLINE:
            return f"the bundle of project {self.project!r} in the online store"
        return f"the bundle {self.where}"

    @property
    def store(self) -> OnlineStore:
        """The online store."""
        if self._store is None:
            self._store = self._open_store()
        return self._store

    def _keys(self) -> tuple[bytes, bytes]:
        stem = f"{self.store.key_prefix}{{{self.project}}}#bundle"
        return stem.encode(), f"{stem}-digest".encode()

    def publish(self, bundle: Bundle) -> int:
        """Replace the bundle atomically; returns its size in bytes.

        Raises
        ------
        DefinitionError
            For definitions that a bundle cannot contain.
        OnlineStoreError, ConfigurationError
            If the store is unavailable or others publish at the same time; a file that cannot
            be written.
        """
        data = bundle.to_bytes()
        if self.where == ONLINE:
            self._publish_online(data)
        else:
            self._write(data)
        return len(data)

    def read(self) -> Bundle:
        """Read the bundle.

        Raises
        ------
        DefinitionError
            If there is none, it is damaged, of another project, or of a later format.
        """
        if self.where == ONLINE:
            [data] = self.store.get_many([self._keys()[0]])
        else:
            data = self._file()
        if data is None:
            raise DefinitionError(
                f"there is no bundle: {self} is published by 'paimon-features apply' on a host "
                f"with [serve] bundle = {self.where!r}, or by 'paimon-features bundle'"
            )
        bundle = Bundle.from_bytes(data, str(self))
        if bundle.project != self.project:
            raise DefinitionError(f"{self} is of project {bundle.project!r}")
        return bundle

    def stamp(self) -> str:
        """What differs after another bundle was published; empty without one."""
        if self.where == ONLINE:
            [digest] = self.store.get_many([self._keys()[1]])
            return "" if digest is None else digest.decode()
        try:
            status = Path(self.where).stat()
        except OSError:
            return ""
        return f"{status.st_mtime_ns}:{status.st_size}:{status.st_ino}"

    def _publish_online(self, data: bytes) -> None:
        key, digest_key = self._keys()
        for _ in range(_TRIES):
            before, digest = self.store.get_many([key, digest_key])
            expected = None if before is None else before[:_HEADER]
            [done] = self.store.compare_and_set_many([Write(key, expected, data)])
            if done:
                new = digest_of(data).encode()
                # a reader that sees the digest finds this bundle, or a later one
                [told] = self.store.compare_and_set_many([Write(digest_key, digest, new)])
                if told:
                    return
        raise OnlineStoreError(f"{self}: others keep publishing it; try again")

    def _write(self, data: bytes) -> None:
        path = Path(self.where)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(data)
            os.replace(temporary, path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise ConfigurationError(f"{self} cannot be written: {error}") from error

    def _file(self) -> bytes | None:
        try:
            with Path(self.where).open("rb") as file:
                return file.read(MAX_BYTES + 1)  # no more of a file that is no bundle
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DefinitionError(f"{self} cannot be read: {error}") from error
