"""A model's way: fitted on a table of the lake, kept by version, warm-started, pinned, served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from paimon_features.cli import cli
from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.iteration.algorithms import LogisticRegression, OnlineLogisticRegression
from paimon_features.lake import append_arrow, read_arrow
from paimon_features.project import Project
from paimon_features.project.verification.parity import verify
from paimon_features.testing.reference.tiler import event_rows, tile_table

pytestmark = pytest.mark.redis

DEFINITIONS = """
import paimon_features as pf

shop = pf.EventSource("shop", event_time="t", schema={
    "customer_id": pf.Int64, "t": pf.Int64, "amount": pf.Float64})
customer = pf.Entity("customer", keys={"customer_id": pf.Int64})
spend = pf.FeatureView("spend", source=shop, entity=customer,
    features=[pf.Sum("amount", windows=["30d"], scale=2), pf.Count(windows=["30d"])])
plain = pf.FeatureService("plain", [spend])
"""
PINNED = """
churn = pf.Transformed("churn", ["spend:sum_amount_30d", "spend:count_30d"],
    pf.Fitted("churn_model", version={version}))
model = pf.FeatureService("model", [churn])
"""
NOW = 15_000 * DAY_MS + 9 * HOUR_MS
FEATURES = ("sum_amount_30d", "count_30d")


def materialize() -> None:
    done = CliRunner().invoke(cli, ["materialize"])
    assert done.exit_code == 0, done.output


@pytest.fixture
def project(online_url: str, project: Project) -> Project:
    rng = np.random.default_rng(0)
    many = 200
    customers = rng.integers(1, 30, many)
    times = NOW - rng.integers(1, 25 * DAY_MS, many)
    events = pa.table(
        {
            "customer_id": customers,
            "t": times,
            "amount": np.round(rng.random(many) * 9, 2),
            "event_day": (times // DAY_MS).astype(np.int32),
        }
    )
    append_arrow(project.lake, "events_shop", events)
    view = project.definitions.views["spend"]
    append_arrow(project.lake, view.compiled.table(1), tile_table(view, event_rows(events)))
    return project


def training_rows(project: Project) -> pa.Table:
    keys = list(range(1, 30))
    rows = pa.table(
        {
            "customer_id": keys,
            "event_time_ms": [NOW] * len(keys),
            "label": [float(key % 2) for key in keys],
        }
    )
    project.build_training_set("churn", "plain", rows, label="label", replace=True)
    return read_arrow(project.lake, "training_churn")


@pytest.mark.long
def test_a_model_is_kept_by_version_and_the_pinned_one_is_served(project: Project) -> None:
    table = training_rows(project)
    first = LogisticRegression(features_col=FEATURES, learning_rate=0.01).fit(table)
    assert project.fitted.save("churn_model", first, table="training_churn") == 1
    assert project.fitted.load("churn_model").transformer == first

    # the next fit starts from the version in the lake
    start: Any = project.fitted.load("churn_model", 1).transformer
    second = LogisticRegression(features_col=FEATURES, max_iter=5).fit(table, initial=start)
    assert project.fitted.save("churn_model", second, table="training_churn") == 2
    # an online fit starts from it too: a version for each batch of ten rows
    online = OnlineLogisticRegression(features_col=FEATURES, global_batch_size=10)
    versions = online.fit(table, initial=second)
    numbers = [project.fitted.save("churn_model", each) for each in versions]
    assert numbers == [3, 4]
    stored = [project.fitted.load("churn_model", n).transformer for n in (1, 2, 3, 4)]
    assert stored == [first, second, *versions]

    for pinned_version in (1, 4):
        project.fitted.export("churn_model", pinned_version)
        Path("features.py").write_text(DEFINITIONS + PINNED.format(version=pinned_version))
        pinned = Project.open(".")
        pinned.apply()
        materialize()
        keys = {"customer_id": [1, 2, 29, 99]}
        got = pinned.get_online_features("model", keys, NOW)
        rows = pa.table({**keys, "event_time_ms": [NOW] * 4})
        past = pinned.get_historical_features("model", rows)
        assert got.table.select(got.features).equals(past.select(got.features))
        model: Any = stored[pinned_version - 1]
        plain = pinned.get_historical_features("plain", rows)
        expected = model.transform(plain.select(list(FEATURES)).slice(0, 3))
        made = past["churn"].to_pylist()
        assert [each[0] for each in made[:3]] == expected["prediction"].to_pylist()
        assert [each[1:] for each in made[:3]] == expected["rawPrediction"].to_pylist()
        report = verify(pinned, "model", sample=5, times=2, wait_s=0, settle_s=0)
        assert report.ok, report.differences
