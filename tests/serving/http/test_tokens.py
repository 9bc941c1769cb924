"""Bearer tokens: made, kept as hashes, and the rights that they give."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from paimon_features.core.configuration.project_config import TOKEN_USE_FILES
from paimon_features.core.errors import ConfigurationError
from paimon_features.online.store import MemoryStore
from paimon_features.serving.http.access.access import Quota
from paimon_features.serving.http.access.token_use import TokenUse
from paimon_features.serving.http.access.tokens import NewToken, Tokens, add_token

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
    assert tokens.rights(f"bearer {token}".encode()).grants.services == {"reading_v1"}
    assert tokens.rights(f"Bearer {other}".encode()).grants.reads_everything
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
        "the token 'reader' may not read all of the requested features; it may read the features "
        "of these services: reading_v1"
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
        ("x = 1", "entries [[token]] and [role.NAME] only"),
        ("[[token]]\n" * 10_001, "10,001 tokens and 0 roles; expected at most 10,000"),
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


def test_a_name_of_several_lines_is_refused_and_writes_nothing(file: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"'a\\nb' has control characters"):
        add_token(file, "a\nb", ["s"], "2026-11-26")
    assert not file.exists()


def test_one_token_in_any_number_of_spellings_is_one_client(file: Path) -> None:
    token = add_token(file, "a", ["s"], "2026-11-26").encode()
    tokens = Tokens(file)
    spelled = [b"Bearer" + b" " * spaces + token for spaces in range(1, 4_100)]
    assert len({id(tokens.rights(each)) for each in spelled}) == 1


def test_a_token_file_that_is_not_there_names_the_command(file: Path) -> None:
    with pytest.raises(ConfigurationError, match="serve token --service NAME"):
        Tokens(file)


ROLES = """
[role.clicker]
views = ["cli*"]
explain = false

[role.payer]
services = ["paying_*"]
requests_per_s = 2
"""


def test_a_role_grants_views_by_pattern_and_what_is_computed_of_them(
    make_client: Any, file: Path
) -> None:
    file.write_text(ROLES)
    token = add_token(file, "reader", NewToken(roles=["clicker"]), "2026-01-01")
    client = make_client(tokens=file)
    head = {"headers": bearer(token)}
    share = {"features": ["share"], "entities": {"user": [1]}, "request": {"amount": 1}}
    assert client.read({**READ, "feature_service": None, "features": ["clicks:count_12d"]}, **head)
    assert client.read(share, **head).status == 200
    visits = {"features": ["visits:sum_n_1d"], "entities": {"shop": ["x"], "day": ["2011-01-01"]}}
    status, code, detail = client.read(visits, **head).problem
    assert (status, code) == (403, "forbidden")
    assert detail.endswith("it may read the features of these views: cli*")
    assert [view["name"] for view in client.get("/features", **head).json["views"]] == ["clicks"]
    answer = client.get("/explain", query="view=clicks&entity=user=1", **head)
    assert answer.problem[:2] == (403, "forbidden")
    assert "may not explain" in answer.problem[2]


def test_roles_add_up_and_the_greatest_of_their_rates_counts(file: Path) -> None:
    file.write_text(ROLES + "[role.fast]\nmodels = ['churn']\nrequests_per_s = 5\nrows_per_s = 9\n")
    both = add_token(file, "both", NewToken(roles=["clicker", "payer", "fast"]), "2026-01-01")
    own = add_token(file, "own", NewToken(roles=["payer"], requests_per_s=1), "2026-01-01")
    tokens = Tokens(file)
    rights = tokens.rights(f"Bearer {both}".encode())
    assert rights.grants.has_service("paying_v1")
    assert rights.grants.has_view("clicks")
    assert rights.grants.names_model("churn")
    assert not rights.grants.has_service("reading_v1")
    assert not rights.grants.admin
    assert rights.quota == Quota(5, 9)
    assert tokens.rights(f"Bearer {own}".encode()).quota == Quota(1, None)


def test_a_client_over_its_rate_is_429_and_is_counted_by_its_name(
    make_client: Any, file: Path, one_instant: None
) -> None:
    token = add_token(file, "few", NewToken(["*"], requests_per_s=2, rows_per_s=3), "2026-01-01")
    other = add_token(file, "all", ["*"], "2026-01-01")
    client = make_client(tokens=file)
    head = {"headers": bearer(token)}
    assert client.read(READ, **head).status == 200
    # a request of more rows than a second's worth waits for a full bucket
    many = {**READ, "entities": {"user": [1, 2, 3, 4]}}
    answer = client.read(many, **head)
    status, code, detail = answer.problem
    assert (status, code, answer.headers["retry-after"]) == (429, "quota_exceeded", "1")
    assert "the client 'few' is over its quota of 3 rows per second (this request has 4)" in detail
    assert client.read(READ, **head).problem[0] == 429  # its third request
    assert client.read(many, headers=bearer(other)).status == 200
    page = client.get("/metrics").body.decode()
    assert 'paimon_features_client_requests_total{client="few"} 3.0' in page
    assert 'paimon_features_client_refused_total{client="few"} 2.0' in page
    assert 'paimon_features_client_rows_total{client="all"} 4.0' in page
    assert 'paimon_features_refused_total{reason="quota"} 2.0' in page
    assert token not in page


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[role.a]", "grants nothing"),
        ("[role.a]\nservices = ['s']\nx = 1", "expected admin, explain"),
        ("[role.a]\nviews = 's'", "expected names of feature views"),
        ("[role.a]\nviews = ['s']\nadmin = 1", "expected true or false"),
        ("[role.a]\nviews = ['s']\nrows_per_s = 0", "expected a number from 0.001"),
        ("[role.a]\nviews = ['s']\nrows_per_s = true", "expected a number from 0.001"),
        (f"[[token]]\nname = 'a'\nsha256 = '{'0' * 64}'\nroles = ['b']", "unknown role 'b'"),
        (f"[[token]]\nname = 'a'\nsha256 = '{'0' * 64}'", "grants nothing"),
        ("role = 1", "expected entries"),
    ],
)
def test_a_role_that_is_not_clear_is_reported(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        Tokens(file)


def test_summaries_of_use_have_names_and_no_token(make_client: Any, file: Path) -> None:
    token = add_token(file, "reader", ["reading_v1"], "2026-01-01")
    folder = file.parent / "audit"
    use = TokenUse(folder, "shop")
    client = make_client(tokens=file, token_use=use)
    for _ in range(3):
        client.read(READ, headers=bearer(token))
    client.app.tick()
    assert not folder.exists()  # not before a minute has passed
    client.app.close()
    (path,) = folder.glob(TOKEN_USE_FILES)
    (line,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert (line["name"], line["requests"], line["rows"], line["refused"]) == ("reader", 3, 3, 0)
    assert line["since_ms"] <= line["time_ms"]
    assert token not in path.read_text()


def test_a_folder_that_cannot_be_written_to_fails_no_request(make_client: Any, file: Path) -> None:
    token = add_token(file, "reader", ["reading_v1"], "2026-01-01")
    client = make_client(tokens=file, token_use=TokenUse(file / "no folder", "shop"))
    assert client.read(READ, headers=bearer(token)).status == 200
    client.app.close()


def test_health_says_names_only_to_those_who_may_know_them(make_client: Any, file: Path) -> None:
    reader = add_token(file, "reader", ["reading_v1"], "2026-01-01")
    operator = add_token(file, "operator", ["*"], "2026-01-01")
    client = make_client(tokens=file, store=MemoryStore())  # no view is there
    for path in ("/health", "/health/ready"):
        for head in ({}, {"headers": bearer(reader)}, {"headers": bearer("pf_" + "x" * 43)}):
            answer = client.get(path, **head)
            assert answer.status == 503
            text = answer.body.decode()
            assert "clicks" not in text
            assert "visits" not in text
            assert "2 of 2 feature views cannot be read" in text
        answer = client.get(path, headers=bearer(operator))
        assert set(answer.json["views"]) == {"clicks", "visits"}
        assert "clicks" in answer.json["reasons"][0]
    open_ = make_client(store=MemoryStore())
    assert "clicks" in open_.get("/health").json["reasons"][0]
