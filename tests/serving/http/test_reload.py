"""Definitions that change under a running app, before and after the store follows them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paimon_features.core.configuration.project_config import ServeConfig, read_config
from paimon_features.definitions import Definitions, FeatureService
from paimon_features.definitions.aggregates import Count
from paimon_features.online.store import MemoryStore
from paimon_features.serving.http.access.tokens import add_token
from paimon_features.serving.http.definitions.definition_set import DefinitionSet
from paimon_features.serving.http.server.reload import Reloader
from tests.tile_lake import PROJECT, TileLake

OLD = {"features": ["clicks:count_12d"], "entities": {"user": [1]}}
NEW = {"features": ["clicks:count_12d", "clicks:count_60d"], "entities": {"user": [1]}}


def counts(answer: Any) -> list[Any]:
    return [result["values"][0] for result in answer.json["results"][1:]]


def test_old_definitions_are_read_until_the_store_holds_the_new_ones(
    make_client: Any, filled: Any, tmp_path: Path
) -> None:
    #  definitions   old  | old and new ...........
    #  store         old ...........| new
    store = MemoryStore()
    store._values.update(filled.store._values)
    client = make_client(store=store)
    assert counts(client.read(OLD)) == [2]
    clicks = filled.definitions.views["clicks"]
    wider = replace(clicks, features=[*clicks.features, Count(windows=["60d"])])
    definitions = Definitions.of([wider, FeatureService("wide_v1", [wider])])
    served = DefinitionSet(PROJECT, definitions, store, 2, client.app.state.definitions.variants)
    client.app.replace_definitions(served)
    assert counts(client.read(OLD)) == [2]
    assert client.read(NEW).problem[:2] == (503, "not_ready")
    assert client.get("/health/ready").status == 200

    lake = TileLake(tmp_path, wider)
    events = [{"user": 1, "t": filled.now_ms - i * 1_000, "n": 1, "word": None} for i in range(5)]
    lake.commit(events)
    lake.materializer(store).run_once()
    assert counts(client.read(OLD)) == [5]
    assert counts(client.read(NEW)) == [5, 5]
    assert client.read({"feature_service": "wide_v1", "entities": {"user": [1]}}).status == 200
    assert client.get("/health/ready").status == 200


def test_only_layouts_that_differ_are_kept_beside(filled: Any) -> None:
    first = DefinitionSet(PROJECT, filled.definitions, filled.store, 1)
    again = DefinitionSet(PROJECT, filled.definitions, filled.store, 2, first.variants)
    assert again.variants == again.views
    clicks = filled.definitions.views["clicks"]
    wider = replace(clicks, features=[*clicks.features, Count(windows=["60d"])])
    changed = DefinitionSet(PROJECT, Definitions.of([wider]), filled.store, 3, again.variants)
    assert [view.name for view in changed.variants] == ["clicks", "clicks"]
    back = DefinitionSet(PROJECT, Definitions.of([clicks]), filled.store, 4, changed.variants)
    assert [view.longest_ms for view in back.variants] == [
        clicks.compiled.longest_ms,
        wider.compiled.longest_ms,
    ]


def test_a_request_that_waits_is_answered_by_the_definitions_it_came_under(
    make_client: Any, filled: Any
) -> None:
    client = make_client()
    clicks = filled.definitions.views["clicks"]
    fewer = replace(clicks, features=clicks.features[:1])
    served = DefinitionSet(
        PROJECT, Definitions.of([fewer]), filled.store, 2, client.app.state.definitions.variants
    )

    async def swap() -> Any:
        body = json.dumps({"feature_service": "reading_v1", "entities": {"user": [1]}}).encode()
        requested = asyncio.ensure_future(client.send("POST", "/get-online-features", body))
        await asyncio.sleep(0)
        client.app.replace_definitions(served)
        return await requested

    before = client.run(swap())
    assert len(before.json["results"]) == 5
    gone = client.read({"feature_service": "reading_v1", "entities": {"user": [1]}})
    assert gone.problem[:2] == (404, "unknown_name")


# -- files -----------------------------------------------------------------------------------

FEATURES = """
import paimon_features as pf
from windows_of_clicks import WINDOWS

clicks = pf.EventSource("clicks", event_time="t",
    schema={"user": pf.Int64, "t": pf.Int64, "n": pf.Int64, "word": pf.String})
view = pf.FeatureView("clicks", source=clicks,
    entity=pf.Entity("person", keys={"user": pf.Int64}),
    features=[pf.Sum("n", windows=["1h", "1d"]), pf.Count(windows=WINDOWS),
              pf.Last("word", windows=["30d"])])
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # as in a worker
    (tmp_path / "paimon-features.toml").write_text(f'[project]\nname = "{PROJECT}"\n')
    (tmp_path / "features.py").write_text(FEATURES)
    (tmp_path / "windows_of_clicks.py").write_text("WINDOWS = ['12d']\n")
    yield tmp_path
    sys.modules.pop("windows_of_clicks", None)


def features(served: DefinitionSet) -> list[str]:
    return [f.name for view in served.views for f in view.features if f.name.startswith("count")]


def reloader(project: Path, filled: Any, **settings: Any) -> Reloader:
    return Reloader(read_config(project), replace(ServeConfig(), **settings), filled.store)


def test_a_file_that_the_definitions_import_is_read_again_too(
    project: Path, filled: Any, make_client: Any
) -> None:
    reading = reloader(project, filled)
    served, tokens = reading.first()
    assert (features(served), tokens) == (["count_12d"], None)
    client = make_client()
    client.app.replace_definitions(served)
    before = reading._stamps()
    assert reading._stamps() == before
    (project / "windows_of_clicks.py").write_text("WINDOWS = ['12d', '60d']\n")
    assert reading._stamps() != before
    assert client.run(reading.reload(client.app)) is True
    # the store has no records with the new window yet
    assert reading._next is not None
    assert features(reading._next) == ["count_12d", "count_60d"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("WINDOWS = ['12 parsecs']", "12 parsecs"),
        ("WINDOWS = [", "SyntaxError"),
        ("import sys; sys.exit(3)", "SystemExit"),
        ("WINDOWS = []", ""),
    ],
)
def test_what_does_not_load_changes_nothing_and_is_reported(
    project: Path, filled: Any, make_client: Any, text: str, message: str
) -> None:
    reading = reloader(project, filled)
    served, _ = reading.first()
    client = make_client()
    client.app.replace_definitions(served)
    (project / "windows_of_clicks.py").write_text(text)
    assert client.run(reading.reload(client.app)) is False
    assert client.app.state.definitions is served
    assert message in client.app.state.reload_error
    # the rest is for operators, see test_secrets
    assert client.get("/health").json["definitions"]["error"].startswith("the last reload failed")
    (project / "windows_of_clicks.py").write_text("WINDOWS = ['12d']\n")
    assert client.run(reading.reload(client.app)) is True
    assert client.get("/health").json["definitions"]["error"] is None
    assert client.app.counts.reloads == {"failed": 1, "done": 1}


def test_tokens_are_read_again_with_the_definitions(
    project: Path, filled: Any, make_client: Any
) -> None:
    file = project / "tokens.toml"
    add_token(file, "first", ["*"], "2026-01-01")
    reading = reloader(project, filled, tokens=file)
    served, tokens = reading.first()
    client = make_client()
    client.app.replace_definitions(served)
    client.app.state.tokens = tokens
    second = add_token(file, "second", ["*"], "2026-01-01")
    head = {"headers": {"authorization": f"Bearer {second}"}}
    assert client.read(OLD, **head).status == 401
    assert client.run(reading.reload(client.app)) is True
    assert client.read(OLD, **head).status == 200
    # a token file that is broken or gone opens nothing
    os.remove(file)
    assert client.run(reading.reload(client.app)) is False
    assert client.read(OLD).status == 401


def test_a_cache_is_used_and_counted_and_new_definitions_begin_a_new_one(
    project: Path, filled: Any, make_client: Any
) -> None:
    reading = reloader(project, filled, cache_ms=60_000)
    served, _ = reading.first()
    client = make_client()
    client.app.replace_definitions(served)
    for _ in range(3):
        assert counts(client.read(OLD)) == [2]
    assert client.run(reading.reload(client.app)) is True
    assert counts(client.read(OLD)) == [2]
    client.app.tick()
    reads = client.app.counts.reads
    assert (reads["cache_hits"], reads["cache_misses"], reads["records_read"]) == (2, 2, 2)
    assert reads["cells_read"] >= 2


def test_a_server_keeps_the_definitions_that_the_store_has_until_it_has_the_new_ones(
    project: Path, filled: Any, make_client: Any, tmp_path: Path
) -> None:
    #  file          old | wider .................
    #  store         old ............| wider
    #  served        old ............| wider
    store = MemoryStore()
    store._values.update(filled.store._values)
    service = '\nserved = pf.FeatureService("all_v1", [view])\n'
    (project / "features.py").write_text(FEATURES + service)
    reading = Reloader(read_config(project), ServeConfig(), store)
    client = make_client(store=store)
    client.app.replace_definitions(reading.first()[0])
    request = {"feature_service": "all_v1", "entities": {"user": [1]}}
    before = len(client.read(request).json["results"])
    (project / "windows_of_clicks.py").write_text("WINDOWS = ['12d', '60d']\n")
    assert client.run(reading.reload(client.app))
    answer = client.read(request)
    assert (answer.status, len(answer.json["results"])) == (200, before)
    health = client.get("/health").json["definitions"]
    assert (health["error"], health["waiting_for"]) == (None, ["clicks"])

    [wider] = reading._next.views  # type: ignore[union-attr]
    lake = TileLake(tmp_path / "lake", reading._next.definitions.view("clicks"))  # type: ignore[union-attr]
    assert wider.name == "clicks"
    events = [{"user": 1, "t": filled.now_ms - i * 1_000, "n": 1, "word": None} for i in range(5)]
    lake.commit(events)
    lake.materializer(store).run_once()
    # the store has the new layout before the server has looked
    answer = client.read(request)
    assert (answer.status, len(answer.json["results"])) == (200, before)

    async def switched() -> None:
        watching = asyncio.ensure_future(reading.watch(client.app))
        while client.app.state.waiting_for:
            await asyncio.sleep(0.05)
        watching.cancel()

    client.run(switched())
    assert len(client.read(request).json["results"]) == before + 1
    # a view that the store does not have at all is nothing to wait for
    store._values.clear()
    (project / "windows_of_clicks.py").write_text("WINDOWS = ['12d', '30d']\n")
    assert client.run(reading.reload(client.app))
    assert client.app.state.waiting_for == ()
