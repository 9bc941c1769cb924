"""Open a remote warehouse: its storage and pypaimon's catalog on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from paimon_features.core.errors import ConfigurationError
from paimon_features.core.installation.jars import need_jars
from paimon_features.lake.storage.commit_guard import guard_of
from paimon_features.lake.storage.conditional import ConditionalStore
from paimon_features.lake.storage.filesystems import (
    HDFS_SCHEMES,
    make_filesystem,
    of_arrow,
    settings,
)
from paimon_features.lake.storage.remote import RemoteStorage
from paimon_features.lake.storage.retries import Retries

_HINTS = ("LATEST", "EARLIEST")
"""The files of a table that are replaced; all others that pypaimon writes atomically are new."""


def open_remote(
    address: str, options: Mapping[str, str], filesystem: Any, *, for_lake: bool = True
) -> RemoteStorage:
    """Return the storage of a URI, verified to be reachable.

    ``for_lake``: JVMs that this process starts from now on read Paimon's tables there.

    Raises
    ------
    ConfigurationError, TableError
        As ``Lake.open``.
    """
    if filesystem is not None:
        if options:
            raise ConfigurationError(
                f"warehouse {address!r}: options apply to file systems created here; configure the "
                "given file system itself"
            )
        given = of_arrow(filesystem)
        storage = RemoteStorage(address, given, given)
    else:
        store_settings = settings(address, options)
        text = store_settings.get("attempts", "6")
        if not text.isdecimal() or int(text) < 1:
            raise ConfigurationError(
                f"warehouse {address!r}: attempts is {text!r}: expected a number of at least 1"
            )
        attempts = int(text)
        storage = RemoteStorage(
            address,
            make_filesystem(address, store_settings),
            make_filesystem(address, store_settings, attempts),
            endpoint=store_settings.get("endpoint", ""),
            retries=Retries(attempts),
            conditional=_conditional(address, store_settings, attempts),
            settings=store_settings,
        )
    storage.check()
    if for_lake:
        need_jars(address)
    return storage


def _conditional(address: str, found: Mapping[str, str], attempts: int) -> ConditionalStore | None:
    if urlsplit(address).scheme in HDFS_SCHEMES:
        return None
    return ConditionalStore(address.rstrip("/"), found, attempts)


def remote_catalog(address: str, storage: RemoteStorage) -> Any:
    """Return pypaimon's catalog of a remote warehouse, on the existing file system."""
    from pypaimon.catalog.catalog_context import CatalogContext
    from pypaimon.catalog.filesystem_catalog import FileSystemCatalog
    from pypaimon.catalog.filesystem_catalog_loader import FileSystemCatalogLoader
    from pypaimon.common.options import Options
    from pypaimon.filesystem.pyarrow_file_io import PyArrowFileIO

    class FileIO(PyArrowFileIO):  # type: ignore[misc]
        def _initialize_s3_fs(self) -> Any:
            return storage.patient

        def try_to_write_atomic(self, path: str, content: str) -> bool:
            key = None if storage.conditional is None else storage.conditional.key(path)
            if storage.conditional is None or key is None:
                return bool(super().try_to_write_atomic(path, content))
            folder, _, name = path.rpartition("/")
            if name in _HINTS:
                storage.conditional.put(key, content)
                return True
            return _create(storage.conditional, key, folder, name, content)

        def to_filesystem_path(self, path: str) -> str:
            return storage.place(path) if "://" in path else str(path)

    class Loader(FileSystemCatalogLoader):  # type: ignore[misc]
        def load(self) -> Any:
            return catalog

    class Catalog(FileSystemCatalog):  # type: ignore[misc]
        def get_table(self, identifier: Any) -> Any:
            table = super().get_table(identifier)
            table.catalog_environment.catalog_loader = Loader(self.catalog_context)
            return table

    # the constructor creates a file system from the URI, so it is replaced first
    catalog = Catalog(Options({"warehouse": "/"}))
    catalog.warehouse, catalog.catalog_options = address, Options({"warehouse": address})
    catalog.catalog_context = CatalogContext.create_from_options(catalog.catalog_options)
    catalog.file_io = FileIO("s3://", Options({}))
    return catalog


def _create(store: ConditionalStore, key: str, folder: str, name: str, content: str) -> bool:
    """Create a schema or a snapshot; False if it exists, or the commit's guard forbids it.

    Where snapshots are concerned, pypaimon checks only that the number does not exist yet.
    """
    table, _, kind = folder.rpartition("/")
    guard = guard_of(table) if kind == "snapshot" else None
    number = name.rpartition("-")[2]
    if guard is not None and not guard.admits(int(number)):
        return False
    created = store.create(key, content)
    if created and guard is not None:
        guard.created(int(number))
    return created
