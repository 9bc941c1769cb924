"""A configuration is typed, and checked before anything heavy is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paimon_features.core.errors import ConfigurationError
from trainer_bridge.training.config import GROUPS, TrainConfig, compose

pytest.importorskip("hydra", reason="pip install hydra-core")

CONFIG = """
defaults: [base, _self_]
name: churn
data: {training_set: churn, service: churn_v1}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "churn.yaml"
    path.write_text(CONFIG)
    return path


def test_groups_and_settings_are_overridden_and_the_document_reads_back(file: Path) -> None:
    config = compose(file, ["model=wide_and_deep", "model.layers=3", "data.exclude=[a:b]"])
    assert (config.model.kind, config.model.layers) == ("wide_and_deep", 3)  # type: ignore[union-attr]
    assert config.data.exclude == ("a:b",)
    assert TrainConfig.from_document(config.to_document()) == config
    for group, choices in GROUPS.items():
        for name in choices:
            compose(file, [f"{group}={name}"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model=oracle", "Could not find 'model/oracle'"),
        ("model.layrs=2", "Could not override 'model.layrs'"),
        ("+model.layrs=2", "unknown setting 'layrs'.*did you mean 'layers'"),
        ("+extra=1", "unknown setting 'extra'"),
        ("model.layers=three", "model.layers='three', expected int"),
        ("model.layers=0", "model.layers=0: expected 1"),
        ("model.dim=30", "divides into heads"),
        ("model.kind=oracle", "expected tabular_transformer"),
        ("data.gap=soon", "duration 'soon'"),
        ("data.test=0.95", "data.test=0.95"),
        ("data.training_set=''", "a name starts with"),
        ("optimiser.lr=-1", "optimiser.lr=-1"),
        ("trainer.precision=8", "trainer.precision=8"),
        ("trainer.precision=16-mixed", "needs trainer.accelerator=gpu"),
        ("name=Churn", "a name starts with"),
        ("seed=-1", "seed=-1"),
        ("parents=churn", "expected a list"),
        ("feedback.difficulty=hard", "feedback.loop"),
        ("a b", "Lexer"),
    ],
)
def test_wrong_settings_are_explained(file: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        compose(file, [override])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": "1"}, "seed='1': expected int"),
        ({"card": 7}, "card=7: expected str"),
        ({"data": ["churn"]}, r"data=\['churn'\]: expected settings"),
        ({"model": None}, "model.kind=None: expected"),
        ({"name": None}, "name=None: expected str"),
    ],
)
def test_documents_that_are_none_are_explained(
    file: Path, changes: dict[str, Any], message: str
) -> None:
    document = compose(file).to_document()
    with pytest.raises(ConfigurationError, match=message):
        TrainConfig.from_document({**document, **changes})


def test_what_a_document_may_leave_out_has_its_default(file: Path) -> None:
    config = compose(file)
    document = config.to_document()
    for name in ("seed", "card", "trainer", "round", "parents"):
        del document[name]
    assert TrainConfig.from_document(document) == config
    del document["name"]
    with pytest.raises(ConfigurationError, match="name is missing: the name of the model in the"):
        TrainConfig.from_document(document)


def test_files_that_are_none_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="expected a configuration file"):
        compose(tmp_path / "churn.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("defaults: [base\n")
    with pytest.raises(ConfigurationError, match=r"broken\.yaml"):
        compose(broken)


def test_nothing_heavy_is_imported_to_check_one(file: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from trainer_bridge.training.config import compose; "
        f"compose(Path({str(file)!r})); "
        "print([m for m in ('torch', 'lightning', 'pypaimon', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert done.stdout.strip() == "[]"
