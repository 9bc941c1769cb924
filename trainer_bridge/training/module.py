"""``TrainingModule``: network, loss and optimiser for Lightning; and per-sample feedback."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Checkpoint
from torch.nn import functional

from paimon_features.core.process.callbacks import OnPhase
from trainer_bridge.adapters.torch import TensorBatch
from trainer_bridge.feedback.writer import FeedbackWriter
from trainer_bridge.models import Network
from trainer_bridge.training.config import ObjectiveConfig, TrainConfig
from trainer_bridge.training.data_module import KEYS, LABEL, WEIGHT

ARRAYS = ("numbers", "codes", "values")
NEVER = 2**62
"""In place of a number of batches after which validation runs."""


def sample_losses(
    objective: ObjectiveConfig, logits: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Return the loss of each sample, float32, shape (rows,), without any sample weight."""
    logits = logits.float()
    if objective.task == "binary":
        # the same as torch's pos_weight, for each sample
        weights = 1 + (objective.positive_weight - 1) * labels
        return weights * functional.binary_cross_entropy_with_logits(
            logits[:, 0], labels, reduction="none"
        )
    if objective.task == "multiclass":
        return functional.cross_entropy(
            logits, labels, reduction="none", label_smoothing=objective.smoothing
        )
    return (logits[:, 0] - labels) ** 2


class TrainingModule(lightning.LightningModule):
    """Trains a network: the mean over rows of sample weight times loss.

    The mean is over all rows of a batch, not over the weights: with the importance weights of a
    sampler, whose expectation is 1, its expectation is the mean loss of all rows, and the mean over
    ranks is that of the global batch.

    Parameters
    ----------
    steps
        Optimiser steps of the complete run, for the schedule.
    """

    def __init__(self, network: Network, config: TrainConfig, steps: int) -> None:
        super().__init__()
        self.network, self.config, self.steps = network, config, steps
        self._call: Any = torch.compile(network) if config.trainer.compile else network
        self.batches_seen = 0
        self._history: list[dict[str, Any]] = []
        self.losses: torch.Tensor | None = None
        """The losses of the samples of the last batch."""

    @property
    def history(self) -> list[dict[str, float]]:
        """The losses by batch; reading it waits for the device."""
        return [{name: float(value) for name, value in row.items()} for row in self._history]

    def forward(self, batch: Mapping[str, Any]) -> torch.Tensor:
        """Logits, shape (rows, outputs)."""
        names = ARRAYS if self.network.uses_lists else ARRAYS[:1]
        logits: torch.Tensor = self._call(**{name: batch[name] for name in names if name in batch})
        return logits

    def on_train_batch_start(self, batch: TensorBatch, batch_idx: int) -> None:
        # dropout depends on the number of the batch alone, so that a resumed run has the same
        torch.manual_seed(
            self.config.seed * 1_000_003 + self.batches_seen * 1_009 + self.global_rank
        )
        self.batches_seen += 1

    def training_step(self, batch: TensorBatch, batch_idx: int) -> torch.Tensor:
        losses = sample_losses(self.config.objective, self(batch), batch[LABEL])
        kept = len(losses) - batch.num_padding
        self.losses = losses.detach()[:kept]
        loss = (batch[WEIGHT][:kept] * losses[:kept]).mean()
        self.log("train_loss", loss, prog_bar=True)
        # a number of it would wait for the device at each step
        self._history.append({"batch": self.batches_seen, "train_loss": loss.detach()})
        return loss

    def validation_step(self, batch: TensorBatch, batch_idx: int) -> None:
        losses = sample_losses(self.config.objective, self(batch), batch[LABEL])
        loss = (batch[WEIGHT] * losses).mean()
        self.log("val_loss", loss, prog_bar=True, on_epoch=True, batch_size=len(losses))

    def on_validation_epoch_end(self) -> None:
        loss = self.trainer.callback_metrics.get("val_loss")
        if loss is not None and not self.trainer.sanity_checking:
            self._history = [*self.history, {"batch": self.batches_seen, "val_loss": float(loss)}]

    def configure_optimizers(self) -> Any:
        optimiser = self.config.optimiser
        parameters = [p for p in self.network.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2],
             "weight_decay": optimiser.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]  # fmt: skip
        optimizer: torch.optim.Optimizer
        if optimiser.name == "adamw":
            optimizer = torch.optim.AdamW(groups, lr=optimiser.lr)
        else:
            optimizer = torch.optim.SGD(groups, lr=optimiser.lr, momentum=optimiser.momentum)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self.rate)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def rate(self, step: int) -> float:
        """Return the factor of the learning rate at a step: warm-up, then a cosine."""
        schedule = self.config.schedule
        warm = schedule.warmup * self.steps
        if step < warm:
            return (step + 1) / math.ceil(warm)
        if schedule.name == "constant":
            return 1.0
        done = min(1.0, (step - warm) / max(1.0, self.steps - warm))
        return schedule.final + (1 - schedule.final) * (1 + math.cos(math.pi * done)) / 2

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["paimon_features"] = {"seen": self.batches_seen, "history": self.history}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        stored = checkpoint["paimon_features"]
        self.batches_seen, self._history = stored["seen"], list(stored["history"])


class ResumePoint(Checkpoint):
    """Writes the checkpoint that an interrupted run continues at.

    It is written after the validation of a batch, never between the two: the resumed run would not
    repeat it, and would miss what it says about the best weights.

    Parameters
    ----------
    path
        The file, which is replaced.
    epoch_batches
        Batches of an epoch.
    every
        After how many batches, in addition to each validation and each epoch.
    check_every
        After how many batches validation runs; None: after each epoch; ``NEVER``.
    """

    def __init__(
        self, path: Path, epoch_batches: int, every: int | None, check_every: int | None
    ) -> None:
        super().__init__()
        self.path, self.epoch_batches = path, epoch_batches
        self.every, self.check_every = every, check_every

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: TensorBatch, batch_idx: int
    ) -> None:
        seen = module.batches_seen
        ends = seen % self.epoch_batches == 0
        checked = ends if self.check_every is None else seen % self.check_every == 0
        if not checked and (ends or (self.every is not None and seen % self.every == 0)):
            self._save(trainer)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        self._save(trainer)

    def _save(self, trainer: Any) -> None:
        trainer.save_checkpoint(self.path)


OnValidation = Callable[[int, float], bool]
"""Takes the batches seen and the validation loss; returns whether training should stop."""


class ValidationReport(lightning.Callback):
    """Reports each validation loss, after the checkpoint that it is part of."""

    def __init__(self, report: OnValidation) -> None:
        super().__init__()
        self.report = report

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        loss = trainer.callback_metrics.get("val_loss")
        if loss is not None and self.report(module.batches_seen, float(loss)):
            trainer.should_stop = True


class StepReport(lightning.Callback):
    """Reports the batches trained on; ``total`` is that of all epochs."""

    def __init__(self, report: OnPhase, total: int) -> None:
        super().__init__()
        self.report, self.total = report, total

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        epoch = f"epoch {trainer.current_epoch + 1} of {trainer.max_epochs}"
        self.report(f"training, {epoch}", module.batches_seen, self.total)


class SampleFeedback(lightning.Callback):
    """Writes the loss of each sample of each batch into ``feedback_<loop>``, exactly once.

    The position of the writer is part of the checkpoints: a resumed run writes what is missing.
    """

    def __init__(self, writer: FeedbackWriter) -> None:
        super().__init__()
        self.writer = writer

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: TensorBatch, batch_idx: int
    ) -> None:
        kept = len(module.losses)
        keys = {name: column.slice(0, kept) for name, column in batch[KEYS].items()}
        self.writer.write(keys, module.losses, module.batches_seen - 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the writer."""
        return self.writer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue after the calls of a checkpoint."""
        self.writer.load_state_dict(state_dict)
