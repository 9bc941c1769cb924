"""What one pass over the rows tells, on the runtime: partial results of subtasks, merged.

Every subtask adds up its blocks; when all rows have come (watermark 0) the partial results are
merged in the order of the subtasks. Nothing is fed back, so the iteration ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from paimon_features.errors import TransformError
from paimon_features.iteration import (
    DataStreamList,
    IterationBodyResult,
    IterationConfig,
    IterationListener,
    IterationStream,
)
from paimon_features.iteration.algorithms.bounded_training import over_rows
from paimon_features.iteration.algorithms.estimator import TrainingSource
from paimon_features.iteration.algorithms.training_blocks import TrainingBlock


class PartialAggregate(Protocol):
    """A result that can be added up: of a block, of two results, and finished."""

    def of(self, block: TrainingBlock) -> Any:
        """The result of one block."""
        ...

    def merge(self, left: Any, right: Any) -> Any:
        """The result of the rows of both."""
        ...

    def finish(self, whole: Any) -> Any:
        """The model data of all rows."""
        ...


def aggregate(
    source: TrainingSource, function: PartialAggregate, parallelism: int, config: IterationConfig
) -> Callable[[Any], Any]:
    """The program that gives the finished result of all rows."""

    def follow(partial: IterationStream, _: IterationStream) -> IterationBodyResult:
        merged = partial.process(_Merge(function)).set_parallelism(1).name("merge")
        # of the result, so that no round can end before it is there
        nothing = merged.filter(_never)
        return IterationBodyResult(DataStreamList.of(nothing), DataStreamList.of(merged))

    return over_rows(source, 0, _Add(function), follow, parallelism, config)


class _Add(IterationListener):
    def __init__(self, function: PartialAggregate) -> None:
        self._function = function

    def process_element1(self, block: TrainingBlock, ctx: Any, out: Any) -> None:
        if not len(block):
            return
        partial = ctx.state.value("partial")
        so_far, new = partial.value(), self._function.of(block)
        partial.update(new if so_far is None else self._function.merge(so_far, new))

    def process_element2(self, start: Any, ctx: Any, out: Any) -> None:
        pass

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        partial = ctx.state.value("partial")
        if epoch == 0 and partial.value() is not None:
            out.collect((ctx.subtask, partial.value()))
        partial.clear()


class _Merge(IterationListener):
    def __init__(self, function: PartialAggregate) -> None:
        self._function = function

    def process_element(self, part: tuple[int, Any], ctx: Any, out: Any) -> None:
        ctx.state.list("parts").add(part)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        if epoch != 0:
            return
        parts = sorted(ctx.state.list("parts").get(), key=lambda part: part[0])
        if not parts:
            raise TransformError("the training set is empty")
        whole = parts[0][1]
        for _, result in parts[1:]:
            whole = self._function.merge(whole, result)
        ctx.state.list("parts").clear()
        out.collect(self._function.finish(whole))


def _never(value: Any) -> bool:
    return False
