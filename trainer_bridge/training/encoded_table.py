"""A training table with its encoder and labels, and its parts as a model reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core.errors import ConfigurationError
from paimon_features.core.types.array_types import Floats
from trainer_bridge.training.config import TrainConfig
from trainer_bridge.training.encoding import Arrays, FeatureEncoder
from trainer_bridge.training.evaluation import EvaluatedRows
from trainer_bridge.training.labels import LabelCodec, sample_weights
from trainer_bridge.training.rounds import RoundTable
from trainer_bridge.training.training_table import SplitPart, TrainingTable, entities_of


@dataclass(frozen=True)
class EncodedPart:
    """One part of the rows: raw columns by name, encoded, labels, entities and weights."""

    raw: dict[str, Any]
    arrays: Arrays
    labels: npt.NDArray[Any]
    about: EvaluatedRows

    @property
    def weights(self) -> Floats | None:
        return self.about.weights

    def loss_weights(self, config: TrainConfig) -> Floats | None:
        """Return the weight of each row's loss, with that of the class; None if all are 1."""
        positive = config.objective.positive_weight
        if positive == 1 or config.objective.task != "binary":
            return self.weights
        of_class = np.where(self.labels > 0.5, positive, 1.0)
        return of_class if self.weights is None else of_class * self.weights


@dataclass(frozen=True)
class EncodedTable:
    """A table, its configuration, and the encoder and labels that its training rows declare.

    ``num_training_rows`` is how many those are.
    """

    config: TrainConfig
    table: TrainingTable
    encoder: FeatureEncoder
    labels: LabelCodec
    num_training_rows: int

    @classmethod
    def fit(cls, table: TrainingTable, config: TrainConfig) -> EncodedTable:
        """Fit encoder and labels on the training rows; a further round keeps its parent's.

        Raises
        ------
        ConfigurationError
            If a part has no labels, or such that do not suit the task.
        """
        if isinstance(table, RoundTable):
            return cls(config, table, table.encoder, table.labels, table.train_rows.num_rows)
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
        return cls(config, table, encoder, labels, rows.num_rows)

    def part(self, part: SplitPart) -> EncodedPart:
        """Read and encode one part of the rows.

        Raises
        ------
        ConfigurationError
            If the weights of all its rows are 0.
        """
        data = self.config.data
        names = [feature.column for feature in self.encoder.features]
        weight_columns = [] if data.weights is None else [data.weights]
        keys = [key.name for key in self.table.keys]
        rows = self.table.part(part, [*names, self.table.label, *weight_columns, *keys])
        weights = sample_weights(rows, data.weights)
        if weights is not None and not weights.any():
            raise ConfigurationError(
                f"data.weights: {data.weights!r} is 0 in all {len(weights):,} rows of the "
                f"{part} part; expected rows that count"
            )
        return EncodedPart(
            {name: rows[name].combine_chunks() for name in names},
            self.encoder.apply(rows),
            self.labels.apply(rows[self.table.label]),
            EvaluatedRows(entities_of(rows, keys), weights),
        )


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
