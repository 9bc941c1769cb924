"""One reading of the definitions: names to selections, and the reader that goes with them.

A request works with the one that was current when it came, to its end, so a reply is never
made of two. The next one stands beside it, complete, before it becomes current.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from paimon_features.definitions import (
    CompiledView,
    Definitions,
    RequestItem,
    Selection,
)
from paimon_features.errors import DefinitionError, RequestError
from paimon_features.online.keys import ViewKeys
from paimon_features.online.store import OnlineStore
from paimon_features.schema import DataType
from paimon_features.serving.cached_fetcher import CachedFetcher
from paimon_features.serving.coalesce import Reader
from paimon_features.serving.fetcher import FeatureFetcher
from paimon_features.serving.http.http_errors import RequestRejected
from paimon_features.serving.http.limits import Limits
from paimon_features.serving.http.request_body import ParsedRequest
from paimon_features.serving.http.tokens import Rights
from paimon_features.serving.query import FeatureQuery

_REMEMBERED = 256
"""How many lists of features are remembered, and how long one of them may be."""


@dataclass(frozen=True)
class RequestPlan:
    """What a request names, worked out: the selection, and the columns that it needs.

    ``keys`` and ``inputs`` are by name; ``entity_names`` gives the key of an entity with one key,
    since Feast's clients may name the entity instead.
    """

    selection: Selection
    views: tuple[CompiledView, ...]
    keys: Mapping[str, DataType]
    inputs: Mapping[str, DataType]
    entity_names: Mapping[str, str]
    from_text: Mapping[str, Callable[[str], object]]
    items: frozenset[str]


class DefinitionSet:
    """The definitions of a project, and its online store read by them.

    ``beside`` are views of the definitions before: they are read for as long as the store
    holds what they mean and not yet what these mean.
    """

    def __init__(
        self,
        project: str,
        definitions: Definitions,
        store: OnlineStore,
        loaded_ms: int,
        beside: Sequence[CompiledView] = (),
    ) -> None:
        self.project = project
        self.definitions = definitions
        self.store = store
        self.loaded_ms = loaded_ms
        self.views = [v.compiled for v in definitions.views.values() if v.compiled.is_online]
        self.variants = [*self.views, *_other_layouts(self.views, beside)]
        self.fetcher = FeatureFetcher(project, self.variants, store)
        self.cache: CachedFetcher | None = None
        self._services: dict[str, RequestPlan] = {}
        self._lists: dict[tuple[str, ...], RequestPlan] = {}
        self._granted: dict[Rights, frozenset[str]] = {}
        for name in definitions.services:
            try:
                self.wanted(name, ())
            except RequestError:
                continue  # a service for training alone: refused when it is asked for

    def with_cache(self, ttl_ms: int, entities: int) -> DefinitionSet:
        """The same, with answers used again for ``ttl_ms``."""
        self.cache = CachedFetcher(self.fetcher, ttl_ms=ttl_ms, max_size=entities)
        return self

    @property
    def reader(self) -> Reader:
        """What answers asks."""
        return self.fetcher if self.cache is None else self.cache

    def keys(self, view: str) -> ViewKeys:
        """The keys of a view in the store."""
        return ViewKeys(self.project, view, self.store.key_prefix)

    @property
    def reads(self) -> dict[str, int]:
        """What was read so far, for the metrics."""
        counts = {
            "records_read": self.fetcher.records_read,
            "cells_read": self.fetcher.cells_read,
        }
        if self.cache is not None:
            counts |= {"cache_hits": self.cache.hits, "cache_misses": self.cache.misses}
        return counts

    @cached_property
    def ready_views(self) -> list[CompiledView]:
        """The views that have to be there: those of the services, or all if there is none."""
        of_services = {view.name for w in self._services.values() for view in w.views}
        return [view for view in self.views if not of_services or view.name in of_services]

    def wanted(self, service: str | None, features: tuple[str, ...]) -> RequestPlan:
        """What a service, or a list of ``view:feature`` and names, stands for.

        Raises
        ------
        UnknownNameError
            For a name that is not defined.
        RequestError
            For what cannot be read together, or not online.
        """
        found = self._services.get(service) if service is not None else self._lists.get(features)
        if found is None:
            found = self._work_out(service, features)
            if service is not None:
                self._services[service] = found
            elif len(features) <= _REMEMBERED:
                if len(self._lists) >= _REMEMBERED:
                    self._lists.clear()
                self._lists[features] = found
        return found

    def service(self, name: str) -> RequestPlan | None:
        """What a service stands for; None for one that is not read online."""
        return self._services.get(name)

    def granted(self, rights: Rights) -> frozenset[str] | None:
        """The names of all features and all else that may be read; None for everything."""
        if rights.services is None:
            return None
        found = self._granted.get(rights)
        if found is None:
            found = frozenset(
                str(item)
                for name in rights.services & self.definitions.services.keys()
                for item in self.definitions.services[name].items()
            )
            self._granted[rights] = found
        return found

    def check_rights(self, wanted: RequestPlan, rights: Rights) -> None:
        """Raise a RequestRejected (403) if the rights do not cover everything that is wanted."""
        granted = self.granted(rights)
        if granted is None or wanted.items <= granted:
            return
        beyond = sorted(wanted.items - granted)
        raise RequestRejected(
            403,
            "forbidden",
            f"the token {rights.client!r} may not read {', '.join(beyond[:5])}"
            f"{' and others' if len(beyond) > 5 else ''}; it may read what these services "
            f"hold: {', '.join(sorted(rights.services or ()))}",
        )

    def ask(
        self, asked: ParsedRequest, wanted: RequestPlan, limits: Limits
    ) -> tuple[FeatureQuery, int]:
        """The read of a request, and how many entities it is about.

        Raises RequestRejected where it does not fit.

        Whatever is of a wrong type is told by the read itself.
        """
        keys, inputs = wanted.keys, wanted.inputs
        columns = asked.columns
        if columns.keys() != keys.keys() or asked.inputs:
            columns, given = self._columns(asked, wanted)
        else:
            given = None
        sizes = {name: len(values) for name, values in columns.items()}
        rows = next(iter(sizes.values()), 0)
        if len(set(sizes.values())) > 1:
            lists = ", ".join(f"{name!r} has {size}" for name, size in sizes.items())
            raise RequestRejected(
                422, "invalid_request", f"lists of different lengths: {lists}; expected one length"
            )
        limits.check(rows, len(wanted.selection.outputs))
        if inputs.keys() - (given or {}).keys():
            missing = next(name for name in inputs if name not in (given or {}))
            raise RequestRejected(
                422,
                "invalid_request",
                f"the request input {missing!r} ({inputs[missing]!r}) is missing; give it in "
                f"'request' (one value, or a list with one for each entity)",
            )
        if wanted.from_text:
            columns = _typed(columns, wanted)
            given = None if given is None else _typed(given, wanted)
        return FeatureQuery(wanted.selection, columns, asked.now_ms, given), rows

    def _columns(
        self, asked: ParsedRequest, wanted: RequestPlan
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Keys and request inputs, each by its own name, wherever the client put them."""
        keys: dict[str, Any] = {}
        inputs: dict[str, Any] = dict(asked.inputs)
        for name, values in asked.columns.items():
            if name in wanted.keys:
                target, own = keys, name
            elif name in wanted.inputs:
                target, own = inputs, name
            else:
                target, own = keys, wanted.entity_names.get(name, "")
            if not own or own in target:
                raise RequestRejected(
                    422,
                    "invalid_request",
                    f"entity key {name[:80]!r} is "
                    + ("given twice" if own else "used by none of the features asked for")
                    + f"; expected: {_signature(wanted.keys)}"
                    + (f"; request inputs: {_signature(wanted.inputs)}" if wanted.inputs else ""),
                )
            target[own] = values
        missing = [name for name in wanted.keys if name not in keys]
        if missing:
            raise RequestRejected(
                422,
                "invalid_request",
                f"the request has no entity key {missing[0]!r}; expected in 'entities': "
                f"{_signature(wanted.keys)}",
            )
        unknown = sorted(inputs.keys() - wanted.inputs.keys())
        if unknown:
            raise RequestRejected(
                422,
                "invalid_request",
                f"request input {unknown[0][:80]!r} is used by none of the features asked for; "
                f"they take: {_signature(wanted.inputs) or 'no inputs'}",
            )
        return keys, inputs

    def _work_out(self, service: str | None, features: tuple[str, ...]) -> RequestPlan:
        defined = self.definitions
        items: list[RequestItem] = []
        if service is not None:
            items.extend(defined.service(service).items())
        for text in features:
            try:
                items.append(defined.resolve_one(text))
            except DefinitionError as error:
                raise RequestRejected(422, "invalid_request", str(error)) from None
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
            {name: _FROM_TEXT[kind.text] for name, kind in types.items() if kind.text in _FROM_TEXT}
            | {name: decimal.Decimal for name, kind in types.items() if kind.is_decimal},
            frozenset(str(item) for item in items),
        )


def _other_layouts(
    views: Sequence[CompiledView], beside: Sequence[CompiledView]
) -> list[CompiledView]:
    """Of the views before, those that are read in another way than their successors."""
    layouts = {(view.name, view.online_fingerprint) for view in views}
    names = {view.name for view in views}
    out: dict[tuple[str, str], CompiledView] = {}
    for view in beside:
        key = (view.name, view.online_fingerprint)
        if view.name in names and key not in layouts:
            out.setdefault(key, view)
    return list(out.values())


def _signature(types: Mapping[str, DataType]) -> str:
    return ", ".join(f"{name!r} ({kind!r})" for name, kind in types.items())


def _timestamp(text: str) -> dt.datetime:
    moment = dt.datetime.fromisoformat(text)
    return moment if moment.tzinfo is None else moment.astimezone(dt.UTC).replace(tzinfo=None)


_FROM_TEXT: Mapping[str, Callable[[str], object]] = {
    "date": dt.date.fromisoformat,
    "timestamp": _timestamp,
}
"""Types that JSON has no form for, and how their texts are read."""


def _typed(columns: Mapping[str, Any], wanted: RequestPlan) -> dict[str, Any]:
    """The columns with texts of dates, times and decimals read."""
    out = dict(columns)
    for name, read in wanted.from_text.items():
        values = out.get(name)
        if values is None or isinstance(values, pa.Array):
            continue
        single = not isinstance(values, list)
        try:
            read_values = [
                read(value) if isinstance(value, str) else value
                for value in ([values] if single else values)
            ]
        except (ValueError, decimal.InvalidOperation):
            kind = wanted.keys.get(name) or wanted.inputs[name]
            form = "'2011-12-09'" if kind.text == "date" else "'2011-12-09T12:50:00'"
            raise RequestRejected(
                422,
                "invalid_request",
                f"{name!r} has a text that is no {kind!r}; expected "
                + ("a decimal such as '12.50'" if kind.is_decimal else f"ISO 8601, such as {form}"),
            ) from None
        out[name] = read_values[0] if single else read_values
    return out
