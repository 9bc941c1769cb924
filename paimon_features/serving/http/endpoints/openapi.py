"""``GET /openapi.json``: the interface in OpenAPI 3.1, with the names of this project.

``openapi.json`` next to this file contains everything that all projects share. There, a text in
braces stands for a value of this server, and ``x-errors`` for the responses to errors.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from paimon_features._version import __version__
from paimon_features.core.types.statuses import FEAST_STATUS_NAMES, STATUS_NAMES
from paimon_features.serving.http.http_errors import CODES
from paimon_features.serving.http.limits import Limits

_TYPES: Mapping[str, dict[str, Any]] = {
    "int32": {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
    "int64": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    "float32": {"type": "number"},
    "float64": {"type": "number"},
    "bool": {"type": "boolean"},
    "date": {"type": "string", "format": "date"},
}
_TEXT = {"type": "string"}
_OBJECT = {"application/json": {"schema": {"type": "object"}}}
_OF_MODELS = ("/predict", "/models", "/v2", "/invocations")
"""Beginnings of the paths about models, whose errors have other texts."""
_WITH_TOKEN = ("/get-online-features", "/features", "/explain", *_OF_MODELS)
_OPEN = ("/v2", "/v2/health/live", "/v2/health/ready")
"""Paths that need no token, although their beginning is one of ``_WITH_TOKEN``."""


def document(
    catalogue: Mapping[str, Any] | None, limits: Limits, *, with_tokens: bool
) -> dict[str, Any]:
    """Return the document, with the names of ``catalogue`` (see ``GET /features``), if any."""
    values = {
        "title": f"Features of {catalogue['project']}" if catalogue else "Features",
        "version": __version__,
        "codes": sorted(CODES),
        "statuses": list(STATUS_NAMES),
        "feast_statuses": list(FEAST_STATUS_NAMES),
        "max_body_bytes": limits.max_body_bytes,
        "max_entities": limits.max_entities,
        "max_features": limits.max_features,
        "examples": _examples(catalogue),
        **_names(catalogue),
    }
    out: dict[str, Any] = _filled(_template(), values)
    read = out["paths"]["/get-online-features"]["post"]
    read["description"] = read["description"].format_map(values)
    texts = out.pop("x-error-texts")
    for path, operations in out["paths"].items():
        for operation in operations.values():
            _complete(operation, texts, about_models=path.startswith(_OF_MODELS))
            if with_tokens and path.startswith(_WITH_TOKEN) and path not in _OPEN:
                operation["security"] = [{"token": []}]
    return out


@functools.cache
def _template() -> Mapping[str, Any]:
    text = resources.files(__package__).joinpath("openapi.json").read_text(encoding="utf-8")
    template: dict[str, Any] = json.loads(text)
    return template


def _filled(node: Any, values: Mapping[str, Any]) -> Any:
    """Return a copy of a part of the template, with values in place of their names in braces."""
    if isinstance(node, dict):
        return {key: _filled(value, values) for key, value in node.items()}
    if isinstance(node, list):
        return [_filled(value, values) for value in node]
    if isinstance(node, str) and node[:1] == "{" and node[-1:] == "}":
        return values[node[1:-1]]
    return node


def _complete(
    operation: dict[str, Any], texts: Mapping[str, Mapping[str, str]], *, about_models: bool
) -> None:
    """Add the responses that the template leaves out: a plain JSON object, and the errors."""
    errors = operation.pop("x-errors")
    responses = {
        "200": {"description": operation["summary"], "content": _OBJECT},
        **operation.get("responses", {}),
    }
    text_of = {**texts["all paths"], **(texts["paths of models"] if about_models else {})}
    schema = {"schema": {"$ref": f"#/components/schemas/{errors['schema']}"}}
    is_problem = errors["schema"] == "Problem"
    for status in text_of if errors["statuses"] == "all" else errors["statuses"]:
        content = {"application/problem+json" if is_problem else "application/json": schema}
        if status == "421" and about_models and is_problem:
            content |= _OBJECT  # a path of the protocol has errors of its form
        responses[status] = {"description": text_of[status], "content": content}
    operation["responses"] = responses
    operation.setdefault("parameters", [])


def _examples(catalogue: Mapping[str, Any] | None) -> dict[str, Any]:
    if catalogue is None:
        return {}
    out: dict[str, Any] = {}
    for service in catalogue["services"]:
        if not service["online"]:
            continue
        value: dict[str, Any] = {
            "feature_service": service["name"],
            "entities": {key: [_sample(kind)] for key, kind in service["keys"].items()},
        }
        if service["request"]:
            value["request"] = {n: _sample(kind) for n, kind in service["request"].items()}
        out[service["name"]] = {"summary": service["description"], "value": value}
    for view in catalogue["views"]:
        if view["online"]:
            features = [feature["reference"] for feature in view["features"][:3]]
            entities = {key: [_sample(kind)] for key, kind in view["keys"].items()}
            out[view["name"]] = {"value": {"features": features, "entities": entities}}
    return out


def _sample(kind: str) -> object:
    samples = {
        "bool": True,
        "string": "a",
        "date": "2011-12-09",
        "timestamp": "2011-12-09T12:50:00",
    }
    if kind.startswith("decimal"):
        return "12.50"
    return samples.get(kind, 1.5 if kind.startswith("float") else 1)


def _names(catalogue: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the parts of a request's schema that name features, services, keys and inputs."""
    feature: dict[str, Any] = {
        **_TEXT,
        "description": "view:feature, or the name of a computed feature",
    }
    service: dict[str, Any] = {
        **_TEXT,
        "description": "The service to read; this or features.",
    }
    keys: dict[str, Any] = {}
    inputs: dict[str, Any] = {}
    if catalogue is not None:
        views = [view for view in catalogue["views"] if view["online"]]
        computed = [*catalogue["interactions"], *catalogue["transformed"]]
        references = [f["reference"] for view in views for f in view["features"]]
        references += [interaction["name"] for interaction in computed]
        if references:
            feature["enum"] = references
        services = [s["name"] for s in catalogue["services"] if s["online"]]
        if services:
            service["enum"] = services
        for view in views:
            for key, kind in view["keys"].items():
                keys[key] = {"type": "array", "items": _TYPES.get(kind, _TEXT)}
        for interaction in computed:
            for name, kind in interaction["request"].items():
                schema = _TYPES.get(kind, _TEXT)
                inputs[name] = {"anyOf": [schema, {"type": "array", "items": schema}]}
    return {
        "feature_name": feature,
        "service_name": service,
        "entity_keys": keys,
        "request_inputs": inputs,
    }
