"""``train`` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paimon_features.core.windows import DAY_MS
from tests.commands import run
from tests.trainer_bridge.training.shop import START, make_shop

pytest.importorskip("torch", reason="pip install torch")
pytest.importorskip("onnxscript", reason="pip install onnxscript")
pytestmark = pytest.mark.torch

TREES = ("model=gradient_boosting", "model.trees=5")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_shop(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_train_show_promote_and_reproduce(shop: Path) -> None:
    settings = json.loads(run("train", "churn.yaml", *TREES, "--show").stdout)
    assert settings["model"]["trees"] == 5
    output = run("train", "churn.yaml", *TREES).output
    assert "rows to train on, 5 features" in output
    assert "churn@1: registered" in output
    assert "paimon-features models promote churn 1" in output
    assert "churn@1: is this run, registered before" in run("train", "churn.yaml", *TREES).output
    document = json.loads(run("train", "churn.yaml", *TREES, "seed=1", "--json").stdout)
    assert (document["new"], document["version"]) == (True, 2)
    assert "gradient_boosting" in run("models", "show").output
    assert (
        "configuration.seed: 0 -> 1"
        in run("models", "compare", "churn", "1", "2", "--manifests").output
    )
    assert run("models", "promote", "churn", "2").output == "churn@2: production, 100 %\n"
    assert "to the bit" in run("train", "--again", "churn@1", "--quiet").output
    assert json.loads(run("train", "--again", "churn", "--json").stdout)["same"] is True


def test_wrong_use_is_explained(shop: Path) -> None:
    assert "expected NAME@VERSION" in run("train", "--again", "churn@x", code=2).output
    assert "unknown model 'churn'" in run("train", "--again", "churn@1", code=2).output
    assert "expected a configuration file" in run("train", "chrn.yaml", code=2).output
    assert "model.layers=0" in run("train", "churn.yaml", "model.layers=0", code=2).output
    wrong = run("train", "churn.yaml", "data.training_set=chrn", code=2).output
    assert "unknown training set 'chrn'; available: churn" in wrong


@pytest.mark.long
def test_retrain_continues_production_with_appended_rows(shop: Path) -> None:
    assert "has no version in production" in retrained("churn.yaml", code=2)
    assert "too few new training rows" in run("retrain", "churn").output
    dice = np.random.default_rng(5)
    days = START + 91 * DAY_MS + np.sort(dice.integers(0, 9 * DAY_MS, 300))
    rows = pa.table(
        {"customer_id": dice.integers(0, 100, 300), "event_time_ms": days,
         "sample_id": np.arange(1_000, 1_300), "churned": dice.random(300) < 0.9,
         "favourite": ["none"] * 300}
    )  # fmt: skip
    pq.write_table(rows, "rows.parquet")
    append = ("training-set", "churn", "--service", "basket_v1", "--append", "--rows")
    first = json.loads(run(*append, "rows.parquet", "--json").stdout)
    assert (first["rows"], first["snapshot_id"]) == (300, 2)
    # the same rows are appended once
    assert json.loads(run(*append, "rows.parquet", "--json").stdout)["snapshot_id"] == 2
    assert "300 rows appended" in run(*append, "rows.parquet").output
    line = json.loads(run("retrain", "churn", "retrain.min_rows=100", "--json").stdout)
    assert line["action"] in ("promoted", "rejected")
    assert line["version"] == "churn@2"
    shown = run("models", "show", "churn@2").output
    assert "## Continues churn@1" in shown
    assert f"{line['action']}: " in shown
    assert json.loads(run("models", "show", "churn@2", "--json").stdout)["notes"]
    assert json.loads(run("retrain", "churn", "--json").stdout)["action"] == "waiting"


def retrained(config: str, code: int) -> str:
    """The output of a retraining before anything is in production, which it is afterwards."""
    run("train", config, *TREES, "--quiet")
    output = run("retrain", "churn", code=code).output
    run("models", "promote", "churn", "1")
    return output


def test_wrong_use_of_retrain_and_of_appended_rows_is_explained(shop: Path) -> None:
    assert "unknown model 'churn'" in run("retrain", "churn", code=2).output
    assert "--rounds requires --follow" in run("retrain", "x", "--rounds", "1", code=2).output
    assert "expected SETTING=VALUE" in run("retrain", "x", "min_rows", code=2).output
    rows = pa.table({"customer_id": [1], "event_time_ms": [START + 91 * DAY_MS], "other": [1]})
    pq.write_table(rows, "rows.parquet")
    append = ("training-set", "churn", "--append", "--rows", "rows.parquet", "--service")
    assert "unknown column 'other'" in run(*append, "basket_v1", code=2).output
    assert "was built with other features" in run(*append, "churn_v1", code=1).output
    assert "--append keeps the label" in run(*append, "basket_v1", "--label", "x", code=2).output
    definitions = Path("features.py").read_text()
    Path("features.py").write_text(definitions.replace("n=5", "n=6"))
    assert "other features" in run(*append, "basket_v1", code=1).output
