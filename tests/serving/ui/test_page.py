"""The page: nothing from outside, no way to the outside, and what it draws is what is served."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest

from paimon_features.aggregates import Count, Last, Sum
from paimon_features.definitions import (
    Definitions,
    Entity,
    EventSource,
    FeatureService,
    FeatureView,
    Interaction,
    RequestSource,
)
from paimon_features.errors import RequestError
from paimon_features.online import MemoryStore
from paimon_features.schema import Bool, Date, Int64, String
from paimon_features.serving.explain import explain
from paimon_features.serving.explain_query import ExplainQuery
from paimon_features.serving.http.definition_set import DefinitionSet
from paimon_features.serving.http.tokens import add_token
from paimon_features.serving.ui import content_security_policy, page
from paimon_features.testing.tile_lake import PROJECT, TileLake
from paimon_features.windows import DAY_MS, HOUR_MS, MINUTE_MS
from tests.serving.live import LiveServer
from tests.serving.ui.chromium import Chromium

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


def test_the_page_refers_to_nothing_outside_of_itself() -> None:
    text = page().decode()
    for tag, attributes in Elements(text).found:
        assert tag not in ("img", "iframe", "object", "embed", "base", "source", "video")
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)  # the policy would not run it
            assert name not in ("src", "srcset", "style", "action"), (tag, name)
            if name == "href":
                assert value is not None
                assert value.startswith(("#", "data:")), value
    assert re.findall(r"https?://[^\s\"']+", text) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"@import|url\(|import\(|eval\(|innerHTML|insertAdjacentHTML", text)
    assert not re.search(r"localStorage|sessionStorage|indexedDB|document\.cookie", text)


def test_the_policy_allows_the_page_and_nothing_else() -> None:
    text, policy = page().decode(), content_security_policy()
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    for element, rule in (("style", "style-src"), ("script", "script-src")):
        [content] = re.findall(f"<{element}>(.*?)</{element}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules.pop(rule) == f"'sha256-{digest}'"
    assert rules == {
        "default-src": "'none'", "connect-src": "'self'", "img-src": "data:", "base-uri": "'none'",
        "form-action": "'none'", "frame-ancestors": "'none'",
    }  # fmt: skip
    metas = [a for tag, a in Elements(text).found if tag == "meta" and "http-equiv" in a]
    assert [meta["content"] for meta in metas] == [policy.removesuffix("; frame-ancestors 'none'")]


def test_fields_have_labels_and_the_page_a_language() -> None:
    found = Elements(page().decode()).found
    assert ("html", {"lang": "en"}) in found
    labelled = {attributes.get("for") for tag, attributes in found if tag == "label"}
    assert "token" in labelled
    assert len(page()) < 64_000


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
        with pytest.raises(RequestError, match="is no"):
            ExplainQuery.of(f"view=v&entity=a%3D{text}").typed({"a": kind})
    with pytest.raises(RequestError, match="no entity key 'b'; it has: a"):
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
    reply = httpx.get(url, headers=headers, trust_env=False)
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
        reply = httpx.get(f"{server.url}/ui", trust_env=False)
        assert (reply.content, reply.headers["content-type"]) == (
            page(), "text/html; charset=utf-8",
        )  # fmt: skip
        assert reply.headers["content-security-policy"] == content_security_policy()
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
in_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH")


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


@in_chromium
def test_a_number_is_explained_on_the_page(
    server: LiveServer, served: DefinitionSet, browser: Chromium
) -> None:
    browser.open(f"{server.url}/ui")
    browser.until("document.querySelectorAll('#fresh .card').length === 4")
    text = browser.run("document.body.innerText")
    for expected in ("clicks", "all_v1", "Clicks <b>of</b> a user", "owner web", "sum_n_1h"):
        assert expected in text
    assert browser.run("document.getElementById('server').textContent") == "ready"
    enter(browser, "1", str(NOW))
    browser.until("!!document.querySelector('svg')")
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
    drawn = browser.run("[...document.querySelectorAll('svg .used')].map(r => +r.dataset.cell)")
    assert sorted(drawn) == sorted(share["cell"] for share in feature["cells"])
    together = browser.run("document.querySelector('tfoot').textContent")
    assert f"{BIG + 2:,}" in together  # all digits, beyond what a double holds
    # a lifetime has its cell in words, and a click on another zoom draws more
    browser.run(
        "[...document.querySelectorAll('.value')].find("
        "b => b.firstChild.textContent === 'count').click()"
    )
    assert browser.run("document.querySelectorAll('svg .edge').length") == 0
    for zoom in ("Its end", "Whole record", "Window"):
        browser.run(
            "[...document.querySelectorAll('.quiet')].find("
            f"b => b.textContent === {zoom!r}).click()"
        )
        assert browser.run("document.querySelectorAll('svg .cell').length") > 0
    browser.run(
        "[...document.querySelectorAll('nav button')].find("
        "b => b.textContent.startsWith('all_v1')).click()"
    )
    about = browser.run("document.getElementById('view').innerText")
    assert "amount: int64" in about
    assert "ratio(amount, clicks:sum_n_1d, zero=0)" in about
    assert complaints(browser) == []
    assert set(server.requested) == {"/ui", "/features", "/health", "/explain"}


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
        browser.until("!!document.querySelector('[data-key]')")
        assert browser.run("document.getElementById('token').value") == ""
        enter(browser, "99", str(NOW))
        browser.until("document.body.innerText.includes('MISSING')")
        text = browser.run("document.body.innerText")
        assert "There is no record of this entity" in text
        assert "count_7d" in text
        assert "sum_n" not in text  # nothing that this token may not read
        enter(browser, "one", str(NOW))
        browser.until("document.body.innerText.includes(\"'one' is not a valid Int64\")")
        problem = browser.run("document.getElementById('problem').innerText")
        assert re.search(r"request \S+", problem)
        enter(browser, "1", "noon")
        browser.until("document.body.innerText.includes('is no time')")
        enter(browser, "1", "2023-11-14 12:00:00")
        browser.until("!!document.querySelector('svg')")
        assert browser.run("document.getElementById('problem').hidden")
        assert complaints(browser) == []
    finally:
        server.close()
