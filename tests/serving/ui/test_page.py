"""The page: nothing from outside, no way to the outside, and what it draws is what is served."""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from paimon_features.core.errors import RequestError
from paimon_features.core.types.schema import Bool, Date, Int64, String
from paimon_features.core.windows import DAY_MS, HOUR_MS, MINUTE_MS
from paimon_features.definitions import (
    Definitions,
    Entity,
    EventSource,
    FeatureService,
    FeatureView,
    Interaction,
    RequestSource,
)
from paimon_features.definitions.aggregates import Count, Last, Sum
from paimon_features.online.store import MemoryStore
from paimon_features.serving.http.access.tokens import add_token
from paimon_features.serving.http.definitions.definition_set import DefinitionSet
from paimon_features.serving.reading.explain import explain
from paimon_features.serving.reading.explain_query import ExplainQuery
from paimon_features.serving.ui import assets, content_security_policy
from tests.serving.live import LiveServer
from tests.serving.ui.chromium import Chromium
from tests.tile_lake import PROJECT, TileLake

NOW = 1_700_000_000_000 // DAY_MS * DAY_MS + 12 * HOUR_MS
BIG = 2**60 + 1
SOURCE = EventSource(
    "clicks", schema={"user": Int64, "t": Int64, "n": Int64, "word": String}, event_time="t"
)
VIEW = FeatureView(
    "clicks", source=SOURCE, entity=Entity("user", keys={"user": Int64}),
    description="Clicks <b>of</b> a user", owner="web", tags={"tier": "1"}, ttl="30d",
    features=[
        Sum("n", windows=["1h", "1d"], bound=2.0**61), Count(windows=["7d", None]),
        Last("word", windows=["1d"]),
    ],
)  # fmt: skip

AMOUNT = RequestSource("basket", schema={"amount": Int64})
RATIO = Interaction("share", "ratio(amount, clicks:sum_n_1d, zero=0)", request=AMOUNT)
SERVICE = FeatureService("all_v1", [VIEW, RATIO])
PART = FeatureService("part_v1", ["clicks:count_7d"])


class Elements(HTMLParser):
    """The elements of a document with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


# -- without a browser ---------------------------------------------------------------------


def test_the_files_refer_to_nothing_outside_of_themselves() -> None:
    for path, asset in assets("project").items():
        content = asset.content.decode()
        assert re.findall(r"https?://[^\s\"'$`]+", content) in (
            [],
            ["http://www.w3.org/2000/svg"],
            ["http://localhost:6566"],
        ), path
        assert not re.search(r"@import|url\(|eval\(|innerHTML|insertAdjacentHTML|\bstyle=", content)
        assert not re.search(r"sessionStorage|indexedDB|document\.cookie|document\.write", content)
        # what a reader prefers is kept by the browser, a token is not
        assert ("localStorage" in content) == (path == "ui/prefs.js")
        for name in re.findall(r'from "([^"]+)"', content):
            assert "ui/" + name.removeprefix("./") in assets("project")
    for tag, attributes in Elements(assets("project")[""].content.decode()).found:
        assert tag not in ("img", "iframe", "object", "embed", "base", "source", "video", "style")
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)  # the policy would not run it
            assert name not in ("srcset", "style", "action"), (tag, name)
            if name in ("href", "src"):
                assert value is not None
                assert value.startswith(("#", "data:", "ui/")), value


def test_the_policy_allows_the_files_and_nothing_else() -> None:
    policy = content_security_policy()
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules == {
        "default-src": "'none'", "style-src": "'self'", "script-src": "'self'",
        "connect-src": "'self'", "img-src": "data:", "base-uri": "'none'",
        "form-action": "'none'", "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'", "trusted-types": "'none'",
    }  # fmt: skip


def test_fields_have_labels_and_the_page_a_language() -> None:
    found = Elements(assets("server")["ui"].content.decode()).found
    assert ("html", {"lang": "en", "data-mode": "server"}) in found
    labelled = {attributes.get("for") for tag, attributes in found if tag == "label"}
    fields = {attributes.get("id") for tag, attributes in found if tag == "input"}
    assert fields == labelled == {"text", "token"}
    assert sum(len(asset.content) for asset in assets("server").values()) < 128_000


def test_a_question_is_read_from_a_query() -> None:
    requested = ExplainQuery.of(
        "view=v&entity=user%3D-7&entity=shop%3Da%3Db%26c&as_of=-5&feature=f"
    )
    assert (requested.view, requested.as_of_ms, requested.feature) == ("v", -5, "f")
    assert requested.typed({"user": Int64, "shop": String}) == {"user": -7, "shop": "a=b&c"}
    assert ExplainQuery.of("view=v&entity=b%3DTRUE").typed({"b": Bool}) == {"b": True}
    for query, message in (
        ("entity=a%3D1", "needs view"),
        ("view=v", "needs view"),
        ("view=v&entity=a", "expected key=value"),
        ("view=v&entity=a%3D1&entity=a%3D2", "'a' twice"),
        ("view=v&view=v&entity=a%3D1", "'view' twice"),
        ("view=v&entity=a%3D1&what=1", "field 'what'"),
        ("view=v&entity=a%3D1&now_ms=1", "expected: view, entity, as_of, feature"),
        ("view=v&entity=a%3D1&as_of=noon", "as_of='noon'"),
        ("view=%ff&entity=a%3D1", "cannot be read"),
        ("&".join(["entity=a%3D1"] * 200), "cannot be read"),
    ):
        with pytest.raises(RequestError, match=message):
            ExplainQuery.of(query)
    for text, kind in (
        ("x", Int64),
        ("1.5", Int64),
        ("1_0", Int64),
        (" 1", Int64),
        ("yes", Bool),
        ("1.2.2024", Date),
    ):
        with pytest.raises(RequestError, match="is not a valid"):
            ExplainQuery.of(f"view=v&entity=a%3D{text}").typed({"a": kind})
    with pytest.raises(RequestError, match="unknown entity key .b. of .* .v.; available: a"):
        ExplainQuery.of("view=v&entity=b%3D1").typed({"a": Int64})


# -- by the server -------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> DefinitionSet:
    lake, store = TileLake(tmp_path / "lake", VIEW), MemoryStore()
    times = (NOW - 20 * DAY_MS, NOW - 5 * HOUR_MS, NOW - 30 * MINUTE_MS, NOW - 1)
    lake.commit([
        {"user": 1, "t": t, "n": BIG if t == NOW - 1 else 1, "word": "<i>hi</i>"} for t in times
    ])  # fmt: skip
    lake.materializer(store).run_once()
    return DefinitionSet(PROJECT, Definitions.of([VIEW, RATIO, SERVICE, PART]), store, 0)


def got(url: str, token: str | None = None) -> tuple[int, Any]:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    reply = httpx.get(url, headers=headers, trust_env=False, timeout=120)
    return reply.status_code, reply.json()


def test_the_server_explains_what_the_token_may_read(served: DefinitionSet, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    part, everything = (
        add_token(tokens, name, services, "2026-01-01")
        for name, services in (("part", ["part_v1"]), ("everything", ["*"]))
    )
    server = LiveServer(served, tokens)
    requested = f"{server.url}/explain?view=clicks&entity=user%3D1&as_of={NOW}"
    try:
        for path, asset in assets("server").items():
            reply = httpx.get(f"{server.url}/{path}", trust_env=False, timeout=120)
            assert (reply.content, reply.headers["content-type"]) == (
                asset.content, asset.media_type,
            )  # fmt: skip
            assert reply.headers["content-security-policy"] == content_security_policy()
        for path in ("ui/", "ui/../ui/app.css", "ui/none.js"):
            with socket.create_connection(urlsplit(server.url).netloc.split(":")) as raw:  # type: ignore[arg-type]
                raw.sendall(f"GET /{path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
                assert b" 404 " in raw.recv(64)
        assert got(requested)[0] == 401
        status, reported = got(requested, everything)
        assert (status, reported) == (200, explain(served.fetcher, "clicks", {"user": 1}, NOW))
        status, reported = got(requested, part)
        assert [f["name"] for f in reported["features"]] == ["count_7d"]
        assert "<i>" not in str(reported)
        assert got(f"{requested}&feature=count_7d", part)[0] == 200
        for query, token, wanted in (
            ("&feature=sum_n_1h", part, (403, "forbidden")),
            ("&feature=nothing", everything, (404, "unknown_name")),
            ("&what=1", everything, (422, "invalid_request")),
        ):
            status, reported = got(f"{requested}{query}", token)
            assert (status, reported["code"]) == wanted
        for token in (part, everything):
            status, reported = got(f"{server.url}/explain?view=x&entity=user%3D1", token)
            assert (status, reported["code"]) == (404, "unknown_name")
    finally:
        server.close()


# -- in a browser --------------------------------------------------------------------------

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
in_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH (make ui-test)")


@pytest.fixture
def server(served: DefinitionSet) -> Iterator[LiveServer]:
    server = LiveServer(served)
    yield server
    server.close()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chromium]:
    assert CHROMIUM is not None
    with Chromium(CHROMIUM, tmp_path / "profile") as browser:
        yield browser


def complaints(browser: Chromium) -> list[Any]:
    """Errors of scripts and of the policy."""
    browser.run("1")
    return [
        e
        for e in browser.events
        if e["method"] == "Runtime.exceptionThrown"
        or (e["method"] == "Log.entryAdded" and e["params"]["entry"]["source"] != "network")
    ]


def enter(browser: Chromium, user: str, time: str = "") -> None:
    browser.run(
        f"document.querySelector('[data-key]').value = {user!r}; "
        f"document.getElementById('time').value = {time!r}; "
        "document.querySelector('#query .act').click()"
    )


def go(browser: Chromium, route: str, shows: str) -> None:
    """Open a page of the app, and wait until its main heading is this."""
    browser.run(f"location.hash = {route!r}")
    browser.until(f"document.querySelector('#view h1')?.textContent === {shows!r}")


@in_chromium
def test_a_number_is_explained_on_the_page(
    server: LiveServer, served: DefinitionSet, browser: Chromium
) -> None:
    browser.open(f"{server.url}/ui")
    browser.until("document.querySelector('#server').textContent === 'ready'")
    assert "clicks" in browser.run("document.getElementById('view').innerText")
    go(browser, "/feature_view/clicks", "clicks")
    text = browser.run("document.getElementById('view').innerText")
    for expected in ("Clicks <b>of</b> a user", "owner web", "tier=1", "sum_n_1h", "all_v1"):
        assert expected in text
    go(browser, "/entity/user", "user")
    enter(browser, "1", str(NOW))
    browser.until("!!document.querySelector('svg.cells')")
    browser.run(
        "[...document.querySelectorAll('.value')].find("
        "b => b.textContent.startsWith('sum_n_1d')).click()"
    )
    assert browser.run("document.querySelector('.sentence').textContent").startswith(
        f"sum_n_1d is {BIG + 2}, from 3 events in "
    )
    # what is drawn as part of the number is what the server says it is made of
    reported = explain(served.fetcher, "clicks", {"user": 1}, NOW)["features"]
    [feature] = [f for f in reported if f["name"] == "sum_n_1d"]
    drawn = browser.run(
        "[...document.querySelectorAll('svg.cells .used')].map(r => +r.dataset.cell)"
    )
    assert sorted(drawn) == sorted(share["cell"] for share in feature["cells"])
    together = browser.run("document.querySelector('tfoot').textContent")
    assert f"{BIG + 2:,}" in together  # all digits, beyond what a double holds
    # a lifetime has its cell in words, and a click on another zoom draws more
    browser.run(
        "[...document.querySelectorAll('.value')].find("
        "b => b.firstChild.textContent === 'count').click()"
    )
    assert browser.run("document.querySelectorAll('svg.cells .edge').length") == 0
    for zoom in ("Its end", "Whole record", "Window"):
        browser.run(
            "[...document.querySelectorAll('.quiet')].find("
            f"b => b.textContent === {zoom!r}).click()"
        )
        assert browser.run("document.querySelectorAll('svg.cells .cell').length") > 0
    go(browser, "/service/all_v1", "all_v1")
    about = browser.run("document.getElementById('view').innerText")
    assert "amount: int64" in about
    assert "ratio(amount, clicks:sum_n_1d, zero=0)" in about
    assert complaints(browser) == []
    files = {f"/{path}" for path in assets("server")}
    assert set(server.requested) == {*files, "/features", "/health", "/explain"}


@in_chromium
def test_errors_unknown_entities_and_tokens_are_reported(
    served: DefinitionSet, browser: Chromium, tmp_path: Path
) -> None:
    token = add_token(tmp_path / "tokens.toml", "web", ["part_v1"], "2026-01-01")
    server = LiveServer(served, tmp_path / "tokens.toml")
    try:
        browser.open(f"{server.url}/ui")
        browser.until("!document.getElementById('problem').hidden")
        assert "Enter a token" in browser.run("document.getElementById('problem').innerText")
        browser.run(
            f"document.getElementById('token').value = '{token}'; "
            "document.querySelector('#access button').click()"
        )
        browser.until("document.querySelector('#view h1')?.textContent === 'shop'")
        assert browser.run("document.getElementById('token').value") == ""
        assert token not in browser.run("JSON.stringify([{...localStorage}, history.state])")
        go(browser, "/entity/user", "user")
        enter(browser, "99", str(NOW))
        browser.until("document.body.innerText.includes('MISSING')")
        shown = browser.run("document.getElementById('view').innerText")
        assert "There is no record of this entity" in shown
        assert "count_7d" in shown
        assert "sum_n" not in shown  # nothing that this token may not read
        enter(browser, "one", str(NOW))
        browser.until("document.body.innerText.includes(\"'one' is not a valid Int64\")")
        assert re.search(r"request \S+", browser.run("document.getElementById('view').innerText"))
        enter(browser, "1", "noon")
        browser.until("document.body.innerText.includes('is not a time')")
        enter(browser, "1", "2023-11-14 12:00:00")
        browser.until("!!document.querySelector('svg.cells')")
        assert browser.run("document.getElementById('problem').hidden")
        assert complaints(browser) == []
    finally:
        server.close()
