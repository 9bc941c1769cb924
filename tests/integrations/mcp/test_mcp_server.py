"""``paimon-features mcp``, as the SDK's own client sees it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from paimon_features.core.errors import PaimonFeaturesError, RequestError
from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.integrations.mcp.bounded import bounded
from paimon_features.project import Project
from paimon_features.serving.http.access.tokens import NewToken, Tokens, add_token
from paimon_features.serving.http.http_errors import RequestRejected
from tests.commands import run
from tests.os_processes import line_with
from tests.shop_projects import started_shop

mcp = pytest.importorskip("mcp", reason="pip install 'paimon-features[mcp]'")
pytestmark = pytest.mark.redis

ROOT = Path(__file__).parents[3]
NOW = 1_323_432_000_000
AT = "2011-12-09T12:00:00Z"
MORE = """
print("a definitions file may print")

inner = pf.FeatureView(
    "inner_view", source=retail, entity=customer, tile="1h", features=[pf.Count(windows=["1d"])],
    description="not in any service", owner="risk", tags={"team": "fraud"},
)
"""


@pytest.fixture
def project(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Project:
    times = [NOW - DAY_MS, NOW - HOUR_MS]
    project = started_shop(tmp_path, redis_url, monkeypatch, {12346: times}, MORE)
    run("materialize", "customer_spend")
    return project


Calls = Callable[[Any], Awaitable[None]]


def over_stdio(project: Project, calls: Calls) -> None:
    """Run ``calls`` with a client of a server process of its own."""
    server = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-m", "paimon_features", "mcp", "--project", str(project.root)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    async def main() -> None:
        async with mcp.Client(mcp.stdio_client(server)) as client:
            await calls(client)

    asyncio.run(main())


async def answer(client: Any, tool: str, **arguments: Any) -> Any:
    reply = await client.call_tool(tool, arguments)
    assert not reply.is_error, reply.content
    assert json.loads(reply.content[0].text) == reply.structured_content
    return reply.structured_content


async def refusal(client: Any, tool: str, **arguments: Any) -> str:
    reply = await client.call_tool(tool, arguments)
    assert reply.is_error, reply.content
    return str(reply.content[0].text)


def test_an_agent_finds_reads_and_explains_features(
    project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    async def calls(client: Any) -> None:
        tools = (await client.list_tools()).tools
        assert [t.name for t in tools] == [
            "list", "describe", "lookup", "explain", "plan", "status",
        ]  # fmt: skip
        assert all(t.annotations.read_only_hint and t.description for t in tools)

        first = await answer(client, "list", limit=3)
        assert (len(first["definitions"]), first["next_offset"]) == (3, 3)
        rest = await answer(client, "list", offset=3)
        assert first["total"] == 3 + len(rest["definitions"])
        assert rest["next_offset"] is None
        found = await answer(client, "list", search="FRAUD")
        assert [one["name"] for one in found["definitions"]] == ["inner_view"]

        [described] = (await answer(client, "describe", name="customer_spend"))["definitions"]
        assert described["state"] == "applied"
        assert "sum_amount_1d" in [f["name"] for f in described["features"]]

        read = await answer(
            client, "lookup", features="churn_v1", entities={"customer_id": [12346, 1]}, as_of=AT
        )
        assert read["as_of_ms"] == NOW
        assert [row["sum_amount_1h"] for row in read["rows"]] == [2.5, None]
        assert read["statuses"][1]["sum_amount_1h"] == "MISSING"
        assert read["freshness"]["customer_spend"]["applied_snapshot"] == 1

        why = await answer(
            client, "explain", view="customer_spend", entity={"customer_id": 12346},
            features=["sum_amount_1d"], as_of=NOW,
        )  # fmt: skip
        assert why["features"][0]["value"] == 5.0
        assert "2 events" in why["features"][0]["sentence"]

        assert (await answer(client, "plan"))["is_empty"]
        status = await answer(client, "status")
        assert any("inner_view" in sentence for sentence in status["attention"])

        # the definitions file changes under the server
        source = project.config.definitions.read_text()
        project.config.definitions.write_text(source.replace('tags={"team": "fraud"}', "tags={}"))
        assert [c["name"] for c in (await answer(client, "plan"))["changes"]] == ["inner_view"]
        assert (await answer(client, "list", search="fraud"))["total"] == 0

    over_stdio(project, calls)
    # what the definitions file printed is no message of the protocol
    assert "Failed to parse" not in caplog.text


def test_what_cannot_be_answered_says_what_can(project: Project) -> None:
    async def calls(client: Any) -> None:
        many = list(range(101))
        for tool, arguments, message in (
            ("describe", {"name": "churn"}, "available: churn_v1"),
            ("list", {"kind": "model"}, "unknown kind of definition 'model'"),
            ("list", {"limit": 1_000}, "less than or equal to 200"),
            ("lookup", {"features": [], "entities": {}}, "features is empty"),
            ("lookup", {"features": "churn", "entities": {"customer_id": 1}}, "churn_v1"),
            ("lookup", {"features": "churn_v1", "entities": {"user": 1}}, "customer_id"),
            ("lookup", {"features": "churn_v1", "entities": {"customer_id": "x"}}, "customer_id"),
            ("lookup", {"features": "churn_v1", "entities": {"customer_id": many}}, "at most 100"),
            ("lookup", {"features": "churn_v1", "entities": {}}, "customer_id"),
            (
                "lookup",
                {"features": "churn_v1", "entities": {"customer_id": 1}, "as_of": "noon"},
                "expected UTC milliseconds",
            ),
            ("explain", {"view": "spend", "entity": {"customer_id": 1}}, "customer_spend"),
            (
                "explain",
                {"view": "customer_spend", "entity": {"customer_id": 1}, "features": ["x"]},
                "unknown feature 'customer_spend:x'",
            ),
            ("explain", {"view": "inner_view", "entity": {"customer_id": 1}}, "materialize"),
        ):
            assert message in await refusal(client, tool, **arguments), (tool, arguments)

    over_stdio(project, calls)


def test_over_http_a_token_reads_its_services_only(project: Project) -> None:
    tokens = project.root / "tokens.toml"
    with (project.root / "paimon-features.toml").open("a") as file:
        file.write(f'\n[serve]\ntokens = "{tokens.name}"\n')
    some = add_token(tokens, "scorer", ["churn_v1"], "2026-11-26")
    everything = add_token(tokens, "operator", ["*"], "2026-11-26")
    slow = add_token(tokens, "batch", ["churn_v1"], "2026-11-26")
    # the newest entry is the last one: one row or request is used up for a quarter of an hour
    with tokens.open("a") as file:
        file.write("rows_per_s = 0.001\n")
    rare = add_token(tokens, "rare", ["churn_v1"], "2026-11-26")
    with tokens.open("a") as file:
        file.write("requests_per_s = 0.001\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "paimon_features", "mcp", "--http", "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=project.root,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert process.stderr is not None
        line = line_with(process.stderr, "MCP on ")
        found = re.search(r"http://127\.0\.0\.1:\d+/mcp", line)
        assert found, line
        url = found[0]
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        for token in (None, "pf_" + "x" * 43):
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            assert httpx.post(url, json=body, headers=headers, timeout=60).status_code == 401
        allowed = {"Authorization": f"Bearer {everything}"}
        foreign = {**allowed, "Host": "evil.example"}
        assert httpx.post(url, json=body, headers=foreign, timeout=60).status_code == 421
        accepts = {**allowed, "Accept": "application/json, text/event-stream"}
        for content, status in (
            (b'{"jsonrpc":"2.0","id":1,"id":1,"method":"tools/list"}', 422),
            (b'{"jsonrpc":"2.0","id":1,"method":"tools/list","x":"\xff"}', 400),
            (b"[" * 20_000, 413),
            (b" " * (1 << 20) + b"{}", 413),
        ):
            made = {**accepts, "Content-Type": "application/json"}
            reply = httpx.post(url, content=content, headers=made, timeout=60)
            assert reply.status_code == status, reply.text
        asyncio.run(_limited(url, some))
        asyncio.run(_unlimited(url, everything))
        asyncio.run(_over_its_quota(url, slow, rare))
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
    assert process.returncode in (0, -signal.SIGTERM)


async def _connected(url: str, token: str, calls: Calls) -> None:
    from mcp.client.streamable_http import streamable_http_client

    headers = {"Authorization": f"Bearer {token}"}
    try:
        from httpx2 import AsyncClient
    except ModuleNotFoundError:
        from httpx import AsyncClient  # type: ignore[assignment]
    async with AsyncClient(headers=headers, timeout=60) as http:
        transport = streamable_http_client(url, http_client=http)
        async with mcp.Client(transport) as client:
            await calls(client)


async def _limited(url: str, token: str) -> None:
    async def calls(client: Any) -> None:
        listed = [one["name"] for one in (await answer(client, "list"))["definitions"]]
        assert sorted(listed) == ["churn_v1", "customer", "customer_spend"]
        entity = {"customer_id": [12346]}
        read = await answer(client, "lookup", features="churn_v1", entities=entity, as_of=NOW)
        assert read["rows"][0]["sum_amount_1h"] == 2.5
        await answer(client, "describe", name="customer_spend")
        for tool, arguments in (
            ("describe", {"name": "inner_view"}),
            ("describe", {"name": "retail"}),
            ("lookup", {"features": "inner_view", "entities": entity}),
            ("explain", {"view": "inner_view", "entity": {"customer_id": 1}}),
            ("plan", {}),
            ("status", {}),
        ):
            assert "scorer" in (text := await refusal(client, tool, **arguments)) or (
                "unknown definition" in text
            )
        view = {"view": "customer_spend", "entity": {"customer_id": 12346}, "as_of": NOW}
        why = await answer(client, "explain", **view)
        assert "sum_amount_1h" in [feature["name"] for feature in why["features"]]

    await _connected(url, token, calls)


async def _unlimited(url: str, token: str) -> None:
    async def calls(client: Any) -> None:
        assert (await answer(client, "status"))["project"] == "shop"
        await answer(client, "describe", name="inner_view")

    await _connected(url, token, calls)


async def _over_its_quota(url: str, slow: str, rare: str) -> None:
    read = {"features": "churn_v1", "entities": {"customer_id": [12346]}, "as_of": NOW}

    async def rows(client: Any) -> None:
        await answer(client, "lookup", **read)
        assert "'batch' is over its quota" in await refusal(client, "lookup", **read)
        await answer(client, "list")  # reads no rows

    async def requests(client: Any) -> None:
        await answer(client, "list")
        assert "'rare' is over its quota" in await refusal(client, "list")

    await _connected(url, slow, rows)
    await _connected(url, rare, requests)


def test_the_rights_of_a_token_bound_each_tool(project: Project) -> None:
    """The same tools that the protocol calls, in this process."""
    from paimon_features.integrations.mcp.feature_tools import FeatureTools

    file = project.root / "tokens.toml"
    some = add_token(file, "scorer", ["churn_v1"], "2026-11-26")
    dumb = add_token(file, "no_reasons", ["churn_v1"], "2026-11-26")
    with file.open("a") as opened:
        opened.write("explain = false\n")
    slow = add_token(file, "batch", NewToken(["churn_v1"], requests_per_s=0.001), "2026-11-26")
    rare = add_token(file, "rows", NewToken(["churn_v1"], rows_per_s=0.001), "2026-11-26")
    tokens = Tokens(file)
    scorer, no_reasons, batch, rows = (
        tokens.rights(b"Bearer " + token.encode()) for token in (some, dumb, slow, rare)
    )
    tools = FeatureTools(project.root)
    listed = tools.list(rights=scorer)["definitions"]
    assert [(one["kind"], one["name"]) for one in listed] == [
        ("service", "churn_v1"), ("feature_view", "customer_spend"), ("entity", "customer"),
    ]  # fmt: skip
    [service] = tools.describe("churn_v1", rights=scorer)["definitions"]
    assert (service["kind"], service["name"]) == ("service", "churn_v1")
    entity = {"customer_id": 12346}
    why = tools.explain("customer_spend", entity, None, str(NOW), rights=scorer)
    assert len(why["features"]) == 6
    without_zone = tools.explain("customer_spend", entity, None, AT[:-1], rights=scorer)
    assert without_zone == why == tools.explain("customer_spend", entity, None, AT, rights=scorer)
    for call, message in (
        (lambda: tools.describe("inner_view", rights=scorer),
         "unknown definition 'inner_view'"),
        (lambda: tools.explain("inner_view", entity, rights=scorer),
         "the token 'scorer' may not read inner_view"),
        (lambda: tools.explain("customer_spend", entity, ["x"], rights=scorer),
         "the token 'scorer' may not read x"),
        (lambda: tools.explain("customer_spend", entity, rights=no_reasons),
         "the token 'no_reasons' may not explain features"),
        (lambda: tools.plan(rights=scorer), "plan needs a token for all"),
        (lambda: tools.status(rights=scorer), "status needs a token for all"),
    ):  # fmt: skip
        with pytest.raises(PaimonFeaturesError, match=re.escape(message)):
            call()
    tools.admit(batch)
    with pytest.raises(RequestRejected, match="'batch' is over its quota"):
        tools.admit(batch)
    tools.explain("customer_spend", entity, rights=rows)
    with pytest.raises(RequestRejected, match="'rows' is over its quota"):
        tools.lookup(["churn_v1"], {"customer_id": [12346]}, rights=rows)


def test_a_token_is_checked_against_the_file_as_it_is(tmp_path: Path) -> None:
    from paimon_features.integrations.mcp.protocol import FileTokenVerifier

    file = tmp_path / "tokens.toml"
    first = add_token(file, "first", ["churn_v1"], "2026-11-26")
    alone = file.read_text()
    verifier = FileTokenVerifier(file)

    def holder(token: str) -> str | None:
        found = asyncio.run(verifier.verify_token(token))
        return None if found is None else found.client_id

    second = add_token(file, "second", ["churn_v1"], "2026-11-26")
    assert [holder(token) for token in (first, second, "pf_x")] == ["first", "second", None]
    file.write_text(alone)
    assert [holder(token) for token in (first, second)] == ["first", None]


def test_documents_are_cut_to_size() -> None:
    small = {"a": [1, 2], "b": "text"}
    assert bounded(small) == small
    big = {"rows": [{"text": "é" * 10_000, "list": list(range(500))} for _ in range(50)]}
    cut = bounded(big)
    assert len(json.dumps(cut)) <= 48 << 10
    assert cut["truncated"]["rows"] == 50
    names = bounded({"statuses": dict.fromkeys(map(str, range(2_000)), "PRESENT")})
    assert (len(names["statuses"]), names["truncated"]) == (1_000, {"statuses": 2_000})
    with pytest.raises(RequestError, match="larger than 10 bytes"):
        bounded(small, 10)
