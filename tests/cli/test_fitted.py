"""Fitted transformers as a user meets them: save, list, export, pin, plan, train, serve, verify."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import RequestError, SnapshotExpiredError, UnknownNameError
from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.lake import append_arrow, read_arrow, snapshot, table_options
from paimon_features.project import Project
from paimon_features.project.verification.parity import verify
from paimon_features.testing.reference.tiler import event_rows, tile_table
from paimon_features.transformers import StandardScaler
from paimon_features.transformers import scalers as numeric
from tests.commands import run

pytestmark = pytest.mark.redis

DEFINITIONS = """
import paimon_features as pf

shop = pf.EventSource("shop", event_time="t", schema={
    "customer_id": pf.Int64, "t": pf.Int64, "amount": pf.Float64})
customer = pf.Entity("customer", keys={"customer_id": pf.Int64})
spend = pf.FeatureView("spend", source=shop, entity=customer,
    features=[pf.Sum("amount", windows=["1d", "30d"], scale=2)])
share = pf.Interaction("share", "ratio(spend:sum_amount_1d, spend:sum_amount_30d, zero=0)")
plain = pf.FeatureService("plain", [spend, share])
"""
PINNED = """
scaled = pf.Transformed("scaled", ["spend:sum_amount_30d", share],
    pf.Fitted("amount_scaler", version={version}), description="as the model takes it")
model = pf.FeatureService("model", [scaled, "spend:sum_amount_1d"])
"""
NOW = 15_000 * DAY_MS + 9 * HOUR_MS


def commit(project: Project, events: list[tuple[int, int, float]]) -> None:
    names = ("customer_id", "t", "amount")
    columns = {name: list(c) for name, c in zip(names, zip(*events, strict=True), strict=True)}
    days = pa.array((np.array(columns["t"]) // DAY_MS).astype(np.int32))
    table = pa.table({**columns, "event_day": days})
    append_arrow(project.lake, "events_shop", table)
    view = project.definitions.views["spend"]
    append_arrow(project.lake, view.compiled.table(1), tile_table(view, event_rows(table)))


@pytest.fixture
def project(online_url: str, project: Project) -> Project:
    commit(project, [(1, NOW - HOUR_MS, 6.0), (1, NOW - 9 * DAY_MS, 2.0),
                     (2, NOW - 9 * DAY_MS, 4.0)])  # fmt: skip
    return project


def fit(project: Project) -> StandardScaler:
    rows = pa.table({"customer_id": [1, 2], "event_time_ms": [NOW, NOW]})
    project.build_training_set("fitting", "plain", rows, replace=True)
    table = read_arrow(project.lake, "training_fitting")
    return StandardScaler().fit(table.select(["sum_amount_30d", "share"]))


def pin(version: int) -> Project:
    Path("features.py").write_text(DEFINITIONS + PINNED.format(version=version))
    return Project.open(".")


def test_the_way_of_a_scaler_from_a_training_set_to_a_served_and_verified_value(
    project: Project,
) -> None:
    scaler = fit(project)
    assert project.fitted.save("amount_scaler", scaler, table="training_fitting") == 1
    commit = snapshot(project.lake, "training_fitting", 1).commit
    names = project.definitions.outputs(project.definitions.service("plain").items())
    values = {str(n).split(":")[-1]: project.definitions.value_definition(n) for n in names}
    assert project.fitted.load("amount_scaler").fitted_on == {
        "table": "training_fitting", "snapshot_id": 1, "commit": commit,
        "definitions": {name: values[name] for name in ("sum_amount_30d", "share")},
    }  # fmt: skip
    reported = run("fitted").output.splitlines()
    assert reported[0].split() == [
        "name", "version", "kind", "columns", "rows", "fitted", "at", "digest", "exported",
    ]  # fmt: skip
    assert reported[1].split()[:5] == ["amount_scaler", "1", "standard_scaler", "2", "2"]
    assert reported[1].endswith("no")
    assert 'names      ["sum_amount_30d", "share"]' in run("fitted", "amount_scaler").output

    pinned = pin(1)
    refused = run("plan", code=2).output
    assert "fitted/amount_scaler/v1.json" in refused
    assert "'paimon-features fitted amount_scaler 1 --export' writes it from the lake" in refused
    exported = run("fitted", "amount_scaler", "--export").output
    assert 'pf.Fitted("amount_scaler", version=1)' in exported
    run("fitted", "amount_scaler", "1", "--export")  # once more is harmless
    (listed,) = json.loads(run("fitted", "amount_scaler", "--versions", "--json").stdout)
    assert listed["exported"] is True
    shown = json.loads(run("fitted", "amount_scaler", "1", "--json").stdout)
    assert shown == json.loads(Path("fitted/amount_scaler/v1.json").read_text())

    plan = run("plan").output
    assert "+ transformed scaled\n    is computed when it is read: no backfill" in plan
    run("apply")
    assert "no changes" in run("plan").output
    run("materialize")
    looked = json.loads(run("lookup", "model", "--entity", "customer_id=1,2", "--as-of", str(NOW),
                            "--json").output)  # fmt: skip
    assert looked["rows"] == [
        {"customer_id": 1, "scaled": [1.0, 1.0], "sum_amount_1d": 6.0},
        {"customer_id": 2, "scaled": [-1.0, -1.0], "sum_amount_1d": 0.0},
    ]
    keys = {"customer_id": [1, 2, 3]}
    online = pinned.get_online_features("model", keys, NOW)
    rows = pa.table({**keys, "event_time_ms": [NOW] * 3})
    past = pinned.get_historical_features("model", rows)
    assert online.table.select(online.features).equals(past.select(online.features))
    assert past["scaled"].to_pylist()[:2] == scaler.transform([[8.0, 0.75], [4.0, 0.0]])
    built = pinned.build_training_set("model", "model", rows)
    properties = table_options.properties(pinned.lake, built.table)
    assert json.loads(properties["training-set.transformed"])["scaled"]["fitted"] == {
        "name": "amount_scaler", "version": 1, "digest": listed["digest"],
    }  # fmt: skip
    alone = pinned.get_online_features("scaled", {"customer_id": [1]}, NOW)
    assert alone.to_pydict() == {"customer_id": [1], "scaled": [[1.0, 1.0]]}


def test_the_definition_is_described_and_drawn_with_its_version(project: Project) -> None:
    project.fitted.save("amount_scaler", fit(project))
    project.fitted.export("amount_scaler")
    pin(1)
    run("apply")
    (document,) = json.loads(run("describe", "scaled", "--json").stdout)
    digest = project.fitted.load("amount_scaler").digest
    assert (document["state"], document["type"]) == ("applied", "list(float64, 2)")
    assert document["fitted"] == {
        "name": "amount_scaler", "version": 1, "kind": "standard_scaler", "digest": digest,
    }  # fmt: skip
    assert document["parameters"]["mean"] == [6.0, 0.375]
    assert {"kind": "fitted_transformer", "name": "amount_scaler v1"} in document["made_of"]
    assert {"kind": "interaction", "name": "share"} in document["made_of"]
    assert document["used_by"] == [{"kind": "service", "name": "model"}]
    reported = run("describe", "scaled").output
    assert "of           spend:sum_amount_30d, share" in reported
    assert f"fitted       name: amount_scaler, version: 1, digest: {digest}" in reported
    drawn = run("describe", "--graph", "scaled").output
    assert f"fitted transformer amount_scaler v1  (standard_scaler, {digest})" in drawn
    assert "transformed scaled  (list(float64, 2))" in drawn
    assert "amount_scaler v1" in run("describe", "--graph", "--format", "svg").output


def test_another_version_is_a_change_and_another_content_of_one_is_refused(
    project: Project,
) -> None:
    project.fitted.save("amount_scaler", fit(project))
    project.fitted.save("amount_scaler", fit(project).partial_fit([[100.0, 0.5]]))
    run("fitted", "amount_scaler", "1", "--export")
    run("fitted", "amount_scaler", "2", "--export")
    pin(1)
    run("apply")
    pin(2)
    plan = run("plan").output
    assert "~ transformed scaled\n    fitted.version: 1 -> 2" in plan
    assert "fitted.digest: '" in plan
    assert "feature view" not in plan
    run("apply")
    # a file of another lake, with a digest of its own: right in itself, and not this version
    other = Project.open(".")
    path = Path("fitted/amount_scaler/v2.json")
    path.unlink()
    document = replace(other.fitted.load("amount_scaler", 2), fitted_at_ms=1).to_document()
    path.write_text(json.dumps(document))
    refused = run("plan", code=2).output
    assert "transformed feature 'scaled': the file of amount_scaler v2 has the digest" in refused
    assert "a version never changes" in refused
    assert "exists and differs from amount_scaler v2" in run(
        "fitted", "amount_scaler", "2", "--export", code=2
    ).output  # fmt: skip
    path.write_text(path.read_text().replace('"rows": 3', '"rows": 4'))
    assert "it was changed or damaged after it was written" in run("plan", code=2).output


def test_a_version_is_exported_as_an_onnx_model(project: Project) -> None:
    pytest.importorskip("onnx", reason="pip install 'paimon-features[onnx]'")
    runtime = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    project.fitted.save("amount_scaler", fit(project))
    reported = run("fitted", "amount_scaler", "1", "--onnx", "scaler.onnx").output
    assert reported == "amount_scaler v1: scaler.onnx, inputs sum_amount_30d, share\n"
    assert not Path("fitted").exists()
    session = runtime.InferenceSession("scaler.onnx", providers=["CPUExecutionProvider"])
    feeds = {"sum_amount_30d": np.array([[8.0]], np.float32), "share": np.array([[0.75]], "f4")}
    assert session.run(None, feeds)[0].tolist() == [[1.0, 1.0]]
    reported = session.get_modelmeta().custom_metadata_map
    assert (reported["name"], reported["version"]) == ("amount_scaler", "1")
    assert reported["digest"] == project.fitted.load("amount_scaler").digest


def test_wrong_names_are_reported(project: Project) -> None:
    assert "no transformer is saved yet" in run("fitted").output
    project.fitted.save("amount_scaler", fit(project))
    assert "unknown fitted transformer 'amont'" in run("fitted", "amont", code=2).output
    assert (
        "unknown fitted transformer 'amont'" in run("fitted", "amont", "--versions", code=2).output
    )
    assert "has no version 7; it has: 1" in run(
        "fitted", "amount_scaler", "7", "--export", code=2
    ).output  # fmt: skip
    with pytest.raises(UnknownNameError, match="unknown table 'training_none'"):
        project.fitted.save("x", fit(project), table="training_none")
    with pytest.raises(SnapshotExpiredError):
        project.fitted.save("x", fit(project), table="training_fitting", snapshot_id=99)
    with pytest.raises(RequestError, match="snapshot_id=1 goes with table="):
        project.fitted.save("x", fit(project), snapshot_id=1)


def test_verify_covers_transformed_features_and_finds_one_that_is_computed_wrongly(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.fitted.save("amount_scaler", fit(project))
    project.fitted.export("amount_scaler")
    pinned = pin(1)
    run("apply")
    run("materialize")
    report = verify(pinned, "model", wait_s=0, settle_s=0)
    assert report.ok, report.differences
    alone = verify(pinned, ["spend:sum_amount_1d", "spend:sum_amount_30d"], wait_s=0, settle_s=0)
    # scaled and the interaction that goes into it, on each path, at each time, of each entity
    assert report.compared == alone.compared + 2 * 2 * 2 * 2

    real = numeric.StandardScaler._forward

    def wrong(self: StandardScaler, values: Any, columns: Any, out: Any) -> None:
        real(self, values, columns, out)
        np.nextafter(out, 9.0, out=out)

    monkeypatch.setattr(numeric.StandardScaler, "_forward", wrong)
    done = run("verify", "model", "--wait", "0", "--json", code=1)
    output = "\n".join(json.loads(done.stdout)["differences"])
    assert "scaled of (" in output
    assert "expected" in output
