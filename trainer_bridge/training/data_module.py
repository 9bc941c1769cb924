"""``PaimonDataModule``: a pinned training set for Lightning, encoded, resumable at any batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lightning
import numpy as np
import pyarrow as pa
import torch

from paimon_features.core.errors import RequestError
from trainer_bridge.adapters.torch import SAMPLE_WEIGHT, TensorBatch, TorchLoader, loader
from trainer_bridge.adapters.torch.ranks import rank_and_world_size
from trainer_bridge.batches.forms import Batch
from trainer_bridge.readers.score_schedule import ScoreSchedule, scheduled_batches
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.samplers import DifficultyWeightedSampler
from trainer_bridge.training.encoding import FeatureEncoder
from trainer_bridge.training.labels import LabelCodec, weights_of
from trainer_bridge.training.rounds import RoundTable
from trainer_bridge.training.training_table import TrainingTable

LABEL, WEIGHT = "label", "weight"
KEYS = "keys"
"""The sample keys of a batch: Arrow arrays by name."""


@dataclass(frozen=True)
class EncodeForm:
    """Makes encoded tensors of a reader's Arrow batch; a worker process gets a copy.

    ``weight`` is the product of the column ``weights`` and the sampler's ``sample_weight``.
    """

    encoder: FeatureEncoder
    labels: LabelCodec
    label: str
    weights: str | None = None
    keys: tuple[str, ...] = ()

    def __call__(self, batch: Batch) -> TensorBatch:
        assert batch.arrow is not None, "the reader has output='arrow'"
        return TensorBatch(self.encode(batch.arrow), num_padding=batch.num_padding)

    def encode(self, rows: pa.RecordBatch | pa.Table) -> dict[str, Any]:
        """Return the tensors of rows by name."""
        values: dict[str, Any] = {
            name: torch.from_numpy(array) for name, array in self.encoder.apply(rows).items()
        }
        labels = self.labels.targets(rows[self.label])
        kind = torch.int64 if self.labels.task == "multiclass" else torch.float32
        values[LABEL] = torch.from_numpy(labels).to(kind)
        weights = np.ones(len(labels), np.float32)
        if self.weights is not None:
            weights *= weights_of(rows[self.weights], self.weights)
        if SAMPLE_WEIGHT in rows.schema.names:
            weights *= np.asarray(rows[SAMPLE_WEIGHT], np.float32)
        values[WEIGHT] = torch.from_numpy(weights)
        values[KEYS] = {name: rows[name] for name in self.keys}
        return values


class PaimonDataModule(lightning.LightningDataModule):
    """A training set at one snapshot, split by time: resumable in the middle of an epoch, exactly.

    The loader's position is part of Lightning's checkpoints. Global batches are the same for every
    number of ranks, so a run may resume on another number.

    Parameters
    ----------
    table, encoder, labels
        What is read, and how it becomes tensors.
    global_batch_size, seed, threads
        As of ``SnapshotReader``.
    weights
        A column of sample weights.
    keys
        Columns that identify a sample, for feedback.
    schedule
        New difficulty enters at its steps: from each one on, harder rows are drawn more often, and
        weighed back.
    """

    def __init__(
        self,
        table: TrainingTable,
        encoder: FeatureEncoder,
        labels: LabelCodec,
        *,
        global_batch_size: int = 256,
        seed: int = 0,
        threads: int = 2,
        weights: str | None = None,
        keys: Sequence[str] = (),
        schedule: ScoreSchedule | None = None,
    ) -> None:
        super().__init__()
        self.table, self.schedule = table, schedule
        self.global_batch_size, self.seed, self.threads = global_batch_size, seed, threads
        self.form = EncodeForm(encoder, labels, table.label, weights, tuple(keys))
        features = [feature.column for feature in encoder.features]
        extra = [] if weights is None else [weights]
        self.columns = list(dict.fromkeys([*features, table.label, *extra, *keys]))

    def train_reader(self) -> SnapshotReader:
        """Return the reader of the training rows, without a rank."""
        return self.table.reader(
            self.table.labelled(self.table.split.train),
            self.columns,
            global_batch_size=self.global_batch_size,
            seed=self.seed,
            threads=self.threads,
        )

    def batches_per_epoch(self) -> int:
        """Return the batches of an epoch."""
        if isinstance(self.table, RoundTable):
            return -(-self.table.train_rows.num_rows // self.global_batch_size)
        with self.train_reader() as reader:
            return len(reader)

    def train_dataloader(self) -> TorchLoader | ScheduledBatches | ShuffledRows:
        """Return the share of this rank, whose number is known when this is called."""
        if isinstance(self.table, RoundTable):
            rows = self.form.encode(self.table.part("train", self.columns))
            return ShuffledRows(rows, self.global_batch_size, self.seed)
        reader = self.train_reader()
        if self.schedule is None:
            return loader(reader, form=self.form, pin_memory=self._on_gpu)
        rank, world_size = rank_and_world_size()
        return ScheduledBatches(
            reader.with_rank(rank, world_size), self.schedule, self.form, self.seed
        )

    def val_dataloader(self) -> TorchLoader | list[TensorBatch]:
        """Return all validation rows on every rank, in the order of the table; a round has none."""
        if isinstance(self.table, RoundTable):
            return []
        reader = self.table.reader(
            self.table.labelled(self.table.split.validation),
            self.columns,
            batch_size=self.global_batch_size,
            shuffle=False,
            rank=0,
            world_size=1,
            threads=self.threads,
        )
        return loader(reader, form=self.form, pin_memory=self._on_gpu, restart=True)

    def transfer_batch_to_device(
        self, batch: TensorBatch, device: torch.device, dataloader_idx: int
    ) -> TensorBatch:
        """From pinned memory behind the caller's back, while the last step still runs."""
        return batch.to(device, non_blocking=self._on_gpu)

    @property
    def _on_gpu(self) -> bool:
        return self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"


class _Steps:
    """A position in batches that are counted through all epochs."""

    step: int

    def state_dict(self) -> dict[str, Any]:
        """Return the next step."""
        return {"step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the step of a state; RequestError for one that is none."""
        step = state.get("step")
        if type(step) is not int or step < 0:
            raise RequestError(f"the state {dict(state)} of batches has no step")
        self.step = step


@dataclass
class ShuffledRows(_Steps):
    """Batches of encoded rows in memory, in another order in each epoch.

    Iterating yields the batches of one epoch from the current step; the state is the step.
    """

    values: dict[str, Any]
    batch_size: int
    seed: int = 0
    step: int = 0

    def __len__(self) -> int:
        return -(-len(self.values[LABEL]) // self.batch_size)

    def __iter__(self) -> Iterator[TensorBatch]:
        epoch, first = divmod(self.step, len(self))
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.values[LABEL]))
        for number in range(first, len(self)):
            rows = order[number * self.batch_size : (number + 1) * self.batch_size]
            self.step = epoch * len(self) + number + 1
            indices = torch.from_numpy(rows)
            batch = {name: tensor[indices] for name, tensor in self.values.items() if name != KEYS}
            keys = {name: column.take(rows) for name, column in self.values[KEYS].items()}
            yield TensorBatch({**batch, KEYS: keys})


@dataclass
class ScheduledBatches(_Steps):
    """Batches whose rows are drawn by the difficulty in force at each step: see ``ScoreSchedule``.

    Iterating yields the batches of one epoch of the reader's length from the current step; the
    state is the step.
    """

    reader: SnapshotReader
    schedule: ScoreSchedule
    form: EncodeForm
    seed: int = 0
    step: int = 0
    _origin: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._origin = self.reader.state_dict()

    def __len__(self) -> int:
        return len(self.reader)

    def __iter__(self) -> Iterator[TensorBatch]:
        stop = (self.step // len(self) + 1) * len(self)
        self.reader.load_state_dict(self._origin)
        batches = scheduled_batches(
            self.reader, self.schedule, self._sampler, start=self.step, stop=stop
        )
        for step, batch in batches:
            self.step = step + 1
            yield self.form(batch)

    def _sampler(self, difficulty: Any) -> DifficultyWeightedSampler:
        # beta=1: the weighed mean is that of all rows
        return DifficultyWeightedSampler(
            difficulty.scores(),
            score_snapshot_id=difficulty.snapshot_id,
            seed=self.seed,
            beta=1.0,
        )
