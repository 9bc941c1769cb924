"""Reload definitions and tokens: the new set is built completely before it replaces the old one.

A file that does not load changes nothing but the log and the health document.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from paimon_features.clock import now_ms
from paimon_features.config import ProjectConfig, ServeConfig
from paimon_features.definitions import CompiledView, Definitions, load_definitions
from paimon_features.errors import ConfigurationError, PaimonFeaturesError
from paimon_features.online.store import OnlineStore
from paimon_features.redaction import redact
from paimon_features.serving.http.app import FeatureApp
from paimon_features.serving.http.definition_set import DefinitionSet
from paimon_features.serving.http.logs import LOGGER
from paimon_features.serving.http.no_pandas import pandas_allowed
from paimon_features.serving.http.tokens import Tokens
from paimon_features.transformers.fitted_version import FOLDER

POLL_S = 1.0
_SWITCH_S = 0.0002
_PREVIOUS_LAYOUTS = 8
"""The number of earlier layouts of views that stay readable."""

Stamp = tuple[tuple[str, int, int], ...]


class Reloader:
    """Keeps an app up to date with the definitions file and the token file."""

    def __init__(self, config: ProjectConfig, serve: ServeConfig, store: OnlineStore) -> None:
        self._project = config.name
        self._path = config.definitions
        self._serve = serve
        self._store = store
        self._tokens = serve.tokens
        self._stamp: Stamp = ()
        self._lock = asyncio.Lock()

    def first(self) -> tuple[DefinitionSet, Tokens | None]:
        """The first definitions and tokens; raises as ``load_definitions`` and ``Tokens`` do."""
        self._stamp = self._files()
        with pandas_allowed():
            definitions = self._definition_set(load_definitions(self._path))
        return definitions, None if self._tokens is None else Tokens(self._tokens)

    async def watch(self, app: FeatureApp) -> None:
        """Reload whenever a file has changed; checks once a second, until cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            if self._files() != self._stamp:
                await self.reload(app)

    async def reload(self, app: FeatureApp) -> bool:
        """Load the files and switch to them, or keep the current ones; whether it worked."""
        async with self._lock:
            self._stamp = self._files()
            try:
                with _yielding_often():
                    definitions, tokens = await asyncio.to_thread(self._load, app.state.definitions)
            except PaimonFeaturesError as error:
                app.state.reload_error = redact(
                    "; ".join([str(error), *getattr(error, "__notes__", ())])
                )
                _count(app, "failed")
                LOGGER.error("reload failed, nothing was replaced: %s", app.state.reload_error)
                return False
            except (Exception, SystemExit) as error:  # a definitions file may raise anything
                app.state.reload_error = redact(f"{type(error).__name__}: {error}")
                _count(app, "failed")
                LOGGER.exception("reload failed, nothing was replaced")
                return False
            app.replace_definitions(definitions)
            app.state.tokens = tokens
            app.state.reload_error = None
            _count(app, "done")
            LOGGER.info("reloaded %s", self._path)
            return True

    def _load(self, before: DefinitionSet) -> tuple[DefinitionSet, Tokens | None]:
        tokens = None if self._tokens is None else Tokens(self._tokens)
        forget_modules_of_folder(self._path.parent)
        with pandas_allowed():
            definitions: Definitions = load_definitions(self._path)
        if not any(view.compiled.is_online for view in definitions.views.values()):
            raise ConfigurationError(f"{self._path} has no feature view that is read online")
        previous_views = before.variants[-_PREVIOUS_LAYOUTS - len(before.views) :]
        return self._definition_set(definitions, previous_views), tokens

    def _definition_set(
        self, definitions: Definitions, previous_views: Sequence[CompiledView] = ()
    ) -> DefinitionSet:
        out = DefinitionSet(self._project, definitions, self._store, now_ms(), previous_views)
        if self._serve.cache_ms:
            out.with_cache(self._serve.cache_ms, self._serve.cache_entities)
        return out

    def _files(self) -> Stamp:
        """Path, time and size of the files to watch: Python files and fitted versions next to the
        definitions, and the tokens."""
        folder = self._path.parent
        paths = {self._path, *folder.glob("*.py"), *folder.glob(f"{FOLDER}/*/*.json")}
        if self._tokens is not None:
            paths.add(self._tokens)
        found = []
        for path in sorted(paths):
            try:
                status = path.stat()
            except OSError:
                continue
            found.append((str(path), status.st_mtime_ns, status.st_size))
        return tuple(found)


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


@contextmanager
def _yielding_often() -> Iterator[None]:
    """Give way to requests: a thread that computes would delay each of their steps by 5 ms."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _count(app: FeatureApp, result: str) -> None:
    app.counts.reloads[result] = app.counts.reloads.get(result, 0) + 1
