"""The estimate of memory fits records that are there, and a real server that holds them."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from paimon_features.cli import cli
from paimon_features.core.errors import StoreNotReadyError
from paimon_features.core.windows import DAY_MS, MINUTE_MS
from paimon_features.definitions import CompiledView
from paimon_features.definitions.aggregates import Count, Last, Sum
from paimon_features.online.store import MemoryStore, OnlineStore, Write
from paimon_features.online.store.codec import HEADER, Cells, RecordLayout, cell_keys
from paimon_features.online.store.keys import ViewKeys
from paimon_features.online.store.markers import EpochContent, ViewState
from paimon_features.online.store.sizing import measured_size, most_cells, size_of, total
from paimon_features.project import Project
from paimon_features.testing.servers.redis_server import RedisServer
from tests.long_cases import quick_cases
from tests.patient_stores import patient_store
from tests.servers.online_servers import send_command
from tests.serving.test_fetcher import NOW, click, view_of
from tests.stored import Stored
from tests.tile_lake import PROJECT, TileLake

VIEW = view_of(Sum("x", windows=["1h", "1d"]), Count(windows=["30d"]), name="spend")


def fill(store: OnlineStore, view: CompiledView, entities: int, events_per_day: float) -> None:
    """Records of entities whose events come at random times; 16 buckets of one epoch."""
    rng = np.random.default_rng(1)
    layout, keys = RecordLayout(view), ViewKeys(PROJECT, view.name)
    present = []
    for level, (step, most) in enumerate(zip(view.levels_ms, most_cells(view), strict=True)):
        share = -np.expm1(-events_per_day * step / DAY_MS)
        where = rng.random((entities, most)) < share  # axes: entities, tiles
        present.append((where.sum(1), cell_keys(level, np.nonzero(where)[1])))
    counts = sum(count for count, _ in present)
    owners = np.concatenate([np.repeat(np.arange(entities), count) for count, _ in present])
    rows = np.zeros(len(owners), layout.cell)
    rows["key"] = np.concatenate([found for _, found in present])[np.argsort(owners, kind="stable")]
    # events anywhere in their tiles, one to three of them, of 0.01 to 99.99
    steps = np.array(view.levels_ms)[rows["key"] >> 56]
    rows["p_event_time_max"] = (rows["key"] % 2**56 - 2**55) * steps + rng.integers(0, steps)
    counted = (p.name for p in view.partials if "count" in p.name and p.type.text == "int64")
    for name in {"p_rows", *counted}:
        rows[name] = rng.integers(1, 4, len(rows))
    for name in (p.name for p in view.partials if p.type.text == "float64"):
        rows[name] = rng.integers(1, 10_000, len(rows)) / 100
    if "valid" in (layout.cell.names or ()):
        rows["valid"] = 255
    offsets = np.concatenate([[0], np.cumsum(counts)])
    headers = np.zeros(entities, HEADER)
    headers["event_high"] = max(most_cells(view)) * steps.max(initial=1)
    records = layout.encode(headers, Cells(rows), offsets)
    for start in range(0, entities, 2000):
        stem = keys.bucket("1a2b3c4d", start // 2000 % 16).record_stem
        assert all(
            store.compare_and_set_many(
                [
                    Write(stem + b"%d" % (10**9 + i), None, records[i], 10**9)
                    for i in range(start, min(start + 2000, entities))
                ]
            )
        )
    content = EpochContent("tiles_spend_g1", 1, 0, view.online_fingerprint, 16)
    state = ViewState("1a2b3c4d", content).to_bytes()
    assert store.compare_and_set_many([Write(keys.state, None, state)]) == [True]


def used(server: RedisServer) -> int:
    lines = str(send_command(server.port, "INFO", "memory")).splitlines()
    return next(int(line.partition(":")[2]) for line in lines if line.startswith("used_memory:"))


@pytest.mark.redis
@pytest.mark.parametrize("events_per_day", quick_cases([0.3, 3.0], 0.3))
def test_the_estimate_matches_a_server(events_per_day: float) -> None:
    view, entities = VIEW.compiled, 100_000
    with RedisServer() as server, closing(patient_store(server.url)) as store:
        store.check()
        before = used(server)
        fill(store, view, entities, events_per_day)
        needed = (used(server) - before) / entities
        estimated = size_of(view, PROJECT, events_per_day)
        measured = measured_size(view, PROJECT, store)
    print(f"server {needed:,.0f}, estimated {estimated.entity_bytes:,.0f}, "
          f"measured {measured.entity_bytes:,.0f} bytes per entity")  # fmt: skip
    assert estimated.entity_bytes == pytest.approx(needed, rel=0.1)
    assert measured.entity_bytes == pytest.approx(needed, rel=0.1)
    assert measured.cells == pytest.approx(estimated.cells, rel=0.1)


def test_an_entity_that_is_never_idle_has_the_most_cells(tmp_path: Path) -> None:
    view = view_of(
        Sum("x", windows=["1h", "1d"]), Last("word", windows=["12h"]), Count(windows=[None])
    )
    lake, store = TileLake(tmp_path, view, buckets=1), MemoryStore()
    times = range(NOW - 3 * DAY_MS, NOW, 5 * MINUTE_MS)
    lake.commit([click(1, t, word="word") for t in times])
    lake.materializer(store).run_once()
    (record,) = Stored(store, view.name).records().values()
    most = size_of(view.compiled, PROJECT)
    cells = len(RecordLayout(view.compiled).decode([record]).cells)
    assert 0.9 * most.cells <= cells <= most.cells
    found = measured_size(view.compiled, PROJECT, store)
    assert found.cells == cells
    assert found.record_bytes == len(record)
    assert found.text_bytes > 4 * cells
    assert found.record_bytes == pytest.approx(56 + cells * found.cell_bytes + found.text_bytes)
    assert [level.most for level in found.levels] == [level.most for level in most.levels]


def test_totals_include_the_view_under_rebuild_and_the_headroom() -> None:
    one = size_of(VIEW.compiled, PROJECT, 1.0)
    two = replace(one, key_bytes=one.key_bytes + 10)
    found = total([one, two], 1000, node_bytes=one.entity_bytes * 1000, headroom=0.5)
    assert found.bytes == pytest.approx(2000 * one.entity_bytes + 10_000)
    assert found.peak_bytes == pytest.approx(3000 * one.entity_bytes + 20_000)
    assert found.nodes == 7


def test_an_empty_store_cannot_be_measured() -> None:
    store = MemoryStore()
    with pytest.raises(StoreNotReadyError, match="'spend' is not in the online store"):
        measured_size(VIEW.compiled, PROJECT, store)
    fill(store, VIEW.compiled, 0, 1.0)
    with pytest.raises(StoreNotReadyError, match="no record of feature view 'spend'"):
        measured_size(VIEW.compiled, PROJECT, store)


def _sizing(folder: Path, *arguments: str) -> str:
    done = CliRunner().invoke(cli, ["check", "sizing", "--project", str(folder), *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_prints_views_and_totals(tmp_path: Path) -> None:
    folder = tmp_path / "churn"
    assert CliRunner().invoke(cli, ["init", str(folder)]).exit_code == 0
    text = _sizing(folder, "--events-per-day", "2", "--entities", "1e6,25000000")
    assert "customer_spend: " in text
    assert "25,000,000" in text
    document = json.loads(_sizing(folder, "--json"))
    (view,) = document["views"]
    assert view["basis"] == "an event in every tile"
    assert [one["entities"] for one in document["totals"]] == [10**6, 10**7, 10**8, 10**9]
    for wrong in (["--entities", "many"], ["--measure", "--events-per-day", "1"]):
        done = CliRunner().invoke(cli, ["check", "sizing", "--project", str(folder), *wrong])
        assert done.exit_code == 2


@pytest.mark.redis
def test_the_command_measures_the_projects_store(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAIMON_FEATURES_ONLINE_URL", redis_url)
    folder = tmp_path / PROJECT
    assert CliRunner().invoke(cli, ["init", str(folder)]).exit_code == 0
    with closing(patient_store(redis_url)) as store:
        fill(store, Project.open(folder).view("customer_spend"), 500, 1.0)
    (view,) = json.loads(_sizing(folder, "--measure", "200", "--json"))["views"]
    assert view["basis"] == "200 records measured"
    assert 20 < view["overhead_bytes"] < 120
    assert view["record_bytes"] == pytest.approx(56 + view["cells"] * view["cell_bytes"])
