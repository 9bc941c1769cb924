"""``GET /features``: what is served, so that a client can write correct requests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from paimon_features.core.types.schema import DataType
from paimon_features.definitions import (
    CompiledTransformed,
    CompiledView,
    FeatureRef,
    FeatureView,
)
from paimon_features.definitions.metadata import Described
from paimon_features.definitions.selection import Computation
from paimon_features.serving.http.access.access import Rights
from paimon_features.serving.http.definitions.definition_set import DefinitionSet


def catalogue(definitions: DefinitionSet, rights: Rights) -> dict[str, Any]:
    """Return services, views, computed features and entities that the rights cover.

    A ``version`` changes if and only if the meaning of the object changes.
    """
    granted = definitions.granted(rights)
    views = [
        _view(view, names)
        for view in definitions.definitions.views.values()
        if (names := _names(view, granted))
    ]
    services = [
        _service(definitions, name)
        for name in definitions.definitions.services
        if rights.grants.has_service(name)
    ]
    entities = {view["entity"] for view in views}
    document = {
        "project": definitions.project,
        "services": services,
        "views": views,
        "interactions": [
            _interaction(definitions, name)
            for name in definitions.definitions.interactions
            if granted is None or name in granted
        ],
        "transformed": [
            _transformed(definitions, name)
            for name in definitions.definitions.transformed
            if granted is None or name in granted
        ],
        "entities": [
            {"name": e.name, "keys": _types(e.keys), **_about(e)}
            for e in definitions.definitions.entities.values()
            if e.name in entities
        ],
    }
    return {**document, "version": digest(document), "loaded_ms": definitions.loaded_ms}


def digest(document: object) -> str:
    """Return the digest of a document, which is equal for equal documents."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _names(view: FeatureView, granted: frozenset[str] | None) -> list[str]:
    names = [feature.name for feature in view.compiled.features]
    return [n for n in names if granted is None or f"{view.name}:{n}" in granted]


def _view(view: FeatureView, names: Sequence[str]) -> dict[str, Any]:
    compiled = view.compiled
    return {
        "name": view.name,
        "entity": view.entity.name,
        "keys": _types(compiled.keys),
        "online": compiled.is_online,
        "ttl_ms": compiled.ttl_ms,
        "max_staleness_ms": compiled.max_staleness_ms,
        "tile_ms": compiled.tile_ms,
        "tiles_version": compiled.fingerprint,
        "version": compiled.online_fingerprint,
        "features": [_feature(compiled, name) for name in names],
        **_about(view),
    }


def _feature(view: CompiledView, name: str) -> dict[str, Any]:
    feature = view.feature(name)
    assert feature is not None
    return {
        "name": name,
        "reference": f"{view.name}:{name}",
        "type": feature.type.text,
        "aggregate": type(feature.aggregate).__name__,
        "window_ms": feature.window_ms,
        "window": feature.window.to_document(),
    }


def _interaction(definitions: DefinitionSet, name: str) -> dict[str, Any]:
    interaction = definitions.definitions.interactions[name]
    compiled = definitions.definitions.interaction(name)
    return {
        "name": name,
        "expression": interaction.expression,
        "type": compiled.type.text,
        "features": [str(ref) for ref in compiled.refs],
        "request": _types(compiled.inputs),
        **_about(interaction),
    }


def _transformed(definitions: DefinitionSet, name: str) -> dict[str, Any]:
    compiled = definitions.definitions.transformation(name)
    document = compiled.to_document()
    return {
        "name": name,
        "of": document["of"],
        "fitted": document["fitted"],
        "type": compiled.type.text,
        "features": [str(ref) for ref in compiled.refs],
        "request": _types(compiled.inputs),
        **_about(compiled),
    }


def _service(definitions: DefinitionSet, name: str) -> dict[str, Any]:
    service = definitions.definitions.services[name]
    plan = definitions.service_plan(name)
    features = [str(item) for item in service.items()]
    document: dict[str, Any] = {"name": name, "online": plan is not None, "features": features}
    if plan is not None:
        outputs = plan.selection.outputs
        document |= {
            "keys": _types(plan.keys),
            "request": _types(plan.inputs),
            "views": [view.name for view in plan.views],
        }
        meaning = [
            features,
            {view.name: view.online_fingerprint for view in plan.views},
            [_meaning(o) for o in outputs if not isinstance(o, FeatureRef)],
        ]
        document["version"] = digest(meaning)
    return {**document, **_about(service)}


def _meaning(computed: Computation) -> object:
    """Return all that its values depend on, without descriptions."""
    if isinstance(computed, CompiledTransformed):
        return computed.to_property()
    return computed.to_document()


def _types(types: Mapping[str, DataType]) -> dict[str, str]:
    return {name: kind.text for name, kind in types.items()}


def _about(item: Described) -> dict[str, Any]:
    return {"description": item.description, "owner": item.owner, "tags": dict(item.tags)}
