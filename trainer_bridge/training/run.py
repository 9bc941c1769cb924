"""A training run: pinned, resumable, evaluated on later rows, exported, registered."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from paimon_features.core.errors import (
    ConfigurationError,
    MissingExtraError,
    ModelError,
    UnknownNameError,
)
from paimon_features.core.process.callbacks import OnMessage, OnPhase, ignore_message, ignore_phase
from paimon_features.core.times.clock import now_ms
from paimon_features.models import Metric, ModelFile, ModelManifest, TrainingPins, sha256_of
from trainer_bridge.training import evaluation, export, run_environment
from trainer_bridge.training.config import GradientBoosting, TrainConfig
from trainer_bridge.training.encoded_table import EncodedPart, EncodedTable
from trainer_bridge.training.encoding import Arrays
from trainer_bridge.training.feature_importance import feature_importance
from trainer_bridge.training.fitted_model import FittedModel
from trainer_bridge.training.gradient_boosting import FittedTrees
from trainer_bridge.training.report import Importance, model_card, report_page
from trainer_bridge.training.rounds import RoundTable
from trainer_bridge.training.training_table import SplitPart, TrainingTable

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
        finished = _finished(project, config.name, json.loads(done.read_text()))
        if finished is not None:
            return finished, False
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
    return Reproduction(
        str(manifest),
        then.weights == now.weights,
        {n: m for n, m in manifest.metrics.items() if n != GATE} == dict(again.manifest.metrics),
        float(np.abs(predicted - other).max()),
        tuple(_changes(then, now)),
    )


def _changes(then: TrainingPins, now: TrainingPins) -> Iterator[tuple[str, str, str]]:
    """Yield (name, then, now) of versions and settings of the machine that differ."""
    for kind, old, new in (
        ("code", then.code, now.code),
        ("libraries", then.libraries, now.libraries),
        ("machine", then.machine, now.machine),
    ):
        for key in sorted(old.keys() | new.keys()):
            if old.get(key, "-") != new.get(key, "-"):
                yield f"{kind}.{key}", old.get(key, "-"), new.get(key, "-")


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
    _check_can_run(config)
    run_id = repeats or f"{config.name}-{folder.name}"
    _set_threads(config)
    started_ms = now_ms()
    data = EncodedTable.fit(table, config)
    on_message(
        f"{table.table}, snapshot {table.snapshot}: {data.num_training_rows:,} rows to train on, "
        f"{len(data.encoder.features)} features, {data.encoder.width} columns"
    )
    fitted = _fit(project, data, folder, run_id, writes=repeats is None, on_phase=on_phase)
    test = _evaluated(fitted, data, "test")
    on_message(
        ", ".join(f"{name} {metric.value:.4f}" for name, metric in test.metrics.items())
        + f" on the {len(test.rows.labels):,} newest rows"
    )
    exported, differences = fitted.export(data.encoder, *_checked_rows(test.rows))
    importance = feature_importance(fitted, config, data.encoder, test.rows)
    files = {
        **exported,
        "config.json": _text(config.to_document()),
        "encoder.json": data.encoder.to_text().encode(),
    }
    pins = _pins(data, sha256_of(fitted.weights), run_id, started_ms)
    manifest = _manifest(data, pins, files, {**test.metrics, **differences})
    return Trained(
        replace(manifest, card=model_card(manifest, config, table.split, importance)),
        {**files, "report.html": _report(manifest, config, fitted, test, importance)},
        test.predictions,
        fitted.history,
    )


def _check_can_run(config: TrainConfig) -> None:
    """Raise where a package or a GPU is missing, before anything is read."""
    for package, needed in (("onnx", "onnx"), ("onnxruntime", "train"), ("safetensors", "train")):
        try:
            __import__(package)
        except ImportError as error:
            raise MissingExtraError.of(package, needed, "'paimon-features train'") from error
    if config.trainer.accelerator == "gpu" and not torch.cuda.is_available():
        raise ConfigurationError("trainer.accelerator=gpu: torch finds no GPU; say cpu or auto")


def _set_threads(config: TrainConfig) -> None:
    if config.trainer.threads is not None:
        torch.set_num_threads(config.trainer.threads)


def _fit(
    project: Project,
    data: EncodedTable,
    folder: Path,
    run_id: str,
    *,
    writes: bool,
    on_phase: OnPhase = ignore_phase,
    on_validation: Callable[[int, float], bool] | None = None,
) -> FittedModel:
    """Train the model of the configuration; ``writes`` says whether it may write feedback."""
    if isinstance(data.config.model, GradientBoosting):
        return FittedTrees.train(data)
    # not at the top: trees need no Lightning
    from trainer_bridge.training.network_run import NetworkRun

    return NetworkRun(project, data, folder, run_id, writes, on_phase, on_validation).train()


@dataclass(frozen=True)
class _Evaluation:
    """A part of the rows, with what a model predicts for them and how good that is."""

    rows: EncodedPart
    predictions: npt.NDArray[np.float64]
    metrics: dict[str, Metric]


def _evaluated(fitted: FittedModel, data: EncodedTable, part: SplitPart) -> _Evaluation:
    rows, config = data.part(part), data.config
    predictions = fitted.predict(rows.arrays)
    not_finite = int((~np.isfinite(predictions)).sum())
    if not_finite:
        raise ModelError(
            f"{not_finite:,} of {predictions.size:,} predictions are not finite: training "
            "diverged; lower optimiser.lr"
        )
    labels = rows.labels.astype(np.float64)
    metrics = evaluation.evaluate(
        config.objective.task, labels, predictions, config.seed, rows.about
    )
    return _Evaluation(rows, predictions, metrics)


def _checked_rows(test: EncodedPart) -> tuple[dict[str, Any], Arrays]:
    """Return the raw and encoded rows by which eager and exported forms are compared."""
    raw = {name: column.slice(0, CHECKED_ROWS) for name, column in test.raw.items()}
    return raw, {name: array[:CHECKED_ROWS] for name, array in test.arrays.items()}


def _pins(data: EncodedTable, weights: str, run_id: str, started_ms: int) -> TrainingPins:
    """Return everything that a run depends on, so that it can be repeated."""
    table = data.table
    return TrainingPins(
        table=table.table,
        snapshot=table.snapshot,
        rows=data.num_training_rows,
        seeds={"seed": data.config.seed},
        sources=table.sources,
        generations=table.generations,
        fitted=table.fitted,
        code=run_environment.code_versions(),
        libraries=run_environment.library_versions(),
        machine=run_environment.machine(),
        weights=weights,
        started_at_ms=started_ms,
        finished_at_ms=now_ms(),
        run=run_id,
    )


def _manifest(
    data: EncodedTable,
    pins: TrainingPins,
    files: Mapping[str, bytes],
    metrics: Mapping[str, Metric],
) -> ModelManifest:
    config, keys, classes = data.config, data.table.keys, data.labels.classes
    return ModelManifest(
        name=config.name,
        version=1,
        created_at_ms=pins.finished_at_ms,
        kind=config.model.kind,
        signature=export.signature_of(
            data.encoder, config.data.service, keys, config.objective.task, classes
        ),
        files={
            name: ModelFile(sha256_of(content), len(content)) for name, content in files.items()
        },
        training=pins,
        metrics=metrics,
        parents=config.parents,
    )


def _report(
    manifest: ModelManifest,
    config: TrainConfig,
    fitted: FittedModel,
    test: _Evaluation,
    importance: Sequence[Importance],
) -> bytes:
    labels, predictions = test.rows.labels, test.predictions
    return report_page(manifest, config, fitted.history, labels, predictions, importance).encode()


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
    _set_threads(config)
    data = EncodedTable.fit(table, config)
    fitted = _fit(project, data, folder, config.name, writes=False, on_validation=on_validation)
    return _evaluated(fitted, data, "validation").metrics


def pinned(project: Project, config: TrainConfig) -> tuple[TrainConfig, TrainingTable]:
    """Return the configuration with its snapshot and label, and its table there.

    Raises as ``train``.
    """
    if config.round.parent:
        return config, RoundTable.open_round(project, config)
    table = TrainingTable.open(project, config.data)
    data = replace(config.data, snapshot=table.snapshot, label=table.label)
    return replace(config, data=data), table


def _test_columns(table: TrainingTable) -> dict[str, Any]:
    names = [feature.column for feature in table.features]
    rows = table.part("test", names)
    return {name: rows[name].combine_chunks() for name in names}


def identity_of(config: TrainConfig, table: TrainingTable) -> str:
    """Return a name that equal runs have: of configuration, rows, code and libraries."""
    document = [config.to_document(), table.table, table.snapshot]
    document += [run_environment.code_versions(), run_environment.library_versions()]
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
