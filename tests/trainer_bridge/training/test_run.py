"""Runs from a training set to a registered version: exported, served, resumed, reproduced."""

from __future__ import annotations

import io
import json
import pickle
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

torch = pytest.importorskip("torch", reason="pip install torch")
pytest.importorskip("lightning", reason="pip install lightning")
pytest.importorskip("onnxscript", reason="pip install onnxscript")

from paimon_features.core.errors import (  # noqa: E402
    ConfigurationError,
    ModelError,
    UnknownNameError,
    VerificationError,
)
from paimon_features.core.types.schema import Int64  # noqa: E402
from paimon_features.lake import append_arrow, read_arrow  # noqa: E402
from paimon_features.models import ModelManifest, check_network  # noqa: E402
from paimon_features.project import Project  # noqa: E402
from paimon_features.testing.reference.tiler import event_rows, tile_table  # noqa: E402
from tests.models.networks import network  # noqa: E402
from tests.trainer_bridge.training.shop import ROWS, SMALL, make_shop  # noqa: E402
from trainer_bridge.adapters.torch import loader  # noqa: E402
from trainer_bridge.feedback.writer import FeedbackWriter  # noqa: E402
from trainer_bridge.models import InputShapes  # noqa: E402
from trainer_bridge.samplers import DifficultyWeightedSampler  # noqa: E402
from trainer_bridge.training import (  # noqa: E402
    export,
    gradient_boosting,
    program_archive,
    quantise,
    run,
    run_environment,
)
from trainer_bridge.training.config import TrainConfig, compose  # noqa: E402
from trainer_bridge.training.data_module import (  # noqa: E402
    LABEL,
    WEIGHT,
    PaimonDataModule,
)
from trainer_bridge.training.encoded_table import EncodedTable  # noqa: E402
from trainer_bridge.training.module import TrainingModule, sample_losses  # noqa: E402
from trainer_bridge.training.network_run import NetworkRun, make_network  # noqa: E402
from trainer_bridge.training.training_table import TrainingTable  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_torch_thread")]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = make_shop(tmp_path_factory.mktemp("shop"))
    rows = read_arrow(project.lake, "training_churn", ["customer_id", "event_time_ms", "churned"])
    project.build_training_set("no_label", "churn_v1", rows)
    words = {
        "favourite": pa.array(["toys"] * ROWS),
        "spent": pa.array([None, *range(ROWS - 1)], pa.float64()),
        # a word that only the newest rows have
        "rare": pa.array(np.where(pc.rank(rows["event_time_ms"]).to_numpy() > ROWS - 30, "new",
                                  np.where(np.arange(ROWS) % 2, "often", "common"))),
    }  # fmt: skip
    for name, column in words.items():
        rows = rows.append_column(name, column)
    project.build_training_set("one_word", "churn_v1", rows, label="churned")
    return project


def config(project: Project, *overrides: str) -> TrainConfig:
    return compose(project.root / "churn.yaml", overrides)


def trained(project: Project, *overrides: str) -> ModelManifest:
    return run.train(project, config(project, *overrides))[0]


def fitted(project: Project, folder: Path, *overrides: str) -> run.Trained:
    """The same without registering."""
    settings, table = run.pinned(project, config(project, *overrides))
    return run.run(project, settings, table, folder)


@pytest.fixture(scope="module")
def first(project: Project) -> ModelManifest:
    torch.set_num_threads(1)
    return trained(project, *SMALL, "card=Who leaves.")


def test_a_run_registers_what_can_be_served_from_raw_features(
    project: Project, first: ModelManifest
) -> None:
    assert (first.name, first.kind) == ("churn", "tabular_transformer")
    assert set(first.files) == {"network.onnx", "network.pt2", "weights.safetensors",
                                "config.json", "encoder.json", "report.html"}  # fmt: skip
    assert [each.of for each in first.signature.inputs][:2] == [
        "spend:count_7d", "spend:sum_amount_7d"
    ]  # fmt: skip
    assert all(each.definition for each in first.signature.inputs)
    assert [(key.name, key.type) for key in first.signature.entities] == [("customer_id", "int64")]
    training = first.training
    assert training is not None
    assert training.table == "training_churn"
    assert training.generations == {"spend": 1}
    assert {"events_shop", "tiles_spend_g1"} >= training.sources.keys() != set()
    assert {"auc", "log_loss", "calibration_error", "onnx_difference"} <= first.metrics.keys()
    assert first.metrics["onnx_difference"].value < 1e-5
    assert first.card.startswith("# churn\n\nWho leaves.")
    assert b"<svg" in project.models.file(first, "report.html")
    assert b"<script" not in project.models.file(first, "report.html")
    # what a serving host does: promote, load by hash, run on raw features
    project.models.promote("churn", first.version)
    place = project.models.place
    production = place.read().models["churn"].production
    assert production is not None
    served = place.load("churn", production)
    rows = read_arrow(project.lake, "training_churn")
    columns = {each.name: rows[each.name] for each in served.manifest.signature.inputs}
    found = export.run_onnx(served.network, served.manifest.signature.inputs, columns)
    assert found.shape == (rows.num_rows, 1)
    assert ((found >= 0) & (found <= 1)).all()
    labels = rows["churned"].to_numpy(zero_copy_only=False)
    assert found[labels].mean() > found[~labels].mean() + 0.1


@pytest.mark.parametrize(
    "overrides",
    [
        ("model=wide_and_deep", "model.dim=16", "data.numbers=quantile"),
        ("model=gradient_boosting", "model.trees=10"),
        ("model=gradient_boosting", "model.trees=5", "objective=regression", "data.label=spent"),
        ("model=gradient_boosting", "model.trees=5", "objective=multiclass",
         "data.label=favourite"),
        pytest.param(
            ("data.service=basket_v1", "model=sequence_transformer", *SMALL, "objective=multiclass",
             "data.label=favourite"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            ("objective=regression", "data.label=spent", "model=wide_and_deep", "model.dim=16",
             "trainer.precision=bf16-mixed"),
            marks=pytest.mark.long,
        ),
    ],
)  # fmt: skip
def test_every_model_is_exported_as_it_is(
    project: Project, tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    made = fitted(project, tmp_path, "trainer.epochs=1", *overrides)
    signature = made.manifest.signature
    check_network(made.files["network.onnx"], signature)
    assert made.manifest.metrics["onnx_difference"].value < export.BOUND
    outputs = signature.outputs[0]
    assert len(outputs.classes) == (outputs.width if signature.task == "multiclass" else 0)


def test_a_finished_run_is_not_trained_again_and_reproduces_to_the_bit(
    project: Project, first: ModelManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run.reproduce(project, "churn", first.version)
    assert result == run.Reproduction(str(first), True, True, 0.0, ())
    assert result.is_same
    monkeypatch.setattr(run, "run", None)
    again, is_new = run.train(project, config(project, *SMALL, "card=Who leaves."))
    assert (again, is_new) == (first, False)


def test_another_result_or_machine_is_found_by_reproducing(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees = trained(project, "name=trees", "model=gradient_boosting", "model.trees=5")
    monkeypatch.setattr(run_environment, "machine", lambda: {"threads": "7"})
    original = gradient_boosting.fit_trees

    def other(model: Any, *rest: Any) -> Any:
        return original(replace(model, learning_rate=0.2), *rest)

    monkeypatch.setattr(gradient_boosting, "fit_trees", other)
    result = run.reproduce(project, "trees", trees.version)
    assert not result.is_same
    assert not result.same_weights
    assert result.difference > 0
    assert ("machine.threads", "1", "7") in result.changes


def network_run(project: Project, folder: Path, *overrides: str, repeats: str = "") -> NetworkRun:
    """Trained only: neither evaluated nor exported."""
    settings, table = run.pinned(project, config(project, *overrides))
    torch.set_num_threads(1)
    data = EncodedTable.fit(table, settings)
    name = repeats or f"churn-{folder.name}"
    return NetworkRun(project, data, folder, name, not repeats).train()


class KilledError(Exception):
    pass


def dies_at(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """The batch of this number, counted over all runs, is the last of its run."""
    original, calls = TrainingModule.training_step, 0

    def dying(self: Any, batch: Any, number: int) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise KilledError
        return original(self, batch, number)

    monkeypatch.setattr(TrainingModule, "training_step", dying)


@pytest.mark.parametrize(
    ("check_every", "at"),
    [
        (3, 4),
        pytest.param(3, 8, marks=pytest.mark.long),
        pytest.param(4, 11, marks=pytest.mark.long),
        ("null", 8),
    ],
)
def test_a_run_that_died_within_an_epoch_ends_as_one_that_did_not(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, check_every: Any
) -> None:
    #  batches  1 2 3 4 5 6 | 7 8 9 10 11 12      checkpoints after 2, 4, ... and each validation
    settings = ("trainer.checkpoint_every=2", "trainer.epochs=2", *SMALL, "model.dropout=0.3",
                f"trainer.check_every={check_every}", "optimiser.lr=0.01")  # fmt: skip
    whole = network_run(project, tmp_path / "whole", *settings)
    dies_at(monkeypatch, at)
    with pytest.raises(KilledError):
        network_run(project, tmp_path / "parts", *settings)
    rest = network_run(project, tmp_path / "parts", *settings)
    assert rest.history == whole.history
    assert rest.weights == whole.weights


def test_losses_of_each_sample_become_feedback_exactly_once(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("feedback.loop=losses", "trainer.checkpoint_every=2", *SMALL, "trainer.epochs=1")
    dies_at(monkeypatch, 4)
    with pytest.raises(KilledError):
        network_run(project, tmp_path, *settings)
    made = network_run(project, tmp_path, *settings)
    rows = read_arrow(project.lake, "feedback_losses")
    rows = rows.filter(pc.equal(rows["run_id"], made.run_id))
    with made.data.train_reader() as reader:
        assert rows.num_rows == reader.num_rows
    assert len(set(rows["sample_id"].to_pylist())) == rows.num_rows
    assert min(rows["loss"].to_pylist()) > 0


def test_difficulty_enters_the_sampler_at_declared_steps_and_is_resumed(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # every tenth sample was hard in an earlier run
    with FeedbackWriter(project.lake, "earlier", {"sample_id": Int64}, "before") as writer:
        samples = np.arange(ROWS)
        writer.write({"sample_id": samples}, np.where(samples % 10, 0.01, 5.0), 0)
    view = project.definitions.views["hard"]
    feedback = event_rows(read_arrow(project.lake, "feedback_earlier"))
    append_arrow(project.lake, view.compiled.table(1), tile_table(view, feedback))
    settings = ("feedback.loop=losses", "feedback.difficulty=hard", "feedback.every=3", *SMALL,
                "trainer.epochs=2", "trainer.checkpoint_every=2")  # fmt: skip
    original: Any = TrainingModule.training_step
    seen: list[tuple[int, list[float], list[int]]] = []

    def step(self: Any, batch: Any, number: int) -> Any:
        keys = batch["keys"]["sample_id"].to_pylist()
        seen.append((self.batches_seen, batch[WEIGHT].tolist(), keys))
        return original(self, batch, number)

    monkeypatch.setattr(TrainingModule, "training_step", step)
    whole = network_run(project, tmp_path / "whole", *settings)
    for batch, weights, keys in seen:
        hard = sum(key % 10 == 0 for key in keys) / len(keys)
        # before the third step rows come evenly, and then most of them are hard and weigh little
        assert (set(weights) == {1.0}) == (batch <= 3)
        assert hard < 0.3 if batch <= 3 else hard > 0.5
    dies_at(monkeypatch, 8)
    # the schedule's choices belong to the run, whose name is that of its folder
    with pytest.raises(KilledError):
        network_run(project, tmp_path / "parts" / "whole", *settings)
    rest = network_run(project, tmp_path / "parts" / "whole", *settings)
    assert rest.weights == whole.weights
    # a repeated run reads the same scores, whatever is in the lake by now, and writes nothing
    written = read_arrow(project.lake, "feedback_losses").num_rows
    append_arrow(project.lake, view.compiled.table(1), tile_table(view, feedback))
    again = network_run(project, tmp_path / "again", *settings, repeats="churn-whole")
    assert again.weights == whole.weights
    assert read_arrow(project.lake, "feedback_losses").num_rows == written


def module_of(project: Project, *overrides: str) -> tuple[TrainingModule, PaimonDataModule]:
    settings, table = run.pinned(project, config(project, *SMALL, *overrides))
    encoded = EncodedTable.fit(table, settings)
    encoder, labels = encoded.encoder, encoded.labels
    shapes = InputShapes(tuple(group.indices for group in encoder.groups))
    torch.manual_seed(1)
    network = make_network(settings, shapes, 1).eval()
    data = PaimonDataModule(
        table, encoder, labels, global_batch_size=64, threads=0, weights=settings.data.weights
    )
    return TrainingModule(network, settings, 10), data


def gradients(module: TrainingModule, batch: Any) -> Any:
    losses = sample_losses(module.config.objective, module(batch), batch[LABEL])
    module.zero_grad()
    (batch[WEIGHT] * losses).mean().backward()
    return torch.cat([p.grad.flatten() for p in module.parameters()])


def test_two_ranks_have_the_gradients_of_one_and_continue_for_it(project: Project) -> None:
    module, data = module_of(project)
    alone = data.train_dataloader()
    batches = iter(alone)
    one = [next(batches) for _ in range(3)]
    state = alone.state_dict()
    shares = [
        loader(data.train_reader(), form=data.form, rank=rank, world_size=2) for rank in (0, 1)
    ]
    for batch, *parts in zip(one, *map(iter, shares), strict=False):
        mean = sum(gradients(module, part) for part in parts) / 2
        assert torch.allclose(mean, gradients(module, batch), atol=1e-6)
    # one rank's position, continued by two
    for share in shares:
        share.load_state_dict(state)
    rest = sorted(float(x) for b in batches for x in b["numbers"][:, 1])
    parts = sorted(float(x) for share in shares for b in share for x in b["numbers"][:, 1])
    assert parts == rest


def test_importance_weights_reach_the_loss_without_bias(project: Project) -> None:
    module, data = module_of(project, "data.weights=weight")
    table = data.table
    with torch.no_grad():
        reader = data.train_reader()
        whole = [
            (float((b[WEIGHT] * sample_losses(module.config.objective, module(b), b[LABEL])).sum()),
             len(b[LABEL]))
            for b in data.train_dataloader()
        ]  # fmt: skip
        truth = sum(total for total, _ in whole) / sum(count for _, count in whole)
        rows = reader.read_columns(["churned"])["churned"].to_numpy(zero_copy_only=False)
        # positives are drawn nine times as often
        sampler = DifficultyWeightedSampler(np.where(rows, 9.0, 1.0), 40_000, beta=1.0, eps=0.0)
        totals, weights, drawn = [], [], []
        for batch in loader(reader.with_sampler(sampler), form=data.form):
            losses = sample_losses(module.config.objective, module(batch), batch[LABEL])
            totals += (batch[WEIGHT] * losses).tolist()
            weights += batch[WEIGHT].tolist()
            drawn += losses.tolist()
    error = np.std(totals) / np.sqrt(len(totals))
    assert abs(np.mean(totals) - truth) < 4 * error
    # without the correction it would be far off
    assert abs(np.mean(drawn) - truth) > 20 * error
    assert table.label == "churned"


def test_validation_rows_are_later_and_the_gap_is_in_no_part(project: Project) -> None:
    settings = config(project, "data.gap=3d")
    table = TrainingTable.open(project, settings.data)
    times = {
        part: np.array(table.rows(table.labelled(where), ["event_time_ms"])["event_time_ms"])
        for part, where in (("train", table.split.train), ("validation", table.split.validation),
                            ("test", table.split.test))
    }  # fmt: skip
    gap = 3 * 86_400_000
    assert times["validation"].min() - times["train"].max() >= gap
    assert times["test"].min() - times["validation"].max() >= gap
    assert sum(map(len, times.values())) < 500


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (["data.training_set=chrn"], UnknownNameError, "available: churn"),
        (["data.service=chrn"], UnknownNameError, "chrn"),
        (["data.label=churnd"], ConfigurationError, "did you mean 'churned'"),
        (["data.time=favourite"], ConfigurationError, "expected UTC milliseconds"),
        (["data.exclude=[x]"], ConfigurationError, "unknown output 'x'"),
        (["data.gap=99d"], ConfigurationError, "training part has no rows"),
        (["data.label=favourite"], ConfigurationError, "objective=binary takes numbers"),
        (
            ["data.label=spent"],
            ConfigurationError,
            "labels are .*; expected 0 and 1",
        ),
        (["data.service=basket_v1"], ConfigurationError, "reads no lists.*last_n_category"),
        (
            ["data.service=basket_v1", "model=gradient_boosting"],
            ConfigurationError,
            "reads no lists.*last_n_category",
        ),
        (
            [
                "data.weights=customer_id",
                "data.label=favourite",
                "objective=multiclass",
                "data.training_set=one_word",
            ],
            ConfigurationError,
            "the label has 1 class in the training rows; expected 2 or",
        ),
        (
            ["data.training_set=one_word", "data.weights=spent"],
            ConfigurationError,
            "data.weights: 'spent' has nulls, negative or infinite numbers",
        ),
        (
            ["data.training_set=no_label"],
            ConfigurationError,
            "training_no_label names no label: set data.label, or build it with --label",
        ),
        (
            ["data.training_set=no_label", "data.label=churned", "data.service=basket_v1"],
            ConfigurationError,
            "lacks spend:last_n_category.* of service 'basket_v1': build it with",
        ),
        (
            [
                "data.label=rare",
                "data.training_set=one_word",
                "objective=multiclass",
                "model=gradient_boosting",
            ],
            ConfigurationError,
            r"labels are 'new'; expected one of the classes .*: \('common', 'often'\)",
        ),
        pytest.param(
            ["trainer.accelerator=gpu"],
            ConfigurationError,
            "torch finds no GPU; say cpu or auto",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
        (["model=sequence_transformer"], ConfigurationError, "add a LastN feature"),
        (["feedback.loop=shop"], UnknownNameError, "available: earlier, losses"),
        (["feedback.loop=losses", "feedback.keys=[customer_id]"], ConfigurationError, "sample_id"),
    ],
)
def test_configurations_that_do_not_fit_are_explained(
    project: Project, tmp_path: Path, overrides: list[str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        fitted(project, tmp_path, *overrides)


def test_positive_rows_weigh_more_and_predictions_are_scores_then(
    project: Project, tmp_path: Path
) -> None:
    trees = ("model=gradient_boosting", "model.trees=5", "data.weights=weight")
    plain, heavy = (
        fitted(project, tmp_path / str(weight), *trees, f"objective.positive_weight={weight}")
        for weight in (1, 8)
    )
    rows = read_arrow(project.lake, "training_churn")
    means = []
    for made in (plain, heavy):
        signature = made.manifest.signature
        columns = {each.name: rows[each.name] for each in signature.inputs}
        means.append(export.run_onnx(made.files["network.onnx"], signature.inputs, columns).mean())
    assert means[1] > means[0] + 0.1
    scores = "Positive rows had the weight 8: predictions are scores, and no probabilities."
    assert scores in heavy.manifest.card
    assert "no probabilities" not in plain.manifest.card


def test_trees_are_validated_on_the_validation_rows(project: Project, tmp_path: Path) -> None:
    settings = config(project, "model=gradient_boosting", "model.trees=20")
    found = run.validate(project, settings, tmp_path)
    table = TrainingTable.open(project, settings.data)
    assert found["log_loss"].rows == table.part("validation", ["churned"]).num_rows
    assert found["auc"].value > 0.6


def test_a_run_whose_version_is_not_the_newest_is_trained_again(project: Project) -> None:
    trees = ("name=twice", "model=gradient_boosting")
    first = trained(project, *trees, "model.trees=3")
    assert trained(project, *trees, "model.trees=3") == first
    second = trained(project, *trees, "model.trees=4")
    third = trained(project, *trees, "model.trees=3")
    assert [each.version for each in (first, second, third)] == [1, 2, 3]
    assert first.training is not None
    assert third.training is not None
    assert third.training.weights == first.training.weights


def test_the_other_optimiser_and_a_constant_rate(project: Project) -> None:
    module, _ = module_of(project, "optimiser=sgd", "optimiser.momentum=0.8", "schedule=constant")
    found = module.configure_optimizers()
    made, schedule = found["optimizer"], found["lr_scheduler"]["scheduler"]
    assert isinstance(made, torch.optim.SGD)
    assert {group["momentum"] for group in made.param_groups} == {0.8}
    rates = []
    for _ in range(12):
        made.step()
        schedule.step()
        rates.append(schedule.get_last_lr()[0])
    assert set(rates) == {0.05}


def test_predictions_that_disagree_are_an_error() -> None:
    eager = np.array([0.5, 0.25])
    assert export.check_agreement("x", eager, np.array([[0.5], [0.25]])) == 0
    with pytest.raises(VerificationError, match="differ from those of the network by"):
        export.check_agreement("x", eager, np.array([0.5, 0.251]))
    with pytest.raises(VerificationError):
        export.check_agreement("x", eager, np.array([0.5, np.nan]))


class Evil:
    def __reduce__(self) -> Any:
        return sys.exit, ("a pickle of the store was run",)


def test_a_program_of_the_store_runs_no_pickle(
    project: Project, first: ModelManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = project.models.file(first, "network.pt2")
    archive = zipfile.ZipFile(io.BytesIO(data))
    assert not any(archive.read(name)[:2] in (b"\x80\x02", b"PK") for name in archive.namelist())
    loaded = export.load_program(data)
    assert loaded(numbers=torch.zeros(3, 12)).shape == (3, 1)

    def changed(name: str, content: bytes) -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as target:
            for part in archive.namelist():
                if part != name:
                    target.writestr(part, archive.read(part))
            target.writestr(name, content)
        return out.getvalue()

    samples = next(n for n in archive.namelist() if n.endswith("sample_inputs/model.pt"))
    weights = next(n for n in archive.namelist() if n.endswith("model_weights_config.json"))
    config_document = json.loads(archive.read(weights))
    for each in config_document["config"].values():
        each["use_pickle"] = True
    for hostile in (
        changed(samples, pickle.dumps(Evil())),
        changed("archive/extra/evil.so", b"x"),
        changed(weights, json.dumps(config_document).encode()),
        b"", b"PK", data[:1_000],
    ):  # fmt: skip
        with pytest.raises(ModelError):
            export.load_program(hostile)
    nothing = io.BytesIO()
    zipfile.ZipFile(nothing, "w").close()
    with pytest.raises(ModelError, match="the file is not a program of torch.export"):
        export.load_program(nothing.getvalue())
    monkeypatch.setattr(program_archive, "MAX_FILE_BYTES", 100)
    with pytest.raises(ModelError, match="bytes; expected at most 100"):
        export.load_program(data)


def test_a_network_in_other_arithmetic_is_a_child_of_it_if_that_brings_something(
    project: Project, first: ModelManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = len(project.models.states("churn").versions)
    speeds = quantise.speeds
    monkeypatch.setattr(quantise, "_ROUND_S", 0.002)
    monkeypatch.setattr(quantise, "speeds", lambda *_: {1: (10.0, 10.0), 64: (1.0, 1.0)})
    refused = quantise.quantise(project, "churn", first.version, "fp16")
    assert refused.manifest is None
    assert refused.reasons == ("it is not faster",)
    assert len(project.models.states("churn").versions) == count
    monkeypatch.setattr(quantise, "speeds", lambda *_: {1: (10.0, 10.0), 64: (2.0, 1.0)})
    made = quantise.quantise(project, "churn", first.version, "fp16").manifest
    assert made is not None
    assert made.version == count + 1
    assert made.parents == (str(first),)
    assert made.metrics["auc"].value == pytest.approx(first.metrics["auc"].value, abs=0.01)
    with pytest.raises(ConfigurationError, match="reproduce that one"):
        run.reproduce(project, "churn", made.version)
    with pytest.raises(ConfigurationError, match="quantised already"):
        quantise.quantise(project, "churn", made.version, "fp16")
    rows = read_arrow(project.lake, "training_churn")
    columns = {each.name: rows[each.name] for each in first.signature.inputs}
    own = export.run_onnx(
        project.models.file(first, "network.onnx"), first.signature.inputs, columns
    )
    for method in quantise.METHODS:
        if method == "fp16":
            monkeypatch.setattr(quantise, "speeds", speeds)
        result = quantise.quantise(project, "churn", first.version, method, force=True)
        assert result.microseconds.keys() == {1, 64}
        assert all(min(pair) > 0 for pair in result.microseconds.values())
        forced = result.manifest
        assert forced is not None
        data = project.models.file(forced, "network.onnx")
        check_network(data, forced.signature)
        found = export.run_onnx(data, forced.signature.inputs, columns)
        # other arithmetic: near, and not the same; how near in the worst row depends on the
        # weights, and these on the processor that trained them
        difference = np.abs(found - own)
        assert difference.max() > 0
        assert difference.mean() < 0.05


def test_what_has_no_weights_is_not_quantised() -> None:
    with pytest.raises(ConfigurationError, match="no matrices of weights"):
        quantise.quantised(network().SerializeToString(), "fp16", {})
