"""A cache of rows that were read a moment ago, in front of the server.

A row is kept for ``ttl_s``, but no longer than its views allow: rows of a view with a
``max_staleness`` of an hour whose store was 50 minutes behind are kept for ten minutes at most,
and those of a stale view are not kept.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paimon_features.core.feature_cache import FeatureCache
from paimon_features.serving.client.replies import FeatureReply
from paimon_features.serving.client.requests import ClientRequest
from paimon_features.serving.replies.freshness import Freshness

Limits = Mapping[str, int | None]
"""``max_staleness`` of each view, ms; None where it has none."""


@dataclass(frozen=True, slots=True)
class CachedRow:
    """One entity's part of a reply."""

    until_s: float
    as_of_ms: int
    names: tuple[str, ...]
    features: tuple[str, ...]
    values: tuple[Any, ...]
    statuses: tuple[str, ...]
    event_timestamps: tuple[str, ...]
    freshness: Mapping[str, Freshness]


class RowCache:
    """Rows by request and entity; ``clock`` counts seconds."""

    def __init__(
        self, cache: FeatureCache, ttl_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cache, self._ttl_s, self._clock = cache, ttl_s, clock

    def look_up(self, server: str, request: ClientRequest) -> CacheLookup:
        """Return the cached rows of a request; there are none for a request with ``as_of_ms``."""
        keys = [] if request.as_of_ms is not None else _keys(server, request)
        now_s = self._clock()
        rows: list[CachedRow | None] = []
        for key in keys:
            row = self._cache.get(key)
            rows.append(row if row is not None and now_s < row.until_s else None)
        return CacheLookup(self, request, keys, rows or [None] * request.rows)

    def keep(self, keys: Sequence[Hashable], rows: Sequence[CachedRow]) -> None:
        """Keep the rows that may be used again."""
        now_s = self._clock()
        for key, row in zip(keys, rows, strict=True):
            if now_s < row.until_s:
                self._cache.put(key, row)

    def rows_of(self, reply: FeatureReply, limits: Limits) -> list[CachedRow]:
        """Return the rows of a reply, each with the time until which it may be used."""
        until_s = self._clock() + min(
            [self._ttl_s, *(_left_s(reply, view, limits) for view in reply.freshness)]
        )
        names, features = tuple(reply.columns), tuple(reply.statuses)
        columns = zip(*reply.columns.values(), strict=True)
        statuses = zip(*reply.statuses.values(), strict=True)
        times = zip(*reply.event_timestamps.values(), strict=True)
        return [
            CachedRow(until_s, reply.as_of_ms, names, features, *parts, reply.freshness)
            for parts in zip(columns, statuses, times, strict=True)
        ]


class CacheLookup:
    """A request, and those of its rows that are cached."""

    def __init__(
        self,
        cache: RowCache,
        request: ClientRequest,
        keys: Sequence[Hashable],
        rows: list[CachedRow | None],
    ) -> None:
        self._cache, self._request, self._keys, self._rows = cache, request, keys, rows
        self._missing = [i for i, row in enumerate(rows) if row is None]

    @property
    def missing(self) -> ClientRequest | None:
        """The request for the missing rows; None if there are none."""
        if self._rows and not self._missing:
            return None
        everything = len(self._missing) == len(self._rows)
        return self._request if everything else self._request.take(self._missing)

    def known(self) -> FeatureReply:
        """Return the reply, if all rows were cached."""
        return _joined([row for row in self._rows if row is not None], None)

    def completed(self, reply: FeatureReply, limits: Limits) -> FeatureReply:
        """Return the complete reply, from cached rows and the reply for the others, which are
        cached."""
        if not self._missing:
            return reply
        fresh = self._cache.rows_of(reply, limits)
        if self._keys:
            missing = [self._keys[i] for i in self._missing]
            self._cache.keep(missing, fresh)
        if len(fresh) == len(self._rows):
            return reply
        for i, row in zip(self._missing, fresh, strict=True):
            self._rows[i] = row
        return _joined([row for row in self._rows if row is not None], reply.request_id)


def _left_s(reply: FeatureReply, view: str, limits: Limits) -> float:
    """Return how long until values of this view are stale, by the server's clock."""
    limit_ms, freshness = limits.get(view), reply.freshness[view]
    if limit_ms is None:
        return float("inf")
    if freshness.stale:
        return 0.0
    return (freshness.current_ms + limit_ms - reply.as_of_ms) / 1000


def _joined(rows: Sequence[CachedRow], request_id: str | None) -> FeatureReply:
    first = rows[0]
    freshness = {
        view: Freshness.worst([row.freshness[view] for row in rows]) for view in first.freshness
    }
    return FeatureReply(
        min(row.as_of_ms for row in rows),
        _columns(first.names, [row.values for row in rows]),
        _columns(first.features, [row.statuses for row in rows]),
        _columns(first.features, [row.event_timestamps for row in rows]),
        freshness,
        request_id,
    )


def _columns(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    return {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def _keys(server: str, request: ClientRequest) -> list[Hashable]:
    """Return the cache keys of a request's rows, unique among all requests."""
    prefix = request.features, request.service, request.full_feature_names, tuple(request.entities)
    # as JSON, because 1, 1.0 and True are one key of a dictionary and not one entity
    return [
        (server, prefix, json.dumps([one.entities, one.inputs], default=str))
        for one in (request.take([i]) for i in range(request.rows))
    ]
