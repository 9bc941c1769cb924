"""``paimon-features ui``: the documents of its pages, who gets them, and the pages in a browser."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pyarrow as pa
import pytest

from paimon_features.core.errors import RequestError, UnknownNameError
from paimon_features.core.windows import DAY_MS
from paimon_features.lake.metadata.consumers import consumers
from paimon_features.project import Project
from paimon_features.project.web import view_copies
from paimon_features.project.web.page_server import PageServer
from paimon_features.project.web.project_pages import MOST_POINTS, ProjectPages
from tests.project.monitoring.shop import START, Shop, open_shop, random_rows
from tests.serving.ui.chromium import Chromium

HOSTILE = "<img src=x onerror=window.hacked=1>"
END = START + 3 * DAY_MS


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    shop = open_shop(tmp_path_factory.mktemp("shop"))
    shop.commit([{**row, "country": HOSTILE} for row in random_rows(3, 300)])
    shop.tile()
    rows = pa.table({"customer_id": [1, 2], "event_time_ms": [END, END], "y": [0, 1]})
    shop.project.build_training_set("churn", ["spend"], rows, label="y")
    return shop


@pytest.fixture(scope="module")
def pages(shop: Shop) -> ProjectPages:
    return ProjectPages(shop.project, online=False)


def got(pages: ProjectPages, path: str, **query: Any) -> Any:
    # as a browser gets it
    return json.loads(json.dumps(pages.pages[path](urlencode(query, True)), allow_nan=False))


def test_the_catalogue_has_all_definitions_and_what_is_derived_from_what(
    pages: ProjectPages,
) -> None:
    found = got(pages, "ui/api/catalogue")
    names = [(item["kind"], item["name"]) for item in found["items"]]
    assert {("source", "shop"), ("feature_view", "spend"), ("training_set", "churn")} <= {*names}
    edges = [(names[a][1], names[b][1]) for a, b in found["edges"]]
    assert {("shop", "spend"), ("shop", "kept"), ("spend", "churn")} == {*edges}
    spend = found["items"][names.index(("feature_view", "spend"))]
    assert spend["count"] == len(spend["features"]) == 6
    assert (spend["entity"], spend["keys"]) == ("customer", {"customer_id": "int64"})


def test_home_and_a_definition_show_sizes_generations_and_versions(pages: ProjectPages) -> None:
    home = got(pages, "ui/api/home")
    assert home["ok"]
    assert home["bytes"] == sum(table["bytes"] for table in home["tables"]) > 0
    view = got(pages, "ui/api/definition", kind="feature_view", name="spend")
    [kept] = view["kept"]
    assert (kept["state"], kept["backfilled"], len(kept["commits"])) == ("active", True, 1)
    assert view["changes"] == [
        {"version": 1, "applied_at_ms": view["changes"][0]["applied_at_ms"], "dropped": False,
         "changes": [], "more": 0}
    ]  # fmt: skip
    with pytest.raises(UnknownNameError, match="spent"):
        got(pages, "ui/api/definition", kind="feature_view", name="spent")
    with pytest.raises(RequestError, match="unknown service 'spend'"):
        got(pages, "ui/api/definition", kind="service", name="spend")


def test_values_agree_on_the_sample_the_explanation_and_the_history(
    pages: ProjectPages, shop: Shop
) -> None:
    sample = got(pages, "ui/api/sample", view="spend")
    assert [row["entity"]["customer_id"] for row in sample["rows"]] == [1, 2, 3, 4, 5]
    at = sample["as_of_ms"]
    for row in sample["rows"]:
        key = f"customer_id={row['entity']['customer_id']}"
        explained = got(pages, "explain", view="spend", entity=key, as_of=at)
        assert {f["name"]: f["value"] for f in explained["features"]} == row["values"]
    # an edge of a tile: there the lake and the store have the same events
    history = got(
        pages, "ui/api/history", view="spend", feature="count_7d", entity="customer_id=1",
        **{"from": START, "to": END, "points": 4},
    )  # fmt: skip
    assert history["times_ms"] == [START, START + DAY_MS, START + 2 * DAY_MS, END]
    assert history["values"][-1] == len([m for m in shop.members() if m["customer_id"] == 1])
    assert history["values"][0] is None
    # nothing was written for these reads
    [record] = got(pages, "ui/api/definition", kind="feature_view", name="spend")["kept"]
    assert consumers(shop.project.lake, record["table"]) == {}


def test_profiles_are_those_of_monitor(pages: ProjectPages) -> None:
    columns = {c["column"]: c for c in got(pages, "ui/api/profile", view="spend")["columns"]}
    assert columns["count_7d"]["current"]["rows"] == 5
    kept = got(pages, "ui/api/profile", view="kept")
    assert kept["from"] == "tiles"
    assert {c["column"] for c in kept["columns"]} == {"price", "amount", "country", "gift"}
    [one] = got(pages, "ui/api/artifacts")["training_sets"]
    assert (one["name"], one["rows"], one["label"]) == ("churn", 2, "y")
    assert any(pin["table"].startswith("tiles_spend") for pin in one["sources"])


def test_a_project_that_has_just_been_applied_has_pages_without_values(tmp_path: Path) -> None:
    shop = open_shop(tmp_path)
    with (tmp_path / "features.py").open("a") as file:
        file.write("pf_service = pf.FeatureService('scores', [spend])\n")
    shop.project.models.register(*a_model())
    pages = ProjectPages(Project.open(tmp_path), online=False)
    items = {item["name"]: item for item in got(pages, "ui/api/catalogue")["items"]}
    assert items["scores"]["features"]
    sample = got(pages, "ui/api/sample", view="spend")
    assert sample == {"as_of_ms": None, "features": [], "rows": []}
    with pytest.raises(RequestError, match="feature view 'spend' has no tiles yet"):
        got(pages, "ui/api/profile", view="spend")
    [model] = got(pages, "ui/api/artifacts")["models"]
    assert (model["name"], model["versions_in_all"]) == ("churn", 1)
    assert [(one["version"], one["traffic"]) for one in model["versions"]] == [(1, 0.0)]
    service = got(pages, "ui/api/definition", kind="service", name="scores")
    assert (service["name"], service["state"]) == ("scores", "not applied")


def a_model() -> tuple[Any, dict[str, bytes]]:
    pytest.importorskip("onnx", reason="networks for tests")
    from tests.serving.prediction.networks import linear, number

    made = linear([1.0], [number("spend:count_7d")], key=("customer_id", "int64"))
    return made.manifest, {"network.onnx": made.network}


def test_a_query_that_cannot_be_right_is_an_error(pages: ProjectPages) -> None:
    good = {"view": "spend", "feature": "count_7d", "entity": "customer_id=1", "from": 0, "to": 9}
    for path, query, message in (
        ("ui/api/home", "x=1", "unknown field 'x'"),
        ("ui/api/sample", "", "needs view"),
        ("ui/api/sample", "view=a&view=b", "twice"),
        ("ui/api/sample", "view=%ff", "cannot be read"),
        ("ui/api/sample", "view=spend&entity=a%3D1", "the query has an unknown field 'entity'"),
        ("ui/api/history", urlencode(good | {"entity": "1"}), "entity='1'; expected key=value"),
        ("ui/api/history", urlencode(good | {"points": MOST_POINTS + 1}), "2 to 200 points"),
        ("ui/api/history", urlencode(good | {"points": 2, "to": 0}), "from < to"),
        ("ui/api/history", urlencode(good | {"points": "two"}), "not an integer"),
        ("explain", "view=spend&entity=customer_id%3Dx", "not a valid Int64"),
    ):
        with pytest.raises(RequestError, match=message):
            pages.pages[path](query)


def test_a_view_too_large_for_memory_says_what_explains_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_copies, "MOST_ROWS", 1)
    copies = view_copies.ViewCopies(shop.project)
    with pytest.raises(RequestError, match="at most 1 are read into memory"):
        copies.fetcher(shop.project.view("spend"))


# -- by the server -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(shop: Shop) -> Iterator[PageServer]:
    server = PageServer(ProjectPages(shop.project, online=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    yield server
    server.stop()
    thread.join()
    server.close()


def test_data_need_the_token_and_a_name_of_this_host(server: PageServer) -> None:
    def status(path: str, host: str = "localhost", token: str | None = server.token) -> int:
        headers = {"host": host} | ({} if token is None else {"authorization": f"Bearer {token}"})
        return httpx.get(
            server.url + path, headers=headers, trust_env=False, timeout=120
        ).status_code

    assert status("", token=None) == status("ui/main.js", token=None) == 200
    for path in ("ui/api/catalogue", "explain"):
        assert status(path, token=None) == status(path, token="x" * 43) == 401
        assert status(path, host="evil.example") == 421
    assert status("ui/api/catalogue") == 200
    assert status("ui/api/sample?view=none") == 404
    assert status("ui/api/sample") == 422
    assert status("features.py") == status("../features.py") == 404
    assert status("ui/api/sample?view=" + "x" * 9_000) == 414
    reply = httpx.post(server.url + "ui/api/home", trust_env=False, timeout=120)
    assert reply.status_code == 501


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
AXE = os.environ.get("PAIMON_FEATURES_AXE")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chromium]:
    assert CHROMIUM is not None
    with Chromium(CHROMIUM, tmp_path / "profile") as browser:
        yield browser


ROUTES = {
    "/": "shop", "/search?q=count": "Definitions", "/lineage": "Lineage", "/jobs": "Jobs",
    "/artifacts": "Models and training sets", "/feature_view/spend": "spend",
    f"/entity/customer?key.customer_id=1&at={END}": "customer_id = 1", "/source/shop": "shop",
}  # fmt: skip


def walk(browser: Chromium, server: PageServer) -> Iterator[str]:
    """Opens one page after another, each complete."""
    browser.open(server.link)
    for route, title in ROUTES.items():
        browser.run(f"location.hash = {route!r}")
        browser.until(f"document.querySelector('#view h1')?.textContent === {title!r}")
        browser.until("!document.body.innerText.includes('Reading')")
        yield route


LARGE = """
import paimon_features as pf
schema = {"key": pf.Int64, "t": pf.Int64, "v": pf.Float64}
sources = [pf.EventSource(f"source_{n}", event_time="t", schema=schema) for n in range(10)]
entity = pf.Entity("entity", keys={"key": pf.Int64})
views = [pf.FeatureView(f"view_{n}", source=sources[n % 10], entity=entity,
    features=[pf.Sum("v", windows=["1d"], scale=2)]) for n in range(100)]
service = pf.FeatureService("service", views[3::10])
globals().update({f"d{i}": each for i, each in enumerate([*sources, *views])})
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH (make ui-test)")
def test_a_large_project_is_folded_and_drawn_around_one_definition(
    tmp_path: Path, browser: Chromium
) -> None:
    (tmp_path / "paimon-features.toml").write_text("")
    (tmp_path / "features.py").write_text(LARGE)
    server = PageServer(ProjectPages(Project.open(tmp_path), online=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        browser.open(server.link)
        browser.run("location.hash = '/'")
        browser.until("document.querySelector('.attention') !== null")
        # nothing is applied: each view says so, and the home is still seen
        assert browser.run("document.querySelectorAll('.panel > .attention li').length") == 8
        assert browser.run("document.querySelector('details summary').innerText") == "92 more"
        browser.run("location.hash = '/lineage'")
        browser.until("document.querySelector('svg.graph') !== null")
        boxes = "document.querySelectorAll('svg.graph a').length"
        assert browser.run(boxes) < 30
        browser.run(
            "const field = document.querySelector('input[list]'); "
            "field.value = 'feature view view_14'; field.dispatchEvent(new Event('input'))"
        )
        assert browser.run(boxes) == 2
    finally:
        server.stop()
        thread.join()
        server.close()


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH (make ui-test)")
def test_every_page_shows_what_it_should_and_no_text_becomes_markup(
    server: PageServer, browser: Chromium
) -> None:
    for route in walk(browser, server):
        text = browser.run("document.getElementById('view').innerText")
        assert browser.run("document.getElementById('problem').hidden"), (route, text)
        assert browser.run("document.querySelectorAll('img').length") == 0
        if route.startswith(("/feature_view", "/entity")):
            assert HOSTILE[:20] in text
    assert browser.run("window.hacked") is None
    assert server.token not in browser.run("location.href + JSON.stringify({...localStorage})")
    errors = [
        e for e in browser.events
        if e["method"] == "Runtime.exceptionThrown"
        or (e["method"] == "Log.entryAdded" and e["params"]["entry"]["level"] == "error")
    ]  # fmt: skip
    assert errors == []


@pytest.mark.skipif(
    CHROMIUM is None or AXE is None,
    reason="needs chromium and PAIMON_FEATURES_AXE=.../axe.min.js; 'make ui-test' has both",
)
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_every_page_is_accessible(
    server: PageServer, browser: Chromium, width: int, scheme: str
) -> None:
    assert AXE is not None
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=844,
                 deviceScaleFactor=1, mobile=False)  # fmt: skip
    browser.call(
        "Emulation.setEmulatedMedia",
        features=[
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ],
    )
    axe = Path(AXE).read_text("utf-8")
    for route in walk(browser, server):
        browser.run(f"{axe}; 1")
        found = browser.run("axe.run().then(r => r.violations.map(v => [v.id, v.nodes[0].html]))")
        assert found == [], route
        # a page as wide as the screen: only tables and graphs scroll
        assert browser.run("document.documentElement.scrollWidth <= innerWidth"), route
