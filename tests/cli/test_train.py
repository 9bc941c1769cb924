"""``train`` and ``reproduce`` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paimon_features.cli import cli
from tests.trainer_bridge.training.shop import make_shop

pytest.importorskip("torch", reason="pip install torch")
pytest.importorskip("onnxscript", reason="pip install onnxscript")
pytestmark = pytest.mark.torch

TREES = ("model=gradient_boosting", "model.trees=5")


def run(*arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == code, done.output
    return done


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_shop(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_train_show_promote_and_reproduce(shop: Path) -> None:
    settings = json.loads(run("train", "churn.yaml", *TREES, "--show").output)
    assert settings["model"]["trees"] == 5
    output = run("train", "churn.yaml", *TREES).output
    assert "rows to train on, 5 features" in output
    assert "churn@1: registered" in output
    assert "paimon-features models promote churn 1" in output
    assert "churn@1: is this run, registered before" in run("train", "churn.yaml", *TREES).output
    document = json.loads(run("train", "churn.yaml", *TREES, "seed=1", "--json").output)
    assert (document["new"], document["version"]) == (True, 2)
    assert "gradient_boosting" in run("models", "list").output
    assert "configuration.seed: 0 -> 1" in run("models", "diff", "churn", "1", "2").output
    assert run("models", "promote", "churn", "2").output == "churn@2: production, 100 %\n"
    assert "to the bit" in run("reproduce", "churn@1", "--quiet").output
    assert json.loads(run("reproduce", "churn", "--json").output)["same"] is True


def test_wrong_use_is_explained(shop: Path) -> None:
    assert "expected NAME@VERSION" in run("reproduce", "churn@x", code=2).output
    assert "there is no model 'churn'" in run("reproduce", "churn@1", code=2).output
    assert "expected a configuration file" in run("train", "chrn.yaml", code=2).output
    assert "model.layers=0" in run("train", "churn.yaml", "model.layers=0", code=2).output
    wrong = run("train", "churn.yaml", "data.training_set=chrn", code=2).output
    assert "there is no training set 'chrn'; there is: churn" in wrong
