"""A training run: pinned, resumable, evaluated on later rows, exported, registered."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import shutil
import subprocess
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from paimon_features import __version__
from paimon_features.callbacks import OnMessage, ignore_message
from paimon_features.clock import now_ms
from paimon_features.definitions import FeedbackSource
from paimon_features.errors import ConfigurationError, MissingExtraError, UnknownNameError
from paimon_features.models import Metric, ModelFile, ModelManifest, TrainingPins, sha256_of
from trainer_bridge.feedback.writer import FeedbackWriter
from trainer_bridge.models import (
    InputShapes,
    Network,
    SequenceTransformerNetwork,
    TabularTransformerNetwork,
    WideAndDeepNetwork,
)
from trainer_bridge.readers.score_schedule import ScoreSchedule
from trainer_bridge.training import evaluation, export
from trainer_bridge.training.config import (
    GradientBoosting,
    SequenceTransformer,
    TabularTransformer,
    TrainConfig,
    WideAndDeep,
)
from trainer_bridge.training.data_module import (
    LabelCodec,
    PaimonDataModule,
    labelled,
    weights_of,
)
from trainer_bridge.training.encoding import Arrays, FeatureEncoder
from trainer_bridge.training.gradient_boosting import fit_trees, probabilities_of, trees_to_onnx
from trainer_bridge.training.module import (
    ResumePoint,
    SampleFeedback,
    TrainingModule,
    predictions_of,
)
from trainer_bridge.training.report import Importance, model_card, report_page
from trainer_bridge.training.training_table import TrainingTable

if TYPE_CHECKING:
    from paimon_features.project import Project

FOLDER = "training"
"""The folder of unfinished runs, in the state folder."""
CHECKED_ROWS = 1_000
"""So many rows of the test part are compared between eager and exported networks."""
_IMPORTANCE_ROWS = 2_000
_CHUNK = 4_096
_LIBRARIES = ("lightning", "numpy", "onnx", "onnxscript", "pyarrow", "scikit-learn", "torch")


@dataclass(frozen=True)
class Trained:
    """A finished run that is not registered yet: its manifest, and its files by name."""

    manifest: ModelManifest
    files: Mapping[str, bytes]
    predictions: npt.NDArray[np.float64]
    """Of the test part, in the order of the table."""


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
    progress: bool = False,
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
    config, table = _pinned(project, config)
    folder = project.config.state_dir / FOLDER / config.name / _identity(config, table)
    done = folder / "done.json"
    if done.is_file():
        known = _finished(project, config.name, json.loads(done.read_text()))
        if known is not None:
            return known, False
        shutil.rmtree(folder)
    trained = run(project, config, table, folder, on_message=on_message, progress=progress)
    before = [v.version for v in _versions(project, config.name)]
    manifest = project.models.register(trained.manifest, trained.files)
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
    progress: bool = False,
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
    then = manifest.training
    if then is None or "config.json" not in manifest.files:
        raise ConfigurationError(f"model {manifest} was not trained by 'paimon-features train'")
    document = json.loads(project.models.file(manifest, "config.json"))
    config, table = _pinned(project, TrainConfig.from_document(document))
    folder = project.config.state_dir / FOLDER / name / f"reproduce-{manifest.version}"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        again = run(
            project, config, table, folder, repeats=then.run, on_message=on_message,
            progress=progress,
        )  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    now = again.manifest.training
    assert now is not None
    columns = _test_columns(table, config)
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
        dict(manifest.metrics) == dict(again.manifest.metrics),
        float(np.abs(predicted - other).max()),
        tuple(pair for pair in pairs if pair[1] != pair[2]),
    )


def run(
    project: Project,
    config: TrainConfig,
    table: TrainingTable,
    folder: Path,
    *,
    repeats: str | None = None,
    on_message: OnMessage = ignore_message,
    progress: bool = False,
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
    if isinstance(config.model, GradientBoosting):
        fitted: _Fitted = _Trees.train(table, config, encoder, labels)
    else:
        network_run = _NetworkRun(
            project, table, config, encoder, labels, folder, run_id, repeats is None, progress
        )
        fitted = network_run.train()
    test = _part(table, config, encoder, labels, table.split.test)
    predictions = fitted.predict(test.arrays)
    metrics = evaluation.evaluate(
        config.objective.task, test.labels.astype(np.float64), predictions, config.seed
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
    return Trained(replace(manifest, card=card), files, predictions)


@dataclass(frozen=True)
class _Part:
    """One part of the rows: raw columns by name, encoded, labels."""

    raw: dict[str, Any]
    arrays: Arrays
    labels: npt.NDArray[Any]
    weights: npt.NDArray[np.float64] | None


class _Fitted:
    """What was trained: a network, or trees."""

    weights: bytes
    history: list[dict[str, float]]

    def predict(self, arrays: Arrays) -> npt.NDArray[np.float64]:
        """Predictions: of true (rows,), of each class (rows, classes), or values (rows,)."""
        raise NotImplementedError

    def export(
        self, encoder: FeatureEncoder, raw: dict[str, Any], arrays: Arrays
    ) -> tuple[dict[str, bytes], dict[str, Metric]]:
        """Files, and how far their predictions are from those of ``predict``, on these rows."""
        raise NotImplementedError


class _Trees(_Fitted):
    def __init__(self, estimator: Any, task: str, width: int) -> None:
        self.estimator, self.task = estimator, task
        self.history = []
        self.model = trees_to_onnx(estimator, task, width)
        self.weights = self.model.SerializeToString(deterministic=True)

    @classmethod
    def train(
        cls, table: TrainingTable, config: TrainConfig, encoder: FeatureEncoder, labels: LabelCodec
    ) -> _Trees:
        assert isinstance(config.model, GradientBoosting)
        part = _part(table, config, encoder, labels, table.split.train)
        if set(part.arrays) != {"numbers"}:
            raise _lists_refused(config, encoder)
        task = config.objective.task
        numbers = part.arrays["numbers"]
        estimator = fit_trees(
            config.model, task, numbers, part.labels, _total_weights(config, part), config.seed
        )
        return cls(estimator, task, encoder.width)

    def predict(self, arrays: Arrays) -> npt.NDArray[np.float64]:
        return probabilities_of(self.estimator, self.task, arrays["numbers"])

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
        difference = export.check_agreement("the ONNX graph", eager, found)
        return {"network.onnx": data}, {"onnx_difference": _difference(difference, len(eager))}


class _NetworkRun(_Fitted):
    """A network, trained by Lightning."""

    def __init__(
        self,
        project: Project,
        table: TrainingTable,
        config: TrainConfig,
        encoder: FeatureEncoder,
        labels: LabelCodec,
        folder: Path,
        run_id: str,
        writes: bool = True,
        progress: bool = False,
    ) -> None:
        self.project, self.table, self.config = project, table, config
        self.labels, self.folder, self.progress = labels, folder, progress
        self.run_id, self.writes = run_id, writes
        shapes = InputShapes(
            tuple(group.indices for group in encoder.groups),
            encoder.vocabulary_sizes,
            encoder.value_lists,
            encoder.length,
        )
        torch.manual_seed(config.seed)
        self.network = make_network(config, shapes, max(1, len(labels.classes)))
        if encoder.length and not self.network.uses_lists:
            raise _lists_refused(config, encoder)
        feedback = config.feedback
        self.data = PaimonDataModule(
            table,
            encoder,
            labels,
            global_batch_size=config.data.batch_size,
            seed=config.seed,
            threads=config.data.threads,
            weights=config.data.weights,
            keys=feedback.keys if feedback.loop else (),
            schedule=self._schedule(run_id),
        )
        self.history = []

    def _schedule(self, run_id: str) -> ScoreSchedule | None:
        feedback, table = self.config.feedback, self.table
        if feedback.difficulty is None:
            return None
        condition = labelled(table, table.split.train)
        with table.reader(condition, feedback.keys, batch_size=1) as reader:
            samples = reader.read_columns(list(feedback.keys))
        return ScoreSchedule(
            self.project, feedback.difficulty, samples, run_id, every=feedback.every,
            clock_ms=now_ms,
        )  # fmt: skip

    def train(self) -> _NetworkRun:
        settings = self.config.trainer
        with self.data.train_reader() as reader:
            batches = len(reader)
        steps = -(-batches // settings.accumulate) * settings.epochs
        module = TrainingModule(self.network, self.config, steps)
        # both decide when validation ends, so that the resume point knows of it
        best = ModelCheckpoint(
            self.folder,
            "best",
            monitor="val_loss",
            save_weights_only=True,
            save_on_train_epoch_end=False,
        )
        checkpoint = self.folder / "last.ckpt"
        # behind the best one, whose state is part of it
        last = ResumePoint(checkpoint, batches, settings.checkpoint_every, settings.check_every)
        callbacks: list[lightning.Callback] = [best, last]
        if settings.patience is not None:
            stop = EarlyStopping(
                "val_loss", patience=settings.patience, check_on_train_epoch_end=False
            )
            callbacks.append(stop)
        with ExitStack() as stack:
            stack.enter_context(_calm())
            writer = self._writer()
            if writer is not None:
                callbacks.append(SampleFeedback(stack.enter_context(writer)))
            trainer = lightning.Trainer(
                accelerator=settings.accelerator,
                devices=1,
                precision=settings.precision,
                max_epochs=settings.epochs,
                accumulate_grad_batches=settings.accumulate,
                gradient_clip_val=self.config.optimiser.clip,
                val_check_interval=settings.check_every,
                check_val_every_n_epoch=None if settings.check_every else 1,
                num_sanity_val_steps=0,
                deterministic="warn" if torch.cuda.is_available() else True,
                use_distributed_sampler=False,
                logger=False,
                enable_progress_bar=self.progress,
                enable_model_summary=False,
                log_every_n_steps=1,
                default_root_dir=self.folder,
                callbacks=callbacks,
            )
            trainer.fit(
                module,
                datamodule=self.data,
                ckpt_path=str(checkpoint) if checkpoint.is_file() else None,
                weights_only=True,
            )
        self.history = module.history
        if best.best_model_path:
            found = torch.load(best.best_model_path, map_location="cpu", weights_only=True)
            module.load_state_dict(found["state_dict"])
        self.network.cpu().eval()
        from safetensors.torch import save

        tensors = {name: t.contiguous() for name, t in self.network.state_dict().items()}
        self.weights = save(dict(sorted(tensors.items())))
        return self

    def _writer(self) -> FeedbackWriter | None:
        loop = self.config.feedback.loop
        if loop is None or not self.writes:
            return None
        sources = self.project.definitions.sources
        source = sources.get(loop)
        if not isinstance(source, FeedbackSource):
            known = [name for name, each in sources.items() if isinstance(each, FeedbackSource)]
            raise UnknownNameError.of("feedback source", loop, known)
        names, keys = self.table.lake.schema(self.table.table).names, tuple(source.sample_keys)
        if keys != self.config.feedback.keys or any(key not in names for key in keys):
            raise ConfigurationError(
                f"feedback.keys={list(self.config.feedback.keys)}: feedback source {loop!r} has "
                f"{list(keys)}, and {self.table.table} has {', '.join(names)}"
            )
        return FeedbackWriter(
            self.table.lake, source, run_id=self.run_id, model_version=self.config.name
        )

    def predict(self, arrays: Arrays) -> npt.NDArray[np.float64]:
        task = self.config.objective.task
        names = ("numbers", "codes", "values") if self.network.uses_lists else ("numbers",)
        parts = []
        with torch.inference_mode():
            for start in range(0, len(arrays["numbers"]), _CHUNK):
                batch = {
                    name: torch.from_numpy(arrays[name][start : start + _CHUNK])
                    for name in names
                    if name in arrays
                }
                parts.append(predictions_of(task, self.network(**batch)).double().numpy())
        found = np.concatenate(parts)
        return found if task == "multiclass" else found[:, 0]

    def export(
        self, encoder: FeatureEncoder, raw: dict[str, Any], arrays: Arrays
    ) -> tuple[dict[str, bytes], dict[str, Metric]]:
        task = self.config.objective.task
        program, data = export.export_program(self.network, task)
        model = export.program_to_onnx(program, tuple(self.network.examples()))
        # the exporter names every output 'probability'
        for node in model.graph.node:
            for index, name in enumerate(node.output):
                if name == "probability":
                    node.output[index] = export.output_name(task)
        model.graph.output[0].name = export.output_name(task)
        graph = export.from_raw_features(encoder, model, export.output_name(task))
        eager = self.predict(arrays)
        found = export.run_onnx(graph, encoder.inputs(), raw)
        tensors = export.tensors_of(arrays)
        own = {name: tensors[name] for name in self.network.examples()}
        with torch.inference_mode():
            loaded = export.load_program(data)(**own).numpy()
        rows = len(eager)
        differences = {
            "onnx_difference": export.check_agreement("the ONNX graph", eager, found),
            "export_difference": export.check_agreement("torch.export", eager, loaded),
        }
        files = {"network.onnx": graph, "network.pt2": data, "weights.safetensors": self.weights}
        return files, {name: _difference(value, rows) for name, value in differences.items()}


def make_network(config: TrainConfig, shapes: InputShapes, outputs: int) -> Network:
    """The network of a configuration, with new weights."""
    model = config.model
    if isinstance(model, WideAndDeep):
        return WideAndDeepNetwork(
            shapes, outputs, dim=model.dim, layers=model.layers, dropout=model.dropout
        )
    assert isinstance(model, TabularTransformer | SequenceTransformer)
    settings: dict[str, Any] = {
        "dim": model.dim, "layers": model.layers, "heads": model.heads, "dropout": model.dropout,
    }  # fmt: skip
    if isinstance(model, TabularTransformer):
        return TabularTransformerNetwork(shapes, outputs, **settings)
    if not shapes.length:
        raise ConfigurationError(
            "model=sequence_transformer reads lists of events, and the service has none: add a "
            "LastN feature, or say model=tabular_transformer"
        )
    return SequenceTransformerNetwork(shapes, outputs, **settings)


def _pinned(project: Project, config: TrainConfig) -> tuple[TrainConfig, TrainingTable]:
    table = TrainingTable.open(project, config.data)
    data = replace(config.data, snapshot=table.snapshot, label=table.label)
    return replace(config, data=data), table


def _fitted(table: TrainingTable, config: TrainConfig) -> tuple[FeatureEncoder, LabelCodec, int]:
    columns = [*(feature.column for feature in table.features), table.label]
    rows = table.rows(labelled(table, table.split.train), columns)
    encoder = FeatureEncoder.fit(
        rows,
        table.features,
        numbers=config.data.numbers,
        max_categories=config.data.max_categories,
        max_items=config.data.max_items,
        seed=config.seed,
    )
    return encoder, LabelCodec.of(config.objective.task, rows[table.label]), rows.num_rows


def _part(
    table: TrainingTable,
    config: TrainConfig,
    encoder: FeatureEncoder,
    labels: LabelCodec,
    condition: str,
) -> _Part:
    names = [feature.column for feature in encoder.features]
    extra = [] if config.data.weights is None else [config.data.weights]
    rows = table.rows(labelled(table, condition), [*names, table.label, *extra])
    weights = None if not extra else weights_of(rows[extra[0]], extra[0]).astype(np.float64)
    return _Part(
        {name: rows[name].combine_chunks() for name in names},
        encoder.apply(rows),
        labels.apply(rows[table.label]),
        weights,
    )


def _test_columns(table: TrainingTable, config: TrainConfig) -> dict[str, Any]:
    names = [feature.column for feature in table.features]
    rows: pa.Table = table.rows(labelled(table, table.split.test), names)
    return {name: rows[name].combine_chunks() for name in names}


def _total_weights(config: TrainConfig, part: _Part) -> npt.NDArray[np.float64] | None:
    positive = config.objective.positive_weight
    if positive == 1 or config.objective.task != "binary":
        return part.weights
    own = np.where(part.labels > 0.5, positive, 1.0)
    return own if part.weights is None else own * part.weights


def _importance(
    fitted: _Fitted, config: TrainConfig, encoder: FeatureEncoder, test: _Part
) -> list[Importance]:
    """How much worse the first loss gets when a feature is permuted, the most important first."""
    rows = min(_IMPORTANCE_ROWS, len(test.labels))
    dice = np.random.default_rng(config.seed)
    order = dice.permutation(rows)
    arrays = {name: array[:rows] for name, array in test.arrays.items()}
    labels = test.labels[:rows].astype(np.float64)
    task = config.objective.task
    loss = "mse" if task == "regression" else "log_loss"

    def loss_of(changed: Arrays) -> float:
        found = fitted.predict(changed)
        return evaluation.evaluate(task, labels, found, config.seed)[loss].value

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


def _lists_refused(config: TrainConfig, encoder: FeatureEncoder) -> ConfigurationError:
    names = [f.output for f in encoder.features if f.kind in ("text_list", "number_list")]
    return ConfigurationError(
        f"model={config.model.kind} reads no lists, and the service has {', '.join(names)}: say "
        f"model=sequence_transformer, or 'data.exclude=[{','.join(names)}]'"
    )


def _identity(config: TrainConfig, table: TrainingTable) -> str:
    document = [config.to_document(), table.table, table.snapshot, _code(), _libraries()]
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def _versions(project: Project, name: str) -> list[Any]:
    try:
        return list(project.models.states(name).versions)
    except UnknownNameError:
        return []


def _finished(project: Project, name: str, done: Mapping[str, Any]) -> ModelManifest | None:
    """The version of a finished run, if it is the newest one."""
    versions = _versions(project, name)
    if not versions or versions[-1].version != done["version"]:
        return None
    manifest = project.models.manifest(name, done["version"])
    return manifest if _weights(manifest) == done["weights"] else None


def _weights(manifest: ModelManifest) -> str:
    return "" if manifest.training is None else manifest.training.weights


def _difference(value: float, rows: int) -> Metric:
    return Metric(value, rows=rows, method="largest, on real rows")


def _text(document: Any) -> bytes:
    return (json.dumps(document, sort_keys=True, indent=1) + "\n").encode()


def _code() -> dict[str, str]:
    """The version of this package; of a checkout its commit, and whether it has changes."""
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
    """What the last bits of a sum can depend on."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "python": platform.python_version(),
        "processor": platform.machine(),
        "vector": torch.backends.cpu.get_cpu_capability(),
        "device": device,
        "threads": str(torch.get_num_threads()),
    }


@contextmanager
def _calm() -> Iterator[None]:
    """Without Lightning's notes and hints, which are about data sets of other kinds."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        torch.use_deterministic_algorithms(deterministic)
