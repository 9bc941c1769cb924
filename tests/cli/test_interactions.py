"""Interactions as a user meets them: plan, lookup, training set, verify."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import RequestError, UnknownNameError
from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.definitions import selection
from paimon_features.lake import append_arrow, read_arrow, table_options
from paimon_features.project import Project
from paimon_features.project.verification.parity import verify
from paimon_features.testing.reference.tiler import event_rows, tile_table
from tests.commands import run

pytestmark = pytest.mark.redis

DEFINITIONS = """
import paimon_features as pf

shop = pf.EventSource("shop", event_time="t", schema={
    "customer_id": pf.Int64, "category": pf.String, "t": pf.Int64, "amount": pf.Float64})
customer = pf.Entity("customer", keys={"customer_id": pf.Int64})
taste_of = pf.Entity("customer_category", keys={"customer_id": pf.Int64, "category": pf.String})
spend = pf.FeatureView("spend", source=shop, entity=customer,
    features=[pf.Sum("amount", windows=["1d", "30d"], scale=2)])
taste = pf.FeatureView("taste", source=shop, entity=taste_of, features=[pf.Count(windows=["30d"])])
basket = pf.RequestSource("basket", schema={"price": pf.Float64, "category_now": pf.String})
over = pf.Interaction("over", "ratio(price, spend:sum_amount_30d, zero=0)", request=basket)
lively = pf.Interaction("lively", "ratio(spend:sum_amount_1d, spend:sum_amount_30d, zero=0) > 0.5")
model = pf.FeatureService("model", [lively, over, taste])
"""
NOW = 15_000 * DAY_MS + 9 * HOUR_MS


def commit(project: Project, events: list[tuple[int, str, int, float]]) -> None:
    names = ("customer_id", "category", "t", "amount")
    columns = {name: list(c) for name, c in zip(names, zip(*events, strict=True), strict=True)}
    days = pa.array((np.array(columns["t"]) // DAY_MS).astype(np.int32))
    table = pa.table({**columns, "event_day": days})
    append_arrow(project.lake, "events_shop", table)
    for view in project.definitions.views.values():
        append_arrow(project.lake, view.compiled.table(1), tile_table(view, event_rows(table)))


@pytest.fixture
def project(online_url: str, project: Project) -> Project:
    commit(project, [(1, "a", NOW - HOUR_MS, 6.0), (1, "b", NOW - 9 * DAY_MS, 2.0),
                     (2, "a", NOW - 9 * DAY_MS, 4.0)])  # fmt: skip
    return project


def test_a_changed_interaction_needs_no_backfill_and_the_plan_says_so(project: Project) -> None:
    assert "no changes" in run("plan").output
    text = DEFINITIONS.replace("> 0.5", "> 0.7").replace('"over", "', '"over", "1 - ')
    Path("features.py").write_text(text)
    plan = run("plan").output
    assert (
        "~ interaction over\n    expression: 'ratio(price, spend:sum_amount_30d, zero=0)' ->"
        in plan
    )
    assert plan.count("is computed when it is read: no backfill") == 2
    assert "feature view" not in plan
    applied = json.loads(run("apply", "--json").stdout)
    assert {c["name"] for c in applied["changes"] if c["action"] == "change"} == {"lively", "over"}
    registry = read_arrow(project.lake, "registry").to_pylist()
    kinds = {(row["kind"], row["name"], row["version"]) for row in registry}
    assert {("interaction", "over", 2), ("request_source", "basket", 1)} <= kinds


def test_an_interaction_is_described_and_drawn(project: Project) -> None:
    (document,) = json.loads(run("describe", "over", "--json").stdout)
    assert document["state"] == "applied"
    assert document["type"] == "float64"
    assert document["features"] == ["spend:sum_amount_30d"]
    assert document["request"] == {"price": "float64"}
    assert document["made_of"] == [{"kind": "feature_view", "name": "spend"}]
    assert document["used_by"] == [{"kind": "service", "name": "model"}]
    reported = run("describe", "over").output
    assert "expression  ratio(price, spend:sum_amount_30d, zero=0)" in reported
    assert "    spend:sum_amount_30d\n" in reported
    assert "interaction over  (float64)" in run("describe", "--graph").output
    run("describe", "--graph", "--format", "svg")


def test_a_wrong_interaction_stops_the_plan_with_its_place(project: Project) -> None:
    Path("features.py").write_text(
        DEFINITIONS.replace("ratio(price, spend:sum", "ratio(price, spend:mean")
    )
    done = run("plan", code=2)
    assert "interaction 'over'" in done.output
    assert "position 14: unknown feature 'mean_amount_30d' of view 'spend'" in done.output


def test_interactions_are_looked_up_with_their_inputs(project: Project) -> None:
    run("materialize")
    keys = ["--entity", "customer_id=1,2", "--entity", "category=a,b", "--as-of", str(NOW)]
    inputs = ["--request", "price=4"]
    lines = run("lookup", "model", *keys, *inputs).output.splitlines()
    assert [line.split() for line in lines[2:5]] == [
        ["lively", "True", "False"],
        ["over", "0.5", "1"],
        ["count_30d", "1", "-", "MISSING"],
    ]
    reported = run("lookup", "over", "spend:sum_amount_1d", *keys[:2], *keys[4:], "--request",
               "price=4,2", "--json")  # fmt: skip
    assert json.loads(reported.stdout)["rows"] == [
        {"customer_id": 1, "over": 0.5, "sum_amount_1d": 6.0},
        {"customer_id": 2, "over": 0.5, "sum_amount_1d": 0.0},
    ]
    for wrong, message in (
        (["--request", "cost=4"], "--request cost=4: expected NAME=VALUE with NAME: price"),
        (["--request", "price=much"], "'much' is not a valid Float64"),
        ([], "missing request input 'price'"),
    ):
        assert message in run("lookup", "model", *keys, *wrong, code=2).output


def test_the_project_reads_them_online_and_at_past_times(project: Project) -> None:
    run("materialize")
    keys: dict[str, Any] = {"customer_id": [1, 2], "category": ["b", "a"]}
    online = project.get_online_features("model", keys, NOW, request={"price": [8, None]})
    rows = pa.table({**keys, "price": [8.0, None], "event_time_ms": [NOW, NOW]})
    past = project.get_historical_features("model", rows)
    assert online.table.select(online.features).equals(past.select(online.features))
    assert online.to_pydict()["over"] == [1.0, None]
    alone = project.get_online_features("lively", {"customer_id": [1]}, NOW)
    assert alone.to_pydict() == {"customer_id": [1], "lively": [True]}
    mixed = project.get_online_features(
        ["lively", "spend:sum_amount_1d"], {"customer_id": [1]}, NOW
    )
    assert mixed.features == ["lively", "sum_amount_1d"]
    with pytest.raises(UnknownNameError, match="unknown service 'livly'"):
        project.get_online_features("livly", {"customer_id": [1]})
    with pytest.raises(RequestError, match="missing request input 'price'"):
        project.get_online_features("model", keys, NOW)


def test_a_training_set_takes_inputs_from_its_rows(project: Project) -> None:
    Path("rows.csv").write_text(
        f"customer_id,category,price,event_time_ms\n1,a,2,{NOW}\n2,a,1,{NOW}\n"
    )
    run("training-set", "baskets", "--service", "model", "--rows", "rows.csv")
    table = read_arrow(project.lake, "training_baskets")
    assert table.column_names[4:] == ["lively", "over", "count_30d"]
    assert table["over"].to_pylist() == [0.25, 0.25]
    properties = table_options.properties(project.lake, "training_baskets")
    assert json.loads(properties["training-set.interactions"])["over"]["request"] == {
        "price": "float64"
    }


def test_verify_covers_interactions_and_finds_one_that_is_computed_wrongly(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("materialize")
    report = verify(project, "model", wait_s=0, settle_s=0)
    assert report.ok, report.differences
    alone = sum(verify(project, view, wait_s=0, settle_s=0).compared for view in ("spend", "taste"))
    assert report.compared == alone + 2 * 2 * 2 * 3  # interactions, paths, times, entities

    def off_by_one(kind: Any, column: Any, guard: Any) -> Any:
        return type(column)(column.values ^ True if kind.text == "bool" else column.values), None

    monkeypatch.setattr(selection, "without_overflow", off_by_one)
    done = run("verify", "model", "--wait", "0", "--json", code=1)
    output = "\n".join(json.loads(done.stdout)["differences"])
    assert "lively of (" in output
    assert "expected" in output
