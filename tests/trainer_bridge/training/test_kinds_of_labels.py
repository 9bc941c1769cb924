"""Labels of every kind, and rows that lack some: trained, continued by a round, and served."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

torch = pytest.importorskip("torch", reason="pip install torch")
pytest.importorskip("lightning", reason="pip install lightning")
pytest.importorskip("onnxscript", reason="pip install onnxscript")
pytest.importorskip("onnxruntime", reason="pip install onnxruntime")

from paimon_features.core.errors import ConfigurationError  # noqa: E402
from paimon_features.core.windows import DAY_MS  # noqa: E402
from paimon_features.lake import append_arrow, read_arrow  # noqa: E402
from paimon_features.models import ModelManifest  # noqa: E402
from paimon_features.project import Project  # noqa: E402
from paimon_features.serving.prediction.network import OnnxNetwork  # noqa: E402
from tests.long_cases import quick_cases  # noqa: E402
from tests.trainer_bridge.training.shop import SMALL, START, make_shop, new_rows  # noqa: E402
from trainer_bridge.training import export, run  # noqa: E402
from trainer_bridge.training.config import compose  # noqa: E402
from trainer_bridge.training.labels import class_texts  # noqa: E402
from trainer_bridge.training.retraining import RetrainDecision, retrain  # noqa: E402
from trainer_bridge.training.rounds import RoundTable  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_torch_thread")]

TREES = ("model=gradient_boosting", "model.trees=10")
FLAT = ("model=gradient_boosting", "model.trees=1", "model.leaves=2")
WIDE = ("model=wide_and_deep", "model.dim=8", "model.layers=1", "trainer.epochs=1")
SETTINGS = {"retrain.min_rows": 100, "retrain.epochs": 1}
NEWER = START + 80 * DAY_MS
CLASSES = {
    "stars": ("1", "2", "3"),
    "half_stars": ("0.5", "1", "1.5"),
    "level": ("1", "2", "3"),
    "price": ("1", "2", "3"),
    "vip": ("false", "true"),
    "word": ("1", "2", "3"),
}
"""The classes of each label, as versions spell them."""


def with_labels(rows: pa.Table) -> pa.Table:
    """The rows, with a label of each kind that follows from what was spent."""
    number = np.digitize(pc.fill_null(rows["spent"], 0.0).to_numpy(), [40.0, 90.0]) + 1
    columns = {
        "stars": pa.array(number.astype(np.float64)),
        "half_stars": pa.array(number / 2),
        "level": pa.array(number.astype(np.int64)),
        "price": pa.array(number.astype(np.int64)).cast(pa.decimal128(21, 2)),
        "vip": pa.array(number > 1),
        "is_vip": pa.array((number > 1).astype(np.float64)),
        "word": pa.array([str(each) for each in number]),
        "newest": pa.array((rows["event_time_ms"].to_numpy() >= NEWER) * 1.0),
        "rare": pa.array(np.where(np.arange(len(number)) % 125 == 0, 3.0, number > 1)),
    }
    for name, column in columns.items():
        rows = rows.append_column(name, column)
    return rows


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    project = make_shop(folder)
    names = ["customer_id", "event_time_ms", "sample_id", "churned", "weight", "spent", "favourite"]
    rows = with_labels(read_arrow(project.lake, "training_churn", names))
    project.build_training_set("churn", "basket_v1", rows, label="churned", replace=True)
    return folder


@pytest.fixture
def project(shop: Path, tmp_path: Path) -> Project:
    shutil.copytree(shop, tmp_path, dirs_exist_ok=True)
    return Project.open(tmp_path)


def commit(project: Project, rows: pa.Table) -> None:
    append_arrow(project.lake, "training_churn", with_labels(rows))


def produce(project: Project, *settings: str) -> ModelManifest:
    """Train version 1 of the model ``own``, and put it into production."""
    config = compose(project.root / "churn.yaml", ["name=own", *settings])
    version, _ = run.train(project, config)
    project.models.promote("own", version.version)
    return version


def decided(project: Project, *, promote: bool = True, **settings: Any) -> list[RetrainDecision]:
    given = {f"retrain.{name}": value for name, value in settings.items()}
    return list(retrain(project, "own", promote=promote, settings={**SETTINGS, **given}))


def rows_of(project: Project, version: ModelManifest) -> RoundTable:
    """The rows of the round that made a version."""
    return RoundTable.open_round(project, run.config_of(project, version))


def served(project: Project, version: int, columns: pa.Table) -> Any:
    """What a serving host answers to rows of features."""
    project.models.promote("own", version)
    place = project.models.place
    production = place.read().models["own"].production
    assert production is not None
    assert production.version == version
    model = place.load("own", production)
    inputs = OnnxNetwork(model).inputs  # it runs a row of nulls
    found = export.run_onnx(
        model.network, inputs, {each.name: columns[each.name].combine_chunks() for each in inputs}
    )
    assert np.isfinite(found).all()
    return found


def some_features(project: Project) -> pa.Table:
    return read_arrow(project.lake, "training_churn").slice(0, 50)


@pytest.mark.parametrize(
    ("label", "model"),
    quick_cases(
        [*((label, TREES) for label in CLASSES), ("stars", WIDE), ("vip", WIDE)],
        ("level", TREES),
        ("word", TREES),
    ),
)
def test_a_round_knows_the_classes_of_its_parent(
    project: Project, label: str, model: tuple[str, ...]
) -> None:
    first = produce(project, *model, "objective=multiclass", f"data.label={label}")
    assert first.signature.outputs[0].classes == CLASSES[label]
    commit(project, new_rows(300, 2, seed=1))
    (found,) = decided(project)
    assert found.version == "own@2", found.text
    assert found.figures["overall"]["rows"] == 90  # no row is left out as of an unknown class
    second = project.models.manifest("own", 2)
    assert second.signature.outputs[0].classes == CLASSES[label]
    held_out = rows_of(project, second).held_out
    assert set(class_texts(held_out[label]).to_pylist()) == set(CLASSES[label])
    predictions = served(project, 2, some_features(project))
    assert predictions.shape == (50, len(CLASSES[label]))
    assert predictions.sum(axis=1) == pytest.approx(np.ones(50), abs=1e-5)


def test_zero_and_one_as_floats_are_false_and_true(project: Project) -> None:
    produce(project, *TREES, "data.label=is_vip")
    commit(project, new_rows(300, 2, seed=1))
    (found,) = decided(project)
    assert (found.version, found.figures["overall"]["rows"]) == ("own@2", 90)
    assert served(project, 2, some_features(project)).shape == (50, 1)


@pytest.mark.parametrize("model", [TREES, WIDE], ids=["trees", "network"])
def test_a_class_that_is_absent_from_a_round_keeps_its_place(
    project: Project, model: tuple[str, ...]
) -> None:
    first = produce(project, *model, "objective=multiclass", "data.label=rare")
    assert first.signature.outputs[0].classes == ("0", "1", "3")
    rows = with_labels(new_rows(300, 2, seed=1))
    commit_rows = rows.filter(pc.less(rows["rare"], 3.0))
    append_arrow(project.lake, "training_churn", commit_rows)
    # so few old rows that the rare class is in none of them
    (found,) = decided(project, max_rows=100)
    assert found.version == "own@2", found.text
    second = project.models.manifest("own", 2)
    table = rows_of(project, second)
    assert set(class_texts(table.train_rows["rare"]).to_pylist()) == {"0", "1"}
    assert second.signature.outputs[0].classes == ("0", "1", "3")
    predictions = served(project, 2, some_features(project))
    assert predictions.shape == (50, 3)
    if model is TREES:
        assert predictions[:, 2] == pytest.approx(np.zeros(50), abs=1e-6)


def test_a_class_that_only_newer_rows_have_is_left_out_of_a_round(project: Project) -> None:
    produce(project, *TREES, "objective=multiclass", "data.label=vip")
    rows = with_labels(new_rows(300, 2, seed=1))
    place = rows.column_names.index("vip")
    unknown = pa.array([None] * 40 + rows["vip"].to_pylist()[40:])
    append_arrow(project.lake, "training_churn", rows.set_column(place, "vip", unknown))
    (found,) = decided(project)
    assert found.version == "own@2", found.text
    assert found.figures["overall"]["rows"] == 78  # three of ten of the 260


def test_held_out_rows_of_one_class_decide_nothing(project: Project) -> None:
    produce(project, *TREES, "objective=multiclass", "data.label=vip")
    rows = with_labels(new_rows(600, 2, seed=1))
    append_arrow(project.lake, "training_churn", rows.filter(pc.equal(rows["vip"], True)))
    (found,) = decided(project)
    assert found.action == "rejected", found.text
    assert "too few with a rare label" in found.text


@pytest.mark.parametrize(
    "model",
    [
        TREES,
        WIDE,
        pytest.param(
            ("model=sequence_transformer", *SMALL, "trainer.epochs=1"), marks=pytest.mark.long
        ),
    ],
    ids=["trees", "network", "sequence"],
)
def test_features_without_values_are_trained_and_served(
    project: Project, model: tuple[str, ...]
) -> None:
    # customers without an event: all features are null in every row
    names = ["customer_id", "event_time_ms", "sample_id", "churned", "weight", "spent", "favourite"]
    rows = read_arrow(project.lake, "training_churn", names)
    nobody = pa.array(np.arange(rows.num_rows) + 1_000)
    rows = with_labels(rows.set_column(0, "customer_id", nobody))
    lists = model[0] == "model=sequence_transformer"
    given = (*model, f"data.service={'basket_v1' if lists else 'churn_v1'}")
    project.build_training_set("churn", "basket_v1", rows, label="churned", replace=True)
    stored = read_arrow(project.lake, "training_churn")
    assert stored["last_country_30d"].null_count == stored.num_rows
    with pytest.raises(ConfigurationError, match="last_country_30d is null in all .* leave it out"):
        produce(project, *given)
    produce(project, *given, "data.exclude=['spend:last_country_30d']")
    commit(project, new_rows(300, 2, seed=1))  # these have values
    (found,) = decided(project)
    assert found.version == "own@2", found.text
    columns = read_arrow(project.lake, "training_churn")
    assert served(project, 2, columns).shape == (columns.num_rows, 1)


def test_a_part_whose_rows_have_no_weight_is_explained(project: Project) -> None:
    with pytest.raises(ConfigurationError, match="'newest' is 0 in all 3.. rows of the train part"):
        produce(project, *TREES, "data.weights=newest")


def test_amounts_that_newer_rows_lack_are_not_taken_for_none_by_the_alarm(
    project: Project,
) -> None:
    def with_amounts(rows: pa.Table, every: int) -> pa.Table:
        """Labels near zero, and 1,000 in one row of so many."""
        amounts = np.random.default_rng(0).normal(size=rows.num_rows)
        amounts[::every] = 1_000.0
        return rows.set_column(rows.column_names.index("spent"), "spent", pa.array(amounts))

    names = ["customer_id", "event_time_ms", "sample_id", "churned", "weight", "spent", "favourite"]
    rows = read_arrow(project.lake, "training_churn", names)
    rows = with_amounts(rows, 1_000)
    project.build_training_set("churn", "basket_v1", rows, label="churned", replace=True)
    produce(project, *FLAT, "objective=regression", "data.label=spent")
    append_arrow(project.lake, "training_churn", with_amounts(new_rows(600, 2, seed=1), 50))
    assert [each.version for each in decided(project)] == ["own@2"]
    project.models.promote("own", 2)
    # in 260 rows without an amount, a version that expects some seems worse
    append_arrow(
        project.lake, "training_churn", with_amounts(new_rows(261, 6, seed=2), 300).slice(1)
    )
    assert decided(project, promote=False, min_rows=1_000) == []
