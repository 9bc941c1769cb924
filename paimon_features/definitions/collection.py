"""All definitions of a project, by kind and name, and what the names in a request refer to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from paimon_features.core.errors import DefinitionError, RequestError, UnknownNameError
from paimon_features.definitions.compiled import CompiledView
from paimon_features.definitions.derived import DerivedView
from paimon_features.definitions.entity import Entity
from paimon_features.definitions.feature_view import FeatureView
from paimon_features.definitions.interaction import (
    CompiledInteraction,
    Interaction,
    Interactions,
)
from paimon_features.definitions.own_events import EventReads
from paimon_features.definitions.reference import FeatureRef
from paimon_features.definitions.request import RequestSource
from paimon_features.definitions.selection import Output, Selection
from paimon_features.definitions.service import FeatureService
from paimon_features.definitions.source import EventSource
from paimon_features.definitions.table_view import TableView
from paimon_features.definitions.transformed import (
    CompiledTransformed,
    Fitted,
    Transformations,
    Transformed,
)
from paimon_features.definitions.value_definition import digest_of_values, value_definition
from paimon_features.transformers.fitted_version import FittedVersion

Definition = (
    Entity
    | EventSource
    | FeatureView
    | TableView
    | DerivedView
    | RequestSource
    | Interaction
    | CompiledTransformed
    | FeatureService
)
RequestItem = FeatureRef | Interaction | Transformed
"""What a request can name: a feature, or something computed from features."""
Named = TypeVar(
    "Named",
    Entity,
    EventSource,
    FeatureView,
    TableView,
    DerivedView,
    RequestSource,
    Interaction,
    Transformed,
    FeatureService,
)


@dataclass(frozen=True)
class Definitions:
    """All definitions of a project, by kind and name.

    ``fitted`` is the folder of exported versions of fitted transformers, None if there is none;
    ``versions`` are versions that need no file, those of a bundle.
    """

    entities: dict[str, Entity] = field(default_factory=dict)
    sources: dict[str, EventSource] = field(default_factory=dict)
    views: dict[str, FeatureView] = field(default_factory=dict)
    services: dict[str, FeatureService] = field(default_factory=dict)
    interactions: dict[str, Interaction] = field(default_factory=dict)
    requests: dict[str, RequestSource] = field(default_factory=dict)
    tables: dict[str, TableView] = field(default_factory=dict)
    derived: dict[str, DerivedView] = field(default_factory=dict)
    transformed: dict[str, Transformed] = field(default_factory=dict)
    fitted: Path | None = None
    versions: Mapping[Fitted, FittedVersion] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        items: Iterable[object],
        *,
        fitted: Path | None = None,
        versions: Mapping[Fitted, FittedVersion] | None = None,
    ) -> Definitions:
        """Collect definitions, including those they refer to.

        Raises
        ------
        DefinitionError
            If two different definitions of a kind, or two that are read by their names alone, have
            one name, a service or interaction refers to an unknown name, the types of an
            interaction do not fit, or a version of a fitted transformer is not in the folder
            ``fitted``, or not as it was exported.
        """
        out = cls(fitted=fitted, versions=versions or {})
        for item in items:
            out._add(item)
        both = sorted(out.views.keys() & out.tables.keys())
        if both:
            raise DefinitionError(f"a feature view and a table view are both named {both[0]!r}")
        for name in out.derived:
            if name in out.views or name in out.tables:
                raise DefinitionError(f"a derived view has the name of a view, {name!r}; rename it")
        named: Mapping[str, Mapping[str, object]] = {
            "feature view": out.views,
            "table view": out.tables,
            "derived view": out.derived,
            "service": out.services,
        }
        of_views = {kind: of for kind, of in named.items() if of is not out.services}
        for service in out.services.values():
            # 'lookup' and 'describe' take either by its name alone
            _own_name("service", service.name, of_views)
        for interaction in out.interactions.values():
            _own_name("interaction", interaction.name, named)
            with _concerning(interaction):
                out.interaction(interaction)
        for transformed in out.transformed.values():
            _own_name(
                "transformed feature",
                transformed.name,
                {**named, "interaction": out.interactions},
            )
            with _concerning(transformed):
                out.transformation(transformed)
        for service in out.services.values():
            with _concerning(service):
                out._check_service(service)
        return out

    def _check_service(self, service: FeatureService) -> None:
        for ref in service.refs():
            try:
                self._interactions.feature_type(ref)
            except DefinitionError as error:
                raise DefinitionError(
                    f"service {service.name!r} refers to {ref}: {error}"
                ) from error
        try:
            self._outputs(service.items())
            if service.request is not None:
                self.event_reads(service)
        except (DefinitionError, RequestError) as error:
            raise DefinitionError(f"service {service.name!r}: {error}") from error

    def event_reads(self, service: FeatureService) -> EventReads:
        """Return how a service is read with an event.

        Raises
        ------
        RequestError
            For a service without ``request=``.
        """
        if service.request is None:
            raise RequestError(
                f"service {service.name!r} is read by entity keys, not with an event: it has no "
                "request="
            )
        reads = self._event_reads.get(service.name)
        if reads is None:
            selection = Selection.of(self._outputs(service.items()))
            names = dict.fromkeys(ref.view for ref in selection.refs)
            views = [self.any_view(name).compiled for name in names]
            reads = EventReads.of(service.request, service.keys, views, selection.inputs)
            self._event_reads[service.name] = reads
        return reads

    def by_kind(self) -> Mapping[str, Mapping[str, Definition]]:
        """Return all definitions, by the names of their kinds in the registry."""
        return {
            "entity": self.entities,
            "source": self.sources,
            "feature_view": self.views,
            "table_view": self.tables,
            "derived_view": self.derived,
            "request_source": self.requests,
            "interaction": self.interactions,
            "transformed": {n: self.transformation(t) for n, t in self.transformed.items()},
            "service": self.services,
        }

    def source(self, name: str) -> EventSource:
        """Return the source of that name, or raise UnknownNameError."""
        return _get("source", self.sources, name)

    def view(self, name: str) -> FeatureView:
        """Return the feature view of that name, or raise UnknownNameError."""
        return _get("feature view", self.views, name)

    def any_view(self, name: str) -> FeatureView | TableView:
        """Return the feature view or table view of that name, or raise UnknownNameError."""
        return self.tables[name] if name in self.tables else self.view(name)

    def derived_view(self, name: str) -> DerivedView:
        """Return the derived view of that name, or raise UnknownNameError."""
        return _get("derived view", self.derived, name)

    def service(self, name: str) -> FeatureService:
        """Return the service of that name, or raise UnknownNameError."""
        return _get("service", self.services, name)

    def interaction(self, which: Interaction | str) -> CompiledInteraction:
        """Compile an interaction, or the one of that name; UnknownNameError if there is none."""
        if isinstance(which, str):
            which = _get("interaction", self.interactions, which)
        return self._interactions.compile(which)

    def transformation(self, which: Transformed | str) -> CompiledTransformed:
        """Compile a transformed feature, or the one of that name; UnknownNameError for none."""
        if isinstance(which, str):
            which = _get("transformed feature", self.transformed, which)
        return self._transformations.compile(which)

    def resolve(self, text: str) -> tuple[RequestItem, ...]:
        """Return everything that a name in a request refers to, in order.

        A service or a view refers to all its features; any other name refers to one item, see
        ``resolve_one``.

        Raises
        ------
        UnknownNameError
            For a name that is not defined.
        DefinitionError
            For a feature reference that is not of the form ``view:feature``.
        """
        if text in self.services:
            return self.services[text].items()
        if text in self.views or text in self.tables:
            return tuple(FeatureRef(text, f.name) for f in self.any_view(text).compiled.features)
        if ":" in text or text in self.interactions or text in self.transformed:
            return (self.resolve_one(text),)
        raise UnknownNameError.of("service", text, self.services)

    def resolve_one(self, text: str) -> RequestItem:
        """Return the one item that ``view:feature``, or the name of a computed feature, refers to.

        Raises
        ------
        UnknownNameError
            For a name that is neither an interaction nor a transformed feature.
        DefinitionError
            For a feature reference that is not of the form ``view:feature``. Whether the feature
            exists is checked by ``outputs``.
        """
        if ":" in text:
            return FeatureRef.parse(text)
        if text in self.interactions:
            return self.interactions[text]
        if text in self.transformed:
            return self.transformed[text]
        available = [*self.interactions, *self.transformed, "features as 'view:feature'"]
        raise UnknownNameError.of("interaction", text, available)

    def read_views(self, selection: Selection) -> list[CompiledView]:
        """Return the feature views that an online read of the selection needs, each once, in order.

        Raises
        ------
        RequestError
            For a table view, which is not materialized.
        """
        names = list(dict.fromkeys(ref.view for ref in selection.refs))
        for name in names:
            if name in self.tables:
                raise RequestError(
                    f"table view {name!r} is read offline only (get_historical_features, "
                    "training sets); for online reads define a FeatureView with Last(...) over "
                    f"its source {self.tables[name].source.name!r}"
                )
        return [self.view(name).compiled for name in names]

    def offline_reason(self, service: FeatureService) -> str | None:
        """Return why the online store cannot serve a service, None if it can.

        Raises
        ------
        DefinitionError, RequestError, UnknownNameError
            As ``outputs`` does, if the service cannot be read at all.
        """
        selection = Selection.of(self.outputs(service.items()))
        try:
            for view in self.read_views(selection):
                view.check_online()
        except RequestError as error:
            return str(error)
        return None

    def outputs(self, items: Sequence[RequestItem]) -> tuple[Output, ...]:
        """Return the outputs of a request, interactions and transformed features compiled.

        Raises
        ------
        UnknownNameError
            For a view or feature that is not defined.
        DefinitionError
            If two entities have a key of one name and different types, or an interaction, a
            transformed feature or a request input has the name of a key; for a transformer that was
            fitted on a feature that is defined otherwise now.
        RequestError
            If these cannot be read together, see ``Selection``, or one is of a view without keys.
        """
        out = self._outputs(items)
        for output in out:
            if isinstance(output, CompiledTransformed) and output.problem is not None:
                raise DefinitionError(output.problem)
        return out

    def _outputs(self, items: Sequence[RequestItem]) -> tuple[Output, ...]:
        """Return the outputs, also those that must not be read until they are fitted again."""
        out = tuple(
            self.interaction(item)
            if isinstance(item, Interaction)
            else self.transformation(item)
            if isinstance(item, Transformed)
            else item
            for item in items
        )
        selection = Selection.of(out)
        keys: dict[str, tuple[str, Any]] = {}
        for ref in selection.refs:
            view = self.any_view(ref.view).compiled
            if view.feature(ref.feature) is None:
                available = [f"{view.name}:{f.name}" for f in view.features]
                raise UnknownNameError.of("feature", str(ref), available)
            if not view.keys:
                raise RequestError(
                    f"feature view {view.name!r} has no keys: it aggregates all events; "
                    "'paimon-features fit' and 'monitor' read it"
                )
            for key, kind in view.keys.items():
                other, known_kind = keys.setdefault(key, (view.name, kind))
                if known_kind != kind:
                    raise DefinitionError(
                        f"the key {key!r} is {known_kind!r} in feature view {other!r} and {kind!r} "
                        f"in {view.name!r}; they cannot be read together"
                    )
        for kind_of_output, names in (
            ("interaction", [i.name for i in selection.interactions]),
            ("transformed feature", [t.name for t in selection.transformed]),
            ("request input", selection.inputs),
        ):
            for name in names:
                if name in keys:
                    raise DefinitionError(
                        f"the {kind_of_output} {name!r} has the name of a key of feature view "
                        f"{keys[name][0]!r}; rename it"
                    )
        return out

    def value_definition(self, output: Output, request: str | None = None) -> str:
        """Return a digest of what the values of an output mean; see ``value_definition``."""
        views = self._interactions.views
        if not isinstance(output, CompiledTransformed):
            return value_definition(views, output, request)
        parts = [value_definition(views, part, request) for part in output.parts]
        return digest_of_values([parts, output.fitted.digest, output.type.text])

    @cached_property
    def _event_reads(self) -> dict[str, EventReads]:
        return {}

    @cached_property
    def _interactions(self) -> Interactions:
        views = {name: self.any_view(name).compiled for name in (*self.views, *self.tables)}
        return Interactions(views, self.interactions)

    @cached_property
    def _transformations(self) -> Transformations:
        return Transformations(self._interactions, self.fitted, _versions=dict(self.versions))

    def _add(self, item: object) -> None:
        if isinstance(item, Interaction):
            self._put("interaction", self.interactions, item)
            for request in item.requests:
                self._add(request)
        elif isinstance(item, Transformed):
            self._put("transformed feature", self.transformed, item)
            for of in item.parts:
                self._add(of)
        elif isinstance(item, RequestSource):
            self._put("request source", self.requests, item)
        elif isinstance(item, FeatureService):
            self._put("service", self.services, item)
            if item.request is not None:
                self._add(item.request)
            for part in item.features:
                self._add(part)
        elif isinstance(item, FeatureView):
            self._put("feature view", self.views, item)
            self._add(item.source)
            self._add(item.entity)
        elif isinstance(item, DerivedView):
            self._put("derived view", self.derived, item)
            self._add(item.view)
        elif isinstance(item, TableView):
            self._put("table view", self.tables, item)
            self._add(item.source)
            self._add(item.entity)
        elif isinstance(item, EventSource):
            self._put("source", self.sources, item)
        elif isinstance(item, Entity):
            self._put("entity", self.entities, item)

    def _put(self, kind: str, existing: dict[str, Named], item: Named) -> None:
        other = existing.setdefault(item.name, item)
        if other is not item and other.to_document() != item.to_document():
            raise DefinitionError(f"two different definitions of {kind} {item.name!r}")


@contextmanager
def _concerning(definition: Interaction | Transformed | FeatureService) -> Iterator[None]:
    """Note in errors which definition is wrong: they are found when all are known."""
    try:
        yield
    except DefinitionError as error:
        error.concerns = (type(definition).__name__, definition.name)
        raise


def _own_name(what: str, name: str, named: Mapping[str, Mapping[str, object]]) -> None:
    """Raise DefinitionError if another definition that a request can name has this name."""
    for kind, others in named.items():
        if name in others:
            article = "an" if kind.startswith("i") else "a"
            raise DefinitionError(f"{what} {name!r} has the name of {article} {kind}; rename one")


def _get(kind: str, items: dict[str, Named], name: str) -> Named:
    if name not in items:
        raise UnknownNameError.of(kind, name, items)
    return items[name]
