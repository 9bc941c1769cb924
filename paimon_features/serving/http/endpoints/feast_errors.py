"""Errors in the form that Feast's client reads, so that it raises its own exceptions.

Feast's server sends a JSON string that contains a JSON document with the module and the class of
an exception and its message; its client creates that exception. It ignores other documents and
raises a RuntimeError with their text.
"""

from __future__ import annotations

import json

import msgspec

from paimon_features.core.documents.redaction import redact
from paimon_features.serving.http.http_errors import RequestRejected
from paimon_features.serving.http.messages import Request

PATH = "/get-online-features"
_BY_CODE = {"unauthorized": "FeastPermissionError", "forbidden": "FeastPermissionError"}


def is_feast(request: Request) -> bool:
    """Return True if a request is one of Feast's client: JSON without a type, by way of
    requests."""
    return (
        request.path == PATH
        and not request.content_type
        and request.header(b"user-agent").startswith((b"python-requests/", b"feast"))
    )


def feast_document(rejection: RequestRejected, request_id: str) -> bytes:
    """Return the body of the reply to Feast's client."""
    document = {
        "module": "feast.errors",
        "class": _class_of(rejection),
        "message": f"{redact(rejection.detail)} (request id {request_id})",
    }
    return msgspec.json.encode(json.dumps(document))


def _class_of(rejection: RequestRejected) -> str:
    if rejection.code != "unknown_name":
        return _BY_CODE.get(rejection.code, "FeastError")
    for kind, name in (("service", "FeatureService"), ("feature view", "FeatureView")):
        if rejection.detail.startswith(f"unknown {kind} "):
            return f"{name}NotFoundException"
    return "FeastObjectNotFoundException"
