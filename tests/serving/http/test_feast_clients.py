"""Requests of Feast's client, of this version and the next ones, and what it makes of errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paimon_features.serving.http.access.tokens import add_token

READ = {"feature_service": "reading_v1", "entities": {"user": [1]}}
FEAST = {"user-agent": "python-requests/2.32.3"}


def exception_of(answer: Any) -> tuple[str, str]:
    """The class and the message of the exception that Feast's client creates from a reply."""
    detail = answer.json
    assert isinstance(detail, str), "else the client does not read it"
    document = json.loads(detail)
    assert document["module"] == "feast.errors"
    assert answer.headers["x-request-id"] in document["message"]
    return document["class"], document["message"]


def test_fields_of_newer_clients_are_ignored_and_named(client: Any) -> None:
    plain = client.read(READ)
    newer = {**READ, "include_view_versions": True, "options": {"a": [1, {"b": None}]}, "é": 1}
    for answer in (
        client.read(newer),
        client.read(
            msgspec.msgpack.encode(newer),
            headers={"content-type": "application/msgpack", "accept": "application/json"},
        ),
    ):
        assert answer.status == 200
        assert answer.json["results"] == plain.json["results"]
        assert answer.headers["x-ignored-fields"] == "include_view_versions, options, ?"
    assert "x-ignored-fields" not in plain.headers


@pytest.mark.parametrize(
    ("document", "status", "kind", "text"),
    [
        ({**READ, "feature_service": "x"}, 404, "FeatureServiceNotFoundException", "'x'"),
        ({**READ, "feature_service": None, "features": ["x:y"]}, 404,
         "FeatureViewNotFoundException", "'x'"),
        ({**READ, "feature_service": None, "features": ["clicks:y"]}, 404,
         "FeastObjectNotFoundException", "clicks"),
        ({**READ, "entities": {"user": ["a"]}}, 422, "FeastError", "entity key 'user'"),
        (b"{", 400, "FeastError", "not JSON"),
    ],
)  # fmt: skip
def test_errors_are_exceptions_of_feast(
    client: Any, document: Any, status: int, kind: str, text: str
) -> None:
    answer = client.read(document, headers=FEAST)
    assert answer.status == status
    name, message = exception_of(answer)
    assert name == kind
    assert text in message
    # other clients read the usual document
    assert client.read(document).problem[0] == status
    typed = client.read(document, headers={**FEAST, "content-type": "application/json"})
    assert typed.problem[0] == status


def test_a_token_that_is_missing_is_a_permission_error(make_client: Any, tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    token = add_token(file, "feast", ["reading_v1"], "2026-01-01")
    client = make_client(tokens=file)
    answer = client.read(READ, headers=FEAST)
    assert (answer.status, exception_of(answer)[0]) == (401, "FeastPermissionError")
    bearer = {**FEAST, "authorization": f"Bearer {token}"}
    assert client.read(READ, headers=bearer).status == 200
    answer = client.read({**READ, "feature_service": "paying_v1"}, headers=bearer)
    assert (answer.status, exception_of(answer)[0]) == (403, "FeastPermissionError")
