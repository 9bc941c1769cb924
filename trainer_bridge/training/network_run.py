"""The training of a network by Lightning, whose import takes longer than trees to grow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning
import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from paimon_features.core.errors import ConfigurationError, UnknownNameError, VerificationError
from paimon_features.core.process.callbacks import OnPhase, ignore_phase
from paimon_features.core.times.clock import now_ms
from paimon_features.definitions import FeedbackSource
from paimon_features.models import NETWORK as GRAPH
from paimon_features.models import Metric
from trainer_bridge.feedback.writer import FeedbackWriter
from trainer_bridge.models import (
    InputShapes,
    Network,
    SequenceTransformerNetwork,
    TabularTransformerNetwork,
    WideAndDeepNetwork,
)
from trainer_bridge.readers.score_schedule import ScoreSchedule
from trainer_bridge.training import export
from trainer_bridge.training.config import (
    SequenceTransformer,
    TabularTransformer,
    TrainConfig,
    WideAndDeep,
)
from trainer_bridge.training.data_module import PaimonDataModule
from trainer_bridge.training.encoded_table import EncodedTable
from trainer_bridge.training.encoding import Arrays, FeatureEncoder
from trainer_bridge.training.fitted_model import FittedModel, difference, lists_refused
from trainer_bridge.training.module import (
    NEVER,
    OnValidation,
    ResumePoint,
    SampleFeedback,
    StepReport,
    TrainingModule,
    ValidationReport,
)
from trainer_bridge.training.notes import quiet
from trainer_bridge.training.rounds import WEIGHTS, RoundTable, trained_as

if TYPE_CHECKING:
    from paimon_features.project import Project

_CHUNK = 4_096
PROGRAM = "network.pt2"


class NetworkRun(FittedModel):
    """A network, trained by Lightning."""

    def __init__(
        self,
        project: Project,
        data: EncodedTable,
        folder: Path,
        run_id: str,
        writes: bool = True,
        on_phase: OnPhase = ignore_phase,
        on_validation: OnValidation | None = None,
    ) -> None:
        table, encoder, labels = data.table, data.encoder, data.labels
        config = trained_as(data.config) if isinstance(table, RoundTable) else data.config
        self.project, self.table, self.config = project, table, config
        self.on_validation = on_validation
        self.labels, self.folder, self.on_phase = labels, folder, on_phase
        self.run_id, self.writes = run_id, writes
        shapes = InputShapes(
            tuple(group.indices for group in encoder.groups),
            encoder.vocabulary_sizes,
            encoder.value_lists,
            encoder.length,
        )
        torch.manual_seed(config.seed)
        self.network = make_network(config, shapes, max(1, len(labels.classes)))
        if config.objective.task == "regression":
            self.network.scale_labels(labels.mean, labels.scale)
        if encoder.length and not self.network.uses_lists:
            raise lists_refused(config, encoder)
        if isinstance(table, RoundTable) and table.weights is not None:
            from safetensors.torch import load

            self.network.load_state_dict(load(table.weights))
            if config.objective.task == "regression":
                mean, scale = float(self.network.label_mean), float(self.network.label_scale)
                labels = replace(labels, mean=mean, scale=scale)
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
        condition = table.labelled(table.split.train)
        with table.reader(condition, feedback.keys, batch_size=1) as reader:
            samples = reader.read_columns(list(feedback.keys))
        return ScoreSchedule(
            self.project, feedback.difficulty, samples, run_id, every=feedback.every,
            clock_ms=now_ms,
        )  # fmt: skip

    def train(self) -> NetworkRun:
        settings = self.config.trainer
        batches = self.data.batches_per_epoch()
        steps = -(-batches // settings.accumulate) * settings.epochs
        module = TrainingModule(self.network, self.config, steps)
        validates = not isinstance(self.table, RoundTable)
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
        last = ResumePoint(
            checkpoint,
            batches,
            settings.checkpoint_every,
            settings.check_every if validates else NEVER,
        )
        callbacks: list[lightning.Callback] = [best, last] if validates else [last]
        callbacks.append(StepReport(self.on_phase, batches * settings.epochs))
        if settings.patience is not None:
            stop = EarlyStopping(
                "val_loss", patience=settings.patience, check_on_train_epoch_end=False
            )
            callbacks.append(stop)
        if self.on_validation is not None:
            callbacks.append(ValidationReport(self.on_validation))
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
                limit_val_batches=None if validates else 0,
                deterministic="warn" if torch.cuda.is_available() else True,
                use_distributed_sampler=False,
                logger=False,
                enable_progress_bar=False,
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
            best_state = torch.load(best.best_model_path, map_location="cpu", weights_only=True)
            module.load_state_dict(best_state["state_dict"])
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
            loops = [name for name, entry in sources.items() if isinstance(entry, FeedbackSource)]
            raise UnknownNameError.of("feedback source", loop, loops)
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
                parts.append(
                    export.predictions_of(self.network, task, self.network(**batch))
                    .double()
                    .numpy()
                )
        predictions = np.concatenate(parts)
        return predictions if task == "multiclass" else predictions[:, 0]

    def export(
        self, encoder: FeatureEncoder, raw: dict[str, Any], arrays: Arrays
    ) -> tuple[dict[str, bytes], dict[str, Metric]]:
        if isinstance(self.table, RoundTable) and self.table.weights is not None:
            # the graphs of the parent with other weights, if they then predict what they should
            files = self._files_of_parent(self.table)
            if files is not None:
                with suppress(VerificationError):
                    return files, self._differences(files, encoder, raw, arrays)
        files = self._files(encoder)
        return files, self._differences(files, encoder, raw, arrays)

    def _files(self, encoder: FeatureEncoder) -> dict[str, bytes]:
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
        return {GRAPH: graph, PROGRAM: data, WEIGHTS: self.weights}

    def _files_of_parent(self, table: RoundTable) -> dict[str, bytes] | None:
        from safetensors.numpy import load

        models, parent = self.project.models, table.parent
        if not {GRAPH, PROGRAM} <= parent.files.keys() or table.weights is None:
            return None
        graph = export.graph_with_weights(
            models.file(parent, GRAPH), load(table.weights), load(self.weights)
        )
        if graph is None:
            return None
        program = models.file(parent, PROGRAM)
        data = export.program_with_weights(program, self.network.state_dict())
        return {GRAPH: graph, PROGRAM: data, WEIGHTS: self.weights}

    def _differences(
        self,
        files: dict[str, bytes],
        encoder: FeatureEncoder,
        raw: dict[str, Any],
        arrays: Arrays,
    ) -> dict[str, Metric]:
        eager = self.predict(arrays)
        predictions = export.run_onnx(files[GRAPH], encoder.inputs(), raw)
        tensors = export.tensors_of(arrays)
        inputs = {name: tensors[name] for name in self.network.examples()}
        with torch.inference_mode():
            loaded = export.load_program(files[PROGRAM])(**inputs).numpy()
        rows = len(eager)
        differences = {
            "onnx_difference": export.check_agreement("the ONNX graph", eager, predictions),
            "export_difference": export.check_agreement("torch.export", eager, loaded),
        }
        return {name: difference(value, rows) for name, value in differences.items()}


def make_network(config: TrainConfig, shapes: InputShapes, outputs: int) -> Network:
    """Return the network of a configuration, with new weights."""
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


@contextmanager
def _calm() -> Iterator[None]:
    """Without Lightning's notes and hints, and without its choice of algorithms afterwards."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        with quiet("lightning.pytorch"):
            yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
