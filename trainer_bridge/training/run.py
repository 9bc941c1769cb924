"""A training run: pinned, resumable, evaluated on later rows, exported, registered."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from paimon_features import __version__
from paimon_features.core.errors import (
    ConfigurationError,
    MissingExtraError,
    ModelError,
    UnknownNameError,
)
from paimon_features.core.process.callbacks import OnMessage, OnPhase, ignore_message, ignore_phase
from paimon_features.core.times.clock import now_ms
from paimon_features.core.types.array_types import Floats
from paimon_features.models import Metric, ModelFile, ModelManifest, TrainingPins, sha256_of
from trainer_bridge.training import evaluation, export
from trainer_bridge.training.config import GradientBoosting, TrainConfig
from trainer_bridge.training.encoding import Arrays, FeatureEncoder
from trainer_bridge.training.evaluation import EvaluatedRows
from trainer_bridge.training.fitted_model import FittedModel, difference, lists_refused
from trainer_bridge.training.gradient_boosting import fit_trees, probabilities_of, trees_to_onnx
from trainer_bridge.training.labels import LabelCodec, sample_weights
from trainer_bridge.training.report import Importance, model_card, report_page
from trainer_bridge.training.rounds import RoundTable
from trainer_bridge.training.training_table import SplitPart, TrainingTable, entities_of

if TYPE_CHECKING:
    from paimon_features.project import Project

FOLDER = "training"
"""The folder of unfinished runs, in the state folder."""
CHECKED_ROWS = 1_000
"""So many rows of the test part are compared between eager and exported networks."""
QUANTISATION = "quantisation.json"
"""The file of versions in other arithmetic than their parent's."""
GATE = "gate_difference"
"""The metric of a version of ``retrain`` that says what its gate found."""
_IMPORTANCE_ROWS = 2_000
_LIBRARIES = ("lightning", "numpy", "onnx", "onnxscript", "pyarrow", "scikit-learn", "torch")


@dataclass(frozen=True)
class Trained:
    """A finished run that is not registered yet: its manifest, and its files by name."""

    manifest: ModelManifest
    files: Mapping[str, bytes]
    predictions: npt.NDArray[np.float64]
    """Of the test part, in the order of the table."""
    history: Sequence[Mapping[str, float]] = ()
    """Losses by batch."""


@dataclass(frozen=True)
class Reproduction:
    """A version and the same run again: equal weights are equal bits.

    ``difference`` is the largest of the predictions on the test part. ``changes`` are versions and
    settings of the machine that differ, as (name, then, now).
    """

    version: str
    same_weights: bool
    same_metrics: bool
    difference: float
    changes: tuple[tuple[str, str, str], ...]

    @property
    def is_same(self) -> bool:
        """Whether the run was reproduced to the bit."""
        return self.same_weights and self.same_metrics and self.difference == 0


def train(
    project: Project,
    config: TrainConfig,
    *,
    on_message: OnMessage = ignore_message,
    on_phase: OnPhase = ignore_phase,
) -> tuple[ModelManifest, bool]:
    """Train, evaluate and register a version; returns its manifest and whether it is new.

    A run that was interrupted continues at its last checkpoint: the same configuration, training
    set and code are the same run. A finished one is not trained again, while its version is the
    newest one.

    Raises
    ------
    ConfigurationError, UnknownNameError
        For a configuration that does not fit the training set.
    VerificationError
        If exported forms predict other values than the network.
    """
    config, table = pinned(project, config)
    folder = project.config.state_dir / FOLDER / config.name / identity_of(config, table)
    done = folder / "done.json"
    if done.is_file():
        known = _finished(project, config.name, json.loads(done.read_text()))
        if known is not None:
            return known, False
        shutil.rmtree(folder)
    trained = run(project, config, table, folder, on_message=on_message, on_phase=on_phase)
    before = [v.version for v in _versions(project, config.name)]
    manifest = project.models.register(trained.manifest, trained.files, trained.history)
    # checkpoints are for resuming, which a finished run is not
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    done.write_text(json.dumps({"version": manifest.version, "weights": _weights(manifest)}))
    return manifest, manifest.version not in before


def reproduce(
    project: Project,
    name: str,
    version: int | None = None,
    *,
    on_message: OnMessage = ignore_message,
    on_phase: OnPhase = ignore_phase,
) -> Reproduction:
    """Run a version's training again, from its pins, and compare; registers nothing.

    Raises
    ------
    UnknownNameError
        If there is no such model or version.
    SnapshotExpiredError, UnknownNameError
        If its training set is gone.
    ConfigurationError
        For a version that was not trained by a configuration.
    """
    manifest = project.models.manifest(name, version)
    if QUANTISATION in manifest.files:
        raise ConfigurationError(
            f"model {manifest} is {manifest.parents[0]} in other arithmetic: reproduce that one"
        )
    config, table = pinned(project, config_of(project, manifest))
    then = manifest.training
    assert then is not None, "config_of has checked it"
    folder = project.config.state_dir / FOLDER / name / f"reproduce-{manifest.version}"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        again = run(
            project, config, table, folder, repeats=then.run, on_message=on_message,
            on_phase=on_phase,
        )  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    now = again.manifest.training
    assert now is not None
    columns = _test_columns(table)
    predicted = export.run_onnx(
        project.models.file(manifest, "network.onnx"), manifest.signature.inputs, columns
    )
    other = export.run_onnx(again.files["network.onnx"], manifest.signature.inputs, columns)
    pairs = [
        (f"{kind}.{key}", old.get(key, "-"), new.get(key, "-"))
        for kind, old, new in (
            ("code", then.code, now.code),
            ("libraries", then.libraries, now.libraries),
            ("machine", then.machine, now.machine),
        )
        for key in sorted(old.keys() | new.keys())
    ]
    return Reproduction(
        str(manifest),
        then.weights == now.weights,
        {n: m for n, m in manifest.metrics.items() if n != GATE} == dict(again.manifest.metrics),
        float(np.abs(predicted - other).max()),
        tuple(pair for pair in pairs if pair[1] != pair[2]),
    )


def config_of(project: Project, manifest: ModelManifest) -> TrainConfig:
    """Return the configuration that a version was trained by.

    Raises
    ------
    ConfigurationError
        If it was not trained by a configuration.
    """
    if manifest.training is None or "config.json" not in manifest.files:
        raise ConfigurationError(f"model {manifest} was not trained by 'paimon-features train'")
    return TrainConfig.from_document(json.loads(project.models.file(manifest, "config.json")))


def run(
    project: Project,
    config: TrainConfig,
    table: TrainingTable,
    folder: Path,
    *,
    repeats: str | None = None,
    on_message: OnMessage = ignore_message,
    on_phase: OnPhase = ignore_phase,
) -> Trained:
    """Train and export; ``folder`` has the checkpoints to resume from.

    A run that ``repeats`` another one, given by its name, reads the scores that it read, and writes
    no feedback.
    """
    for package, needed in (("onnx", "onnx"), ("onnxruntime", "train"), ("safetensors", "train")):
        try:
            __import__(package)
        except ImportError as error:
            raise MissingExtraError.of(package, needed, "'paimon-features train'") from error
    if config.trainer.accelerator == "gpu" and not torch.cuda.is_available():
        raise ConfigurationError("trainer.accelerator=gpu: torch finds no GPU; say cpu or auto")
    run_id = repeats or f"{config.name}-{folder.name}"
    if config.trainer.threads is not None:
        torch.set_num_threads(config.trainer.threads)
    started_ms = now_ms()
    encoder, labels, rows = _fitted(table, config)
    on_message(
        f"{table.table}, snapshot {table.snapshot}: {rows:,} rows to train on, "
        f"{len(encoder.features)} features, {encoder.width} columns"
    )
    fitted: FittedModel
    if isinstance(config.model, GradientBoosting):
        fitted = _Trees.train(table, config, encoder, labels)
    else:
        # not at the top: trees need no Lightning
        from trainer_bridge.training.network_run import NetworkRun

        fitted = NetworkRun(
            project, table, config, encoder, labels, folder, run_id, repeats is None, on_phase
        ).train()
    test = _part(table, config, encoder, labels, "test")
    predictions = _finite(fitted.predict(test.arrays))
    metrics = evaluation.evaluate(
        config.objective.task, test.labels.astype(np.float64), predictions, config.seed, test.about
    )
    on_message(
        ", ".join(f"{name} {metric.value:.4f}" for name, metric in metrics.items())
        + f" on the {len(test.labels):,} newest rows"
    )
    columns = {name: column.slice(0, CHECKED_ROWS) for name, column in test.raw.items()}
    few = {name: array[:CHECKED_ROWS] for name, array in test.arrays.items()}
    exported, differences = fitted.export(encoder, columns, few)
    metrics |= differences
    importance = _importance(fitted, config, encoder, test)
    signature = export.signature_of(
        encoder, config.data.service, table.keys, config.objective.task, labels.classes
    )
    files = {
        **exported,
        "config.json": _text(config.to_document()),
        "encoder.json": encoder.to_text().encode(),
    }
    pins = TrainingPins(
        table=table.table,
        snapshot=table.snapshot,
        rows=rows,
        seeds={"seed": config.seed},
        sources=table.sources,
        generations=table.generations,
        fitted=table.fitted,
        code=_code(),
        libraries=_libraries(),
        machine=_machine(),
        weights=sha256_of(fitted.weights),
        started_at_ms=started_ms,
        finished_at_ms=now_ms(),
        run=run_id,
    )
    manifest = ModelManifest(
        name=config.name,
        version=1,
        created_at_ms=pins.finished_at_ms,
        kind=config.model.kind,
        signature=signature,
        files={name: ModelFile(sha256_of(data), len(data)) for name, data in files.items()},
        training=pins,
        metrics=metrics,
        parents=config.parents,
    )
    card = model_card(manifest, config, table.split, importance)
    page = report_page(manifest, config, fitted.history, test.labels, predictions, importance)
    files["report.html"] = page.encode()
    return Trained(replace(manifest, card=card), files, predictions, fitted.history)


def validate(
    project: Project,
    config: TrainConfig,
    folder: Path,
    on_validation: Callable[[int, float], bool] | None = None,
) -> dict[str, Metric]:
    """Train, and evaluate on the validation part; exports, registers and feeds back nothing.

    A run that was interrupted continues at its checkpoint in ``folder``. ``on_validation`` takes
    the batches seen and the validation loss, and returns whether to stop; trees have no such steps.
    """
    config, table = pinned(project, config)
    if config.trainer.threads is not None:
        torch.set_num_threads(config.trainer.threads)
    encoder, labels, _ = _fitted(table, config)
    fitted: FittedModel
    if isinstance(config.model, GradientBoosting):
        fitted = _Trees.train(table, config, encoder, labels)
    else:
        from trainer_bridge.training.network_run import NetworkRun

        fitted = NetworkRun(
            project, table, config, encoder, labels, folder, config.name, writes=False,
            on_validation=on_validation,
        ).train()  # fmt: skip
    part = _part(table, config, encoder, labels, "validation")
    return evaluation.evaluate(
        config.objective.task,
        part.labels.astype(np.float64),
        _finite(fitted.predict(part.arrays)),
        config.seed,
        part.about,
    )


def _finite(predictions: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the predictions; ModelError where training has diverged."""
    wrong = int((~np.isfinite(predictions)).sum())
    if wrong:
        raise ModelError(
            f"{wrong:,} of {predictions.size:,} predictions are not finite: training diverged; "
            "lower optimiser.lr"
        )
    return predictions


@dataclass(frozen=True)
class _Part:
    """One part of the rows: raw columns by name, encoded, labels, entities and weights."""

    raw: dict[str, Any]
    arrays: Arrays
    labels: npt.NDArray[Any]
    about: EvaluatedRows

    @property
    def weights(self) -> Floats | None:
        return self.about.weights


class _Trees(FittedModel):
    def __init__(self, estimator: Any, task: str, width: int, classes: int) -> None:
        self.estimator, self.task, self.classes = estimator, task, classes
        self.history = []
        self.model = trees_to_onnx(estimator, task, width, classes)
        self.weights = self.model.SerializeToString(deterministic=True)

    @classmethod
    def train(
        cls, table: TrainingTable, config: TrainConfig, encoder: FeatureEncoder, labels: LabelCodec
    ) -> _Trees:
        assert isinstance(config.model, GradientBoosting)
        part = _part(table, config, encoder, labels, "train")
        if set(part.arrays) != {"numbers"}:
            raise lists_refused(config, encoder)
        task = config.objective.task
        numbers = part.arrays["numbers"]
        estimator = fit_trees(
            config.model, task, numbers, part.labels, _total_weights(config, part), config.seed
        )
        return cls(estimator, task, encoder.width, len(labels.classes))

    def predict(self, arrays: Arrays) -> npt.NDArray[np.float64]:
        return probabilities_of(self.estimator, self.task, arrays["numbers"], self.classes)

    def export(
        self, encoder: FeatureEncoder, raw: dict[str, Any], arrays: Arrays
    ) -> tuple[dict[str, bytes], dict[str, Metric]]:
        from onnx import helper

        graph = self.model.graph
        name = export.output_name(self.task)
        if self.task == "regression":
            graph.node.append(helper.make_node("Identity", ["logits"], [name]))
        elif self.task == "binary":
            graph.node.append(helper.make_node("Sigmoid", ["logits"], [name]))
        else:
            graph.node.append(helper.make_node("Softmax", ["logits"], [name], axis=1))
        graph.output[0].name = name
        data = export.from_raw_features(encoder, self.model, name)
        eager = self.predict(arrays)
        found = export.run_onnx(data, encoder.inputs(), raw)
        apart = export.check_agreement("the ONNX graph", eager, found)
        return {"network.onnx": data}, {"onnx_difference": difference(apart, len(eager))}


def pinned(project: Project, config: TrainConfig) -> tuple[TrainConfig, TrainingTable]:
    """Return the configuration with its snapshot and label, and its table there.

    Raises as ``train``.
    """
    if config.round.parent:
        return config, RoundTable.open_round(project, config)
    table = TrainingTable.open(project, config.data)
    data = replace(config.data, snapshot=table.snapshot, label=table.label)
    return replace(config, data=data), table


def _fitted(table: TrainingTable, config: TrainConfig) -> tuple[FeatureEncoder, LabelCodec, int]:
    if isinstance(table, RoundTable):
        return table.encoder, table.labels, table.train_rows.num_rows
    columns = [*(feature.column for feature in table.features), table.label]
    rows = table.part("train", columns)
    labels = _checked_labels(table, config.objective.task, rows[table.label])
    encoder = FeatureEncoder.fit(
        rows,
        table.features,
        numbers=config.data.numbers,
        max_categories=config.data.max_categories,
        max_items=config.data.max_items,
        seed=config.seed,
    )
    return encoder, labels, rows.num_rows


def _checked_labels(table: TrainingTable, task: str, training: Any) -> LabelCodec:
    """Return the labels of the training rows.

    Those of all parts are checked before anything is fitted.
    """
    labels = LabelCodec.of(task, training)
    parts: tuple[SplitPart, ...] = ("validation", "test")
    for name in parts:
        column = table.part(name, [table.label])[table.label]
        if not len(column):
            raise ConfigurationError(f"no row of the {name} part has a label")
        try:
            labels.apply(column)
        except ConfigurationError as error:
            raise ConfigurationError(f"the {name} part: {error}") from None
    return labels


def _part(
    table: TrainingTable,
    config: TrainConfig,
    encoder: FeatureEncoder,
    labels: LabelCodec,
    name: SplitPart,
) -> _Part:
    names = [feature.column for feature in encoder.features]
    extra = [] if config.data.weights is None else [config.data.weights]
    keys = [key.name for key in table.keys]
    rows = table.part(name, [*names, table.label, *extra, *keys])
    weights = sample_weights(rows, config.data.weights)
    if weights is not None and not weights.any():
        raise ConfigurationError(
            f"data.weights: {config.data.weights!r} is 0 in all {len(weights):,} rows of the "
            f"{name} part; expected rows that count"
        )
    return _Part(
        {name: rows[name].combine_chunks() for name in names},
        encoder.apply(rows),
        labels.apply(rows[table.label]),
        EvaluatedRows(entities_of(rows, keys), weights),
    )


def _test_columns(table: TrainingTable) -> dict[str, Any]:
    names = [feature.column for feature in table.features]
    rows = table.part("test", names)
    return {name: rows[name].combine_chunks() for name in names}


def _total_weights(config: TrainConfig, part: _Part) -> Floats | None:
    positive = config.objective.positive_weight
    if positive == 1 or config.objective.task != "binary":
        return part.weights
    own = np.where(part.labels > 0.5, positive, 1.0)
    return own if part.weights is None else own * part.weights


def _importance(
    fitted: FittedModel, config: TrainConfig, encoder: FeatureEncoder, test: _Part
) -> list[Importance]:
    """Return how much worse the first loss gets when a feature is permuted, the most important
    first."""
    rows = min(_IMPORTANCE_ROWS, len(test.labels))
    dice = np.random.default_rng(config.seed)
    order = dice.permutation(rows)
    arrays = {name: array[:rows] for name, array in test.arrays.items()}
    labels = test.labels[:rows].astype(np.float64)
    weights = None if test.weights is None else test.weights[:rows]
    task = config.objective.task
    loss = "mse" if task == "regression" else "log_loss"

    def loss_of(changed: Arrays) -> float:
        found = fitted.predict(changed)
        rows = EvaluatedRows(weights=weights)
        return evaluation.evaluate(task, labels, found, config.seed, rows)[loss].value

    before = loss_of(arrays)
    found = []
    for group in encoder.groups:
        numbers = arrays["numbers"].copy()
        numbers[:, list(group.indices)] = numbers[order][:, list(group.indices)]
        found.append(Importance(group.output, loss_of({**arrays, "numbers": numbers}) - before))
    for name, kind in (("codes", "text_list"), ("values", "number_list")):
        for index, feature in enumerate(f for f in encoder.features if f.kind == kind):
            changed = arrays[name].copy()
            changed[:, index] = changed[order][:, index]
            found.append(Importance(feature.output, loss_of({**arrays, name: changed}) - before))
    return sorted(found, key=lambda each: -each.increase)


def identity_of(config: TrainConfig, table: TrainingTable) -> str:
    """Return a name that equal runs have: of configuration, rows, code and libraries."""
    document = [config.to_document(), table.table, table.snapshot, _code(), _libraries()]
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def _versions(project: Project, name: str) -> list[Any]:
    try:
        return list(project.models.states(name).versions)
    except UnknownNameError:
        return []


def _finished(project: Project, name: str, done: Mapping[str, Any]) -> ModelManifest | None:
    """Return the version of a finished run, if it is the newest one."""
    versions = _versions(project, name)
    if not versions or versions[-1].version != done["version"]:
        return None
    manifest = project.models.manifest(name, done["version"])
    return manifest if _weights(manifest) == done["weights"] else None


def _weights(manifest: ModelManifest) -> str:
    return "" if manifest.training is None else manifest.training.weights


def _text(document: Any) -> bytes:
    return (json.dumps(document, sort_keys=True, indent=1) + "\n").encode()


def _code() -> dict[str, str]:
    """Return the version of this package; of a checkout its commit, and whether it has changes."""
    found = {"paimon_features": __version__}
    folder = Path(__file__).parents[2]
    if (folder / ".git").exists():
        for name, arguments in (
            ("commit", ("rev-parse", "HEAD")),
            ("changes", ("status", "--porcelain", "--", "paimon_features", "trainer_bridge")),
        ):
            done = subprocess.run(
                ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False
            )
            text = done.stdout.strip()
            if done.returncode == 0 and text:
                digest = hashlib.sha256(text.encode()).hexdigest()[:12]
                found[name] = text if name == "commit" else digest
    return found


def _libraries() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _machine() -> dict[str, str]:
    """Return what the last bits of a sum can depend on."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "python": platform.python_version(),
        "processor": platform.machine(),
        "vector": torch.backends.cpu.get_cpu_capability(),
        "device": device,
        "threads": str(torch.get_num_threads()),
    }
