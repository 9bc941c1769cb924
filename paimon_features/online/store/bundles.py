"""Bundles where serving hosts read them: in the online store, under its key prefix, or a file."""

from __future__ import annotations

from collections.abc import Callable

from paimon_features.core.errors import DefinitionError
from paimon_features.definitions.bundle import KIND, Bundle
from paimon_features.online.store.documents import ONLINE, DocumentPlace
from paimon_features.online.store.store import OnlineStore

__all__ = ["ONLINE", "BundlePlace"]


class BundlePlace:
    """Where the bundle of a project is: ``online``, or the path of a file.

    ``open_store`` opens the online store; it is called at the first use of one.
    """

    def __init__(self, project: str, where: str, open_store: Callable[[], OnlineStore]) -> None:
        self.project, self.where = project, where
        title = f"the bundle of project {project!r} in the online store"
        title = title if where == ONLINE else f"the bundle {where}"
        self.document = DocumentPlace(KIND, project, "bundle", where, title, open_store)

    def __str__(self) -> str:
        return str(self.document)

    @property
    def store(self) -> OnlineStore:
        """The online store."""
        return self.document.store

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
        self.document.publish(data)
        return len(data)

    def read(self) -> Bundle:
        """Read the bundle.

        Raises
        ------
        DefinitionError
            If there is none, it is damaged, of another project, or of a later format.
        """
        data = self.document.read()
        if data is None:
            raise DefinitionError(
                f"missing bundle: {self} is published by 'paimon-features apply' on a host "
                f"with [serve] bundle = {self.where!r}, or by 'paimon-features apply --bundle'"
            )
        bundle = Bundle.from_bytes(data, str(self))
        if bundle.project != self.project:
            raise DefinitionError(f"{self} is of project {bundle.project!r}")
        return bundle

    def stamp(self) -> str:
        """Return what differs after another bundle was published; empty without one."""
        return self.document.stamp()
