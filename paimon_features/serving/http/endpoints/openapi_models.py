"""The endpoints of models in OpenAPI 3.1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paimon_features.core.types.statuses import STATUS_NAMES
from paimon_features.serving.http.bodies.formats import Format
from paimon_features.serving.http.limits import Limits

_SCALAR = {"type": ["integer", "number", "string", "boolean", "null"]}
_NUMBERS = {"anyOf": [{"type": ["number", "null"]}, {"type": "array"}]}
STATUS_TEXTS: Mapping[str, str] = {
    "400": "The body is not what its content type says.",
    "401": "The token is missing or unknown.",
    "406": "The server writes none of the accepted formats.",
    "408": "The body did not arrive in time.",
    "413": "Over a limit of this server.",
    "415": "The server does not read this format.",
    "421": "The Host header has a name that is not one of this server.",
    "429": "The token is over its quota: see Retry-After.",
    "422": "A field is missing, unknown or of a wrong type, or values do not fit.",
}
"""What statuses mean at all endpoints."""
_TEXTS: Mapping[str, str] = {
    **STATUS_TEXTS,
    "403": "The token does not grant the right to use this model.",
    "404": "There is no such model or version.",
    "500": "The network failed, or an internal error of the server.",
    "503": "Overloaded, or the store or the model is not ready: see Retry-After.",
}
ERROR_STATUSES = (
    "400",
    "401",
    "403",
    "404",
    "406",
    "408",
    "413",
    "415",
    "421",
    "422",
    "429",
    "500",
    "503",
)
"""What a request for features or a prediction can be answered instead."""

MODEL_SCHEMAS: Mapping[str, Any] = {
    "PredictReply": {
        "type": "object",
        "required": ["model", "version", "as_of_ms", "predictions", "statuses", "freshness"],
        "properties": {
            "model": {"type": "string"},
            "version": {"type": "integer", "description": "the version that has answered"},
            "as_of_ms": {"type": "integer"},
            "predictions": {
                "type": "array",
                "items": _NUMBERS,
                "description": "The first output of the network for each entity: a number, or a "
                "list of 'classes'. Null is a result that is no finite number.",
            },
            "classes": {"type": "array", "items": {"type": "string"}},
            "outputs": {"type": "object", "description": "Further outputs, by name."},
            "statuses": {
                "type": "array",
                "description": "The worst status of each entity's features.",
                "items": {"type": "string", "enum": list(STATUS_NAMES)},
            },
            "freshness": {
                "type": "object",
                "additionalProperties": {"$ref": "#/components/schemas/Freshness"},
            },
            "features": {"type": "object", "description": "With 'full': values by feature."},
            "explanations": {
                "type": "array",
                "description": "With 'explain': for each entity its inputs, with what the "
                "prediction loses where each is null, those that count most first.",
                "items": {"type": "array", "items": {"type": "object"}},
            },
        },
    },
    "InferError": {
        "type": "object",
        "required": ["error"],
        "properties": {"error": {"type": "string"}},
    },
    "InferRequest": {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "parameters": {"type": "object"},
            "inputs": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name", "shape", "datatype", "data"],
                    "properties": {
                        "name": {"type": "string"},
                        "shape": {"type": "array", "items": {"type": "integer"}},
                        "datatype": {"type": "string", "enum": ["FP64", "BYTES"]},
                        "parameters": {"type": "object"},
                        "data": {
                            "type": "array",
                            "description": "Flat in row-major order, or nested as the shape; null "
                            "is a missing value.",
                        },
                    },
                },
            },
            "outputs": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": {"type": "string"}},
                },
            },
        },
    },
    "InvocationError": {
        "type": "object",
        "required": ["error_code", "message"],
        "properties": {"error_code": {"type": "string"}, "message": {"type": "string"}},
    },
    "InvocationRequest": {
        "type": "object",
        "description": "Exactly one of these.",
        "properties": {
            "dataframe_split": {
                "type": "object",
                "required": ["columns", "data"],
                "properties": {
                    "columns": {"type": "array", "items": {"type": "string"}},
                    "data": {"type": "array", "items": {"type": "array"}},
                    "index": {"type": "array"},
                },
            },
            "dataframe_records": {"type": "array", "items": {"type": "object"}},
            "instances": {"type": "array"},
            "inputs": {"type": ["object", "array"]},
        },
        "minProperties": 1,
        "maxProperties": 1,
    },
}


def model_paths() -> dict[str, Any]:
    """The endpoints of models by path."""
    model = _parameter("model", "path", "the model", {"type": "string"})
    version = _parameter("version", "path", "a version that is served here", {"type": "string"})
    paths: dict[str, Any] = {
        "/predict/{model}": {"post": _predict(model)},
        "/models": {
            "get": _operation(
                "Models, their versions and states, and what each reads.", ("401", "421")
            )
        },
        "/v2": {"get": _operation("The server, by the Open Inference Protocol.", ("421",))},
        "/v2/health/live": {"get": _operation("Whether the process responds.", ("421",))},
        "/v2/health/ready": {
            "get": _ready("Whether the store and all models are ready.", [], ("421",))
        },
        "/invocations": {"post": _invocations()},
    }
    for path, parameters in (
        ("/v2/models/{model}", [model]),
        ("/v2/models/{model}/versions/{version}", [model, version]),
    ):
        errors = ("401", "403", "404", "421", "429", "503")
        paths[path] = {
            "get": _operation("Inputs and outputs of a model.", errors, parameters, "InferError")
        }
        paths[f"{path}/ready"] = {
            "get": _ready("Whether a model can answer.", parameters, errors[:-1])
        }
        paths[f"{path}/infer"] = {
            "post": {
                **_operation(
                    "Predictions from ready-made inputs.", ERROR_STATUSES, parameters, "InferError"
                ),
                "requestBody": _body("InferRequest"),
            }
        }
    return paths


def closed_paths() -> list[str]:
    """The paths that need a token where there are tokens."""
    open_paths = ("/v2", "/v2/health/live", "/v2/health/ready")
    return [path for path in model_paths() if path not in open_paths]


def predict_request(limits: Limits) -> dict[str, Any]:
    """The schema of a request for predictions of entities."""
    many = {"type": "array", "items": _SCALAR, "maxItems": limits.max_entities}
    return {
        "type": "object",
        "required": ["entities"],
        "additionalProperties": False,
        "properties": {
            "entities": {
                "type": "object",
                "description": "A list for each entity key, all of one length.",
                "additionalProperties": many,
                "minProperties": 1,
            },
            "request": {
                "type": ["object", "null"],
                "description": "Request inputs: one value, or one for each entity.",
                "additionalProperties": {"anyOf": [_SCALAR, many]},
            },
            "as_of": {"type": ["integer", "null"], "description": "UTC ms; now."},
            "full": {"type": "boolean", "description": "With the features."},
            "explain": {
                "type": "boolean",
                "description": "With what each input contributes.",
            },
            "version": {
                "type": ["integer", "null"],
                "description": "A version that is served here; the split decides.",
            },
            "unit": {
                "type": ["string", "null"],
                "description": "What the split assigns to a version; by default the first entity.",
            },
        },
    }


def _predict(model: Mapping[str, Any]) -> dict[str, Any]:
    content = {"schema": {"$ref": "#/components/schemas/PredictReply"}}
    out = _operation(
        "Predictions for entities, from their features as of now.", ERROR_STATUSES, [model]
    )
    out["description"] = (
        "The features of the entities are read as for /get-online-features, and the network of one "
        "version predicts from them: production, or a challenger for its share of the entities. "
        f"JSON or MessagePack ({Format.MESSAGE_PACK.value})."
    )
    out["requestBody"] = _body("PredictRequest")
    out["responses"]["200"]["content"] = {
        Format.JSON.value: content,
        Format.MESSAGE_PACK.value: {"schema": {}},
    }
    out["responses"]["200"]["headers"] = {
        "X-Model-Version": {"description": "MODEL@VERSION", "schema": {"type": "string"}}
    }
    return out


def _invocations() -> dict[str, Any]:
    name = _parameter(
        "model", "query", "the model; not needed for the only one", {"type": "string"}, False
    )
    return {
        **_operation(
            "Predictions from ready-made inputs, as MLflow's scoring server takes them.",
            ERROR_STATUSES,
            [name],
            "InvocationError",
        ),
        "requestBody": _body("InvocationRequest"),
    }


def _ready(text: str, parameters: Sequence[Any], errors: Sequence[str]) -> dict[str, Any]:
    out = _operation(text, errors, parameters, "InferError")
    out["responses"]["400"] = {
        "description": "It is not.",
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
    return out


def _operation(
    text: str,
    errors: Sequence[str],
    parameters: Sequence[Any] = (),
    error_schema: str | None = None,
) -> dict[str, Any]:
    responses: dict[str, Any] = {
        "200": {
            "description": text,
            "content": {"application/json": {"schema": {"type": "object"}}},
        }
    }
    for status in errors:
        schema = {"$ref": f"#/components/schemas/{error_schema or 'Problem'}"}
        media = "application/problem+json" if error_schema is None else "application/json"
        responses[status] = {"description": _TEXTS[status], "content": {media: {"schema": schema}}}
    if "421" in errors and error_schema is None:
        # a path of the protocol has errors of its form
        responses["421"]["content"]["application/json"] = {"schema": {"type": "object"}}
    return {"summary": text, "parameters": [*parameters], "responses": responses}


def _parameter(
    name: str, place: str, text: str, schema: Mapping[str, Any], required: bool = True
) -> dict[str, Any]:
    return {
        "name": name,
        "in": place,
        "description": text,
        "required": required,
        "schema": schema,
    }


def _body(schema: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"required": True, "content": content}
