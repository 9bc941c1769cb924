"""One round of ``retrain``: the rows that it trains on and tests on, given by pins alone.

::

    time            seen_until            train_until    test_from
    snapshot since  | replay, a sample    | new | (gap)  |
    since..judged   | new (late rows)     | new | (gap)  | judged before, not trained on yet
    judged..until   | new (late rows)     | new | (gap)  | held out

Every row is held out at most once, before any version was trained on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.errors import ConfigurationError, unknown_name
from paimon_features.core.types.array_types import Ints
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.snapshots import pinned, snapshot, snapshots, split_ref
from paimon_features.models import ModelManifest
from trainer_bridge.batches.forms import Batch
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.streams.following_reader import FollowingReader
from trainer_bridge.training.config import (
    GradientBoosting,
    RetrainConfig,
    RoundConfig,
    TrainConfig,
)
from trainer_bridge.training.encoding import FeatureEncoder
from trainer_bridge.training.labels import LabelCodec, counted_rows
from trainer_bridge.training.training_table import SplitPart, TimeSplit, TrainingTable, built_from

if TYPE_CHECKING:
    from paimon_features.project import Project

WEIGHTS, ENCODER = "weights.safetensors", "encoder.json"
_BATCH_ROWS = 8_192


@dataclass(frozen=True, kw_only=True)
class RoundTable(TrainingTable):
    """The rows of one round, in memory, in place of a training set."""

    parent: ModelManifest
    encoder: FeatureEncoder
    labels: LabelCodec
    weights: bytes | None
    """The parent's, as safetensors; None for a model that is fitted again (trees)."""
    train_rows: pa.Table
    held_out: pa.Table
    replayed: int
    """How many of the training rows the parent has seen before."""

    @property
    def new(self) -> int:
        """How many of the training rows it has not seen."""
        return int(self.train_rows.num_rows) - self.replayed

    @classmethod
    def open_round(cls, project: Project, config: TrainConfig) -> Self:
        """Read the rows of a round; there may be none to train on, or none that are held out.

        Raises
        ------
        UnknownNameError, ConfigurationError
            If its parent is gone, or was not trained by ``paimon-features train``.
        SnapshotExpiredError
            If one of its snapshots has expired.
        """
        bounds, data, retrain = config.round, config.data, config.retrain
        parent = parent_of(project, bounds.parent)
        encoder, labels = encoder_of(project, parent)
        pins = parent.training
        assert pins is not None, "encoder_of has checked it"
        assert data.label is not None, "a round has the label of its parent"
        lake, table = project.lake, pins.table
        keys = [key.name for key in parent.signature.entities]
        trees = isinstance(config.model, GradientBoosting)
        rows = TrainingRows.of(lake, table, config, encoder, labels, keys)
        dice = np.random.default_rng([config.seed, split_ref(bounds.until)[0]])
        before, until = bounds.seen_until_ms, bounds.train_until_ms
        committed = rows.committed(bounds.since, bounds.until, 2 * retrain.max_rows)
        fresh = [
            rows.between(committed, None, until),
            # rows that were there, and too new for the parent
            rows.sample(bounds.since, before, until, retrain.max_rows, dice),
        ]
        count = sum(part.num_rows for part in fresh)
        # trees keep nothing of what their parent has learned
        wanted = retrain.max_rows if trees else round(count * retrain.replay)
        replay = rows.sample(bounds.since, None, before, min(wanted, retrain.max_rows), dice)
        judged = committed
        if bounds.judged != bounds.since:
            judged = rows.committed(bounds.judged, bounds.until)
        held_out = rows.between(judged, bounds.test_from_ms, None)
        sources, generations = built_from(lake, table)
        return cls(
            lake=lake,
            table=table,
            snapshot=bounds.until,
            label=data.label,
            features=encoder.features,
            keys=parent.signature.entities,
            split=TimeSplit(data.time, until, *[bounds.test_from_ms] * 3),
            sources=sources,
            generations=generations,
            fitted=pins.fitted,
            parent=parent,
            encoder=encoder,
            labels=labels,
            weights=None if trees else project.models.file(parent, WEIGHTS),
            train_rows=pa.concat_tables([*fresh, replay]),
            held_out=held_out,
            replayed=replay.num_rows,
        )

    def part(self, name: SplitPart, columns: Sequence[str]) -> pa.Table:
        """Return the rows that are trained on, or those that are held out."""
        rows = self.train_rows if name == "train" else self.held_out
        return rows.select(list(dict.fromkeys(columns)))


@dataclass(frozen=True)
class TrainingRows:
    """Labelled rows of a training set by commit and time, with some columns.

    A row is left out whose label is null, not finite, or a class that the model does not know; and
    one whose weight is 0 or none: it is no evidence, however many of them there are.
    """

    lake: Lake
    table: str
    time: str
    label: str
    labels: LabelCodec
    columns: tuple[str, ...]
    weights: str | None

    @classmethod
    def of(
        cls,
        lake: Lake,
        table: str,
        config: TrainConfig,
        encoder: FeatureEncoder,
        labels: LabelCodec,
        keys: Sequence[str],
    ) -> Self:
        """Return the columns that a round of this configuration reads.

        Raises
        ------
        UnknownNameError, ConfigurationError
            If there is no such table, or it lacks one of them.
        """
        data = config.data
        names = [
            *(feature.column for feature in encoder.features),
            *keys,
            str(data.label),
            data.time,
            *([] if data.weights is None else [data.weights]),
            *(config.feedback.keys if config.feedback.loop else ()),
            *config.retrain.segments,
        ]
        available = lake.schema(table).names
        for name in names:
            if name not in available:
                raise ConfigurationError(
                    f"a round of {config.name!r}: {table}: "
                    f"{unknown_name('column', name, available)}"
                )
        columns = tuple(dict.fromkeys(names))
        return cls(lake, table, data.time, str(data.label), labels, columns, data.weights)

    def committed(self, after: str, until: str, most: int | None = None) -> pa.Table:
        """Return the rows of the commits after a snapshot, up to another one, inclusive.

        With ``most``, the earliest commits are left out of more rows than that; the last is not.
        """
        first, last = split_ref(after)[0] + 1, split_ref(until)[0]
        pinned(self.lake, self.table, until)  # the same commit, or SnapshotExpiredError
        schema = self._schema()
        if first > last:
            return schema.empty_table()
        if most is not None:
            total = snapshot(self.lake, self.table, last).total_records
            before = snapshots(self.lake, self.table, first)
            first = next(
                commit.id for commit in before
                if commit.id == last or total - commit.total_records + commit.delta_records <= most
            )  # fmt: skip
        parts: list[pa.Table] = [schema.empty_table()]
        with FollowingReader(
            self.lake,
            self.table,
            start=first,
            until_snapshot=last,
            batch_size=_BATCH_ROWS,
            shuffle=False,
            columns=list(self.columns),
            output="arrow",
            threads=0,
        ) as reader:
            parts += [_rows(batch, schema) for batch in reader]
        return self._labelled(pa.concat_tables(parts))

    def between(self, rows: pa.Table, start_ms: int | None, end_ms: int | None) -> pa.Table:
        """Return the rows from ``start_ms``, inclusive, to ``end_ms``, exclusive."""
        return rows.filter(pa.array(self._within(rows[self.time], start_ms, end_ms)))

    def sample(
        self,
        snapshot: str,
        start_ms: int | None,
        end_ms: int | None,
        most: int,
        dice: np.random.Generator,
    ) -> pa.Table:
        """At most ``most`` of a snapshot's rows of such times, drawn evenly, in their order."""
        with SnapshotReader(
            self.lake,
            self.table,
            snapshot_id=snapshot,
            columns=list(self.columns),
            batch_size=_BATCH_ROWS,
            shuffle=False,
            output="arrow",
            threads=0,
        ) as reader:
            weights = [] if self.weights is None else [self.weights]
            columns = reader.read_columns([self.time, self.label, *weights])
            mask = self._within(columns[self.time], start_ms, end_ms) & self._known(columns)
            numbers = np.flatnonzero(mask)
            if len(numbers) > most:
                numbers = np.sort(dice.choice(numbers, most, replace=False))
            if not len(numbers):
                return self._schema().empty_table()
            chosen = reader.with_sampler(_Chosen(numbers, reader.num_rows))
            with chosen:
                return pa.concat_tables([_rows(batch, self._schema()) for batch in chosen])

    def _schema(self) -> pa.Schema:
        schema = self.lake.schema(self.table)
        return pa.schema([schema.field(name) for name in self.columns])

    def _labelled(self, rows: pa.Table) -> pa.Table:
        return rows.filter(pa.array(self._known(rows)))

    def _known(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        mask = self.labels.known(rows[self.label])
        return mask if self.weights is None else mask & counted_rows(rows[self.weights])

    def _within(
        self, times: Any, start_ms: int | None, end_ms: int | None
    ) -> npt.NDArray[np.bool_]:
        values = times.fill_null(-(2**62)).to_numpy()
        mask = np.asarray(pc.is_valid(times))
        if start_ms is not None:
            mask = mask & (values >= start_ms)
        return mask if end_ms is None else mask & (values < end_ms)


@dataclass
class _Chosen:
    """Reads rows by their numbers: a sampler of one epoch."""

    numbers: Ints
    num_rows: int
    batch_multiple: int = 1

    def epoch_size(self, epoch: int) -> int:
        return len(self.numbers)

    def draw(self, epoch: int, positions: Ints) -> Ints:
        return self.numbers[positions]

    def loss_weights(self, indices: Ints) -> None:
        return None

    def identity(self) -> dict[str, Any]:
        return {"rows": len(self.numbers)}


def _rows(batch: Batch, schema: pa.Schema) -> pa.Table:
    assert batch.arrow is not None, "the reader has output='arrow'"
    return batch.arrow.cast(schema)


def parent_of(project: Project, name: str) -> ModelManifest:
    """Return the manifest of a version such as ``churn@3``."""
    model, _, version = name.rpartition("@")
    return project.models.manifest(model, int(version))


def encoder_of(project: Project, manifest: ModelManifest) -> tuple[FeatureEncoder, LabelCodec]:
    """Return how a version reads features and labels.

    Raises
    ------
    ConfigurationError
        For a version that was not trained by a configuration.
    """
    if manifest.training is None or ENCODER not in manifest.files:
        raise ConfigurationError(f"model {manifest} was not trained by 'paimon-features train'")
    encoder = FeatureEncoder.from_text(project.models.file(manifest, ENCODER).decode())
    signature = manifest.signature
    return encoder, LabelCodec(signature.task, signature.outputs[0].classes)


def trained_as(config: TrainConfig) -> TrainConfig:
    """Return the settings that a network of a round is trained by."""
    retrain: RetrainConfig = config.retrain
    return replace(
        config,
        optimiser=replace(config.optimiser, lr=config.optimiser.lr * retrain.rate),
        trainer=replace(config.trainer, epochs=retrain.epochs, patience=None, check_every=None),
        feedback=replace(config.feedback, difficulty=None, every=None),
    )


def round_config(config: TrainConfig, bounds: RoundConfig) -> TrainConfig:
    """Return the configuration of a round that continues a version with this one."""
    return replace(
        config,
        data=replace(config.data, snapshot=bounds.until),
        parents=(bounds.parent,),
        round=bounds,
    )
