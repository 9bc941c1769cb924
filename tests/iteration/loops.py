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


Records = Sequence[Any] | tuple[Sequence[Any], int]
"""The records of a stream, and its parallelism where it is not that of the others."""


def loop(
    body: Callable[[DataStreamList, DataStreamList], Parts],
    variables: Sequence[Records],
    *,
    replay: Sequence[Records] = (),
    once: Sequence[Records] = (),
    parallelism: int = 1,
    **config: Any,
) -> Callable[[Any], dict[str, IterationStream]]:
    """A program of one bounded iteration over streams with these records."""

    def build(job: Any) -> dict[str, IterationStream]:
        given, again, other = (
            _streams(job, each, parallelism) for each in (variables, replay, once)
        )
        return bounded(given, body, replay=again, once=other, **config)

    return build


def endless_loop(
    body: Callable[[DataStreamList, DataStreamList], Parts],
    variables: Sequence[Records],
    *,
    data: Sequence[Records] = (),
    parallelism: int = 1,
    **config: Any,
) -> Callable[[Any], dict[str, IterationStream]]:
    """A program of one unbounded iteration over streams with these records."""

    def build(job: Any) -> dict[str, IterationStream]:
        given, other = (_streams(job, each, parallelism) for each in (variables, data))
        return unbounded(given, body, data=other, **config)

    return build


def _streams(job: Any, streams: Sequence[Records], parallelism: int) -> Streams:
    pairs = (each if isinstance(each, tuple) else (each, parallelism) for each in streams)
    return [job.from_collection(records, parallelism=width) for records, width in pairs]


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
