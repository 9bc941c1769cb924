"""Asks that are answered together: those of one selection, as of one time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from paimon_features.columns import Column
from paimon_features.definitions import Selection
from paimon_features.definitions.request import request_columns
from paimon_features.errors import PaimonFeaturesError, RequestError, StoreNotReadyError
from paimon_features.serving.entities import EntityKeys, entity_keys
from paimon_features.serving.entity_rows import EntityRows, FreshnessLookup
from paimon_features.serving.query import FeatureQuery
from paimon_features.serving.response import OnlineResponse, ViewProvenance
from paimon_features.serving.view_results import ViewPlan, check_time, result_batch
from paimon_features.serving.view_states import ObservedState, ViewVariant
from paimon_features.serving.window_features import WindowFeatures
from paimon_features.windows import MAX_TIME_MS, MIN_TIME_MS

Results = dict[int, OnlineResponse | PaimonFeaturesError]
"""Answers by the numbers of their asks."""


class ViewPlanSet:
    """What a selection asks of a view: by that of its definitions that turns out to count.

    Of ``variants`` that keep the same records, the first that has all the features counts.
    """

    def __init__(self, name: str, variants: Sequence[ViewVariant], features: Sequence[str]) -> None:
        self._name, self._features = name, tuple(features)
        self._plans: dict[str, ViewPlan] = {}
        for variant in variants:
            found = [variant.view.feature(feature) for feature in features]
            known = [feature for feature in found if feature is not None]
            if len(known) == len(found):
                plan = ViewPlan(variant, WindowFeatures(variant.view, known))
                self._plans.setdefault(variant.view.online_fingerprint, plan)
        self.first = next((plan.variant for plan in self._plans.values()), variants[0])
        self.has_one_key = len({variant.kind for variant in variants}) == 1
        """Whether all definitions have the same entity keys."""

    def in_use(self, seen: ObservedState) -> ViewPlan:
        """The plan for what the store holds; StoreNotReadyError if it has no such feature."""
        if seen.error is not None:
            raise _own(seen.error)  # that one is kept, and would keep whatever raised it
        plan = None if seen.fingerprint is None else self._plans.get(seen.fingerprint)
        if plan is None:
            raise StoreNotReadyError(
                f"feature view {self._name!r}: the online store holds another definition, which "
                f"does not have all of: {', '.join(self._features)}; "
                f"run 'paimon-features materialize {self._name}' and wait until it is built"
            )
        return plan


@dataclass(frozen=True, slots=True, eq=False)
class SelectionPlan:
    """What a selection asks of each view."""

    selection: Selection
    views: Mapping[str, ViewPlanSet]
    variants: Sequence[ViewVariant] | None
    """Definitions by which asks are checked before anything is read; None where the entity keys
    depend on which definition counts."""

    @classmethod
    def of(cls, selection: Selection, views: Mapping[str, ViewPlanSet]) -> SelectionPlan:
        """The plan of these views."""
        same = all(of.has_one_key for of in views.values())
        return cls(selection, views, [of.first for of in views.values()] if same else None)


@dataclass(slots=True, eq=False)
class ResolvedQuery:
    """An ask that was found right, as far as that can be told without the store.

    ``offset`` says which row of its group its first entity is.
    """

    number: int
    ask: FeatureQuery
    rows: int = 0
    offset: int = 0
    inputs: Mapping[str, pa.Array] = field(default_factory=dict)
    _entities: dict[int, EntityKeys] = field(default_factory=dict)

    @classmethod
    def of(
        cls, number: int, ask: FeatureQuery, plan: SelectionPlan, as_of_ms: int
    ) -> ResolvedQuery:
        """Check an ask; raises RequestError."""
        if not MIN_TIME_MS <= as_of_ms <= MAX_TIME_MS:
            raise RequestError(
                f"as_of_ms={as_of_ms}: expected UTC milliseconds within the years 1 to 9999"
            )
        asked = cls(number, ask)
        if plan.variants is not None:
            asked.check(plan.selection, plan.variants)
        return asked

    def check(self, selection: Selection, variants: Sequence[ViewVariant]) -> None:
        """Check entities and request inputs against these definitions; raises RequestError."""
        counts = {len(self.keys_of(variant)) for variant in variants}
        if len(counts) > 1:
            raise RequestError(f"entity keys of different lengths: {sorted(counts)}")
        self.rows = counts.pop()
        if selection.inputs or self.ask.inputs:
            self.inputs = request_columns(selection.inputs, self.ask.inputs, self.rows)

    def keys_of(self, variant: ViewVariant) -> EntityKeys:
        """The entities of a view, worked out once for all views of the same keys."""
        found = self._entities.get(variant.kind)
        if found is None:
            found = self._entities[variant.kind] = entity_keys(variant.view.keys, self.ask.entities)
        return found

    @property
    def entities(self) -> Sequence[EntityKeys]:
        """What was worked out so far, once for each kind of keys."""
        return list(self._entities.values())

    def columns(self, variants: Sequence[ViewVariant]) -> dict[str, Sequence[Any]]:
        """The values of all entity keys."""
        columns: dict[str, Sequence[Any]] = {}
        for variant in variants:
            columns.update(self.keys_of(variant).columns)
        return columns


class QueryGroup:
    """Asks of one selection and one time.

    ``aim`` chooses the definitions and what can be read, ``placed`` is where the rows of each
    view are then (and in which of them the first ask's first entity is), ``answer`` does the
    rest.
    """

    def __init__(self, plan: SelectionPlan, as_of_ms: int) -> None:
        self.plan, self.as_of_ms = plan, as_of_ms
        self.asked: list[ResolvedQuery] = []
        self.ready: list[ResolvedQuery] = []
        self.rows = 0
        self.views: Mapping[str, ViewPlan] = {}
        self.placed: dict[str, tuple[EntityRows, int]] = {}

    def fail(self, error: PaimonFeaturesError, answers: Results) -> None:
        """Give all asks this error."""
        answers.update((asked.number, _own(error)) for asked in self.asked)

    def aim(self, seen: Mapping[str, ObservedState], failed: Results) -> None:
        """Take the definitions by which the store's content was made."""
        self.ready, self.rows = [], 0
        try:
            self.views = {name: of.in_use(seen[name]) for name, of in self.plan.views.items()}
        except PaimonFeaturesError as error:
            self.fail(error, failed)
            return
        for asked in self.asked:
            if self.plan.variants is None:
                try:
                    asked.check(self.plan.selection, self.variants)
                except PaimonFeaturesError as error:
                    failed[asked.number] = error
                    continue
            asked.offset = self.rows
            self.rows += asked.rows
            self.ready.append(asked)

    @property
    def variants(self) -> list[ViewVariant]:
        """The definitions that count."""
        return [view.variant for view in self.views.values()]

    def answer(self, clock_ms: int, answers: Results) -> None:
        """Answer those that were read."""
        if self.ready:
            self._answer(self.ready, clock_ms, answers)

    def _answer(self, asked: Sequence[ResolvedQuery], clock_ms: int, answers: Results) -> None:
        """All at once; where one of them has an error, in halves, until it is alone."""
        try:
            answered = self._answered(asked, clock_ms)
        except PaimonFeaturesError as error:
            if len(asked) == 1:
                answers[asked[0].number] = _own(error)
                return
            half = len(asked) // 2
            self._answer(asked[:half], clock_ms, answers)
            self._answer(asked[half:], clock_ms, answers)
        else:
            answers.update(answered)

    def _answered(self, asked: Sequence[ResolvedQuery], clock_ms: int) -> Results:
        first, stop = asked[0].offset, asked[-1].offset + asked[-1].rows
        own, fresh, reads = {}, {}, {}
        for name, plan in self.views.items():
            rows, start = self.placed[name]
            part = rows.part(start + first, start + stop)
            view = plan.variant.view
            check_time(view, part, self.as_of_ms, clock_ms)
            fresh[name] = freshness = FreshnessLookup(view, part, clock_ms)
            own[name] = answer = plan.answer(part, self.as_of_ms, freshness.stale)
            reads[name] = ViewProvenance(
                view,
                rows.epoch.name,
                rows.epoch.content,
                part.bucket_of,
                part.markers,
                part.spread(part.records.headers["snapshot"]),
                answer.values,
                answer.codes,
            )
        inputs = {
            name: Column.from_arrow(pa.concat_arrays([one.inputs[name] for one in asked]))
            for name in self.plan.selection.inputs
        }
        epochs = {name: rows.epoch.name for name, (rows, _) in self.placed.items()}
        batch = result_batch(
            self.plan.selection, self.views, own, inputs, epochs, reads, self.as_of_ms
        )
        variants = self.variants
        out: Results = {}
        for one in asked:
            begin = one.offset - first
            end = begin + one.rows
            worst_freshness = {name: of.of(begin, end) for name, of in fresh.items()}
            out[one.number] = OnlineResponse(
                batch, begin, end, one.columns(variants), worst_freshness
            )
        return out


def _own(error: PaimonFeaturesError) -> PaimonFeaturesError:
    """An error like this one, to be raised by itself: raising writes into an error."""
    own = type(error)(*error.args)
    own.__cause__ = error.__cause__
    return own
