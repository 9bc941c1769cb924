"""The model versions of a server, and how each reads its inputs by the current definitions.

A request uses the models that were current when it arrived, to its end: a promotion builds the next
set completely before it becomes current, so a reply is that of exactly one version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from paimon_features.core.errors import PaimonFeaturesError, unknown_name
from paimon_features.core.types.array_types import Array
from paimon_features.core.types.schema import type_from_text
from paimon_features.definitions import FeatureRef, Output
from paimon_features.definitions.served import definition_of, definition_of_computed
from paimon_features.definitions.value_definition import PREFIX
from paimon_features.models import ModelManifest, ModelStates, VersionState
from paimon_features.serving.http.access.access import Rights
from paimon_features.serving.http.definitions.definition_set import DefinitionSet, RequestPlan
from paimon_features.serving.http.http_errors import RequestRejected, not_ready
from paimon_features.serving.prediction.input_arrays import input_array
from paimon_features.serving.prediction.network import OnnxNetwork
from paimon_features.serving.reading.entities import entity_keys
from paimon_features.serving.replies.response import OnlineResponse


@dataclass(frozen=True, eq=False)
class LoadedVersion:
    """A version whose network runs here."""

    state: VersionState
    network: OnnxNetwork

    @property
    def manifest(self) -> ModelManifest:
        """Its manifest."""
        return self.network.manifest

    def __str__(self) -> str:
        return str(self.manifest)


class BoundVersion:
    """A version with the read that has its inputs.

    ``own`` is the plan of the features that it needs, and ``plan`` of those and the features of
    shadow versions, which are read in the same step. ``problem`` says why the definitions do not
    have what the version was trained on, None if they do; there is no plan then.
    """

    def __init__(self, version: LoadedVersion, definitions: DefinitionSet) -> None:
        self.version = version
        self._definitions = definitions.definitions
        self.network = version.network
        self.manifest = version.manifest
        self.signature = self.manifest.signature
        self.inputs = self.signature.inputs
        self.features = tuple(dict.fromkeys(i.of for i in self.inputs if i.source == "feature"))
        self.shadows: tuple[BoundVersion, ...] = ()
        self.problem: str | None = None
        self.changed: tuple[str, ...] = ()
        """Features that are defined otherwise than when the version was trained."""
        try:
            self.own: RequestPlan | None = definitions.model_plan(
                self.signature.service, self.features
            )
            self.problem = self._difference(self.own)
        except (PaimonFeaturesError, RequestRejected) as error:
            self.own = None
            self.problem = f"model {self.manifest}: its features cannot be read: {error}"
        self.plan = self.own

    def _difference(self, plan: RequestPlan) -> str | None:
        """Return what the definitions have otherwise than the signature, None if nothing."""
        keys = {key.name: key.type for key in self.signature.entities}
        found_keys = {name: kind.text for name, kind in plan.keys.items()}
        if keys != found_keys:
            return (
                f"model {self.manifest}: its features are now read by the entity keys "
                f"{found_keys}, and it was trained with {keys}; train it again"
            )
        outputs = {str(output): output for output in plan.selection.outputs}
        request = None if plan.event_reads is None else plan.event_reads.source.name
        for model_input in self.inputs:
            if model_input.source == "entity":
                continue
            output = outputs[model_input.of]
            if isinstance(output, FeatureRef):
                view = next(view for view in plan.views if view.name == output.view)
                feature = view.feature(output.feature)
                assert feature is not None
                kind = feature.type.text
            else:
                kind = output.type.text
            if kind != model_input.type:
                return (
                    f"model {self.manifest}: the feature {model_input.of!r} is now of type {kind}, "
                    f"and it was trained with {model_input.type}; train it again"
                )
            if model_input.definition.startswith(PREFIX) and model_input.definition != (
                self._definitions.value_definition(output, request)
            ):
                return (
                    f"model {self.manifest}: the feature {model_input.of!r} is defined otherwise "
                    "than when it was trained; train it again, or restore the definition"
                )
        self.changed = tuple(
            name for name in self.features if self._definitions_differ(plan, outputs[name], name)
        )
        return None

    def _definitions_differ(self, plan: RequestPlan, output: Output, name: str) -> bool:
        # those of earlier releases cover more than the value, so they are only reported
        trained = {
            model_input.definition
            for model_input in self.inputs
            if model_input.of == name and not model_input.definition.startswith(PREFIX)
        }
        if isinstance(output, FeatureRef):
            view = next(view for view in plan.views if view.name == output.view)
            now = definition_of(view, [output.feature])
        else:
            now = definition_of_computed([output])
        return not trained <= {"", now}

    def read_with(self, shadows: Sequence[BoundVersion], definitions: DefinitionSet) -> None:
        """Read the features of these shadows in the same step, where the same request has them."""
        if self.own is None or self.problem is not None:
            return
        fit = [
            shadow
            for shadow in shadows
            if shadow.own is not None
            and shadow.problem is None
            and shadow.own.inputs.items() <= self.own.inputs.items()
            and shadow.own.keys == self.own.keys
            and shadow.own.event_reads is self.own.event_reads
        ]
        names = tuple(dict.fromkeys([*self.features, *(f for s in fit for f in s.features)]))
        try:
            self.plan = definitions.model_plan(self.signature.service, names)
        except (PaimonFeaturesError, RequestRejected):
            return  # features of a shadow that cannot be read together with the version's own
        self.shadows = tuple(fit)

    def inputs_of(self, response: OnlineResponse) -> tuple[list[Array], int, int]:
        """Return the network's inputs for a response: arrays, and its rows [start, stop) in them.

        The features of all responses of a batch are converted at once.
        """
        batch = response.batch
        feature_arrays: dict[int, Array] | None = batch.rendered.get(self)
        if feature_arrays is None:
            places = batch.selection.places
            feature_arrays = batch.rendered[self] = {
                number: input_array(model_input, batch.columns[places[model_input.of]])
                for number, model_input in enumerate(self.inputs)
                if model_input.source == "feature"
            }
        if len(feature_arrays) == len(self.inputs):
            arrays: list[Array] | None = batch.rendered.get((self, "list"))
            if arrays is None:
                # one list for all responses: their rows then need no copy
                arrays = batch.rendered[self, "list"] = list(feature_arrays.values())
            return arrays, response.start, response.stop
        rows = slice(response.start, response.stop)
        return (
            [
                feature_arrays[number][rows]
                if number in feature_arrays
                else self._of_entity(number, response)
                for number in range(len(self.inputs))
            ],
            0,
            len(response),
        )

    def _of_entity(self, number: int, response: OnlineResponse) -> Array:
        of = self.inputs[number]
        values = response.keys[of.of]
        if of.dtype == "string":
            return np.fromiter(map(str, values), np.object_, len(values)).reshape(-1, 1)
        return np.array(values, np.float64).reshape(-1, 1)


class LoadedModel:
    """A model: its states, and the versions that answer or are compared.

    ``problem`` says why the newest published states are not served, None if they are.
    """

    def __init__(
        self,
        states: ModelStates,
        versions: Mapping[int, LoadedVersion],
        problem: str | None = None,
    ) -> None:
        self.states = states
        self.versions = versions
        self.problem = problem
        self._bound: tuple[DefinitionSet | None, Mapping[int, BoundVersion]] = (None, {})

    @property
    def name(self) -> str:
        """Its name."""
        return self.states.name

    def with_problem(self, problem: str) -> LoadedModel:
        """Return the same versions, and why newer ones are not there."""
        return LoadedModel(self.states, self.versions, problem)

    def bound(self, definitions: DefinitionSet) -> Mapping[int, BoundVersion]:
        """Return the versions by number, as they read by these definitions."""
        bound_to, bound = self._bound
        if bound_to is definitions:
            return bound
        bound = {n: BoundVersion(version, definitions) for n, version in self.versions.items()}
        shadows = [bound[state.version] for state in self.states.shadows if state.version in bound]
        for state in self.states.serving:
            if state.version in bound:
                bound[state.version].read_with(shadows, definitions)
        self._bound = definitions, bound
        return bound

    def version_for(
        self,
        definitions: DefinitionSet,
        entities: Mapping[str, object] | None,
        *,
        event: Mapping[str, object] | None = None,
        version: int | None = None,
        unit: str | None = None,
    ) -> BoundVersion:
        """Return the version that answers a request.

        That is ``version`` if it is given; else the one to which the split assigns ``unit``, or
        the first of ``entities``, or the entity of the ``event``; production for a request with
        none of them.

        Raises
        ------
        RequestRejected
            404 for a version that is not loaded, 503 without one that can answer.
        PaimonFeaturesError
            For entity keys of wrong types.
        """
        bound = self.bound(definitions)
        if not bound and self.problem is not None:
            raise not_ready(f"model {self.name!r} is not loaded: {self.problem}")
        number = version
        if number is None:
            number = self._assigned(self._keys_of(event, bound) or entities, unit)
            if number not in bound and self.states.production is not None:
                number = self.states.production.version  # a challenger that did not load
        if number is None:
            raise not_ready(
                f"model {self.name!r} has no version in production; 'paimon-features models "
                f"promote {self.name} VERSION' puts one there"
            )
        chosen = bound.get(number)
        if chosen is None:
            raise RequestRejected(
                "unknown_name",
                f"unknown version {number} of model {self.name!r}; available: "
                f"{', '.join(map(str, sorted(bound))) or 'none'} (GET /models)",
            )
        if chosen.problem is not None:
            raise not_ready(chosen.problem)
        return chosen

    def _keys_of(
        self, event: Mapping[str, object] | None, bound: Mapping[int, BoundVersion]
    ) -> Mapping[str, object] | None:
        """Return the entity keys of an event, None where it does not have all of them."""
        if event is None:
            return None
        signature = next(iter(self.versions.values())).manifest.signature
        plans = (version.own for version in bound.values())
        reads = next((p.event_reads for p in plans if p is not None and p.event_reads), None)
        if reads is None:
            return None
        columns = [reads.keys.get(key.name, key.name) for key in signature.entities]
        if any(event.get(column) is None for column in columns):
            return None
        return {
            key.name: [event[column]]
            for key, column in zip(signature.entities, columns, strict=True)
        }

    def _assigned(self, entities: Mapping[str, object] | None, unit: str | None) -> int | None:
        """Return the version that the split assigns.

        The entity is looked at only where there is one.
        """
        states = self.states
        if unit is None and entities and any(state.slots for state in states.versions):
            signature = next(iter(self.versions.values())).manifest.signature
            types = {key.name: type_from_text(key.type) for key in signature.entities}
            first = {name: _first(values) for name, values in entities.items()}
            encoded = entity_keys(types, first).encoded
            if len(encoded):
                return states.version_of(encoded[0])
        if unit is not None:
            return states.version_of(unit)
        return None if states.production is None else states.production.version


def _first(values: object) -> object:
    try:
        return values[:1]  # type: ignore[index]
    except (TypeError, KeyError):
        return values


@dataclass(frozen=True, eq=False)
class ModelSet:
    """The models of a server by name. ``problem`` says why the index could not be read."""

    models: Mapping[str, LoadedModel] = field(default_factory=dict)
    stamp: str = ""
    problem: str | None = None

    def of(self, name: str, rights: Rights, definitions: DefinitionSet) -> LoadedModel:
        """Return a model that a client may use.

        Raises
        ------
        RequestRejected
            404 for one that is not there, 403 for features that the token may not read.
        """
        model = self.models.get(name)
        if model is None and self.problem is not None:
            raise not_ready("the models of this server could not be read, and are read again")
        if model is None:
            usable = [n for n in sorted(self.models) if self.may_use(n, rights, definitions)]
            raise RequestRejected("unknown_name", unknown_name("model", name, usable))
        if not self.may_use(name, rights, definitions):
            raise RequestRejected(
                "forbidden",
                f"the token {rights.client!r} may not use the model {name!r}: it reads features "
                f"beyond those of {rights.grants}",
            )
        return model

    def may_use(self, name: str, rights: Rights, definitions: DefinitionSet) -> bool:
        """Return True if the rights name a model, or cover all features of all its versions."""
        if rights.grants.names_model(name):
            return True
        if not rights.grants.covered_models:
            return False
        granted = definitions.granted(rights)
        if granted is None:
            return True
        return all(granted.issuperset(v.features) for v in self._versions(name, definitions))

    def check_shown(
        self, bound: BoundVersion, rights: Rights, definitions: DefinitionSet, *, explain: bool
    ) -> None:
        """Raise RequestRejected (403) unless a prediction may be returned with its features."""
        granted = definitions.granted(rights)
        if explain and not rights.grants.explain:
            problem = "may not explain predictions"
        elif granted is not None and not granted.issuperset(bound.features):
            problem = (
                f"may use the model {bound.manifest.name!r} but not read its features: leave out "
                "'full' and 'explain'"
            )
        else:
            return
        raise RequestRejected("forbidden", f"the token {rights.client!r} {problem}")

    def _versions(self, name: str, definitions: DefinitionSet) -> list[BoundVersion]:
        return list(self.models[name].bound(definitions).values())

    def unserved(self, definitions: DefinitionSet) -> list[str]:
        """Return why something that should be served is not, a sentence each; empty if all is."""
        problems = [] if self.problem is None or self.models else [self.problem]
        for name, model in sorted(self.models.items()):
            bound = model.bound(definitions)
            if not bound and model.problem is not None:
                problems.append(f"model {name!r} is not loaded: {model.problem}")
            for state in model.states.serving:
                version = bound.get(state.version)
                if version is not None and version.problem is not None:
                    problems.append(version.problem)
        return problems

    def well(self, definitions: DefinitionSet) -> dict[str, bool]:
        """Return True if all that is published of each model is served."""
        return {
            name: model.problem is None
            and all(version.problem is None for version in model.bound(definitions).values())
            for name, model in self.models.items()
        }

    def problems(self, definitions: DefinitionSet) -> list[str]:
        """Return what is wrong with the models although they may be served, a sentence each."""
        problems = [] if self.problem is None or not self.models else [self.problem]
        for name, model in sorted(self.models.items()):
            bound = model.bound(definitions)
            if bound and model.problem is not None:
                problems.append(model.problem)
            if model.states.production is None:
                problems.append(f"model {name!r} has no version in production")
            shadows = (bound.get(state.version) for state in model.states.shadows)
            problems += [v.problem for v in shadows if v and v.problem is not None]
            problems += [
                f"model {version.manifest}: defined otherwise than when it was trained: "
                f"{', '.join(version.changed[:5])}; train it again"
                for version in bound.values()
                if version.changed
            ]
        return problems
