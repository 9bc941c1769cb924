"""Where a server's definitions come from: the definitions file, or a bundle."""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from paimon_features.core.configuration.project_config import ProjectConfig, ServeConfig
from paimon_features.core.errors import OnlineStoreError
from paimon_features.definitions import Definitions, load_definitions
from paimon_features.online.store.bundles import BundlePlace
from paimon_features.online.store.store import OnlineStore
from paimon_features.serving.http.no_pandas import pandas_allowed
from paimon_features.transformers.fitted_version import FOLDER

Stamp = tuple[object, ...]
"""What changes with the definitions."""


class DefinitionSource(Protocol):
    """Definitions to serve; ``str`` names them in the log."""

    def load(self, again: bool) -> Definitions:
        """Read them, ``again`` if they were read before."""

    def stamp(self) -> Stamp:
        """Return a value that differs after a change of the definitions; may block."""


def definition_source(
    config: ProjectConfig, serve: ServeConfig, store: OnlineStore
) -> DefinitionSource:
    """Return the source of a server's definitions by its configuration."""
    if serve.bundle is None:
        return DefinitionsFile(config.definitions)
    return PublishedBundle(BundlePlace(config.name, serve.bundle, lambda: store))


class DefinitionsFile:
    """The definitions file, which is run, with the modules and fitted versions next to it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def load(self, again: bool) -> Definitions:
        if again:
            forget_modules_of_folder(self.path.parent)
        with pandas_allowed():
            return load_definitions(self.path)

    def stamp(self) -> Stamp:
        """Return path, time and size of the file, and of code and fitted versions next to it."""
        folder = self.path.parent
        paths = {self.path, *folder.glob("*.py"), *folder.glob(f"{FOLDER}/*/*.json")}
        return tuple(stamp_of(path) for path in sorted(paths))


class PublishedBundle:
    """A bundle in the online store or a file: data, of which nothing is run."""

    def __init__(self, place: BundlePlace) -> None:
        self.place = place
        self._stamp: Stamp = ()

    def __str__(self) -> str:
        return str(self.place)

    def load(self, again: bool) -> Definitions:
        return self.place.read().definitions

    def stamp(self) -> Stamp:
        # while the store is away there is nothing new
        with suppress(OnlineStoreError):
            self._stamp = (self.place.stamp(),)
        return self._stamp


def stamp_of(path: Path) -> tuple[str, int, int]:
    """Return the path, time and size of a file; zeros for a missing file."""
    try:
        status = path.stat()
    except OSError:
        return str(path), 0, 0
    return str(path), status.st_mtime_ns, status.st_size


def forget_modules_of_folder(folder: Path) -> None:
    """Unload the modules imported from a folder, so that the next import reads them again.

    Their cached bytecode goes too: it is chosen by size and whole seconds, which an edit may keep.
    """
    folder = folder.resolve()
    for name, module in [*sys.modules.items()]:
        origin = getattr(module, "__file__", None)
        if origin is not None and Path(origin).parent == folder:
            del sys.modules[name]
            if (cached := getattr(module, "__cached__", None)) is not None:
                with suppress(OSError):  # a folder that cannot be written has no such file either
                    Path(cached).unlink()
    importlib.invalidate_caches()
