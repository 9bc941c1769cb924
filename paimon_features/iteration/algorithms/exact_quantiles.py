"""Exact quantiles on the runtime: no summary of the data, but questions about ranks.

Each subtask sorts its columns once. Then, epoch after epoch, all are asked how many of their
values are not above some bounds, and the answers narrow the place of each quantile, until one
value is left. Bounds are chosen among the float64 numbers by their order, so that 16 to 17
rounds of 15 bounds reach any value, however the data are spread. The quantile ``q`` of ``n``
values is the one at rank ``ceil(q n)``, counted from 1: Flink ML's summary gives it within its
relative error, this one exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paimon_features.array_types import Floats
from paimon_features.errors import TransformError
from paimon_features.iteration import (
    DataStreamList,
    IterationBodyResult,
    IterationConfig,
    IterationListener,
    IterationStream,
)
from paimon_features.iteration.algorithms.bounded_training import BlockKeeper, over_rows
from paimon_features.iteration.algorithms.estimator import MODEL, TrainingSource
from paimon_features.iteration.algorithms.training_blocks import TrainingBlock
from paimon_features.transformers.flink_ml.column_models import is_missing
from paimon_features.transformers.flink_ml.vectors import dense

_BOUNDS = 15
_SIGN = 1 << 63


def place(value: float) -> int:
    """The place of a number among all float64 numbers in ascending order.

    >>> place(-1.0) < place(-0.5) < place(0.0) == place(-0.0) < place(5e-324)
    True
    """
    bits = int(np.float64(value + 0.0).view(np.int64))
    return bits if bits >= 0 else -(bits + _SIGN)


def number(at: int) -> float:
    """The number at a place.

    >>> [number(place(value)) for value in (-1.5, 0.0, 1e300)]
    [-1.5, 0.0, 1e+300]
    """
    bits = at if at >= 0 else -at - _SIGN
    return float(np.int64(bits).view(np.float64))


@dataclass(frozen=True, slots=True)
class Search:
    """Where a quantile of a column can still be: places ``[low, high]``, and its rank."""

    column: int
    rank: int
    low: int
    high: int

    def bounds(self) -> list[int]:
        """Places that divide what is left in equal parts; the last is ``high``."""
        span = self.high - self.low
        steps = sorted({self.low + span * k // (_BOUNDS + 1) for k in range(1, _BOUNDS + 1)})
        return [step for step in steps if step < self.high]

    def narrowed(self, counts: Sequence[int]) -> Search:
        """What is left after the numbers of values that are not above each bound."""
        low, high = self.low, self.high
        for bound, count in zip(self.bounds(), counts, strict=True):
            if count >= self.rank:
                return Search(self.column, self.rank, low, bound)
            low = bound + 1
        return Search(self.column, self.rank, low, high)


def quantiles(
    source: TrainingSource,
    at: Sequence[float],
    finish: Callable[[Floats], Any],
    parallelism: int,
    config: IterationConfig,
    missing_value: float | None = None,
) -> Callable[[Any], Any]:
    """The program that gives ``finish`` of the quantiles, index (columns, quantiles)."""

    def follow(answers: IterationStream, _: IterationStream) -> IterationBodyResult:
        asked = answers.process(_Ask(tuple(at), finish)).set_parallelism(1).name("ask")
        found = asked.get_side_output(MODEL)
        return IterationBodyResult(DataStreamList.of(asked), DataStreamList.of(found))

    return over_rows(source, (), _Answer(missing_value), follow, parallelism, config)


class _Answer(BlockKeeper):
    """Sorted columns; each epoch, how many values are not above each bound."""

    def __init__(self, missing_value: float | None) -> None:
        self._missing = missing_value
        self._sorted: list[Floats] | None = None

    def process_element2(self, searches: Sequence[Search], ctx: Any, out: Any) -> None:
        ctx.state.value("searches").update(searches)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        if self._sorted is None:  # and again after a restore
            self._sorted = self._columns(ctx.state.list("blocks").get())
        if epoch == 0:
            ends = [(len(c), c[0], c[-1]) if len(c) else (0, np.inf, -np.inf) for c in self._sorted]
            out.collect((ctx.subtask, ends))
            return
        answers = []
        for search in ctx.state.value("searches").value():
            bounds = [number(bound) for bound in search.bounds()]
            column = self._sorted[search.column] if self._sorted else np.zeros(0)
            answers.append(np.searchsorted(column, bounds, side="right"))
        out.collect((ctx.subtask, answers))

    def _columns(self, blocks: Sequence[TrainingBlock]) -> list[Floats]:
        if not blocks:
            return []
        columns = np.concatenate([dense(block.features) for block in blocks]).T
        known = [c[~np.isnan(c) & ~is_missing(c, self._missing)] for c in columns]
        return [np.sort(column) for column in known]


class _Ask(IterationListener):
    """Narrows the searches by the answers of all subtasks, and asks again."""

    def __init__(self, at: tuple[float, ...], finish: Callable[[Floats], Any]) -> None:
        self._at = at
        self._finish = finish

    def process_element(self, part: tuple[int, Any], ctx: Any, out: Any) -> None:
        ctx.state.list("parts").add(part[1])

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        parts, state = ctx.state.list("parts").get(), ctx.state.value("searches")
        ctx.state.list("parts").clear()
        if epoch == 0:
            searches = self._first([part for part in parts if part])
        else:
            searches = []
            for index, search in enumerate(state.value()):
                counts = np.sum([answers[index] for answers in parts], axis=0)
                searches.append(search.narrowed(counts.tolist()))
        state.update(searches)
        if all(search.low == search.high for search in searches):
            values = [number(search.low) for search in searches]
            out.side(MODEL, self._finish(np.array(values).reshape(-1, len(self._at))))
        else:
            out.collect(searches)

    def _first(self, parts: Sequence[Any]) -> list[Search]:
        if not parts:
            raise TransformError("the training set is empty")
        out = []
        for column, ends in enumerate(zip(*parts, strict=True)):
            counts, lows, highs = zip(*ends, strict=True)
            n = sum(counts)
            if not n:
                raise TransformError(
                    f"column {column}: all values are null, NaN or the missing value"
                )
            for q in self._at:
                rank = min(max(int(np.ceil(q * n)), 1), n)
                out.append(Search(column, rank, place(min(lows)), place(max(highs))))
        return out
