"""Reading the definitions again: the new ones stand complete beside the old before they count.

A file that does not load changes nothing but the log and the health document.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from paimon_features.clock import now_ms
from paimon_features.config import ProjectConfig, ServeConfig
from paimon_features.definitions import CompiledView, Definitions, load_definitions
from paimon_features.errors import ConfigurationError, PaimonFeaturesError
from paimon_features.online.store import OnlineStore
from paimon_features.serving.http.app import FeatureApp
from paimon_features.serving.http.definition_set import DefinitionSet
from paimon_features.serving.http.logs import LOGGER
from paimon_features.serving.http.no_pandas import pandas_allowed
from paimon_features.serving.http.tokens import Tokens
from paimon_features.transformers.fitted_version import FOLDER

POLL_S = 1.0
_SWITCH_S = 0.0002
_GENERATIONS_BESIDE = 8
"""How many layouts of views before are kept readable."""

Stamp = tuple[tuple[str, int, int], ...]


class Reloader:
    """Keeps an app at what the definitions file and the token file say."""

    def __init__(self, config: ProjectConfig, serve: ServeConfig, store: OnlineStore) -> None:
        self._project = config.name
        self._path = config.definitions
        self._serve = serve
        self._store = store
        self._tokens = serve.tokens
        self._stamp: Stamp = ()
        self._lock = asyncio.Lock()

    def first(self) -> tuple[DefinitionSet, Tokens | None]:
        """What to begin with; raises as ``load_definitions`` and ``Tokens`` do."""
        self._stamp = self._look()
        with pandas_allowed():
            definitions = load_definitions(self._path)
        served = self._served(definitions)
        return served, None if self._tokens is None else Tokens(self._tokens)

    async def watch(self, app: FeatureApp) -> None:
        """Reload whenever a file has changed; looks once a second, until cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            if self._look() != self._stamp:
                await self.reload(app)

    async def reload(self, app: FeatureApp) -> bool:
        """Read the files and put what they say in place, or keep what there is; whether it went."""
        async with self._lock:
            self._stamp = self._look()
            try:
                with _yielding_often():
                    served, tokens = await asyncio.to_thread(self._load, app.served)
            except PaimonFeaturesError as error:
                app.reload_error = "; ".join([str(error), *getattr(error, "__notes__", ())])
                _count(app, "failed")
                LOGGER.error("reload: %s; the definitions before stay at work", app.reload_error)
                return False
            except (Exception, SystemExit) as error:  # whatever a file may do when it runs
                app.reload_error = f"{type(error).__name__}: {error}"
                _count(app, "failed")
                LOGGER.exception("reload failed; the definitions before stay at work")
                return False
            app.serve(served)
            app.tokens = tokens
            app.reload_error = None
            _count(app, "done")
            LOGGER.info("reloaded %s", self._path)
            return True

    def _load(self, before: DefinitionSet) -> tuple[DefinitionSet, Tokens | None]:
        tokens = None if self._tokens is None else Tokens(self._tokens)
        forget_modules_beside(self._path)
        with pandas_allowed():
            definitions: Definitions = load_definitions(self._path)
        if not any(view.compiled.is_online for view in definitions.views.values()):
            raise ConfigurationError(f"{self._path} has no feature view that is read online")
        beside = before.variants[-_GENERATIONS_BESIDE - len(before.views) :]
        return self._served(definitions, beside), tokens

    def _served(
        self, definitions: Definitions, beside: Sequence[CompiledView] = ()
    ) -> DefinitionSet:
        served = DefinitionSet(self._project, definitions, self._store, _now_ms(), beside)
        if self._serve.cache_ms:
            served.with_cache(self._serve.cache_ms, self._serve.cache_entities)
        return served

    def _look(self) -> Stamp:
        """What tells a changed file: Python files and fitted versions beside it, and the tokens."""
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


def forget_modules_beside(path: Path) -> None:
    """Modules that a definitions file has imported from its own folder are to be read anew."""
    folder = path.parent.resolve()
    for name, module in [*sys.modules.items()]:
        origin = getattr(module, "__file__", None)
        if origin is not None and Path(origin).parent == folder:
            del sys.modules[name]
    importlib.invalidate_caches()


@contextmanager
def _yielding_often() -> Iterator[None]:
    """Let requests go first: a thread that only computes else holds each of their steps up 5 ms."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _count(app: FeatureApp, result: str) -> None:
    app.counts.reloads[result] = app.counts.reloads.get(result, 0) + 1


def _now_ms() -> int:
    return now_ms()
