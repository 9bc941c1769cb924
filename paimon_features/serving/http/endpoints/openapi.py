"""``GET /openapi.json``: the interface in OpenAPI 3.1, with the names of this project."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paimon_features._version import __version__
from paimon_features.core.types.statuses import FEAST_STATUS_NAMES, STATUS_NAMES
from paimon_features.serving.http.bodies.formats import Format
from paimon_features.serving.http.endpoints.openapi_models import (
    ERROR_STATUSES,
    MODEL_SCHEMAS,
    STATUS_TEXTS,
    closed_paths,
    model_paths,
    predict_request,
)
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


def document(
    catalogue: Mapping[str, Any] | None, limits: Limits, *, with_tokens: bool
) -> dict[str, Any]:
    """The document, with the names of ``catalogue`` (that of ``GET /features``), if any."""
    out: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": f"Features of {catalogue['project']}" if catalogue else "Features",
            "version": __version__,
            "description": "Online features, as of one snapshot of the lake, with a status for "
            "each value and its freshness. POST /get-online-features speaks Feast's JSON.",
        },
        "paths": {
            "/get-online-features": {"post": _read(catalogue, limits)},
            "/features": _get("Services, views, features, their types and versions.", True),
            "/health": _get("Liveness and readiness, with reasons.", unready=True),
            "/health/live": _get("Whether the process responds."),
            "/health/ready": _get(
                "Whether the store responds and every view is present and fresh.",
                unready=True,
                parameters=[
                    {
                        "name": "stale",
                        "in": "query",
                        "description": "'ok': stale views count as ready, too",
                        "schema": {"type": "string", "enum": ["ok"]},
                    }
                ],
            ),
            "/metrics": _get("Metrics in Prometheus' text format.", media="text/plain"),
            "/openapi.json": _get("This document."),
            "/docs": _get("This document as a page.", media="text/html"),
            "/explain": _explain(),
            **model_paths(),
            "/ui": _get("The explorer, a page for people.", media="text/html"),
        },
        "components": {
            "schemas": {
                "Problem": _problem(),
                "Request": _request(catalogue, limits),
                "Reply": _reply(),
                "Freshness": _freshness(),
                "PredictRequest": predict_request(limits),
                **MODEL_SCHEMAS,
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    if with_tokens:
        for path in ("/get-online-features", "/features", "/explain", *closed_paths()):
            for operation in out["paths"][path].values():
                operation["security"] = [{"token": []}]
    return out


def _get(
    text: str,
    with_401: bool = False,
    *,
    media: str = "application/json",
    unready: bool = False,
    parameters: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    content = {media: {"schema": {"type": "object" if "json" in media else "string"}}}
    responses: dict[str, Any] = {"200": {"description": text, "content": content}}
    if with_401:
        responses["401"] = _problem_response("401")
    responses["421"] = _problem_response("421")
    if unready:
        responses["503"] = {"description": "Not ready; see 'reasons'.", "content": content}
    return {"get": {"summary": text, "parameters": [*parameters], "responses": responses}}


def _explain() -> dict[str, Any]:
    fields = {
        "view": ("the feature view", True, {"type": "string"}),
        "entity": (
            "KEY=VALUE; once for each entity key",
            True,
            {"type": "array", "items": {"type": "string"}, "minItems": 1},
        ),
        "feature": ("this feature only", False, {"type": "string"}),
        "as_of": ("the time of the read (UTC ms), now by default", False, {"type": "integer"}),
    }
    parameters = [
        {"name": name, "in": "query", "description": text, "required": needed, "schema": schema}
        for name, (text, needed, schema) in fields.items()
    ]
    out = _get("Which cells of an entity make up its features.", True, parameters=parameters)
    for status in ("403", "404", "422", "503"):
        out["get"]["responses"][status] = _problem_response(status)
    return out


def _problem_response(status: str) -> dict[str, Any]:
    texts = {
        **STATUS_TEXTS,
        "403": "The token does not grant the right to read this.",
        "404": "A view, feature or service that is not defined.",
        "500": "An internal error of the server.",
        "503": "Overloaded, or the store is unavailable or being built: see Retry-After.",
    }
    schema = {"$ref": "#/components/schemas/Problem"}
    content = {"application/problem+json": {"schema": schema}}
    return {"description": texts[status], "content": content}


def _read(catalogue: Mapping[str, Any] | None, limits: Limits) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Request"}
    arrow = Format.ARROW.value
    body = {Format.JSON.value: {"schema": schema, "examples": _examples(catalogue)}}
    reply = {Format.JSON.value: {"schema": {"$ref": "#/components/schemas/Reply"}}}
    binary = {"schema": {"type": "string", "contentMediaType": arrow}}
    return {
        "summary": "Features of entities, as of now or another time.",
        "description": "The body is JSON, MessagePack of the same structure "
        f"({Format.MESSAGE_PACK.value}), or an Arrow stream ({arrow}) with entity keys and request "
        "inputs as columns and the other fields in the schema's metadata or the query. The reply "
        "is what Accept prefers, by default the format of the request. A request has at most "
        f"{limits.max_body_bytes:,} bytes, {limits.max_entities:,} entities, "
        f"{limits.max_features:,} features.",
        "requestBody": {"required": True, "content": body},
        "responses": {
            "200": {
                "description": "One result per name in metadata.feature_names, keys first.",
                "headers": {
                    "X-Request-Id": {"schema": {"type": "string"}},
                    "X-Applied-Snapshot": {
                        "description": "Per view: the snapshot that every value includes.",
                        "schema": {"type": "string"},
                    },
                    "X-Ignored-Fields": {
                        "description": "Fields of the request that had no effect.",
                        "schema": {"type": "string"},
                    },
                    "X-Current-Ms": {
                        "description": "Per view: when the store was last known to be up to date.",
                        "schema": {"type": "string"},
                    },
                },
                "content": {**reply, Format.MESSAGE_PACK.value: {"schema": {}}, arrow: binary},
            },
            **{status: _problem_response(status) for status in ERROR_STATUSES},
        },
    }


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


def _computed(catalogue: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*catalogue["interactions"], *catalogue["transformed"]]


def _request(catalogue: Mapping[str, Any] | None, limits: Limits) -> dict[str, Any]:
    scalar = {"type": ["integer", "number", "string", "boolean", "null"]}
    features: dict[str, Any] = {
        "type": "string",
        "description": "view:feature, or the name of a computed feature",
    }
    service: dict[str, Any] = {"type": "string"}
    entities: dict[str, Any] = {}
    inputs: dict[str, Any] = {}
    if catalogue is not None:
        views = [view for view in catalogue["views"] if view["online"]]
        references = [f["reference"] for view in views for f in view["features"]]
        references += [each["name"] for each in _computed(catalogue)]
        if references:
            features["enum"] = references
        services = [s["name"] for s in catalogue["services"] if s["online"]]
        if services:
            service["enum"] = services
        for view in views:
            for key, kind in view["keys"].items():
                entities[key] = {"type": "array", "items": _TYPES.get(kind, {"type": "string"})}
        for each in _computed(catalogue):
            for name, kind in each["request"].items():
                one = _TYPES.get(kind, {"type": "string"})
                inputs[name] = {"anyOf": [one, {"type": "array", "items": one}]}
    many = {"type": "array", "items": scalar, "maxItems": limits.max_entities}
    return {
        "type": "object",
        "required": ["entities"],
        "anyOf": [{"required": ["features"]}, {"required": ["feature_service"]}],
        "additionalProperties": True,
        "description": "Fields that are not listed are ignored and named in X-Ignored-Fields, "
        "unless they look like a misspelt one.",
        "properties": {
            "entities": {
                "type": "object",
                "description": "A list for each entity key, all of one length.",
                "properties": entities,
                "additionalProperties": many,
                "minProperties": 1,
            },
            "features": {
                "type": ["array", "null"],
                "items": features,
                "maxItems": limits.max_features,
                "description": "The features to read; this or feature_service.",
            },
            "feature_service": {**service, "description": "The service to read; this or features."},
            "full_feature_names": {
                "type": "boolean",
                "default": False,
                "description": "Whether to name features <view>__<feature>.",
            },
            "include_feature_view_version_metadata": {"type": "boolean", "enum": [False]},
            "request": {
                "type": ["object", "null"],
                "description": "Request inputs of interactions: a value for all entities, or a "
                "list with one for each.",
                "properties": inputs,
                "additionalProperties": {"anyOf": [scalar, many]},
            },
            "as_of": {
                "type": ["integer", "null"],
                "description": "The time of the read, UTC milliseconds; now by default.",
            },
        },
    }


def _reply() -> dict[str, Any]:
    statuses = {"type": "array", "items": {"type": "string", "enum": list(FEAST_STATUS_NAMES)}}
    detailed = {"type": "array", "items": {"type": "string", "enum": list(STATUS_NAMES)}}
    return {
        "type": "object",
        "required": ["metadata", "results"],
        "properties": {
            "metadata": {
                "type": "object",
                "required": ["feature_names"],
                "properties": {
                    "feature_names": {"type": "array", "items": {"type": "string"}},
                    "as_of_ms": {"type": "integer"},
                    "freshness": {
                        "type": "object",
                        "additionalProperties": {"$ref": "#/components/schemas/Freshness"},
                    },
                },
            },
            "results": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["values", "statuses", "event_timestamps"],
                    "properties": {
                        "values": {"type": "array"},
                        "statuses": statuses,
                        "event_timestamps": {"type": "array", "items": {"type": "string"}},
                        "detailed_statuses": detailed,
                    },
                },
            },
        },
    }


def _freshness() -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "applied_snapshot": {"type": "integer"},
            "commit_time_ms": {"type": "integer"},
            "event_time_low_ms": {
                "type": ["integer", "null"],
                "description": "low mark: the oldest of the buckets' newest event times",
            },
            "event_time_high_ms": {
                "type": ["integer", "null"],
                "description": "high mark: the newest event time applied",
            },
            "current_ms": {"type": "integer"},
            "stale": {"type": "boolean"},
        },
    }


def _problem() -> dict[str, Any]:
    return {
        "type": "object",
        "description": "RFC 9457; 'code' is stable, 'detail' is for people.",
        "required": ["status", "title", "code", "detail", "request_id"],
        "properties": {
            "status": {"type": "integer"},
            "title": {"type": "string"},
            "code": {"type": "string", "enum": sorted(CODES)},
            "detail": {"type": "string"},
            "request_id": {"type": "string"},
        },
    }
