"""Reload definitions and tokens: the new set is built completely before it replaces the old one.

A file that does not load changes nothing but the log and the health document. Definitions by which
the online store cannot be read yet wait for the materializer; the previous ones are served.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from paimon_features.core.configuration.project_config import ProjectConfig, ServeConfig
from paimon_features.core.documents.redaction import redact
from paimon_features.core.errors import ConfigurationError, OnlineStoreError, PaimonFeaturesError
from paimon_features.core.times.clock import now_ms
from paimon_features.definitions import CompiledView, Definitions
from paimon_features.online.store.markers import ViewState
from paimon_features.online.store.store import OnlineStore
from paimon_features.serving.http.access.tokens import Tokens
from paimon_features.serving.http.definitions.definition_set import DefinitionSet
from paimon_features.serving.http.definitions.definition_source import (
    Stamp,
    definition_source,
    stamp_of,
)
from paimon_features.serving.http.logs import LOGGER
from paimon_features.serving.http.server.app import FeatureApp

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
            from paimon_features.serving.http.access.oidc import OidcIssuer

            self._issuer = OidcIssuer(serve.oidc)
        self._stamp: Stamp = ()
        self._next: DefinitionSet | None = None
        self._lock = asyncio.Lock()

    def first(self) -> tuple[DefinitionSet, Tokens | None]:
        """Return the first definitions and tokens.

        Raises as ``load_definitions`` and ``Tokens`` do.
        """
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
        """Reload whenever a file has changed, and switch to definitions that wait for the store.

        Checks once a second, until cancelled. Without ``[serve] reload`` files are not watched.
        """
        while True:
            await asyncio.sleep(POLL_S)
            if self._serve.reload and await asyncio.to_thread(self._stamps) != self._stamp:
                await self.reload(app)
            elif self._next is not None:
                async with self._lock:
                    await self._switch(app, self._next)

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
            app.replace_tokens(tokens)  # at once: a token that is gone must not be accepted
            app.state.reload_error = None
            _count(app, "done")
            LOGGER.info("reloaded %s", self._source)
            await self._switch(app, definitions)
            return True

    async def _switch(self, app: FeatureApp, definitions: DefinitionSet) -> None:
        """Switch to definitions; keep the ones before while the store lacks views by these."""
        before = app.state.definitions
        waiting = await asyncio.to_thread(unready_views, before, definitions)
        if not waiting:
            self._next, app.state.waiting_for = None, ()
            app.replace_definitions(definitions)
            return
        if self._next is not definitions:
            self._next = definitions
            LOGGER.warning(
                "the previous definitions are served until a materializer has written these views "
                "by the new ones: %s",
                ", ".join(waiting),
            )
            # views by the new definitions are read as soon as the store has them
            held = [*before.variants, *definitions.views]
            app.replace_definitions(
                self._definition_set(before.definitions, held, before.loaded_ms)
            )
        app.state.waiting_for = waiting

    def _load(self, before: DefinitionSet) -> tuple[DefinitionSet, Tokens | None]:
        tokens = self._load_tokens()
        definitions: Definitions = self._source.load(again=True)
        if not any(view.compiled.is_online for view in definitions.views.values()):
            raise ConfigurationError(f"{self._source} has no feature view that is read online")
        previous_views = before.variants[-_PREVIOUS_LAYOUTS - len(before.views) :]
        return self._definition_set(definitions, previous_views), tokens

    def _definition_set(
        self,
        definitions: Definitions,
        previous_views: Sequence[CompiledView] = (),
        loaded_ms: int | None = None,
    ) -> DefinitionSet:
        loaded_ms = now_ms() if loaded_ms is None else loaded_ms
        out = DefinitionSet(self._project, definitions, self._store, loaded_ms, previous_views)
        if self._serve.cache_ms:
            out.with_cache(self._serve.cache_ms, self._serve.cache_entities)
        return out

    def _stamps(self) -> Stamp:
        """Return what changes with the definitions and the tokens; may block."""
        tokens = () if self._tokens is None else (stamp_of(self._tokens),)
        return (*self._source.stamp(), *tokens)


def unready_views(before: DefinitionSet, after: DefinitionSet) -> tuple[str, ...]:
    """Return the views that can be read by ``before`` and, until they are rebuilt, not by
    ``after``.

    A view that is new, or that the store does not have at all, is no reason to wait.
    """
    layouts = {view.name: view.online_fingerprint for view in before.views}
    changed = [
        view for view in after.views
        if layouts.get(view.name, view.online_fingerprint) != view.online_fingerprint
    ]  # fmt: skip
    if not changed:
        return ()
    try:
        raws = after.store.get_many([after.keys(view.name).state for view in changed])
        states = [ViewState() if raw is None else ViewState.from_bytes(raw) for raw in raws]
    except OnlineStoreError:  # nothing is read meanwhile
        return tuple(view.name for view in changed)
    readable = {(view.name, view.online_fingerprint) for view in before.variants}
    return tuple(
        view.name
        for view, state in zip(changed, states, strict=True)
        if state.epoch is not None
        and state.content is not None
        and state.content.online_fingerprint != view.online_fingerprint
        and (view.name, state.content.online_fingerprint) in readable
    )


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
