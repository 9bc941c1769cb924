"""Rounds of ``retrain``: which rows they read, the gate, promotion, rollback, and kills."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

torch = pytest.importorskip("torch", reason="pip install torch")
pytest.importorskip("lightning", reason="pip install lightning")
pytest.importorskip("onnxscript", reason="pip install onnxscript")

from paimon_features.models import ModelManifest  # noqa: E402
from paimon_features.project import Project  # noqa: E402
from paimon_features.tables import append_arrow, read_arrow  # noqa: E402
from paimon_features.windows import DAY_MS  # noqa: E402
from tests.trainer_bridge.training.shop import START, make_shop  # noqa: E402
from trainer_bridge.training import run  # noqa: E402
from trainer_bridge.training.config import compose  # noqa: E402
from trainer_bridge.training.retraining import RetrainDecision, retrain  # noqa: E402

pytestmark = pytest.mark.torch

WIDE = ("model=wide_and_deep", "model.dim=16", "model.layers=1", "trainer.epochs=1")
SETTINGS = {"retrain.min_rows": 100, "retrain.epochs": 3, "optimiser.lr": 0.05}
END = START + 90 * DAY_MS
"""All rows of the first training set are before."""


def new_rows(count: int, days: int, seed: int, turned: bool = False) -> pa.Table:
    """Rows of later days, whose label follows from what was spent, or from its contrary."""
    dice = np.random.default_rng(seed)
    spent = dice.gamma(2, 40, count)
    churned = spent + dice.normal(0, 20, count) < 60
    return pa.table(
        {
            "customer_id": dice.integers(0, 105, count),
            "event_time_ms": END + days * DAY_MS + np.arange(count) * 1_000,
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


@pytest.fixture
def project(tmp_path: Path) -> Project:
    torch.set_num_threads(1)
    project = make_shop(tmp_path)
    config = compose(tmp_path / "churn.yaml", [*WIDE])
    version, _ = run.train(project, config)
    project.models.promote("churn", version.version)
    return project


def commit(project: Project, rows: pa.Table) -> None:
    names = project.lake.schema("training_churn").names
    append_arrow(project.lake, "training_churn", rows.select([n for n in rows.column_names if n in names]))


def decisions(project: Project, **options: Any) -> list[RetrainDecision]:
    return list(retrain(project, "churn", settings=SETTINGS, **options))


def test_new_rows_become_a_version_in_production(project: Project) -> None:
    assert decisions(project) == []
    commit(project, new_rows(400, 1, seed=1))
    found = decisions(project)
    print(found, project.models.manifest("churn", 2).card)
    assert [each.action for each in found] == ["promoted"]
