"""``models register``: fitted models of the iteration runtime in the registry of models."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.iteration import algorithms as flink_ml
from paimon_features.project import Project
from paimon_features.transformers import StandardScaler
from tests import commands

pytest.importorskip("onnx", reason="pip install onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")

DEFINITIONS = """
import paimon_features as pf

shop = pf.EventSource("shop", event_time="t", schema={
    "customer_id": pf.Int64, "t": pf.Int64, "amount": pf.Float64, "country": pf.String})
customer = pf.Entity("customer", keys={"customer_id": pf.Int64})
spend = pf.FeatureView("spend", source=shop, entity=customer, features=[
    pf.Count(windows=["7d"]), pf.Sum("amount", windows=["7d"], scale=2),
    pf.Last("country", windows=["7d"])])
churn_v1 = pf.FeatureService("churn_v1", ["spend:count_7d", "spend:sum_amount_7d"])
countries = pf.FeatureService("countries", ["spend:last_country_7d"])
"""

run = partial(commands.run, "models")


def test_online_models_are_versions_that_a_server_loads(project: Project) -> None:
    dice = np.random.default_rng(0)
    raw = np.column_stack([dice.integers(0, 9, 600), dice.gamma(2, 30, 600)]).astype(float)
    scaler = StandardScaler().fit(raw)
    scaled = scaler.transform(raw)
    labels = (scaled @ [1.0, -2.0] + dice.normal(0, 0.5, 600) > 0).astype(float)
    start = flink_ml.LogisticRegression(max_iter=1).fit(scaled[:32], y=labels[:32])
    versions = flink_ml.OnlineLogisticRegression(global_batch_size=100).fit(
        scaled, y=labels, initial=start
    )
    table = project.build_training_set(
        "churn", "churn_v1", pa.table({"customer_id": [1], "event_time_ms": [86_400_000]})
    )
    project.fitted.save("online", versions[-1], table=table.table)
    project.fitted.save("scaled", scaler)
    made = json.loads(run("register", "churn", "--fitted", "online", "--service", "churn_v1",
                          "--transformer", "scaled", "--json").output)  # fmt: skip
    assert (made["version"], made["kind"]) == (1, "logistic_regression")
    assert made["training"]["table"] == "training_churn"
    assert set(made["training"]["fitted"]) == {"online v1", "scaled v1"}
    again = run("register", "churn", "--fitted", "online@1", "--service", "churn_v1",
                "--transformer", "scaled@1").output  # fmt: skip
    assert "churn@1: registered" in again
    run("promote", "churn", "1")
    production = project.models.place.read().models["churn"].production
    assert production is not None
    served = project.models.place.load("churn", production)
    session = onnxruntime.InferenceSession(served.network, providers=["CPUExecutionProvider"])
    names = [each.name for each in served.manifest.signature.inputs]
    assert [each.of for each in served.manifest.signature.inputs] == [
        "spend:count_7d", "spend:sum_amount_7d"
    ]  # fmt: skip
    found = session.run(None, {name: raw[:, [i]] for i, name in enumerate(names)})[0]
    assert found[:, 0] == pytest.approx(versions[-1].transform(scaled)[:, 2], abs=1e-6)
    clusters = flink_ml.KMeans(k=3).fit(scaled)
    project.fitted.save("clusters", clusters)
    run("register", "segment", "--fitted", "clusters", "--service", "churn_v1",
        "--transformer", "scaled")  # fmt: skip
    made = json.loads(run("show", "segment", "--json").output)
    assert made["signature"]["outputs"][0]["classes"] == ["0", "1", "2"]


def test_wrong_use_is_explained(project: Project) -> None:
    project.fitted.save("clusters", flink_ml.KMeans(k=2).fit([[0.0], [1.0], [9.0]]))
    output = run("register", "x", "--fitted", "clusters", "--service", "churn_v1", code=1).output
    assert "2 features; expected 1" in output
    output = run("register", "x", "--fitted", "clusters", "--service", "countries", code=2).output
    assert "spend:last_country_7d is string" in output
    output = run("register", "x", "--fitted", "c", "--service", "churn_v1", code=2).output
    assert "unknown fitted transformer" in output
    output = run("register", "x", "--fitted", "clusters@x", "--service", "churn_v1", code=2).output
    assert "expected NAME@VERSION" in output
