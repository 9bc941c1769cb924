"""Exact quantiles on the iteration runtime, by a distributed search over ranks.

Each subtask sorts its columns once. In every epoch all subtasks count how many of their values
are at or below a set of bounds, and the counts narrow the interval of each quantile until a
single value is left. Bounds are chosen in the order of the float64 numbers, so 16 to 17 rounds of
15 bounds find any value, whatever the distribution. The quantile ``q`` of ``n`` values is the
value at rank ``ceil(q n)``, counted from 1: Flink ML's summary approximates it within its
relative error, this search returns it exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paimon_features.core.errors import TransformError
from paimon_features.core.types.array_types import Floats
from paimon_features.iteration import IterationConfig
from paimon_features.iteration.algorithms.bounded_training import (
    BlockKeeper,
    SubtaskCombiner,
    train_bounded,
)
from paimon_features.iteration.algorithms.estimator import MODEL, TrainingSource
from paimon_features.iteration.algorithms.training_blocks import TrainingBlock
from paimon_features.transformers.flink_ml.column_models import is_missing
from paimon_features.transformers.flink_ml.vectors import dense

_BOUNDS = 15
_SIGN = 1 << 63


def float_order(value: float) -> int:
    """Return the position of a number among all float64 numbers in ascending order.

    >>> float_order(-1.0) < float_order(-0.5) < float_order(0.0) == float_order(-0.0)
    True
    """
    bits = int(np.float64(value + 0.0).view(np.int64))
    return bits if bits >= 0 else -(bits + _SIGN)


def float_at(position: int) -> float:
    """Return the number at a position; the inverse of ``float_order``.

    >>> [float_at(float_order(value)) for value in (-1.5, 0.0, 1e300)]
    [-1.5, 0.0, 1e+300]
    """
    bits = position if position >= 0 else -position - _SIGN
    return float(np.int64(bits).view(np.float64))


@dataclass(frozen=True, slots=True)
class Search:
    """The positions ``[low, high]`` that a quantile of a column can still have, and its rank."""

    column: int
    rank: int
    low: int
    high: int

    def bounds(self) -> list[int]:
        """Return positions that divide the interval into equal parts, all below ``high``."""
        span = self.high - self.low
        steps = sorted({self.low + span * k // (_BOUNDS + 1) for k in range(1, _BOUNDS + 1)})
        return [step for step in steps if step < self.high]

    def narrowed(self, counts: Sequence[int]) -> Search:
        """Return the search after the number of values at or below each bound is known."""
        low, high = self.low, self.high
        for bound, count in zip(self.bounds(), counts, strict=True):
            if count >= self.rank:
                return Search(self.column, self.rank, low, bound)
            low = bound + 1
        return Search(self.column, self.rank, low, high)


def quantiles(
    source: TrainingSource,
    shares: Sequence[float],
    finish: Callable[[Floats], Any],
    parallelism: int,
    config: IterationConfig,
    missing_value: float | None = None,
) -> Callable[[Any], Any]:
    """Build the program that outputs ``finish(quantiles)``, index (columns, quantiles)."""
    count, narrow = _CountBelow(missing_value), _NarrowSearches(tuple(shares), finish)
    return train_bounded(source, (), count, narrow, parallelism, config)


class _CountBelow(BlockKeeper):
    """Sorts its columns; in each epoch counts the values at or below each bound."""

    name = "count"

    def __init__(self, missing_value: float | None) -> None:
        self._missing = missing_value
        self._sorted: list[Floats] | None = None

    def process_element2(self, searches: Sequence[Search], ctx: Any, out: Any) -> None:
        ctx.state.value("searches").update(searches)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        if self._sorted is None:  # also after a restore
            self._sorted = self._columns(ctx.state.list("blocks").get())
        if epoch == 0:
            ends = [(len(c), c[0], c[-1]) if len(c) else (0, np.inf, -np.inf) for c in self._sorted]
            if ends:
                out.collect((ctx.subtask, ends))
            return
        counts = []
        for search in ctx.state.value("searches").value():
            bounds = [float_at(bound) for bound in search.bounds()]
            column = self._sorted[search.column] if self._sorted else np.zeros(0)
            counts.append(np.searchsorted(column, bounds, side="right"))
        out.collect((ctx.subtask, counts))

    def _columns(self, blocks: Sequence[TrainingBlock]) -> list[Floats]:
        if not blocks:
            return []
        columns = np.concatenate([dense(block.features) for block in blocks]).T
        present = [c[~np.isnan(c) & ~is_missing(c, self._missing)] for c in columns]
        return [np.sort(column) for column in present]


class _NarrowSearches(SubtaskCombiner):
    """Narrows the searches by the counts of all subtasks, and broadcasts them again."""

    name = "narrow"

    def __init__(self, shares: tuple[float, ...], finish: Callable[[Floats], Any]) -> None:
        self._shares = shares
        self._finish = finish

    def combine(self, epoch: int, results: Sequence[Any], ctx: Any, out: Any) -> None:
        state = ctx.state.value("searches")
        if epoch == 0:
            searches = self._first(results)
        else:
            searches = []
            for index, search in enumerate(state.value()):
                counts = np.sum([subtask_counts[index] for subtask_counts in results], axis=0)
                searches.append(search.narrowed(counts.tolist()))
        state.update(searches)
        if all(search.low == search.high for search in searches):
            values = [float_at(search.low) for search in searches]
            out.side(MODEL, self._finish(np.array(values).reshape(-1, len(self._shares))))
        else:
            out.collect(searches)

    def _first(self, results: Sequence[Any]) -> list[Search]:
        out = []
        for column, ends in enumerate(zip(*results, strict=True)):
            counts, lows, highs = zip(*ends, strict=True)
            n = sum(counts)
            if not n:
                raise TransformError(
                    f"column {column}: all values are null, NaN or the missing value"
                )
            low, high = float_order(min(lows)), float_order(max(highs))
            for share in self._shares:
                rank = min(max(int(np.ceil(share * n)), 1), n)
                out.append(Search(column, rank, low, high))
        return out
