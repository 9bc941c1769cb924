"""Which nodes share a stage, and that stages never form a cycle."""

from __future__ import annotations

import pickle
import random
from typing import Any

from paimon_features.iteration import (
    DataStreamList,
    IterationBodyResult,
    IterationConfig,
    ReplayableDataStreamList,
    iterate_bounded_streams_until_termination,
)
from paimon_features.iteration.dataflow import Partition
from paimon_features.iteration.execution_plan import ExecutionPlan
from paimon_features.iteration.program import JobBuilder, build_program
from paimon_features.testing.sizes import every_seed
from tests.iteration.test_naive_differential import some_program
from tests.iteration.translation import builder


def planned(build: Any) -> ExecutionPlan:
    return build_program(JobBuilder(), build).plan


def names(plan: ExecutionPlan) -> list[list[str]]:
    return [[node.name for node in stage.nodes] for stage in plan.stages]


def same(value: Any) -> Any:
    return value


def test_forward_neighbours_of_equal_parallelism_are_one_stage() -> None:
    def build(job: Any) -> Any:
        stream = job.from_collection([1], parallelism=2, name="numbers").map(same).filter(bool)
        return stream.key_by(same).map(same).name("by key")

    assert names(planned(build)) == [["numbers", "map", "filter"], ["by key", "result"]]


def test_with_parallelism_one_the_complete_loop_is_one_stage() -> None:
    def build(job: Any) -> Any:
        def body(variables: Any, data: Any) -> Any:
            summed = variables.get(0).connect(data.get(0).key_by(same)).map(_Both())
            return IterationBodyResult(
                DataStreamList.of(summed.broadcast()), DataStreamList.of(summed)
            )

        return iterate_bounded_streams_until_termination(
            DataStreamList.of(job.from_collection([1])),
            ReplayableDataStreamList.replay(job.from_collection([2])),
            IterationConfig(max_rounds=2),
            body,
        )

    plan = planned(build)
    assert len(plan.stages) == 1
    assert len(plan.sources) == 2
    assert plan.controls[0].targets == (0,)


class _Both:
    def map1(self, value: Any) -> Any:
        return value

    map2 = map1


def test_a_model_that_is_broadcast_and_data_that_stay_where_they_are_make_two_stages() -> None:
    def build(job: Any) -> Any:
        def body(variables: Any, data: Any) -> Any:
            parts = variables.get(0).broadcast().connect(data.get(0)).map(_Both())
            model = parts.rebalance().map(same).set_parallelism(1)
            return IterationBodyResult(DataStreamList.of(model), DataStreamList.of(model))

        return iterate_bounded_streams_until_termination(
            DataStreamList.of(job.from_collection([1])),
            ReplayableDataStreamList.replay(job.from_collection([2], parallelism=4)),
            IterationConfig(max_rounds=2),
            body,
        )

    found = names(planned(build))
    assert ["collection", "variable 0"] in found
    assert ["collection", "replayed data 0", "co_map"] in found
    assert ["map", "feedback 0", "output 0", "result 0"] in found
    assert len(found) == 3


def test_a_way_around_through_another_stage_keeps_two_neighbours_apart() -> None:
    def build(job: Any) -> Any:
        first = job.from_collection([1], parallelism=2, name="first")
        around = first.key_by(same).map(same).name("around")
        return first.connect(around).map(_Both()).name("last")

    plan = planned(build)
    assert names(plan) == [["first"], ["around", "last", "result"]] or names(plan) == [
        ["first"],
        ["around"],
        ["last", "result"],
    ]
    assert all(source < target for source, target in plan.edges)


@every_seed(100)
def test_the_plan_of_any_program_is_consistent(seed: int) -> None:
    program, _ = some_program(random.Random(f"plan {seed}"))
    plan = planned(builder(program))
    stage_of = {node.id: stage.id for stage in plan.stages for node in stage.nodes}
    assert [stage.id for stage in plan.stages] == [*range(len(plan.stages))]
    assert all(source < target for source, target in plan.edges)
    channels = dict.fromkeys(stage_of, 0)
    for stage in plan.stages:
        assert {node.parallelism for node in stage.nodes} == {stage.parallelism}
        assert all(node.source is None for node in stage.nodes)
        for route in stage.routes:
            assert stage_of[route.source] == stage.id
            assert stage_of[route.target] == route.target_stage
            forward = route.partition is Partition.FORWARD
            if route.target_stage == stage.id:
                assert forward
            else:
                assert (stage.id, route.target_stage) in plan.edges
            if forward:
                assert stage.parallelism == route.target_parallelism
            channels[route.target] += 1 if forward else stage.parallelism
    for node in plan.sources:
        channels[node.id] = 1
    assert channels == {node: n for stage in plan.stages for node, n in stage.channels.items()}


def test_a_plan_of_importable_functions_pickles() -> None:
    def build(job: Any) -> Any:
        return job.from_collection([1], parallelism=2).key_by(same).map(same)

    plan = planned(build)
    again = pickle.loads(pickle.dumps(plan))
    assert [stage.routes for stage in again.stages] == [stage.routes for stage in plan.stages]
