"""A program whose feedback is all-reduced, and what is right for it, for both engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from paimon_features.core.types.array_types import Floats
from paimon_features.iteration import (
    DataStreamList,
    IterationBodyResult,
    IterationConfig,
    IterationListener,
    IterationStream,
    OperatorLifeCycle,
    ReplayableDataStreamList,
    iterate_bounded_streams_until_termination,
)
from tests.reference.all_reduce import all_reduced

Received = tuple[int, int, bytes]
"""Subtask, epoch, bits of the sum."""


def parts_of(subtask: int, epoch: int, total: Floats, most: int) -> list[np.ndarray]:
    """What a subtask adds in an epoch: none to ``most`` arrays of numbers that depend on the sum
    before, and whose sum depends on the order."""
    rng = np.random.default_rng([subtask, epoch, most])
    width = len(total)
    parts = [
        rng.normal(size=width) * 10.0 ** rng.integers(-12, 12, width) + 1e-3 * total
        for _ in range(rng.integers(0, most + 1))
    ]
    for part in parts:
        part.flags.writeable = bool(rng.integers(2))
    return parts


class Contribute(IterationListener):
    """Gives the sums that it receives to a side output."""

    def __init__(self, width: int, most: int) -> None:
        self._width = width
        self._most = most

    def process_element(self, total: Floats, ctx: Any, out: Any) -> None:
        ctx.state.map("totals").put(ctx.epoch, total)
        out.side("received", (ctx.subtask, ctx.epoch, total.tobytes()))

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        totals = ctx.state.map("totals")
        total = totals.get(epoch, np.zeros(self._width))
        totals.remove(epoch)
        for part in parts_of(ctx.subtask, epoch, total, self._most):
            out.collect(part)


def summing(
    parallelism: int,
    rounds: int,
    width: int,
    most: int,
    life_cycle: OperatorLifeCycle = OperatorLifeCycle.ALL_ROUND,
    between: Callable[[IterationStream], IterationStream] = lambda stream: stream,
) -> Callable[[Any], Any]:
    """Build the program; ``between`` is put before the feedback."""

    def body(variables: DataStreamList, _: DataStreamList) -> IterationBodyResult:
        went = variables.get(0).process(Contribute(width, most))
        return IterationBodyResult(
            DataStreamList.of(between(went).all_reduce()),
            DataStreamList.of(went.get_side_output("received")),
        )

    def build(job: Any) -> Any:
        start = job.from_collection([np.ones(width)] * parallelism, parallelism)
        return iterate_bounded_streams_until_termination(
            DataStreamList.of(start),
            ReplayableDataStreamList.not_replay(),
            IterationConfig(life_cycle, max_rounds=rounds),
            body,
        ).get(0)

    return build


def expected(
    parallelism: int, rounds: int, width: int, most: int, *, per_round: bool = False
) -> list[Received]:
    """What the subtasks receive, by the oracle."""
    received: list[Received] = []
    total: list[float] | None = [1.0] * width
    for epoch in range(rounds + 1):
        if total is None and per_round:
            break  # no record, hence no function that could add anything
        if total is not None:
            bits = np.array(total).tobytes()
            received += [(subtask, epoch, bits) for subtask in range(parallelism)]
        before = np.zeros(width) if total is None else np.array(total)
        total = all_reduced(
            [
                [part.tolist() for part in parts_of(subtask, epoch, before, most)]
                for subtask in range(parallelism)
            ]
        )
    return received
