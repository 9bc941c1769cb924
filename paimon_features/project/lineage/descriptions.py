"""Descriptions of definitions: documents, versions, tables, lineage."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from paimon_features.core.errors import PaimonFeaturesError, UnknownNameError
from paimon_features.definitions import (
    CompiledTransformed,
    CompiledView,
    Definitions,
    DerivedView,
    FeatureView,
    Interaction,
)
from paimon_features.lake import Lake, latest_snapshot, table_options
from paimon_features.lake.side_folder import generations, registry
from paimon_features.lake.specs import MODELS_PREFIX, TRAINING_PREFIX
from paimon_features.models.versions_table import states_of
from paimon_features.project.lineage.lineage_graph import lineage
from paimon_features.project.lineage.nodes_and_edges import LineageNode

Document = dict[str, Any]


def describe_all(definitions: Definitions, lake: Lake) -> list[Document]:
    """Return a summary of every definition: kind, name, description, owner, tags, state.

    ``state`` is ``applied``, ``changed`` (differs from the applied one), or ``not applied``.
    """
    applied = registry.applied(lake)
    return [
        {
            "kind": kind,
            "name": name,
            "state": _state(applied.get((kind, name)), item.to_document()),
            "description": item.description,
            "owner": item.owner,
            "tags": dict(item.tags),
        }
        for (kind, name), item in _items(definitions)
    ]


def describe(definitions: Definitions, lake: Lake, name: str) -> list[Document]:
    """Return the full descriptions of what has that name, one per kind of definition.

    Training sets and models, as ``describe_stored`` returns them, also have their tables and
    lineage.

    Raises
    ------
    UnknownNameError
        If there is no such definition.
    """
    items = [(key, item) for key, item in _items(definitions) if key[1] == name]
    stored = [document for document in describe_stored(lake) if document["name"] == name]
    if not items and not stored:
        names = [key[1] for key, _ in _items(definitions)]
        names += [document["name"] for document in describe_stored(lake)]
        raise UnknownNameError.of("definition", name, dict.fromkeys(names))
    versions = registry.versions(lake)
    graph = lineage(definitions, lake)
    out = []
    for (kind, _), item in items:
        history = versions.get((kind, name), [])
        document: Document = dict(item.to_document())
        document["state"] = _state(history[-1] if history else None, item.to_document())
        document["versions"] = [
            {
                "version": v.number,
                "applied_at_ms": v.applied_at_ms,
                "dropped": v.document is None,
            }
            for v in history
        ]
        if isinstance(item, FeatureView):
            document["features"] = list(_features(item.compiled))
            document["levels_ms"] = list(item.compiled.levels_ms)
            document["generations"] = list(_generations(lake, item.compiled))
        if isinstance(item, DerivedView):
            document["features"] = [f"{f.name}: {f.type.text}" for f in item.compiled.features]
            document["tables"] = [_table(lake, item.table)]
        if isinstance(item, Interaction):
            compiled = definitions.interaction(item)
            document["type"] = compiled.type.text
            document["features"] = [str(ref) for ref in compiled.refs]
            document["request"] = {n: k.text for n, k in compiled.inputs.items()}
        if isinstance(item, CompiledTransformed):
            document["features"] = [str(ref) for ref in item.refs]
            document["request"] = {n: k.text for n, k in item.inputs.items()}
            document["parameters"] = item.fitted.transformer.to_params()
            document["fitted_on"] = dict(item.fitted.fitted_on)
            document["fitted_at_ms"] = item.fitted.fitted_at_ms
        if kind == "source":
            document["tables"] = [_table(lake, t) for t in (item.table, item.rejected_table)]
        for node in graph.nodes:
            if (node.kind, node.name) == (kind, name):
                document["made_of"] = list(map(_named, graph.parents(node)))
                document["used_by"] = list(map(_named, graph.children(node)))
        if kind == "entity":
            document["used_by"] = [
                {"kind": kind, "name": view.name}
                for kind, views in (
                    ("table_view", definitions.tables),
                    ("feature_view", definitions.views),
                )
                for view in views.values()
                if view.entity.name == name
            ]
        out.append(document)
    for stored_set in stored:
        document = {**stored_set, "tables": [_table(lake, stored_set["table"])], "versions": []}
        for node in graph.nodes:
            if (node.kind, node.name) == (stored_set["kind"], name):
                document["made_of"] = list(map(_named, graph.parents(node)))
        out.append(document)
    return out


def describe_stored(lake: Lake) -> list[Document]:
    """Return a summary of every training set and model of the lake, as ``describe_all`` does.

    ``state`` of a training set is its number of rows, of a model which version is served.
    """
    out = []
    for table in lake.list():
        for prefix, kind in ((TRAINING_PREFIX, "training_set"), (MODELS_PREFIX, "model")):
            if not table.startswith(prefix):
                continue
            name = table.removeprefix(prefix)
            about: Document = {"kind": kind, "name": name, "table": table}
            about |= {"description": "", "owner": "", "tags": {}}
            try:
                about |= _model(lake, name) if kind == "model" else _training_set(lake, table)
            except PaimonFeaturesError:  # the others are worth seeing
                if not lake.exists(table):  # dropped meanwhile
                    continue
                about["state"] = "cannot be read; 'paimon-features check' says why"
            out.append(about)
    return out


def _training_set(lake: Lake, table: str) -> Document:
    newest = latest_snapshot(lake, table)
    properties = table_options.properties(lake, table)
    return {
        "state": f"{0 if newest is None else newest.total_records:,} rows",
        "label": properties.get("training-set.label"),
        "features": list(json.loads(properties.get("training-set.features", "{}"))),
    }


def _model(lake: Lake, name: str) -> Document:
    states = states_of(lake, name)
    served = [
        f"{version.version} {version.state}" for version in states.versions if version.traffic
    ]
    newest = states.versions[-1].version if states.versions else 0
    return {"state": f"version {', '.join(served) or f'{newest}, not promoted'}"}


def _items(definitions: Definitions) -> Iterator[tuple[registry.Key, Any]]:
    for kind, items in definitions.by_kind().items():
        for name, item in items.items():
            yield (kind, name), item


def _state(version: registry.Version | None, document: Mapping[str, Any]) -> str:
    if version is None or version.document is None:
        return "not applied"
    return "changed" if registry.differs(version.document, document) else "applied"


def _features(view: CompiledView) -> Iterator[Document]:
    for feature in view.features:
        yield {
            "name": feature.name,
            "type": feature.type.text,
            "window_ms": feature.window_ms,
            "hop_ms": feature.hop_ms,
            "partials": list(feature.partials),
        }


def _generations(lake: Lake, view: CompiledView) -> Iterator[Document]:
    for record in generations.load(lake, view.name):
        yield {
            "generation": record.generation,
            "state": record.state,
            "fits": record.fingerprint == view.fingerprint,
            "incarnation": record.incarnation,
            **_table(lake, record.table),
        }


def _table(lake: Lake, table: str) -> Document:
    """Return a table's newest snapshot and the number of rows in its files (before merging)."""
    newest = latest_snapshot(lake, table) if lake.exists(table) else None
    return {
        "table": table,
        "exists": lake.exists(table),
        "snapshot": None if newest is None else newest.id,
        "rows": 0 if newest is None else newest.total_records,
        "committed_at_ms": None if newest is None else newest.time_ms,
    }


def _named(node: LineageNode) -> dict[str, str]:
    return {"kind": node.kind, "name": node.name}
