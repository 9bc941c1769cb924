"""Training data as blocks: arrays of many rows, which travel and are cached as one record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paimon_features.array_types import Floats, Ints
from paimon_features.errors import TransformError
from paimon_features.transformers.flink_ml.vectors import Matrix, SparseRows, joined, part, take

BLOCK_ROWS = 8192


@dataclass(frozen=True, eq=False, slots=True)
class TrainingBlock:
    """Some rows: features, and where there are some, labels, weights and times.

    ``subtask`` says which subtask gets it, -1 leaves it where it was read.
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
        """How many features a row has."""
        return int(self.features.shape[1])

    def part(self, start: int, stop: int) -> TrainingBlock:
        """The rows from ``start`` to ``stop`` (exclusive), not copied."""
        return TrainingBlock(
            part(self.features, start, stop),
            None if self.labels is None else self.labels[start:stop],
            None if self.weights is None else self.weights[start:stop],
            None if self.times_ms is None else self.times_ms[start:stop],
            self.subtask,
        )

    def take(self, rows: Ints, subtask: int) -> TrainingBlock:
        """The rows with these numbers, for a subtask."""
        return TrainingBlock(
            take(self.features, rows),
            None if self.labels is None else self.labels[rows],
            None if self.weights is None else self.weights[rows],
            None if self.times_ms is None else self.times_ms[rows],
            subtask,
        )

    @property
    def is_sparse(self) -> bool:
        """Whether its features are sparse vectors."""
        return isinstance(self.features, SparseRows)


def join(blocks: Sequence[TrainingBlock]) -> TrainingBlock:
    """The rows of several blocks in one."""
    if len(blocks) == 1:
        return blocks[0]
    first = blocks[0]

    def all_of(name: str) -> Any:
        values = [getattr(block, name) for block in blocks]
        return None if values[0] is None else np.concatenate(values)

    features = joined([block.features for block in blocks])
    return TrainingBlock(
        features, all_of("labels"), all_of("weights"), all_of("times_ms"), first.subtask
    )


def deal(
    rows: TrainingBlock, parallelism: int, block_rows: int = BLOCK_ROWS
) -> list[TrainingBlock]:
    """Rows in blocks for each subtask: row ``i`` for subtask ``i % parallelism``, in order.

    So a global batch whose size ``parallelism`` divides has the same rows at any parallelism.
    """
    out = []
    for subtask in range(parallelism):
        share = (
            TrainingBlock(rows.features, rows.labels, rows.weights, rows.times_ms, 0)
            if parallelism == 1
            else rows.take(np.arange(subtask, len(rows), parallelism), subtask)
        )
        out += [
            share.part(start, min(start + block_rows, len(share)))
            for start in range(0, len(share), block_rows)
        ]
    return out


def in_order(rows: TrainingBlock, block_rows: int = BLOCK_ROWS) -> list[TrainingBlock]:
    """Rows in blocks, in their order."""
    ends = range(0, len(rows), block_rows)
    return [rows.part(start, min(start + block_rows, len(rows))) for start in ends]


def window(blocks: Sequence[TrainingBlock], start: int, size: int) -> Iterator[TrainingBlock]:
    """The rows ``[start, start + size)`` of blocks that stand below each other."""
    at = 0
    for block in blocks:
        first, last = max(start - at, 0), min(start + size - at, len(block))
        if first < last:
            yield block.part(first, last)
        at += len(block)


def width_of(blocks: Sequence[TrainingBlock]) -> int:
    """How many features all rows have; TransformError if not all have as many."""
    widths = {block.width for block in blocks}
    if len(widths) > 1:
        raise TransformError(
            f"the training data have vectors of the sizes {sorted(widths)}; expected one size"
        )
    return widths.pop()


def to_subtask(subtask: int, parallelism: int) -> int:
    """Where a record goes that names its subtask."""
    return subtask % parallelism
