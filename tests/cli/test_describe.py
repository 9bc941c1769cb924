"""``describe``, ``graph``, ``apply --generation`` and ``drop``, as a user runs them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest

from paimon_features.lake import append_arrow, latest_snapshot
from paimon_features.lake.ownership.lease import ProcessHolder, acquire
from paimon_features.lake.side_folder import generations
from paimon_features.project import Project
from paimon_features.testing.reference.tiler import tile_table
from tests.commands import invoke as run

DEFINITIONS = """
import paimon_features as pf

visits = pf.EventSource("visits", event_time="t", owner="web", tags={"pii": "no"},
    schema={"customer_id": pf.Int64, "t": pf.Int64})
person = pf.Entity("customer", keys={"customer_id": pf.Int64})
customer = pf.FeatureView("activity", source=visits, entity=person, tile="TILE",
    features=[pf.Count(windows=["1d", None])], description="How active a customer is.",
    owner="growth", tags={"tier": "gold"})
service = pf.FeatureService("churn_v1", [customer])
"""
ONLY_THE_SOURCE = DEFINITIONS[: DEFINITIONS.index("person =")]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    Path("paimon-features.toml").write_text('[project]\nname = "shop"\n')
    return define(DEFINITIONS.replace("TILE", "5min"))


def define(text: str) -> Project:
    Path("features.py").write_text(text)
    project = Project.open(".")
    project.apply()
    return project


def commit(project: Project) -> None:
    """Two events and their tiles, into the newest generation."""
    events = [{"customer_id": 1, "t": 5}, {"customer_id": 2, "t": 7}]
    rows = pa.Table.from_pylist([{**event, "event_day": 0} for event in events])
    append_arrow(project.lake, "events_visits", rows)
    newest = generations.load(project.lake, "activity")[-1]
    tiles = tile_table(project.definitions.view("activity"), events)
    append_arrow(project.lake, newest.table, tiles)


def test_describe_lists_every_definition_with_its_owner_and_state(project: Project) -> None:
    found = json.loads(run("describe", "--json").stdout)
    states = {(d["kind"], d["name"]): (d["state"], d["owner"]) for d in found}
    assert states == {
        ("entity", "customer"): ("applied", ""),
        ("source", "visits"): ("applied", "web"),
        ("feature_view", "activity"): ("applied", "growth"),
        ("service", "churn_v1"): ("applied", ""),
    }
    assert "How active a customer is." in run("describe").stdout


def test_describe_tells_features_generations_and_lineage_of_a_view(project: Project) -> None:
    (found,) = json.loads(run("describe", "activity", "--json").stdout)
    assert [f["name"] for f in found["features"]] == ["count_1d", "count"]
    assert [(g["generation"], g["state"]) for g in found["generations"]] == [(1, "active")]
    assert found["made_of"] == [{"kind": "source", "name": "visits"}]
    assert found["used_by"] == [{"kind": "service", "name": "churn_v1"}]
    shown = run("describe", "activity").stdout
    for text in ("tier: gold", "last 1d, hop 1h", "lifetime", "tiles_activity_g1", "derived from"):
        assert text in shown


def test_each_kind_is_described_with_its_tables_and_what_uses_it(project: Project) -> None:
    commit(project)
    (source,) = json.loads(run("describe", "visits", "--json").stdout)
    assert [(t["table"], t["rows"]) for t in source["tables"]] == [
        ("events_visits", 2), ("rejected_visits", 0),
    ]  # fmt: skip
    (entity,) = json.loads(run("describe", "customer", "--json").stdout)
    assert entity["used_by"] == [{"kind": "feature_view", "name": "activity"}]
    rows = {"customer_id": [1, 2], "event_time_ms": [100, 100], "left": [0, 1]}
    built = project.build_training_set("sample", "churn_v1", rows, label="left")
    for text in ("Training set training_sample", "left", "tiles_activity_g1"):
        assert text in built._repr_html_()
    (found,) = json.loads(run("describe", "sample", "--json").stdout)
    assert (found["kind"], found["label"], found["tables"][0]["rows"]) == (
        "training_set", "left", 2,
    )  # fmt: skip
    assert {"kind": "feature_view", "name": "activity"} in found["made_of"]
    Path("features.py").write_text(DEFINITIONS.replace("TILE", "5min").replace("_v1", "_v2"))
    (service,) = json.loads(run("describe", "churn_v2", "--json").stdout)
    assert service["state"] == "not applied"


def test_what_is_defined_otherwise_than_applied_is_reported(project: Project) -> None:
    Path("features.py").write_text(DEFINITIONS.replace("TILE", "5min").replace("growth", "science"))
    found = {d["name"]: d["state"] for d in json.loads(run("describe", "--json").stdout)}
    assert found["activity"] == "changed"
    assert "owner: 'growth' -> 'science'" in run("plan").stdout
    assert run("apply").exit_code == 0
    (found,) = json.loads(run("describe", "activity", "--json").stdout)
    assert [v["version"] for v in found["versions"]] == [1, 2]


def test_an_unknown_name_is_wrong_use_and_lists_what_there_is(project: Project) -> None:
    result = run("describe", "activty")
    assert result.exit_code == 2
    assert "activity" in result.stderr


def test_graph_draws_text_and_svg(project: Project) -> None:
    assert "source visits" in run("describe", "--graph").stdout
    assert (
        run("describe", "--graph", "activity", "--format", "svg", "--output", "g.svg").exit_code
        == 0
    )
    assert Path("g.svg").read_text().startswith("<svg")
    assert json.loads(run("describe", "--graph", "--format", "json").stdout)["edges"]


def test_a_generation_is_switched_to_and_back_and_then_dropped(project: Project) -> None:
    commit(project)
    newer = define(DEFINITIONS.replace("TILE", "1h"))
    empty = run("apply", "--generation", "activity")
    assert empty.exit_code == 1
    assert "nothing was written to generation 2 yet" in empty.stderr
    commit(newer)
    assert run("apply", "--generation", "activity").exit_code == 0
    back = run("apply", "--generation", "activity@1")
    assert "describes other tiles than generation 1 contains" in back.stderr
    assert generations.active(newer.lake, "activity").generation == 1  # type: ignore[union-attr]
    run("apply", "--generation", "activity")
    read = run("drop", "feature-view", "activity", "--generation", "2", "--yes")
    assert (read.exit_code, "is the one that is read" in read.stderr) == (1, True)
    assert run("drop", "feature-view", "activity", "--generation", "1", "--yes").exit_code == 0
    assert [r.generation for r in generations.load(newer.lake, "activity")] == [2]
    assert not newer.lake.exists("tiles_activity_g1")
    assert newer.lake.exists("tiles_activity_g2")


def test_nothing_is_dropped_unless_its_name_is_typed(project: Project) -> None:
    commit(project)
    Path("features.py").write_text(ONLY_THE_SOURCE)
    result = run("drop", "service", "churn_v1", typed="churn\n")
    assert result.exit_code == 1
    assert "was not typed" in result.stderr
    assert run("drop", "service", "churn_v1", typed="churn_v1\n").exit_code == 0
    assert "churn_v1" not in run("plan").stdout


def test_what_is_still_defined_is_not_dropped(project: Project) -> None:
    result = run("drop", "feature-view", "activity", "--yes")
    assert result.exit_code == 2
    assert "is still defined" in result.stderr


def test_a_source_is_not_dropped_before_the_views_that_are_made_of_it(project: Project) -> None:
    Path("features.py").write_text(ONLY_THE_SOURCE.replace('"visits"', '"other"'))
    result = run("drop", "source", "visits", "--yes")
    assert result.exit_code == 2
    assert "drop that first: 'paimon-features drop feature-view activity'" in result.stderr


def test_a_table_that_another_process_owns_is_not_dropped(project: Project) -> None:
    Path("features.py").write_text(ONLY_THE_SOURCE)
    with acquire(project.lake, "tiles_activity_g1", ProcessHolder.of(os.getppid())):
        result = run("drop", "feature-view", "activity", "--yes")
    assert result.exit_code == 1
    assert "is owned by" in result.stderr
    assert project.lake.exists("tiles_activity_g1")


def test_an_unknown_thing_is_not_dropped_and_what_there_is_is_listed(project: Project) -> None:
    result = run("drop", "training-set", "churn", "--yes")
    assert result.exit_code == 2
    assert "training set 'churn'" in result.stderr


@pytest.mark.redis
def test_a_view_is_dropped_with_its_online_records_and_comes_back_new(
    project: Project, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(project)
    monkeypatch.setenv("PAIMON_FEATURES_ONLINE_URL", redis_url)
    assert run("materialize", "activity", "--once").exit_code == 0
    store = Project.open(".").store
    assert any(store.scan(b"pf:{shop:activity"))
    Path("features.py").write_text(ONLY_THE_SOURCE)
    shown = run("drop", "feature-view", "activity", typed="activity\n")
    assert shown.exit_code == 0, shown.stderr
    assert "- table tiles_activity_g1, 2 rows" in shown.stdout
    assert not any(store.scan(b"pf:{shop:activity"))
    assert project.lake.list() == ["events_visits", "registry", "rejected_visits"]
    again = define(DEFINITIONS.replace("TILE", "5min"))
    assert latest_snapshot(again.lake, "tiles_activity_g1") is None
