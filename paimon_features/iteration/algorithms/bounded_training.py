"""What algorithms over bounded rows share: rows stay at their subtasks, one variable goes to all.

::

    variable ──broadcast──► a function with its rows ──► what follows ──► feedback, criteria
                                                              └──► model
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


class BlockKeeper(IterationListener):
    """Keeps the blocks that it reads until the iteration has ended."""

    def process_element1(self, block: TrainingBlock, ctx: Any, out: Any) -> None:
        """Keep a block."""
        ctx.state.list("blocks").add(block)

    def on_iteration_terminated(self, ctx: Any, out: Any) -> None:
        ctx.state.list("blocks").clear()


def over_rows(
    source: TrainingSource,
    start: Any,
    function: Any,
    follow: Callable[[IterationStream, IterationStream], IterationBodyResult],
    parallelism: int,
    config: IterationConfig,
) -> Callable[[Any], Any]:
    """The program that gives the first output of its iteration as the model.

    ``function`` gets blocks as its first input and the variable, which begins with ``start``, as
    its second. ``follow`` makes the result of the body of what it emits and of the variable.
    """

    def body(variables: DataStreamList, data: DataStreamList) -> IterationBodyResult:
        # also where the variable says nothing: only what reads one hears of watermarks
        made = (
            source.blocks(data.get(0))
            .connect(variables.get(0).broadcast())
            .process(function)
            .set_parallelism(parallelism)
            .name(type(function).__name__.strip("_").lower())
        )
        return follow(made, variables.get(0))

    def build(job: Any) -> Any:
        outputs = iterate_bounded_streams_until_termination(
            DataStreamList.of(job.from_collection([start])),
            ReplayableDataStreamList.not_replay(source.read(job)),
            config,
            body,
        )
        return {MODEL: outputs.get(0)}

    return build
