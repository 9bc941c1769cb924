"""The online read: everything that a request needs in one command to the store.

View states, the markers of the entities' buckets, and the records are read at one time. So a value
is never combined from two epochs, and a switch in between is detected: then the request is read
again from the new epoch.

Many requests are read like one: one command for all of them, one decode per view, and one fold
for all of the same selection and time. Each gets the response that it would get alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from paimon_features.core.errors import (
    OnlineStoreError,
    PaimonFeaturesError,
    StoreNotReadyError,
    UnknownNameError,
)
from paimon_features.core.extras import installed
from paimon_features.core.native import CORE, log_once
from paimon_features.core.times.clock import Clock, now_ms
from paimon_features.core.types.statuses import Status
from paimon_features.core.windows import MAX_TIME_MS, MIN_TIME_MS
from paimon_features.definitions import CompiledView, Output, Selection
from paimon_features.definitions.own_events import RequestEvents
from paimon_features.online.store.store import OnlineStore
from paimon_features.serving.reading.entities import EntityKeys
from paimon_features.serving.reading.query import FeatureQuery
from paimon_features.serving.reading.query_groups import (
    QueryGroup,
    ResolvedQuery,
    Results,
    SelectionPlan,
    ViewPlanSet,
    own_error,
)
from paimon_features.serving.reading.store_reads import StoreRead, read
from paimon_features.serving.reading.view_rows import ViewRows
from paimon_features.serving.reading.view_states import ObservedState, ServedView, variants_of
from paimon_features.serving.replies.freshness import Freshness
from paimon_features.serving.replies.response import OnlineResponse

if TYPE_CHECKING:
    from paimon_features.serving.reading.direct_read import DirectBatch, DirectRead

__all__ = ["FeatureFetcher", "Freshness", "OnlineResponse", "Status"]

_WRITES_JSON = installed("msgspec")
"""False where only the extra for the lake is installed, which also reads values of a store."""

FirstRead = tuple[Sequence[bytes], Sequence[bytes | None]]
"""Keys that were read, and their values."""
_ATTEMPTS = 5
_PLANS = 256
"""The number of cached selections; services are few, but clients may list any features."""


class FeatureFetcher:
    """Reads features of ``views`` of a project from an online store.

    Reuse it: it caches layouts and the current epochs. Safe to use from several threads.
    ``clock`` is the host's clock, which determines staleness, and the time of reads without
    ``as_of_ms``.

    ``views`` may contain several definitions of one view, say the one that is materialized now and
    the next one: the store's content decides which of them a response is computed by, so that
    definitions can be changed here before or after the store is switched, and no request fails
    in between. Of definitions with the same records, the first that has all the requested features
    is used. A feature that only the other definition has is not ready.
    """

    def __init__(
        self,
        project: str,
        views: Iterable[CompiledView],
        store: OnlineStore,
        *,
        clock: Clock = now_ms,
    ) -> None:
        self.project, self.store, self.clock = project, store, clock
        log_once()
        self.records_read = self.cells_read = 0
        """Records found in the store so far, and the cells in them. Approximate if several threads
        read."""
        self._views = {
            name: ServedView(project, name, variants, store.key_prefix)
            for name, variants in variants_of(views).items()
        }
        self._plans: dict[Selection, SelectionPlan] = {}
        self._direct: dict[Selection, DirectRead] = {}

    def get(
        self,
        refs: Sequence[Output],
        entities: Mapping[str, object],
        as_of_ms: int,
        request: Mapping[str, object] | None = None,
    ) -> OnlineResponse:
        """Return the features of the entities at ``as_of_ms`` (UTC ms; events at that time are
        excluded).

        ``entities`` maps each key column to a sequence, all of one length: lists, NumPy, Arrow.
        ``request`` maps each request input of the interactions to a value for all entities, or
        to a sequence with one for each.

        Raises
        ------
        RequestError
            For invalid entities or request inputs, or an ``as_of_ms`` too far before the newest
            applied event (or before the clock, once records may have left the store): the store
            no longer has what such a read needs, and the lake has to answer it. Also for a view
            with exact windows over tiles, which the online store cannot compute.
        UnknownNameError
            For an unknown view or feature.
        StoreNotReadyError
            If the store has no complete epoch of a view, or one of another definition.
        OnlineStoreError
            If the store does not respond.
        """
        query = FeatureQuery(Selection.of(refs), entities, as_of_ms, request)
        query.check_types()
        return self._get(query)

    def get_event(self, refs: Sequence[Output], event: RequestEvents) -> OnlineResponse:
        """Return the features as of one event, which is counted where it is a member.

        Raises
        ------
        As ``get``.
        """
        return self._get(FeatureQuery.of_event(Selection.of(refs), event))

    def _get(self, query: FeatureQuery) -> OnlineResponse:
        [answer] = self.get_many([query])
        if isinstance(answer, PaimonFeaturesError):
            raise answer
        return answer

    def variants(self, name: str) -> list[CompiledView]:
        """Return the definitions of a view, the preferred one first.

        UnknownNameError if there is none.
        """
        if name not in self._views:
            raise UnknownNameError.of("feature view", name, self._views)
        return [variant.view for variant in self._views[name].variants]

    def get_many(
        self, queries: Sequence[FeatureQuery]
    ) -> list[OnlineResponse | PaimonFeaturesError]:
        """Return the response to each query, or its own error, in the order of the queries.

        A result does not depend on the other queries; those without ``as_of_ms`` share one time.
        The errors are those of ``get``.
        """
        return read(self.read_steps(queries), self.store)

    def read_steps(
        self, queries: Sequence[FeatureQuery]
    ) -> StoreRead[list[OnlineResponse | PaimonFeaturesError]]:
        """Run ``get_many`` in steps, for a caller that reads the store itself."""
        clock_ms = self.clock()
        batch = self._direct_batch(queries, clock_ms)
        if batch is None:
            return (yield from self._read_steps(queries, clock_ms, None))
        try:
            values = yield batch.keys
        except OnlineStoreError as error:  # the store itself: all queries fail
            return [own_error(error) for _ in queries]
        responses = batch.responses(values, self.clock())
        if responses is None:
            return (yield from self._read_steps(queries, clock_ms, (batch.keys, values)))
        self.records_read += batch.records
        self.cells_read += batch.cells
        return [*responses]

    def _read_steps(
        self, queries: Sequence[FeatureQuery], clock_ms: int, first: FirstRead | None
    ) -> StoreRead[list[OnlineResponse | PaimonFeaturesError]]:
        results: Results = {}
        groups: dict[tuple[SelectionPlan, int, bool], QueryGroup] = {}
        for number, query in enumerate(queries):
            as_of_ms = clock_ms if query.as_of_ms is None else query.as_of_ms
            try:
                plan = self._plan(query.selection)
                resolved = ResolvedQuery.of(number, query, plan, as_of_ms)
            except PaimonFeaturesError as error:
                results[number] = error
                continue
            kind = plan, as_of_ms, query.events is not None
            group = groups.get(kind)
            if group is None:
                group = groups[kind] = QueryGroup(plan, as_of_ms)
            group.queries.append(resolved)
        if groups:
            try:
                yield from self._read_groups(list(groups.values()), results, first)
            except OnlineStoreError as error:  # the store itself: all queries fail
                for group in groups.values():
                    group.fail(error, results)
        return [results[number] for number in range(len(queries))]

    # -- for a cache in front ---------------------------------------------------------------

    def check(self, query: FeatureQuery, as_of_ms: int) -> ResolvedQuery | None:
        """Return a query with its entities encoded, without a read; raises as ``get`` does.

        None if the entity keys depend on the store's content.
        """
        plan = self._plan(query.selection)
        return None if plan.variants is None else ResolvedQuery.of(0, query, plan, as_of_ms)

    def refresh(self, names: Iterable[str]) -> StoreRead[None]:
        """Read the current epochs of views; OnlineStoreError if the store does not respond.

        Unknown names are ignored.
        """
        views = [self._views[name] for name in names if name in self._views]
        states = yield [v.keys.state for v in views]
        for of, raw in zip(views, states, strict=True):
            of.see(raw)

    def epoch(self, name: str) -> str | None:
        """Return the name of the last known epoch of a view; None if none can be read."""
        last = self._views[name].last
        return None if last is None or last.epoch is None else last.epoch.name

    def max_staleness_ms(self, name: str) -> int | None:
        """Return the smallest ``max_staleness`` of a view's definitions; None if none sets one."""
        bounds = [variant.view.max_staleness_ms for variant in self._views[name].variants]
        return min((bound for bound in bounds if bound is not None), default=None)

    # -- what is requested -----------------------------------------------------------------

    def _plan(self, selection: Selection) -> SelectionPlan:
        plan = self._plans.get(selection)
        if plan is None:
            wanted: dict[str, list[str]] = {}
            for ref in selection.refs:
                wanted.setdefault(ref.view, []).append(ref.feature)
            views = {name: self._view_plans(name, features) for name, features in wanted.items()}
            plan = SelectionPlan.of(selection, views)
            if len(self._plans) >= _PLANS:
                self._plans = {}
            self._plans[selection] = plan
        return plan

    def _view_plans(self, name: str, features: Sequence[str]) -> ViewPlanSet:
        """Return the plans for a view, one for each of its definitions that has all these
        features."""
        of = self._views.get(name)
        if of is None:
            raise UnknownNameError.of("feature view", name, self._views)
        for feature in features:
            if all(variant.view.feature(feature) is None for variant in of.variants):
                available = [f"{name}:{f.name}" for v in of.variants for f in v.view.features]
                raise UnknownNameError.of("feature", f"{name}:{feature}", dict.fromkeys(available))
        online = [variant for variant in of.variants if variant.view.is_online]
        if not online:
            of.variants[0].view.check_online()
        return ViewPlanSet(name, online, features)

    def _direct_batch(self, queries: Sequence[FeatureQuery], clock_ms: int) -> DirectBatch | None:
        """Return the keys of queries that the native core answers alone; None for others."""
        if not queries:
            return None
        selection, as_of_ms = queries[0].selection, queries[0].as_of_ms
        if as_of_ms is None:
            as_of_ms = clock_ms
        elif not MIN_TIME_MS <= as_of_ms <= MAX_TIME_MS:
            return None
        read = self._direct.get(selection)
        if read is None or not read.is_current:
            read = self._direct_read(selection)
        return None if read is None else read.place(queries, as_of_ms)

    def _direct_read(self, selection: Selection) -> DirectRead | None:
        if CORE is None or not _WRITES_JSON:
            return None
        from paimon_features.serving.reading.direct_read import DirectRead

        try:
            plan = self._plan(selection)
        except PaimonFeaturesError:
            return None  # reported by the usual way
        if len(plan.views) != 1:
            return None
        [name] = plan.views
        read = DirectRead.of(plan, self._views[name])
        if read is not None:
            if len(self._direct) >= _PLANS:
                self._direct = {}
            self._direct[selection] = read
        return read

    # -- the read --------------------------------------------------------------------------

    def _read_groups(
        self, groups: Sequence[QueryGroup], results: Results, first: FirstRead | None
    ) -> StoreRead[None]:
        """Read and compute all groups from the epochs that are current at the time of the read.

        ``first`` has keys that were read just now, for the same queries, with their values.
        """
        names = list(dict.fromkeys(name for group in groups for name in group.plan.views))
        states = [self._views[name].keys.state for name in names]
        seen = yield from self._guess(names)
        for _ in range(_ATTEMPTS):
            failed: Results = {}
            for group in groups:
                group.choose_definitions(seen, failed)
            rows = _place(names, groups, seen)
            keys = [*states, *(key for of in rows for key in of.keys)]
            if first is not None and first[0] == keys:
                values = first[1]
            else:
                values = yield keys
            first = None
            # what was read counts only if it was the current epoch at that very time
            now = self._see(names, values)
            moved = [name for name in names if not now[name].is_as(seen[name])]
            parts = _split(values[len(names) :], rows)
            if not moved and any(of.lacks_markers(part) for of, part in parts):
                # On a cluster a state and a bucket come from two nodes: in between the old epoch
                # may have been switched from and swept. If so, the state says it now.
                now = yield from self._read_states(names)
                moved = [name for name in names if not now[name].is_as(seen[name])]
            if not moved:
                break
            seen = now
        else:
            error = StoreNotReadyError(
                f"the epochs of {', '.join(moved)} changed "
                f"{_ATTEMPTS} times during one request; read again"
            )
            for group in groups:
                if not group.plan.views.keys().isdisjoint(moved):
                    group.ready = []
                    group.fail(error, failed)
        results.update(failed)
        for of, part in parts:
            of.fill(part)
            records, cells = of.count()
            self.records_read += records
            self.cells_read += cells
        clock_ms = self.clock()
        for group in groups:
            group.compute(clock_ms, results)

    def _guess(self, names: Sequence[str]) -> StoreRead[dict[str, ObservedState]]:
        """Return the last known states of the views; a view without a readable one is read now."""
        states: dict[str, ObservedState] = {}
        for name in names:
            last = self._views[name].last
            if last is not None and last.epoch is not None:
                states[name] = last
        unknown = [name for name in names if name not in states]
        return states | (yield from self._read_states(unknown)) if unknown else states

    def _read_states(self, names: Sequence[str]) -> StoreRead[dict[str, ObservedState]]:
        states = yield [self._views[name].keys.state for name in names]
        return self._see(names, states)

    def _see(self, names: Sequence[str], found: Sequence[bytes | None]) -> dict[str, ObservedState]:
        """Decode the first values of ``found``, which are the states of these views."""
        return {name: self._views[name].see(raw) for name, raw in zip(names, found, strict=False)}


def _place(
    names: Sequence[str], groups: Sequence[QueryGroup], seen: Mapping[str, ObservedState]
) -> list[ViewRows]:
    """Return the rows to read of each view, those of a group in sequence."""
    placed = []
    for name in names:
        epoch = seen[name].epoch
        if epoch is None:
            continue
        entities: list[EntityKeys] = []
        start = 0
        of_groups: list[tuple[QueryGroup, int]] = []
        for group in groups:
            if name in group.plan.views and group.ready:
                of_groups.append((group, start))
                entities += [query.keys_of(group.views[name].variant) for query in group.ready]
                start += group.rows
        if entities:
            rows = ViewRows(name, epoch, entities)
            placed.append(rows)
            for group, start in of_groups:
                group.placed[name] = (rows, start)
    return placed


def _split(
    found: Sequence[bytes | None], rows: Sequence[ViewRows]
) -> list[tuple[ViewRows, Sequence[bytes | None]]]:
    """Return the rows of each view with the values of their keys, which follow each other."""
    parts, at = [], 0
    for of in rows:
        parts.append((of, found[at : at + len(of.keys)]))
        at += len(of.keys)
    return parts
