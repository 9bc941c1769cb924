"""Bearer tokens: made, kept as hashes, and the rights that they give."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from paimon_features.errors import ConfigurationError
from paimon_features.serving.http.tokens import Tokens, add_token

READ = {"feature_service": "reading_v1", "entities": {"user": [1]}}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens.toml"


def test_a_token_is_kept_as_its_hash_in_a_file_for_its_owner_only(file: Path) -> None:
    token = add_token(file, 'a "b"', ["reading_v1"], "2026-01-01")
    other = add_token(file, "c", ["*"], "2026-01-01")
    assert token not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    tokens = Tokens(file)
    assert tokens.rights(f"Bearer {token}".encode()).client == 'a "b"'
    assert tokens.rights(f"bearer {token}".encode()).services == {"reading_v1"}
    assert tokens.rights(f"Bearer {other}".encode()).services is None
    with pytest.raises(ConfigurationError, match="already has a token 'c'"):
        add_token(file, "c", ["x"], "2026-01-01")


def test_a_token_reads_the_features_of_its_services_and_no_others(
    make_client: Any, file: Path
) -> None:
    token = add_token(file, "reader", ["reading_v1"], "2026-01-01")
    client = make_client(tokens=file)
    head = {"headers": bearer(token)}
    assert client.read(READ, **head).status == 200
    listed = {"features": ["clicks:count_12d"], "entities": {"user": [1]}}
    assert client.read(listed, **head).status == 200
    paying = {"feature_service": "paying_v1", "entities": {"user": [1]}, "request": {"amount": 1}}
    status, code, detail = client.read(paying, **head).problem
    assert (status, code) == (403, "forbidden")
    assert detail == (
        "the token 'reader' may not read share; it may read the features of "
        "these services: reading_v1"
    )
    assert client.log[-1]["client"] == "reader"
    # nor does it learn what else there is
    status, code, detail = client.read({**READ, "feature_service": "x"}, **head).problem
    assert (status, code) == (404, "unknown_name")
    assert "visiting" not in detail
    document = client.get("/features", **head).json
    assert [service["name"] for service in document["services"]] == ["reading_v1"]
    assert [view["name"] for view in document["views"]] == ["clicks"]
    assert document["interactions"] == []
    assert b"visits" not in client.get("/openapi.json", **head).body


def test_the_token_for_everything_reads_everything(make_client: Any, file: Path) -> None:
    token = add_token(file, "all", ["*"], "2026-01-01")
    client = make_client(tokens=file)
    assert client.read(READ, headers=bearer(token)).status == 200
    assert len(client.get("/features", headers=bearer(token)).json["services"]) == 3


@pytest.mark.parametrize(
    "authorization", ["", "Bearer", "Bearer wrong", "Basic dTpw", "Bearer \xff", "pf_x"]
)
def test_no_token_or_an_unknown_one_is_401(
    make_client: Any, file: Path, authorization: str
) -> None:
    add_token(file, "reader", ["reading_v1"], "2026-01-01")
    client = make_client(tokens=file)
    headers = {"authorization": authorization} if authorization else {}
    for answer in (client.read(READ, headers=headers), client.get("/features", headers=headers)):
        assert answer.problem[:2] == (401, "unauthorized")
        assert answer.headers["www-authenticate"].startswith("Bearer")


def test_without_a_token_health_and_the_interface_tell_no_feature(
    make_client: Any, file: Path
) -> None:
    add_token(file, "reader", ["reading_v1"], "2026-01-01")
    client = make_client(tokens=file)
    assert client.get("/health/ready").status == 200
    assert client.get("/metrics").status == 200
    for path in ("/openapi.json", "/docs"):
        answer = client.get(path)
        assert answer.status == 200
        assert b"count_12d" not in answer.body


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[token]", "token file"),
        ("x = 1", "entries [[token]] only"),
        ("[[token]]\nname = 1", "expected a string"),
        ("[[token]]\nname = 'a'\nsha256 = 'xyz'\nservices = ['s']", "64 lower-case hex digits"),
        (f"[[token]]\nname = 'a'\nsha256 = '{'0' * 64}'\nservices = []", "names of services"),
        (f"[[token]]\nname = 'a'\nsha256 = '{'0' * 64}'\nother = 1", "expected name"),
    ],
)
def test_a_broken_token_file_is_reported(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        Tokens(file)
    assert message in str(caught.value)


def test_a_token_file_that_is_not_there_names_the_command(file: Path) -> None:
    with pytest.raises(ConfigurationError, match="serve token --service NAME"):
        Tokens(file)
