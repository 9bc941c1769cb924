"""A shop with events, tiles and a training set, small enough to train on in a second."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from paimon_features.core.windows import DAY_MS
from paimon_features.lake import append_arrow
from paimon_features.project import Project
from paimon_features.testing.reference.tiler import event_rows, tile_table

DEFINITIONS = """
import paimon_features as pf
from trainer_bridge.feedback.difficulty import difficulty_view

shop = pf.EventSource("shop", event_time="t", schema={
    "customer_id": pf.Int64, "t": pf.Int64, "amount": pf.Float64, "country": pf.String,
    "category": pf.String})
customer = pf.Entity("customer", keys={"customer_id": pf.Int64})
spend = pf.FeatureView("spend", source=shop, entity=customer, features=[
    pf.Count(windows=["7d"]), pf.Sum("amount", windows=["7d", "30d"], scale=2),
    pf.Max("amount", windows=["30d"]), pf.Last("country", windows=["30d"]),
    pf.LastN("category", n=5, windows=["30d"]), pf.LastN("amount", n=4, windows=["30d"])])
churn_v1 = pf.FeatureService("churn_v1", [
    "spend:count_7d", "spend:sum_amount_7d", "spend:sum_amount_30d", "spend:max_amount_30d",
    "spend:last_country_30d"])
basket_v1 = pf.FeatureService("basket_v1", [spend])
losses = pf.FeedbackSource("losses", sample_keys={"sample_id": pf.Int64})
earlier = pf.FeedbackSource("earlier", sample_keys={"sample_id": pf.Int64})
hard = difficulty_view(earlier, name="hard")
"""
CONFIG = """
defaults: [base, _self_]
name: churn
data: {training_set: churn, service: churn_v1, batch_size: 64, gap: 1d, threads: 0}
trainer: {epochs: 2, accelerator: cpu, threads: 1}
"""
SMALL = ("model.dim=16", "model.layers=1", "model.heads=2")
START = 15_000 * DAY_MS
ROWS = 500
END = START + 90 * DAY_MS
"""All rows of the first training set are before."""


def make_shop(folder: Path) -> Project:
    """A project with the training set ``churn`` of 500 rows, over both services."""
    (folder / "features.py").write_text(DEFINITIONS)
    (folder / "paimon-features.toml").write_text('[project]\nname = "shop"\n')
    (folder / "churn.yaml").write_text(CONFIG)
    project = Project.open(folder)
    project.apply()
    dice = np.random.default_rng(0)
    times = np.sort(START + dice.integers(0, 90 * DAY_MS, 3_000))
    events = pa.table(
        {
            "customer_id": dice.integers(0, 100, 3_000),
            "t": times,
            "amount": np.round(dice.gamma(2, 20, 3_000), 2),
            "country": dice.choice(["DE", "FR", "UK"], 3_000),
            "category": dice.choice(["toys", "food", "books", "tools"], 3_000),
            "event_day": pa.array((times // DAY_MS).astype(np.int32)),
        }
    )
    append_arrow(project.lake, "events_shop", events)
    view = project.definitions.views["spend"]
    append_arrow(project.lake, view.compiled.table(1), tile_table(view, event_rows(events)))
    keys = {
        "customer_id": dice.integers(0, 105, ROWS),  # some without an event
        "event_time_ms": START + 30 * DAY_MS + dice.integers(0, 60 * DAY_MS, ROWS),
        "sample_id": np.arange(ROWS),
    }
    found = project.get_historical_features("basket_v1", pa.table(keys))
    spent = np.array(found["sum_amount_7d"].fill_null(0).to_pylist(), float)
    churned = spent + dice.normal(0, 20, ROWS) < 40
    rows = pa.table(
        {
            **keys,
            "churned": churned,
            "weight": np.where(churned, 3.0, 1.0),
            "spent": spent,
            "favourite": [(items or ["none"])[0] for items in
                          found["last_n_category_5_30d"].to_pylist()],
        }
    )  # fmt: skip
    project.build_training_set("churn", "basket_v1", rows, label="churned")
    return project


def new_rows(count: int, days: int, seed: int, turned: bool = False) -> pa.Table:
    """Rows of later days, whose label follows from what was spent, or from its contrary."""
    dice = np.random.default_rng(seed)
    spent = dice.gamma(2, 40, count)
    churned = spent + dice.normal(0, 20, count) < 60
    return pa.table(
        {
            "customer_id": dice.integers(0, 105, count),
            "event_time_ms": END + days * DAY_MS + np.arange(count) * 4 * DAY_MS // count,
            "sample_id": 10_000 * seed + np.arange(count),
            "churned": churned ^ turned,
            "weight": np.ones(count),
            "spent": spent,
            "favourite": dice.choice(["toys", "food"], count),
            "count_7d": dice.integers(0, 9, count),
            "sum_amount_7d": pa.array(spent / 2).cast(pa.decimal128(38, 2), safe=False),
            "sum_amount_30d": pa.array(spent).cast(pa.decimal128(38, 2), safe=False),
            "max_amount_30d": spent,
            "last_country_30d": dice.choice(["DE", "FR", "UK"], count),
        }
    )
