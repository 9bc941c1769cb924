"""Training on bounded rows: rows stay at their subtasks, a variable circulates between rounds.

::

    variable ──broadcast──► per subtask, with its rows ──► combine ──► next variable, criteria
                                       └──────── model ────────┘
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

from paimon_features.core.errors import TransformError
from paimon_features.iteration import (
    DataStreamList,
    IterationBodyResult,
    IterationConfig,
    IterationListener,
    IterationStream,
    ReplayableDataStreamList,
    iterate_bounded_streams_until_termination,
)
from paimon_features.iteration.algorithms.estimator import MODEL, TrainingSource
from paimon_features.iteration.algorithms.training_blocks import TrainingBlock

Criteria = Callable[[IterationStream, IterationStream], IterationStream]
"""From the combined results and the variable to the stream that ends the iteration when empty."""


class BlockKeeper(IterationListener):
    """Keeps the blocks of its subtask until the iteration ends."""

    name: ClassVar[str]
    """The name of the operator."""

    def process_element1(self, block: TrainingBlock, ctx: Any, out: Any) -> None:
        """Keep a block."""
        ctx.state.list("blocks").add(block)

    def on_iteration_terminated(self, ctx: Any, out: Any) -> None:
        ctx.state.list("blocks").clear()


class SubtaskCombiner(IterationListener):
    """Collects one ``(subtask, result)`` per subtask and combines them in subtask order.

    The fixed order makes sums of floats reproducible.
    """

    name: ClassVar[str]
    """The name of the operator."""

    def process_element(self, result: tuple[int, Any], ctx: Any, out: Any) -> None:
        """Keep the result of a subtask until the epoch is complete."""
        ctx.state.list("results").add(result)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        results = ctx.state.list("results")
        ordered = [value for _, value in sorted(results.get(), key=_subtask)]
        results.clear()
        if ordered:
            self.combine(epoch, ordered, ctx, out)
        elif epoch == 0:
            raise TransformError("the training set is empty")

    def combine(self, epoch: int, results: Sequence[Any], ctx: Any, out: Any) -> None:
        """Emit the next variable, or the model to the side output ``MODEL``."""
        raise NotImplementedError


def train_bounded(
    source: TrainingSource,
    start: Any,
    per_subtask: Any,
    combiner: SubtaskCombiner,
    parallelism: int,
    config: IterationConfig,
    *,
    criteria: Criteria | None = None,
    model_from_subtasks: bool = False,
) -> Callable[[Any], Any]:
    """Build the program that trains on bounded rows and outputs the model.

    Parameters
    ----------
    start
        The initial variable.
    per_subtask
        Receives blocks on its first input and the variable on its second.
    combiner
        Its records are the next variable. Without any, the iteration ends.
    criteria
        An additional reason to end the iteration.
    model_from_subtasks
        Whether the side output ``MODEL`` is that of ``per_subtask`` instead of the combiner.
    """

    def body(variables: DataStreamList, data: DataStreamList) -> IterationBodyResult:
        # connected even where the function ignores the variable: only operators downstream of a
        # variable receive epoch watermarks
        results = (
            source.blocks(data.get(0))
            .connect(variables.get(0).broadcast())
            .process(per_subtask)
            .set_parallelism(parallelism)
            .name(per_subtask.name)
        )
        combined = results.process(combiner).set_parallelism(1).name(combiner.name)
        model = (results if model_from_subtasks else combined).get_side_output(MODEL)
        return IterationBodyResult(
            DataStreamList.of(combined),
            DataStreamList.of(model),
            None if criteria is None else criteria(combined, variables.get(0)),
        )

    def build(job: Any) -> Any:
        outputs = iterate_bounded_streams_until_termination(
            DataStreamList.of(job.from_collection([start])),
            ReplayableDataStreamList.not_replay(source.read(job)),
            config,
            body,
        )
        return {MODEL: outputs.get(0)}

    return build


class PartialAggregate(Protocol):
    """An aggregate over all rows, computed per block and merged."""

    def of(self, block: TrainingBlock) -> Any:
        """Return the partial aggregate of one block."""
        ...

    def merge(self, left: Any, right: Any) -> Any:
        """Return the partial aggregate of the rows of both."""
        ...

    def finish(self, merged: Any) -> Any:
        """Return the model data from the partial aggregate of all rows."""
        ...


def aggregate(
    source: TrainingSource,
    function: PartialAggregate,
    parallelism: int,
    config: IterationConfig,
) -> Callable[[Any], Any]:
    """Build the program that outputs the finished aggregate of all rows, in one pass."""
    partial, merge = _AggregateBlocks(function), _MergePartials(function)
    return train_bounded(source, 0, partial, merge, parallelism, config)


class _AggregateBlocks(IterationListener):
    name = "aggregate"

    def __init__(self, function: PartialAggregate) -> None:
        self._function = function

    def process_element1(self, block: TrainingBlock, ctx: Any, out: Any) -> None:
        if not len(block):
            return
        partial = ctx.state.value("partial")
        before, new = partial.value(), self._function.of(block)
        partial.update(new if before is None else self._function.merge(before, new))

    def process_element2(self, start: Any, ctx: Any, out: Any) -> None:
        pass

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        partial = ctx.state.value("partial")
        if epoch == 0 and partial.value() is not None:
            out.collect((ctx.subtask, partial.value()))
        partial.clear()


class _MergePartials(SubtaskCombiner):
    name = "merge"

    def __init__(self, function: PartialAggregate) -> None:
        self._function = function

    def combine(self, epoch: int, results: Sequence[Any], ctx: Any, out: Any) -> None:
        merged = results[0]
        for partial in results[1:]:
            merged = self._function.merge(merged, partial)
        out.side(MODEL, self._function.finish(merged))


def _subtask(result: tuple[int, Any]) -> int:
    return result[0]
