"""One loaded set of definitions: feature names to selections, and the reader of the online store.

A request uses the set that was current when it arrived, to its end, so no reply mixes two sets.
A reload builds the next set completely before it becomes current.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from paimon_features.core._arrow import is_arrow
from paimon_features.core.errors import DefinitionError, RequestError
from paimon_features.core.types.schema import DataType
from paimon_features.definitions import (
    CompiledView,
    Definitions,
    RequestItem,
    Selection,
)
from paimon_features.definitions.own_events import EventReads
from paimon_features.definitions.request_values import parser_of_text, text_form
from paimon_features.online.store.keys import ViewKeys
from paimon_features.online.store.store import OnlineStore
from paimon_features.serving.http.access.access import Grants, Rights
from paimon_features.serving.http.bodies.request_body import ParsedRequest
from paimon_features.serving.http.http_errors import RequestRejected, invalid_request
from paimon_features.serving.http.limits import Limits
from paimon_features.serving.reading.cached_fetcher import CachedFetcher
from paimon_features.serving.reading.coalesce import Reader
from paimon_features.serving.reading.fetcher import FeatureFetcher
from paimon_features.serving.reading.query import FeatureQuery

_REMEMBERED = 256
"""How many lists of features are cached, and how long one of them may be."""

_MOST_GRANTS = 16_384


@dataclass(frozen=True)
class RequestPlan:
    """A request's feature names, resolved: the selection, and the columns that it needs.

    ``keys`` and ``inputs`` are types by name. ``entity_names`` maps an entity with one key to that
    key, since Feast's clients may send the entity's name instead. ``from_text`` parses columns
    that JSON writes as text, and ``items`` are the requested names, for the check of rights.
    ``event_reads`` is set where the read takes an event instead of keys.
    """

    selection: Selection
    views: tuple[CompiledView, ...]
    keys: Mapping[str, DataType]
    inputs: Mapping[str, DataType]
    entity_names: Mapping[str, str]
    from_text: Mapping[str, Callable[[str], object]]
    items: frozenset[str]
    event_reads: EventReads | None = None


class DefinitionSet:
    """The definitions of a project, and the online store read by them.

    ``previous_views`` are views of earlier definitions: a view is read by its earlier definition
    while the store still contains the records of that one.
    """

    def __init__(
        self,
        project: str,
        definitions: Definitions,
        store: OnlineStore,
        loaded_ms: int,
        previous_views: Sequence[CompiledView] = (),
    ) -> None:
        self.project = project
        self.definitions = definitions
        self.store = store
        self.loaded_ms = loaded_ms
        self.views = [v.compiled for v in definitions.views.values() if v.compiled.is_online]
        self.variants = [*self.views, *_other_layouts(self.views, previous_views)]
        self.fetcher = FeatureFetcher(project, self.variants, store)
        self.cache: CachedFetcher | None = None
        self._services: dict[str, RequestPlan] = {}
        self._lists: dict[tuple[str, ...], RequestPlan] = {}
        self._granted: dict[Grants, frozenset[str]] = {}
        for name in definitions.services:
            try:
                self.plan(name, ())
            except (RequestError, DefinitionError):
                # a service for training only, or with a transformer that was fitted on a feature
                # that is defined otherwise now: a request for it is rejected
                continue

    def with_cache(self, ttl_ms: int, entities: int) -> DefinitionSet:
        """Cache the rows of at most ``entities`` entities for ``ttl_ms``; returns itself."""
        self.cache = CachedFetcher(self.fetcher, ttl_ms=ttl_ms, max_size=entities)
        return self

    @property
    def reader(self) -> Reader:
        """The reader of queries: the fetcher, or the cache in front of it."""
        return self.fetcher if self.cache is None else self.cache

    def keys(self, view: str) -> ViewKeys:
        """Return the keys of a view in the store."""
        return ViewKeys(self.project, view, self.store.key_prefix)

    @property
    def reads(self) -> dict[str, int]:
        """Totals of reads since this set was loaded, for the metrics."""
        counts = {
            "records_read": self.fetcher.records_read,
            "cells_read": self.fetcher.cells_read,
        }
        if self.cache is not None:
            counts |= {"cache_hits": self.cache.hits, "cache_misses": self.cache.misses}
        return counts

    @cached_property
    def ready_views(self) -> list[CompiledView]:
        """The views that readiness requires: those of the services, or all without services."""
        of_services = {view.name for w in self._services.values() for view in w.views}
        return [view for view in self.views if not of_services or view.name in of_services]

    def plan(self, service: str | None, features: tuple[str, ...]) -> RequestPlan:
        """Resolve a service, or a list of ``view:feature`` and names of computed features.

        Raises
        ------
        UnknownNameError
            For a name that is not defined.
        RequestError
            For features that cannot be read together, or not online.
        """
        plan = self._services.get(service) if service is not None else self._lists.get(features)
        if plan is None:
            plan = self._resolve(service, features)
            if service is not None:
                self._services[service] = plan
            elif len(features) <= _REMEMBERED:
                if len(self._lists) >= _REMEMBERED:
                    self._lists.clear()
                self._lists[features] = plan
        return plan

    def model_plan(self, service: str, features: tuple[str, ...]) -> RequestPlan:
        """Return the plan of a model's features, which are read as its service is.

        Raises
        ------
        As ``plan``.
        """
        plan = self.plan(None, features)
        of = self.definitions.services.get(service)
        if of is None or of.request is None:
            return plan
        return replace(plan, event_reads=self.definitions.event_reads(of))

    def service_plan(self, name: str) -> RequestPlan | None:
        """Return the plan of a service; None for one that is not read online."""
        return self._services.get(name)

    def granted(self, rights: Rights) -> frozenset[str] | None:
        """Return the names of the features that may be read; None for all of them."""
        grants = rights.grants
        if grants.reads_everything:
            return None
        names = self._granted.get(grants)
        if names is None:
            if len(self._granted) >= _MOST_GRANTS:
                self._granted.clear()
            names = self._granted[grants] = frozenset(self._named(grants))
        return names

    def _named(self, grants: Grants) -> Iterator[str]:
        """Yield what services and views that are granted consist of, and what is computed of
        views."""
        for name, service in self.definitions.services.items():
            if grants.has_service(name):
                yield from map(str, service.items())
        of_views = {
            f"{name}:{feature.name}"
            for name, view in self.definitions.views.items()
            if grants.has_view(name)
            for feature in view.compiled.features
        }
        yield from of_views
        for name in self.definitions.interactions:
            if of_views.issuperset(map(str, self.definitions.interaction(name).refs)):
                yield name
        for name in self.definitions.transformed:
            if of_views.issuperset(map(str, self.definitions.transformation(name).refs)):
                yield name

    def check_rights(self, plan: RequestPlan, rights: Rights) -> None:
        """Raise RequestRejected (403) unless the rights cover all requested features."""
        granted = self.granted(rights)
        if granted is None or plan.items <= granted:
            return
        # what a service consists of is not for everybody
        raise RequestRejected(
            "forbidden",
            f"the token {rights.client!r} may not read all of the requested features; it may read "
            f"the features of {rights.grants}",
        )

    def query(
        self, parsed: ParsedRequest, plan: RequestPlan, limits: Limits
    ) -> tuple[FeatureQuery, int]:
        """Return the query of a request, and its number of entities.

        Values of a wrong type are reported by the read itself.

        Raises
        ------
        RequestRejected
            413 over a limit, 422 for columns that do not fit the plan.
        """
        if plan.event_reads is not None or parsed.event is not None:
            return self._event_query(parsed, plan, limits), 1
        keys, inputs = plan.keys, plan.inputs
        columns = parsed.columns
        given = None
        if parsed.inputs or columns.keys() != keys.keys():
            columns, given = self._columns(parsed, plan)
        rows = len(next(iter(columns.values()), ()))
        if len(columns) > 1:
            sizes = {name: len(values) for name, values in columns.items()}
            if len(set(sizes.values())) > 1:
                lists = ", ".join(f"{name!r} has {size}" for name, size in sizes.items())
                raise invalid_request(f"lists of different lengths: {lists}; expected one length")
        limits.check(rows, len(plan.selection.outputs))
        limits.check_texts("entity key", columns)
        if given:
            limits.check_texts("request input", given)
        if inputs and inputs.keys() - (given or {}).keys():
            missing = next(name for name in inputs if name not in (given or {}))
            raise invalid_request(
                f"the request input {missing!r} ({inputs[missing]!r}) is missing; pass it in "
                f"'request' (one value, or a list with one for each entity)"
            )
        if plan.from_text:
            columns = _typed(columns, plan)
            given = None if given is None else _typed(given, plan)
        return FeatureQuery(plan.selection, columns, parsed.as_of_ms, given), rows

    def _event_query(
        self, parsed: ParsedRequest, plan: RequestPlan, limits: Limits
    ) -> FeatureQuery:
        reads, event = plan.event_reads, parsed.event
        if reads is None:
            raise invalid_request(
                "'event' is for a feature service with request=; pass 'entities'",
            )
        if event is None:
            event = _only_row(parsed.columns)
        if event is None or parsed.inputs or parsed.as_of_ms is not None:
            raise invalid_request(
                f"the service is read with 'event', one row of source {reads.source.name!r}: "
                f"{', '.join(sorted(reads.needed))}",
            )
        limits.check(1, len(plan.selection.outputs))
        limits.check_texts("event column", {name: [value] for name, value in event.items()})
        return FeatureQuery.of_event(plan.selection, reads.parse(event))

    def _columns(
        self, parsed: ParsedRequest, plan: RequestPlan
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return entity keys and request inputs by name, wherever the client put them."""
        keys: dict[str, Any] = {}
        inputs: dict[str, Any] = dict(parsed.inputs)
        for name, values in parsed.columns.items():
            if name in plan.keys:
                target, target_name = keys, name
            elif name in plan.inputs:
                target, target_name = inputs, name
            else:
                target, target_name = keys, plan.entity_names.get(name, "")
            if not target_name or target_name in target:
                raise invalid_request(
                    f"entity key {name[:80]!r} is "
                    + ("given twice" if target_name else "used by none of the requested features")
                    + f"; expected: {_signature(plan.keys)}"
                    + (f"; request inputs: {_signature(plan.inputs)}" if plan.inputs else "")
                )
            target[target_name] = values
        missing = [name for name in plan.keys if name not in keys]
        if missing:
            raise invalid_request(
                f"the request has no entity key {missing[0]!r}; expected in 'entities': "
                f"{_signature(plan.keys)}"
            )
        unknown = sorted(inputs.keys() - plan.inputs.keys())
        if unknown:
            raise invalid_request(
                f"request input {unknown[0][:80]!r} is used by none of the requested features; "
                f"they take: {_signature(plan.inputs) or 'no inputs'}"
            )
        return keys, inputs

    def _resolve(self, service: str | None, features: tuple[str, ...]) -> RequestPlan:
        defined = self.definitions
        items: list[RequestItem] = []
        event_reads = None
        if service is not None:
            of = defined.service(service)
            items.extend(of.items())
            event_reads = None if of.request is None else defined.event_reads(of)
        for text in features:
            try:
                items.append(defined.resolve_one(text))
            except DefinitionError as error:
                raise invalid_request(str(error)) from None
        selection = Selection.of(defined.outputs(items))
        views = tuple(defined.read_views(selection))
        for view in views:
            view.check_online()
        keys = {name: kind for view in views for name, kind in view.keys.items()}
        types = {**keys, **selection.inputs}
        return RequestPlan(
            selection,
            views,
            keys,
            selection.inputs,
            {v.entity.name: next(iter(v.keys)) for v in views if len(v.keys) == 1},
            {name: parser for name, kind in types.items() if (parser := parser_of_text(kind))},
            frozenset(str(item) for item in items),
            event_reads,
        )


def _other_layouts(
    views: Sequence[CompiledView], previous_views: Sequence[CompiledView]
) -> list[CompiledView]:
    """Return the previous views whose records are laid out in another way than their
    successors'."""
    layouts = {(view.name, view.online_fingerprint) for view in views}
    names = {view.name for view in views}
    out: dict[tuple[str, str], CompiledView] = {}
    for view in previous_views:
        key = (view.name, view.online_fingerprint)
        if view.name in names and key not in layouts:
            out.setdefault(key, view)
    return list(out.values())


def _only_row(columns: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the only row of an Arrow body; None for another number, or lists of JSON."""
    if not columns or not all(is_arrow(values) and len(values) == 1 for values in columns.values()):
        return None
    return {name: values[0].as_py() for name, values in columns.items()}


def _signature(types: Mapping[str, DataType]) -> str:
    return ", ".join(f"{name!r} ({kind!r})" for name, kind in types.items())


def _typed(columns: Mapping[str, Any], plan: RequestPlan) -> dict[str, Any]:
    """Return the columns with dates, times and decimals parsed."""
    out = dict(columns)
    for name, read in plan.from_text.items():
        values = out.get(name)
        if values is None or is_arrow(values):
            continue
        single = not isinstance(values, list)
        try:
            read_values = [
                read(value) if isinstance(value, str) else value
                for value in ([values] if single else values)
            ]
        except (ValueError, decimal.InvalidOperation):
            kind = plan.keys.get(name) or plan.inputs[name]
            raise invalid_request(
                f"{name!r} has a text that is not a valid {kind!r}; expected {text_form(kind)}"
            ) from None
        out[name] = read_values[0] if single else read_values
    return out
