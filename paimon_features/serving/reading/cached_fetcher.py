"""A cache of online reads: entities that were read a moment ago are answered without the store."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import DefinitionError, OnlineStoreError, PaimonFeaturesError
from paimon_features.core.feature_cache import FeatureCache
from paimon_features.core.types.schema import DataType
from paimon_features.definitions import Selection
from paimon_features.online.store.store import OnlineStore
from paimon_features.serving.reading.fetcher import FeatureFetcher
from paimon_features.serving.reading.query import FeatureQuery
from paimon_features.serving.reading.query_groups import ResolvedQuery
from paimon_features.serving.reading.store_reads import StoreRead, read
from paimon_features.serving.replies.freshness import Freshness
from paimon_features.serving.replies.response import OnlineResponse, ResultBatch

TTL_MS = 1_000
RECHECK_MS = 100
_Key = tuple[Selection, tuple[bytes, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class _RowSchema:
    """What the rows of one selection share: the types of keys and outputs."""

    key_types: Mapping[str, DataType]
    types: Sequence[DataType]
    stored: Sequence[np.dtype[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class _CachedRow:
    """One entity's values, as they were read; valid until ``until_ms`` (inclusive).

    ``values``, ``codes`` and ``times`` have one item per output.
    """

    shape: _RowSchema
    as_of_ms: int
    until_ms: int
    epochs: Mapping[str, str]
    freshness: Mapping[str, Freshness]
    keys: tuple[Any, ...]
    values: tuple[Any, ...]
    codes: tuple[int, ...]
    times: tuple[int, ...]
    event_times: tuple[int, ...]


class CachedFetcher:
    """A fetcher that caches the last values of each entity and selection.

    A row is used for ``ttl_ms`` at most, and never beyond the time at which its view would be stale
    (``max_staleness``), so a cached value is never STALE. Every ``recheck_ms`` the current epoch
    of a view is read from the store: rows of another epoch are not used, and a reply never mixes
    two. If the store does not respond then, it is an error, as without a cache.

    Queries with a time or with request inputs are not cached. ``as_of_ms`` of a reply is that of
    its oldest row: each row is correct as of the time of its own read, between then and now. Safe
    to use from several threads.
    """

    def __init__(
        self,
        fetcher: FeatureFetcher,
        *,
        ttl_ms: int = TTL_MS,
        recheck_ms: int = RECHECK_MS,
        max_size: int = 10_000,
    ) -> None:
        if ttl_ms < 1 or recheck_ms < 0:
            raise DefinitionError(
                f"ttl_ms={ttl_ms}, recheck_ms={recheck_ms}: expected at least 1 and 0"
            )
        self.fetcher = fetcher
        self.ttl_ms, self.recheck_ms = ttl_ms, recheck_ms
        self.hits = self.misses = 0
        """Entities found in the cache, and entities that were read."""
        self._rows = FeatureCache(max_size)
        self._lock = threading.Lock()
        self._checked_ms: dict[str, int] = {}

    def get_many(
        self, queries: Sequence[FeatureQuery]
    ) -> list[OnlineResponse | PaimonFeaturesError]:
        """Return as ``FeatureFetcher.get_many``.

        Queries without a time may be answered from the cache.
        """
        return read(self.read_steps(queries), self.store)

    @property
    def store(self) -> OnlineStore:
        """The store of the fetcher."""
        return self.fetcher.store

    def read_steps(
        self, queries: Sequence[FeatureQuery]
    ) -> StoreRead[list[OnlineResponse | PaimonFeaturesError]]:
        """Run ``get_many`` in steps, for a caller that reads the store itself."""
        now_ms = self.fetcher.clock()
        try:
            yield from self._recheck(queries, now_ms)
        except OnlineStoreError:
            return (yield from self.fetcher.read_steps(queries))
        looked_up = [self._look_up(query, now_ms) for query in queries]
        reads = [
            query if lookup is None else lookup.rest()
            for query, lookup in zip(queries, looked_up, strict=True)
            if lookup is None or lookup.missing
        ]
        rest = iter((yield from self.fetcher.read_steps(reads)) if reads else ())
        answers: list[OnlineResponse | PaimonFeaturesError | None] = []
        for lookup in looked_up:
            answer = next(rest) if lookup is None or lookup.missing else None
            if lookup is not None and not isinstance(answer, PaimonFeaturesError):
                if answer is not None:
                    self._keep(lookup, answer)
                answer = lookup.answer()
            answers.append(answer)
        # where an epoch started in between, and only some rows were read from it
        mixed = [number for number, answer in enumerate(answers) if answer is None]
        if mixed:
            whole = yield from self.fetcher.read_steps([queries[number] for number in mixed])
            for number, answer in zip(mixed, whole, strict=True):
                answers[number] = answer
        return [answer for answer in answers if answer is not None]

    def clear(self) -> None:
        """Empty the cache."""
        self._rows.clear()

    # -- looking up ------------------------------------------------------------------------

    def _recheck(self, queries: Sequence[FeatureQuery], now_ms: int) -> StoreRead[None]:
        due = {
            ref.view
            for query in queries
            for ref in query.selection.refs
            if not 0 <= now_ms - self._checked_ms.get(ref.view, -(2**62)) < self.recheck_ms
        }
        if due:
            yield from self.fetcher.refresh(due)
            self._checked_ms.update(dict.fromkeys(due, now_ms))

    def _look_up(self, query: FeatureQuery, now_ms: int) -> _CacheLookup | None:
        """Return the cached rows of each entity; None for a query that is not cached."""
        if query.as_of_ms is not None or query.selection.inputs or query.inputs:
            return None
        try:
            resolved = self.fetcher.check(query, now_ms)
        except PaimonFeaturesError:
            return None
        if resolved is None or not resolved.rows:
            return None
        lookup = _CacheLookup(query.selection, resolved)
        for place, key in enumerate(lookup.keys):
            row = self._rows.get(key)
            if row is None or not self._is_good(row, now_ms):
                lookup.missing.append(place)
            else:
                lookup.rows[place] = row
        with self._lock:
            self.misses += len(lookup.missing)
            self.hits += resolved.rows - len(lookup.missing)
        return lookup

    def _is_good(self, row: _CachedRow, now_ms: int) -> bool:
        if not row.as_of_ms <= now_ms <= row.until_ms:
            return False
        return all(self.fetcher.epoch(view) == epoch for view, epoch in row.epochs.items())

    def _keep(self, found: _CacheLookup, answer: OnlineResponse) -> None:
        until_ms = answer.as_of_ms + self.ttl_ms
        for view, freshness in answer.freshness.items():
            limit_ms = self.fetcher.max_staleness_ms(view)
            if limit_ms is not None:
                until_ms = min(until_ms, freshness.current_ms + limit_ms)
        for place, row in zip(found.missing, _rows_of(answer, until_ms), strict=True):
            found.rows[place] = row
            self._rows.put(found.keys[place], row)


class _CacheLookup:
    """A query, the cached rows of its entities, and the positions of the missing ones."""

    def __init__(self, selection: Selection, resolved: ResolvedQuery) -> None:
        self._selection = selection
        self._columns = {n: v for keys in resolved.entities for n, v in keys.columns.items()}
        encoded = [keys.encoded for keys in resolved.entities]
        self.keys: list[_Key] = [(selection, one) for one in zip(*encoded, strict=True)]
        self.rows: list[_CachedRow | None] = [None] * resolved.rows
        self.missing: list[int] = []

    def rest(self) -> FeatureQuery:
        """Return the query for the missing entities."""
        rest = {
            name: [values[place] for place in self.missing]
            for name, values in self._columns.items()
        }
        return FeatureQuery(self._selection, rest)

    def answer(self) -> OnlineResponse | None:
        """Return the response, once all rows are known; None if they are not of the same epochs."""
        rows = [row for row in self.rows if row is not None]
        first = rows[0]
        if any(row.epochs != first.epochs for row in rows):
            return None
        batch = _batch_of(self._selection, rows)
        fresh = {
            view: Freshness.worst([row.freshness[view] for row in rows]) for view in first.freshness
        }
        columns = zip(*(row.keys for row in rows), strict=True)
        keys = dict(zip(first.shape.key_types, map(list, columns), strict=True))
        return OnlineResponse(batch, 0, len(rows), keys, fresh)


def _rows_of(answer: OnlineResponse, until_ms: int) -> Iterator[_CachedRow]:
    """Yield the rows of a response, independent of its batch."""
    batch, part = answer.batch, slice(answer.start, answer.stop)
    shape = _RowSchema(
        batch.key_types, batch.types, [column.values.dtype for column in batch.columns]
    )
    columns = [column.part(part) for column in batch.columns]
    values = zip(
        *(zip(c.values.tolist(), c.mask.tolist(), strict=True) for c in columns), strict=True
    )
    for keys, row, codes, times, event_times in zip(
        zip(*(answer.keys[name] for name in batch.key_types), strict=True),
        values,
        zip(*(codes[part].tolist() for codes in batch.codes), strict=True),
        zip(*(times[part].tolist() for times in batch.times), strict=True),
        zip(*(times[part].tolist() for times in batch.event_times.values()), strict=True),
        strict=True,
    ):
        yield _CachedRow(
            shape, batch.as_of_ms, until_ms, batch.epochs, answer.freshness, keys,
            tuple([value if valid else None for value, valid in row]), codes, times, event_times,
        )  # fmt: skip


def _batch_of(selection: Selection, rows: Sequence[_CachedRow]) -> ResultBatch:
    """Return a batch of rows, as if they had been read together."""
    first = rows[0]
    shape = first.shape
    event_times = {
        view: np.array(times)
        for view, times in zip(
            first.freshness, zip(*(row.event_times for row in rows), strict=True), strict=True
        )
    }
    return ResultBatch(
        selection,
        min(row.as_of_ms for row in rows),
        shape.key_types,
        shape.types,
        [
            _column(values, stored)
            for values, stored in zip(
                zip(*(row.values for row in rows), strict=True), shape.stored, strict=True
            )
        ],
        _distinct([row.codes for row in rows], np.dtype(np.int8)),
        _distinct([row.times for row in rows], np.dtype(np.int64)),
        event_times,
        first.epochs,
    )


def _column(values: Sequence[Any], stored: np.dtype[Any]) -> Column:
    if None not in values:
        return Column(np.fromiter(values, stored, len(values)))
    valid = [value is not None for value in values]
    if stored.kind != "O":
        values = [0 if value is None else value for value in values]
    return Column(np.fromiter(values, stored, len(values)), np.array(valid))


def _distinct(rows: Sequence[tuple[int, ...]], stored: np.dtype[Any]) -> list[Any]:
    """Return an array per output; equal outputs share one, so that it is encoded once."""
    arrays: dict[tuple[int, ...], Any] = {}
    out = []
    for column in zip(*rows, strict=True):
        array = arrays.get(column)
        if array is None:
            array = arrays[column] = np.array(column, stored)
        out.append(array)
    return out
