"""Training data in blocks: arrays of many rows that travel and are cached as one record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paimon_features.core.errors import TransformError
from paimon_features.core.types.array_types import Floats, Ints
from paimon_features.transformers.flink_ml.vectors import Matrix, joined, part, take

BLOCK_ROWS = 8192


@dataclass(frozen=True, eq=False, slots=True)
class TrainingBlock:
    """Some rows: features, and optionally labels, weights and times.

    ``subtask`` is the subtask that the block is for; -1: the one that read it.
    """

    features: Matrix
    labels: Floats | None = None
    weights: Floats | None = None
    times_ms: Ints | None = None
    subtask: int = -1

    def __len__(self) -> int:
        return len(self.features)

    @property
    def width(self) -> int:
        """Number of features."""
        return int(self.features.shape[1])

    def part(self, start: int, stop: int) -> TrainingBlock:
        """Return the rows from ``start`` to ``stop`` (exclusive), not copied."""
        return TrainingBlock(
            part(self.features, start, stop),
            None if self.labels is None else self.labels[start:stop],
            None if self.weights is None else self.weights[start:stop],
            None if self.times_ms is None else self.times_ms[start:stop],
            self.subtask,
        )

    def take(self, rows: Ints, subtask: int) -> TrainingBlock:
        """Return the rows with these indices, for a subtask."""
        return TrainingBlock(
            take(self.features, rows),
            None if self.labels is None else self.labels[rows],
            None if self.weights is None else self.weights[rows],
            None if self.times_ms is None else self.times_ms[rows],
            subtask,
        )


def join(blocks: Sequence[TrainingBlock]) -> TrainingBlock:
    """Return the rows of several blocks as one."""
    if len(blocks) == 1:
        return blocks[0]

    def concatenated(name: str) -> Any:
        values = [getattr(block, name) for block in blocks]
        return None if values[0] is None else np.concatenate(values)

    return TrainingBlock(
        joined([block.features for block in blocks]),
        concatenated("labels"),
        concatenated("weights"),
        concatenated("times_ms"),
        blocks[0].subtask,
    )


def deal(
    rows: TrainingBlock, parallelism: int, block_rows: int = BLOCK_ROWS
) -> list[TrainingBlock]:
    """Split rows into blocks per subtask: row ``i`` goes to subtask ``i % parallelism``.

    A global batch whose size is a multiple of ``parallelism`` thus has the same rows at any
    parallelism.
    """
    if parallelism == 1:
        return in_order(replace(rows, subtask=0), block_rows)
    return [
        block
        for subtask in range(parallelism)
        for block in in_order(
            rows.take(np.arange(subtask, len(rows), parallelism), subtask), block_rows
        )
    ]


def in_order(rows: TrainingBlock, block_rows: int = BLOCK_ROWS) -> list[TrainingBlock]:
    """Split rows into blocks, in their order."""
    starts = range(0, len(rows), block_rows)
    return [rows.part(start, min(start + block_rows, len(rows))) for start in starts]


def window(blocks: Sequence[TrainingBlock], start: int, size: int) -> Iterator[TrainingBlock]:
    """Yield the rows ``[start, start + size)`` of consecutive blocks."""
    at = 0
    for block in blocks:
        first, last = max(start - at, 0), min(start + size - at, len(block))
        if first < last:
            yield block.part(first, last)
        at += len(block)


def width_of(blocks: Sequence[TrainingBlock]) -> int:
    """Return the number of features of all rows; TransformError if it differs between them."""
    widths = {block.width for block in blocks}
    if len(widths) > 1:
        raise TransformError(
            f"the training data have vectors of the sizes {sorted(widths)}; expected one size"
        )
    return widths.pop()


def to_subtask(subtask: int, parallelism: int) -> int:
    """Partition by the subtask that a record names."""
    return subtask % parallelism
