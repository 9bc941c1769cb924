"""Readiness of the server, looked up in the store when it is requested.

Ready means: the store responds and never evicts keys, it contains a complete epoch of each served
view that the definitions here can read and from which nothing was evicted, and no view is further
behind than its ``max_staleness``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from paimon_features.core.errors import OnlineStoreError
from paimon_features.core.times.clock import now_ms
from paimon_features.definitions import CompiledView
from paimon_features.online.store.markers import Marker, ViewState
from paimon_features.online.store.store import Evictions, evicted_keys, may_evict
from paimon_features.serving.http.definitions.definition_set import DefinitionSet
from paimon_features.serving.reading.view_rows import WARN_AFTER_MS, is_behind, worst_freshness
from paimon_features.serving.replies.freshness import Freshness

TIMEOUT_S = 2.0
"""A store that has not responded within this time counts as not responding."""
MAX_AGE_S = 0.5
"""The result of a probe is used for this long, however often it is requested."""


@dataclass(frozen=True)
class ViewHealth:
    """The state of one view in the store.

    ``reason`` says why it cannot be read, None if it can. ``followed`` is true if its materializer
    follows the tile table: after a one-shot one, nobody knows whether there is something to apply.
    """

    reason: str | None
    freshness: Freshness | None = None
    generation: int | None = None
    epoch: str | None = None
    followed: bool = False

    def is_behind(self, max_staleness_ms: int | None, now_ms: int) -> bool:
        """Return True if it is over its ``max_staleness``, or without one, its materializer
        stopped."""
        if self.freshness is None or max_staleness_ms is not None:
            return self.freshness is not None and self.freshness.stale
        return self.followed and is_behind(self.freshness, now_ms)


@dataclass(frozen=True)
class StoreHealth:
    """The result of one probe of the store: ``error`` if it does not respond.

    ``servers`` are those of the store with their eviction policies.
    """

    error: str | None
    views: Mapping[str, ViewHealth] = field(default_factory=dict)
    servers: Sequence[Evictions] = ()

    def warnings(self, max_staleness_ms: Mapping[str, int | None], now_ms: int) -> list[str]:
        """Return what needs attention although the server may be ready, a sentence each.

        A view without ``max_staleness`` whose materializer follows the tile table, and has not
        confirmed it for ``WARN_AFTER_MS``. A source without new events is no reason: the
        materializer still reports the view as up to date.
        """
        return [
            f"feature view {name!r}: its materializer has not compared it with the tile table for "
            f"{(now_ms - view.freshness.current_ms) / 1_000:,.0f} s: it has stopped, or is too "
            "slow; there may be nothing to apply (the view declares no max_staleness; the default "
            f"for this warning is {WARN_AFTER_MS // 1_000} s)"
            for name, view in self.views.items()
            if view.freshness is not None
            and max_staleness_ms.get(name) is None
            and view.is_behind(None, now_ms)
        ]

    def reasons(self, max_staleness_ms: Mapping[str, int | None], now_ms: int) -> list[str]:
        """Return the reasons why the server is not ready, a sentence each; empty if it is."""
        if self.error is not None:
            return [self.error]
        unsafe = {str(server.policy) for server in self.servers if not server.is_safe}
        reasons = [may_evict("the online store", policy) for policy in sorted(unsafe)]
        for name, view in self.views.items():
            limit_ms = max_staleness_ms.get(name)
            if view.reason is not None:
                reasons.append(view.reason)
            elif view.freshness is not None and view.freshness.stale and limit_ms is not None:
                behind_s = (now_ms - view.freshness.current_ms) / 1_000
                reasons.append(
                    f"feature view {name!r} is stale: {behind_s:,.1f} s behind the tile table, at "
                    f"most {limit_ms / 1_000:,.1f} s is declared; is its materializer running?"
                )
        return reasons


class StoreProbe:
    """Checks the store in a thread of its own, at most one check at a time."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "health")
        self._check: asyncio.Task[StoreHealth] | None = None
        self._checked: DefinitionSet | None = None
        self._started_s = 0.0

    async def check(self, definitions: DefinitionSet) -> StoreHealth:
        """Return the state of the store now, or at most ``MAX_AGE_S`` ago."""
        now_s = time.monotonic()
        check = self._check
        old = now_s - self._started_s > MAX_AGE_S or self._checked is not definitions
        if check is None or (check.done() and old):
            # a check that hangs is not started a second time
            check = self._check = asyncio.ensure_future(self._run(definitions))
            self._started_s, self._checked = now_s, definitions
        try:
            return await asyncio.wait_for(asyncio.shield(check), TIMEOUT_S)
        except TimeoutError:
            return StoreHealth(f"the online store has not responded within {TIMEOUT_S:g} s")

    async def _run(self, definitions: DefinitionSet) -> StoreHealth:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, check_store, definitions)

    def close(self) -> None:
        """Release the thread; a check that is running is abandoned."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def check_store(definitions: DefinitionSet) -> StoreHealth:
    """Read the states and all markers of the served views."""
    views = definitions.ready_views
    current_ms = now_ms()
    try:
        raws = definitions.store.get_many([definitions.keys(v.name).state for v in views])
        servers = definitions.store.evictions()
        evicted = evicted_keys(servers)
        states = [ViewState() if raw is None else ViewState.from_bytes(raw) for raw in raws]
        return StoreHealth(
            None,
            {
                view.name: _of_view(definitions, view, state, evicted, current_ms)
                for view, state in zip(views, states, strict=True)
            },
            servers,
        )
    except OnlineStoreError as error:
        return StoreHealth(str(error))


def _of_view(
    definitions: DefinitionSet,
    view: CompiledView,
    state: ViewState,
    evicted: Mapping[str, int],
    now_ms: int,
) -> ViewHealth:
    title = f"feature view {view.name!r}"
    if state.epoch is None or state.content is None:
        building = "it is being built" if state.building else "is its materializer running?"
        return ViewHealth(f"{title} is not in the online store yet; {building}")
    content = state.content
    fingerprints = {v.online_fingerprint for v in definitions.variants if v.name == view.name}
    if content.online_fingerprint not in fingerprints:
        return ViewHealth(
            f"{title} is in the online store for another definition (generation "
            f"{content.generation})",
            generation=content.generation,
            epoch=state.epoch,
        )
    markers = _markers(definitions, view.name, state.epoch, content.buckets)
    lost = sum(marker is None or not marker.complete for marker in markers)
    if lost:
        return ViewHealth(
            f"{title}: the online store has lost {lost} of {len(markers)} markers; a running "
            "materializer rebuilds the view",
            generation=content.generation,
            epoch=state.epoch,
        )
    if count := state.evicted_since(evicted):
        return ViewHealth(
            f"{title}: the online store has evicted {count} keys, so that entities may be missing; "
            "a running materializer rebuilds the view",
            generation=content.generation,
            epoch=state.epoch,
        )
    present = [marker for marker in markers if marker is not None]
    return ViewHealth(
        None,
        worst_freshness(view, present, now_ms),
        content.generation,
        state.epoch,
        any(marker.followed for marker in present),
    )


def _markers(
    definitions: DefinitionSet, view: str, epoch: str, buckets: int
) -> Sequence[Marker | None]:
    keys = definitions.keys(view)
    raws = definitions.store.get_many(
        [keys.bucket(epoch, number).marker for number in range(buckets)]
    )
    return [None if raw is None else Marker.from_bytes(raw) for raw in raws]


def store_document(health: StoreHealth) -> dict[str, Any]:
    """Return the store's part of the health document.

    Policies are null where they may not be read.
    """
    document: dict[str, Any] = {"reachable": health.error is None}
    if health.error is None:
        policies = {server.policy for server in health.servers}
        document["maxmemory_policies"] = sorted(policies, key=str)
        document["evicted_keys"] = sum(server.evicted for server in health.servers)
    return document


def view_documents(
    health: StoreHealth, max_staleness_ms: Mapping[str, int | None], now_ms: int
) -> dict[str, Any]:
    """Return the views of the health document, by name."""
    out: dict[str, Any] = {}
    for name, view in health.views.items():
        document: dict[str, Any] = {
            "readable": view.reason is None,
            "generation": view.generation,
            "epoch": view.epoch,
        }
        if view.reason is not None:
            document["reason"] = view.reason
        if view.freshness is not None:
            f = view.freshness
            document |= {
                "applied_snapshot": f.applied_snapshot,
                "commit_time_ms": f.commit_time_ms,
                "event_time_low_ms": f.event_time_low_ms,
                "event_time_high_ms": f.event_time_high_ms,
                "current_ms": f.current_ms,
                "behind_s": round(max(now_ms - f.current_ms, 0) / 1_000, 3),
                "stale": f.stale,
                "behind": view.is_behind(max_staleness_ms.get(name), now_ms),
            }
        out[name] = document
    return out
