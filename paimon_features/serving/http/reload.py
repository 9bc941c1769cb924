"""Reload definitions and tokens: the new set is built completely before it replaces the old one.

A file that does not load changes nothing but the log and the health document.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from paimon_features.clock import now_ms
from paimon_features.config import ProjectConfig, ServeConfig
from paimon_features.definitions import CompiledView, Definitions
from paimon_features.errors import ConfigurationError, PaimonFeaturesError
from paimon_features.online.store import OnlineStore
from paimon_features.redaction import redact
from paimon_features.serving.http.app import FeatureApp
from paimon_features.serving.http.definition_set import DefinitionSet
from paimon_features.serving.http.definition_source import Stamp, definition_source, stamp_of
from paimon_features.serving.http.logs import LOGGER
from paimon_features.serving.http.tokens import Tokens

POLL_S = 1.0
_SWITCH_S = 0.0002
_PREVIOUS_LAYOUTS = 8
"""The number of earlier layouts of views that stay readable."""


class Reloader:
    """Keeps an app up to date with the definitions file or the bundle, and the token file."""

    def __init__(self, config: ProjectConfig, serve: ServeConfig, store: OnlineStore) -> None:
        self._project = config.name
        self._source = definition_source(config, serve, store)
        self._serve = serve
        self._store = store
        self._tokens = serve.tokens
        self._issuer = None
        if serve.oidc is not None:
            from paimon_features.serving.http.oidc import OidcIssuer

            self._issuer = OidcIssuer(serve.oidc)
        self._stamp: Stamp = ()
        self._lock = asyncio.Lock()

    def first(self) -> tuple[DefinitionSet, Tokens | None]:
        """The first definitions and tokens; raises as ``load_definitions`` and ``Tokens`` do."""
        self._stamp = self._stamps()
        definitions = self._definition_set(self._source.load(again=False))
        tokens = self._load_tokens()
        if self._issuer is not None:
            self._issuer.start()
        return definitions, tokens

    def close(self) -> None:
        """Stop to fetch the keys of the identity provider."""
        if self._issuer is not None:
            self._issuer.close()

    def _load_tokens(self) -> Tokens | None:
        return None if self._tokens is None else Tokens(self._tokens, self._issuer)

    async def watch(self, app: FeatureApp) -> None:
        """Reload whenever a file has changed; checks once a second, until cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            if await asyncio.to_thread(self._stamps) != self._stamp:
                await self.reload(app)

    async def reload(self, app: FeatureApp) -> bool:
        """Load the files and switch to them, or keep the current ones; whether it worked."""
        async with self._lock:
            self._stamp = await asyncio.to_thread(self._stamps)
            try:
                with yielding_often():
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
            app.replace_tokens(tokens)
            app.state.reload_error = None
            _count(app, "done")
            LOGGER.info("reloaded %s", self._source)
            return True

    def _load(self, before: DefinitionSet) -> tuple[DefinitionSet, Tokens | None]:
        tokens = self._load_tokens()
        definitions: Definitions = self._source.load(again=True)
        if not any(view.compiled.is_online for view in definitions.views.values()):
            raise ConfigurationError(f"{self._source} has no feature view that is read online")
        previous_views = before.variants[-_PREVIOUS_LAYOUTS - len(before.views) :]
        return self._definition_set(definitions, previous_views), tokens

    def _definition_set(
        self, definitions: Definitions, previous_views: Sequence[CompiledView] = ()
    ) -> DefinitionSet:
        out = DefinitionSet(self._project, definitions, self._store, now_ms(), previous_views)
        if self._serve.cache_ms:
            out.with_cache(self._serve.cache_ms, self._serve.cache_entities)
        return out

    def _stamps(self) -> Stamp:
        """What changes with the definitions and the tokens; may block."""
        tokens = () if self._tokens is None else (stamp_of(self._tokens),)
        return (*self._source.stamp(), *tokens)


@contextmanager
def yielding_often() -> Iterator[None]:
    """Give way to requests: a thread that computes would delay each of their steps by 5 ms."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _count(app: FeatureApp, result: str) -> None:
    app.counts.reloads[result] = app.counts.reloads.get(result, 0) + 1
