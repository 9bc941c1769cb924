"""An all-reduced feedback edge: the oracle's sums to the bit, whatever fails and whenever."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paimon_features.core.errors import DefinitionError, JobError
from paimon_features.iteration import (
    DataStreamList,
    IterationBodyResult,
    IterationConfig,
    IterationStream,
    OperatorLifeCycle,
    ReferenceExecutor,
    ReplayableDataStreamList,
    for_each_round,
    iterate_bounded_streams_until_termination,
    iterate_unbounded_streams,
)
from paimon_features.testing.sizes import every_seed
from tests.iteration.sums import Contribute, expected, summing


@every_seed(12)
def test_every_subtask_receives_the_sums_of_the_oracle_whatever_fails(seed: int) -> None:
    rng = random.Random(f"all-reduce {seed}")
    # entries of a tail are in its own state, or, of more than 8 KiB, one by one
    shape = rng.randint(1, 4), rng.randint(1, 6), rng.choice([0, 1, 5, 1_500]), rng.randint(1, 3)
    wanted = expected(*shape)
    build = summing(*shape)
    assert sorted(ReferenceExecutor().run(build)) == sorted(wanted)
    for _ in range(3):
        executor = ReferenceExecutor(
            seed=rng.randrange(2**32),
            checkpoint_every=rng.choice([1, 3, 10, 40]),
            random_failures=rng.randint(0, 4),
            failures=rng.sample(range(60), 3),
            lose_wire=rng.random() < 0.5,
        )
        assert sorted(executor.run(build)) == sorted(wanted)
        for wire in executor.wires:
            assert not wire._payloads, "a payload that all have taken is deleted"


@pytest.mark.parametrize("most", [1, 3])
def test_a_function_of_one_round_receives_the_sums_as_well(most: int) -> None:
    for seed in (None, 1, 2):
        executor = ReferenceExecutor(seed, checkpoint_every=5, failures=[20, 50])
        found = executor.run(summing(3, 6, 5, most, OperatorLifeCycle.PER_ROUND))
        assert sorted(found) == sorted(expected(3, 6, 5, most, per_round=True))


def one_round(values: list[Any], use: Callable[[IterationStream], IterationStream]) -> Any:
    def body(variables: DataStreamList, _: DataStreamList) -> IterationBodyResult:
        stream = variables.get(0).map(lambda value: value)
        return IterationBodyResult(DataStreamList.of(use(stream)), DataStreamList.of(stream))

    def build(job: Any) -> Any:
        return iterate_bounded_streams_until_termination(
            DataStreamList.of(job.from_collection(values, 2)),
            ReplayableDataStreamList.not_replay(),
            IterationConfig(max_rounds=1),
            body,
        ).get(0)

    return build


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([np.zeros(2), np.zeros(3)], r"subtask 1 has an array of shape \(3,\)"),
        ([np.zeros(2), np.zeros((2, 1))], r"shape \(2, 1\), those before \(2,\)"),
        ([np.zeros(2), np.zeros(2, np.float32)], "subtask 1, got an array of float32"),
        ([np.zeros(2), np.ma.zeros(2)], "subtask 1, got a MaskedArray"),
        ([[0.0, 0.0], np.zeros(2)], "subtask 0, got a list; expected arrays of float64"),
    ],
)
def test_what_cannot_be_added_up_is_named(values: list[Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        ReferenceExecutor().run(one_round(values, lambda stream: stream.all_reduce()))


@pytest.mark.parametrize(
    "use",
    [
        lambda stream: stream.all_reduce().map(lambda value: value),
        lambda stream: stream.all_reduce().broadcast(),
        lambda stream: stream.broadcast().union(stream.all_reduce()).map(len),
        lambda stream: (
            for_each_round(DataStreamList.of(stream.all_reduce()), lambda streams: streams)
            .get(0)
            .filter(bool)
        ),
        lambda stream: stream.connect(stream.all_reduce()).process(Contribute(1, 1)),
    ],
)
def test_only_a_feedback_edge_can_be_all_reduced(use: Any) -> None:
    with pytest.raises(DefinitionError, match="all-reduce: |missing method"):
        ReferenceExecutor().run(one_round([np.zeros(2)], use))


def test_an_output_and_a_criterion_cannot_be_all_reduced() -> None:
    def program(result: Callable[[IterationStream], IterationBodyResult]) -> Any:
        return lambda job: iterate_bounded_streams_until_termination(
            DataStreamList.of(job.from_collection([np.zeros(2)])),
            ReplayableDataStreamList.not_replay(),
            IterationConfig(),
            lambda variables, _: result(variables.get(0).map(lambda value: value)),
        ).get(0)

    alone = DataStreamList.of
    for result in (
        lambda stream: IterationBodyResult(alone(stream), alone(stream.all_reduce())),
        lambda stream: IterationBodyResult(alone(stream), alone(stream), stream.all_reduce()),
    ):
        with pytest.raises(DefinitionError, match="all-reduce: "):
            ReferenceExecutor().run(program(result))


def test_an_unbounded_iteration_has_no_epochs_to_reduce() -> None:
    def body(variables: DataStreamList, _: DataStreamList) -> IterationBodyResult:
        stream = variables.get(0).map(lambda value: value)
        return IterationBodyResult(
            DataStreamList.of(stream.all_reduce()), DataStreamList.of(stream)
        )

    with pytest.raises(DefinitionError, match="all-reduce: .* unbounded"):
        ReferenceExecutor().run(
            lambda job: iterate_unbounded_streams(
                DataStreamList.of(job.from_collection([np.zeros(2)])), DataStreamList.of(), body
            ).get(0)
        )
