"""Short ways to write a program with one iteration, and to run it in many orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from paimon_features.iteration import (
    DataStreamList,
    IterationBodyResult,
    IterationConfig,
    IterationStream,
    ReferenceExecutor,
    ReplayableDataStreamList,
    iterate_bounded_streams_until_termination,
    iterate_unbounded_streams,
)
from paimon_features.testing.sizes import seeds
from tests.iteration.probes import Event

Streams = Sequence[IterationStream]
Parts = tuple[Streams, dict[str, IterationStream], IterationStream | None]
"""Result of a test's body: feedback, outputs by name, criteria."""

orders = pytest.mark.parametrize("seed", [None, *seeds(3)])
"""The deterministic order, and random ones."""

widths = pytest.mark.parametrize("parallelism", [1, 2, 4])


def run(build: Callable[[Any], Any], seed: int | None = None) -> dict[str, list[Any]]:
    """Run on the reference executor."""
    result: dict[str, list[Any]] = ReferenceExecutor(seed=seed).run(build)
    return result


def bounded(
    variables: Streams,
    body: Callable[[DataStreamList, DataStreamList], Parts],
    *,
    replay: Streams = (),
    once: Streams = (),
    **config: Any,
) -> dict[str, IterationStream]:
    """A bounded iteration; ``body(variables, data)`` names its outputs."""
    names: list[str] = []
    data = ReplayableDataStreamList.replay(*replay).and_not_replay(*once)
    outputs = iterate_bounded_streams_until_termination(
        DataStreamList.of(*variables),
        data,
        IterationConfig(wire="memory", **config),
        lambda given, more: _result(body(given, more), names),
    )
    return dict(zip(names, outputs, strict=True))


def unbounded(
    variables: Streams,
    body: Callable[[DataStreamList, DataStreamList], Parts],
    *,
    data: Streams = (),
    **config: Any,
) -> dict[str, IterationStream]:
    """An unbounded iteration; ``body(variables, data)`` names its outputs."""
    names: list[str] = []
    outputs = iterate_unbounded_streams(
        DataStreamList.of(*variables),
        DataStreamList.of(*data),
        lambda given, more: _result(body(given, more), names),
        IterationConfig(wire="memory", **config),
    )
    return dict(zip(names, outputs, strict=True))


def _result(parts: Parts, names: list[str]) -> IterationBodyResult:
    feedback, outputs, criteria = parts
    names += outputs
    return IterationBodyResult(
        DataStreamList.of(*feedback), DataStreamList.of(*outputs.values()), criteria
    )


def nothing(stream: IterationStream) -> IterationStream:
    """An empty stream with the parallelism of another one."""
    return stream.filter(_never)


def _never(value: Any) -> bool:
    return False


def subtasks(log: Sequence[Event]) -> list[int]:
    """Which subtasks logged anything."""
    return sorted({event.subtask for event in log})
