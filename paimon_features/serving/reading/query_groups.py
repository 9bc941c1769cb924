"""Queries that are computed together: those of one selection, as of one time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import PaimonFeaturesError, RequestError, StoreNotReadyError
from paimon_features.core.windows import MAX_TIME_MS, MIN_TIME_MS
from paimon_features.definitions import Selection
from paimon_features.definitions.own_events import RequestEvents
from paimon_features.definitions.request import request_columns
from paimon_features.serving.reading.entities import EntityKeys, entity_keys, keys_of_events
from paimon_features.serving.reading.query import FeatureQuery
from paimon_features.serving.reading.view_results import ViewPlan, check_time, result_batch
from paimon_features.serving.reading.view_rows import FreshnessLookup, ViewRows
from paimon_features.serving.reading.view_states import ObservedState, ViewVariant
from paimon_features.serving.replies.response import OnlineResponse, ViewProvenance

Results = dict[int, OnlineResponse | PaimonFeaturesError]
"""Responses or errors by the numbers of their queries."""


class ViewPlanSet:
    """The plans of a selection for one view, by the definition whose records the store contains.

    Of ``variants`` with the same records, the first that has all the features is used.
    """

    def __init__(self, name: str, variants: Sequence[ViewVariant], features: Sequence[str]) -> None:
        self._name, self._features = name, tuple(features)
        self._plans: dict[str, ViewPlan] = {}
        for variant in variants:
            compiled = [variant.view.feature(feature) for feature in features]
            present = [feature for feature in compiled if feature is not None]
            if len(present) == len(compiled):
                plan = ViewPlan(variant, present)
                self._plans.setdefault(variant.view.online_fingerprint, plan)
        self.first = next((plan.variant for plan in self._plans.values()), variants[0])
        self.has_one_key = len({variant.kind for variant in variants}) == 1
        """Whether all definitions have the same entity keys."""

    def plan_of(self, fingerprint: str) -> ViewPlan | None:
        """Return the plan for records of this definition; None if they lack one of the features."""
        return self._plans.get(fingerprint)

    def in_use(self, seen: ObservedState) -> ViewPlan:
        """Return the plan for the store's records.

        StoreNotReadyError if they lack one of the features.
        """
        if seen.error is not None:
            raise own_error(seen.error)  # that one is kept, and would keep its traceback alive
        plan = None if seen.fingerprint is None else self._plans.get(seen.fingerprint)
        if plan is None:
            raise StoreNotReadyError(
                f"feature view {self._name!r}: the online store contains another definition, which "
                f"does not have all of: {', '.join(self._features)}; "
                f"run 'paimon-features materialize {self._name}' and wait until it is built"
            )
        return plan


@dataclass(frozen=True, slots=True, eq=False)
class SelectionPlan:
    """The plans of a selection, by view."""

    selection: Selection
    views: Mapping[str, ViewPlanSet]
    variants: Sequence[ViewVariant] | None
    """Definitions by which queries are checked before anything is read; None if the entity keys
    depend on which definition the store contains."""

    @classmethod
    def of(cls, selection: Selection, views: Mapping[str, ViewPlanSet]) -> SelectionPlan:
        """Return a plan for these views."""
        same = all(of.has_one_key for of in views.values())
        return cls(selection, views, [of.first for of in views.values()] if same else None)


@dataclass(slots=True, eq=False)
class ResolvedQuery:
    """A query that was checked, as far as that is possible without the store.

    ``offset`` is the row of its first entity in the group.
    """

    number: int
    query: FeatureQuery
    rows: int = 0
    offset: int = 0
    inputs: Mapping[str, Column] = field(default_factory=dict)
    _entities: dict[int, EntityKeys] = field(default_factory=dict)

    @classmethod
    def of(
        cls, number: int, query: FeatureQuery, plan: SelectionPlan, as_of_ms: int
    ) -> ResolvedQuery:
        """Check a query; raises RequestError."""
        if not MIN_TIME_MS <= as_of_ms <= MAX_TIME_MS:
            raise RequestError(
                f"as_of_ms={as_of_ms}: expected UTC milliseconds within the years 1 to 9999"
            )
        resolved = cls(number, query)
        if plan.variants is not None:
            resolved.check(plan.selection, plan.variants)
        return resolved

    def check(self, selection: Selection, variants: Sequence[ViewVariant]) -> None:
        """Check entities and request inputs against these definitions; raises RequestError."""
        self.rows = len(self.keys_of(variants[0]))
        if len(variants) > 1:
            counts = {len(self.keys_of(variant)) for variant in variants}
            if len(counts) > 1:
                raise RequestError(f"entity keys of different lengths: {sorted(counts)}")
        if selection.inputs or self.query.inputs:
            self.inputs = request_columns(selection.inputs, self.query.inputs, self.rows)

    def keys_of(self, variant: ViewVariant) -> EntityKeys:
        """Return the entities of a view, encoded once for all views of the same keys."""
        keys = self._entities.get(variant.kind)
        if keys is None:
            encode = entity_keys if self.query.events is None else keys_of_events
            keys = self._entities[variant.kind] = encode(variant.view.keys, self.query.entities)
        return keys

    @property
    def entities(self) -> Sequence[EntityKeys]:
        """The entities encoded so far, once for each combination of keys."""
        return list(self._entities.values())

    def columns(self, variants: Sequence[ViewVariant]) -> dict[str, Sequence[Any]]:
        """Return the values of all entity keys."""
        columns: dict[str, Sequence[Any]] = {}
        for variant in variants:
            columns.update(self.keys_of(variant).columns)
        return columns


class QueryGroup:
    """Queries of one selection and one time, all with an event or all by keys.

    ``choose_definitions`` determines what can be read. ``placed`` has the rows of each view, and
    the row of the first query's first entity among them. ``compute`` computes the responses.
    """

    def __init__(self, plan: SelectionPlan, as_of_ms: int) -> None:
        self.plan, self.as_of_ms = plan, as_of_ms
        self.queries: list[ResolvedQuery] = []
        self.ready: list[ResolvedQuery] = []
        self.rows = 0
        self.views: Mapping[str, ViewPlan] = {}
        self.placed: dict[str, tuple[ViewRows, int]] = {}

    def fail(self, error: PaimonFeaturesError, results: Results) -> None:
        """Set this error for all queries."""
        results.update((query.number, own_error(error)) for query in self.queries)

    def choose_definitions(self, seen: Mapping[str, ObservedState], failed: Results) -> None:
        """Use the definitions by which the store's records were computed."""
        self.ready, self.rows = [], 0
        try:
            self.views = {name: of.in_use(seen[name]) for name, of in self.plan.views.items()}
        except PaimonFeaturesError as error:
            self.fail(error, failed)
            return
        for query in self.queries:
            if self.plan.variants is None:
                try:
                    query.check(self.plan.selection, self.variants)
                except PaimonFeaturesError as error:
                    failed[query.number] = error
                    continue
            query.offset = self.rows
            self.rows += query.rows
            self.ready.append(query)

    @property
    def variants(self) -> list[ViewVariant]:
        """The definitions in use."""
        return [view.variant for view in self.views.values()]

    def compute(self, clock_ms: int, results: Results) -> None:
        """Compute the responses of the queries that were read."""
        if self.ready:
            self._compute(self.ready, clock_ms, results)

    def _compute(self, queries: Sequence[ResolvedQuery], clock_ms: int, results: Results) -> None:
        """Compute all queries at once; if one fails, in halves, until it is alone."""
        try:
            responses = self._responses(queries, clock_ms)
        except PaimonFeaturesError as error:
            if len(queries) == 1:
                results[queries[0].number] = own_error(error)
                return
            half = len(queries) // 2
            self._compute(queries[:half], clock_ms, results)
            self._compute(queries[half:], clock_ms, results)
        else:
            results.update(responses)

    def _responses(self, queries: Sequence[ResolvedQuery], clock_ms: int) -> Results:
        first, stop = queries[0].offset, queries[-1].offset + queries[-1].rows
        events = [one.query.events for one in queries if one.query.events is not None]
        requested = RequestEvents.concat(events) if events else None
        own_states: dict[str, list[str]] = {}
        view_results, fresh, reads = {}, {}, {}
        for name, plan in self.views.items():
            rows, start = self.placed[name]
            part = rows.part(start + first, start + stop)
            view = plan.variant.view
            fresh[name] = freshness = FreshnessLookup(view, part, clock_ms)
            folded = plan.fold(part, self.as_of_ms, freshness.stale)
            check_time(view, part, folded, self.as_of_ms, clock_ms)
            own_events = None if requested is None else requested.of_view(view)
            if own_events is not None:
                own_states[name] = own_events.states
            view_results[name] = result = plan.compute(
                part, folded, self.as_of_ms, freshness.stale, own_events
            )
            reads[name] = ViewProvenance(
                view,
                rows.epoch.name,
                rows.epoch.content,
                part.bucket_of,
                part.markers,
                result.snapshots,
                result.values,
                result.codes,
                None if own_events is None else requested,
            )
        inputs = {
            name: Column.concat([one.inputs[name] for one in queries])
            for name in self.plan.selection.inputs
        }
        epochs = {name: rows.epoch.name for name, (rows, _) in self.placed.items()}
        batch = result_batch(
            self.plan.selection, self.views, view_results, inputs, epochs, reads, self.as_of_ms
        )
        variants = self.variants
        out: Results = {}
        for one in queries:
            begin = one.offset - first
            end = begin + one.rows
            worst_freshness = {name: of.of(begin, end) for name, of in fresh.items()}
            out[one.number] = response = OnlineResponse(
                batch, begin, end, one.columns(variants), worst_freshness
            )
            if one.query.events is not None:
                response.own_event = {name: states[begin] for name, states in own_states.items()}
        return out


def own_error(error: PaimonFeaturesError) -> PaimonFeaturesError:
    """Return a copy of an error, to be raised on its own: raising an error modifies it."""
    copy = type(error)(*error.args)
    copy.__cause__ = error.__cause__
    return copy
