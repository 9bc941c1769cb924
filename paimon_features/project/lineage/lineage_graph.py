"""Lineage: which definition is derived from which, down to training sets and models.

::

    source -> feature view -> interaction -> transformed -> service -> training set -> model
                          |                        |  '-> training set
                          '-> derived view         fitted transformer
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from paimon_features.core.errors import PaimonFeaturesError, UnknownNameError
from paimon_features.definitions import Definitions, FeatureRef, FeatureView, TableView
from paimon_features.lake import Lake, table_options
from paimon_features.lake.specs import TRAINING_PREFIX
from paimon_features.project.lineage.nodes_and_edges import LineageNode, NodesAndEdges
from paimon_features.project.lineage.rendering import to_svg


@dataclass(frozen=True)
class LineageGraph(NodesAndEdges):
    """Nodes and edges ``(from, to)``: the second is derived from the first. Acyclic."""

    def find(self, name: str) -> list[LineageNode]:
        """Return the nodes of that name, of any kind.

        Raises
        ------
        UnknownNameError
            If there is none.
        """
        nodes = [node for node in self.nodes if node.name == name]
        if not nodes:
            raise UnknownNameError.of("definition", name, [node.name for node in self.nodes])
        return nodes

    def around(self, chosen: Iterable[LineageNode]) -> LineageGraph:
        """Return the subgraph of the ancestors and descendants of the chosen nodes."""
        chosen = list(chosen)
        kept = set(chosen)
        for step in (self.parents, self.children):
            waiting = list(chosen)
            while waiting:
                more = [node for node in step(waiting.pop()) if node not in kept]
                kept.update(more)
                waiting += more
        return LineageGraph(
            tuple(node for node in self.nodes if node in kept),
            tuple((a, b) for a, b in self.edges if a in kept and b in kept),
        )

    def _repr_svg_(self) -> str:
        return to_svg(self, "Lineage")

    def to_document(self) -> dict[str, object]:
        """Return the graph in JSON values."""

        def of(node: LineageNode) -> dict[str, str]:
            return {"kind": node.kind, "name": node.name}

        return {
            "nodes": [{**of(node), "note": node.note} for node in self.nodes],
            "edges": [{"from": of(a), "to": of(b)} for a, b in self.edges],
        }


def lineage(definitions: Definitions, lake: Lake | None = None) -> LineageGraph:
    """Return the lineage of all definitions, and of the training sets in ``lake``, if passed."""
    sources = {s.name: LineageNode("source", s.name, s.table) for s in definitions.sources.values()}
    defined: list[FeatureView | TableView] = [*definitions.tables.values()]
    defined += definitions.views.values()
    views = {view.name: _view_node(view) for view in defined}
    edges = [(sources[view.source.name], views[view.name]) for view in defined]
    derived = []
    for view in definitions.derived.values():
        note = f"{view.view.entity.name}, {_many(len(view.compiled.features), 'feature')}"
        derived.append(LineageNode("derived_view", view.name, note))
        edges.append((views[view.view.name], derived[-1]))
    interactions = {}
    for interaction in definitions.interactions.values():
        compiled = definitions.interaction(interaction)
        node = interactions[compiled.name] = LineageNode(
            "interaction", compiled.name, compiled.type.text
        )
        edges += [(views[name], node) for name in _view_names(compiled.refs)]
    transformed = {}
    fitted: dict[str, LineageNode] = {}
    for feature in definitions.transformed.values():
        made_of = definitions.transformation(feature)
        pinned, digest = str(made_of.fitted), made_of.fitted.digest
        fitted.setdefault(
            pinned, LineageNode("fitted_transformer", pinned, f"{made_of.fitted.kind}, {digest}")
        )
        node = transformed[feature.name] = LineageNode(
            "transformed", feature.name, made_of.type.text
        )
        edges.append((fitted[pinned], node))
        plain = [part for part in made_of.parts if isinstance(part, FeatureRef)]
        edges += [(views[name], node) for name in _view_names(plain)]
        named = dict.fromkeys(p.name for p in made_of.parts if not isinstance(p, FeatureRef))
        edges += [(interactions[name], node) for name in named]
    computed = {**interactions, **transformed}
    services = []
    items_of: dict[str, frozenset[str]] = {}
    for service in definitions.services.values():
        items = service.items()
        items_of[service.name] = frozenset(map(str, items))
        services.append(LineageNode("service", service.name, _many(len(items), "feature")))
        edges += [(views[name], services[-1]) for name in _view_names(service.refs())]
        edges += [(computed[str(i)], services[-1]) for i in items if str(i) in computed]
    sets = []
    for name, features in _training_sets(lake):
        # a training set names views, not services: a service may have changed since
        sets.append(LineageNode("training_set", name, _many(len(features), "feature")))
        refs = tuple(FeatureRef.parse(name) for name in features if ":" in name)
        edges += [(views[view], sets[-1]) for view in _view_names(refs) if view in views]
        edges += [(computed[name], sets[-1]) for name in features if name in computed]
        read = frozenset(features)
        edges += [
            (service_node, sets[-1])
            for service_node in services
            if read and read == items_of[service_node.name]
        ]
    models = []
    for name, of_service, trained_on, note in _models(lake):
        models.append(LineageNode("model", name, note))
        edges += [
            (service_node, models[-1])
            for service_node in services
            if service_node.name == of_service
        ]
        edges += [
            (set_node, models[-1])
            for set_node in sets
            if TRAINING_PREFIX + set_node.name == trained_on
        ]
    made_of_views = (
        *derived, *interactions.values(), *fitted.values(), *transformed.values(), *services,
        *sets, *models,
    )  # fmt: skip
    nodes = (*sources.values(), *views.values(), *made_of_views)
    return LineageGraph(nodes, tuple(edges))


def _view_node(view: FeatureView | TableView) -> LineageNode:
    features = _many(len(view.compiled.features), "feature")
    kind = "feature_view" if isinstance(view, FeatureView) else "table_view"
    return LineageNode(kind, view.name, f"{view.entity.name}, {features}")


def _view_names(refs: Iterable[FeatureRef]) -> list[str]:
    return list(dict.fromkeys(ref.view for ref in refs))


def _training_sets(lake: Lake | None) -> Iterable[tuple[str, Mapping[str, str]]]:
    if lake is None:
        return
    for table in lake.list():
        if table.startswith(TRAINING_PREFIX):
            features = None
            with suppress(UnknownNameError):  # dropped meanwhile
                features = table_options.properties(lake, table).get("training-set.features")
            if features is not None:
                yield table.removeprefix(TRAINING_PREFIX), json.loads(features)


def _models(lake: Lake | None) -> Iterable[tuple[str, str, str, str]]:
    """Yield the models: name, the service of the inputs, the table of the training set, the
    state."""
    if lake is None:
        return
    from paimon_features.models.versions_table import load_manifest, model_names, states_of

    for name in model_names(lake):
        with suppress(PaimonFeaturesError):  # dropped meanwhile, or damaged: others are worth it
            states = states_of(lake, name)
            shown = states.production or states.versions[-1]
            manifest = load_manifest(lake, name, shown.version)
            trained_on = "" if manifest.training is None else manifest.training.table
            note = f"version {shown.version} {shown.state}"
            yield name, manifest.signature.service, trained_on, note


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
