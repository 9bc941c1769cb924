"""Functions that wait: windows by count, windows, joins and timers at the end of the input."""

from __future__ import annotations

from typing import Any

import pytest

from paimon_features.core.errors import DefinitionError, JobError
from paimon_features.iteration import (
    DataStreamList,
    IterationListener,
    OperatorLifeCycle,
    ReferenceExecutor,
    for_each_round,
)
from tests.iteration.loops import bounded, loop, orders, run

FAILING: dict[str, Any] = {"checkpoint_every": 4, "random_failures": 3, "lose_wire": True}


def same(value: Any) -> Any:
    return value


def executors() -> list[ReferenceExecutor]:
    return [
        ReferenceExecutor(),
        *(ReferenceExecutor(seed) for seed in range(3)),
        *(ReferenceExecutor(seed, **FAILING) for seed in range(10)),
    ]


def test_a_count_window_emits_one_value_per_window_and_drops_an_incomplete_one() -> None:
    def build(job: Any) -> Any:
        return job.from_collection([1] * 11, parallelism=2).count_window_all(3, sum)

    for executor in executors():
        assert executor.run(build) == [3, 3, 3]


def test_a_window_at_the_end_sees_all_values_of_its_subtask() -> None:
    def build(job: Any) -> Any:
        stream = job.from_collection([5, 6, 7, 8], parallelism=2)
        empty = stream.filter(lambda value: False)
        return {
            "sums": stream.window_all_at_end(lambda values: [sum(values)]),
            "of nothing": empty.window_all_at_end(lambda values: [sum(values)]),
        }

    for executor in executors():
        found = executor.run(build)
        assert sorted(found["sums"]) == [12, 14]
        assert found["of nothing"] == []


def test_a_window_by_key_sees_all_values_of_each_key() -> None:
    def build(job: Any) -> Any:
        stream = job.from_collection([*range(10), None], parallelism=2)
        keyed = stream.key_by(lambda value: None if value is None else value % 3)
        return keyed.window_at_end(lambda key, values: [(key, sorted(map(str, values)))])

    right = {0: ["0", "3", "6", "9"], 1: ["1", "4", "7"], 2: ["2", "5", "8"], None: ["None"]}
    for executor in executors():
        assert dict(executor.run(build)) == right


def test_a_join_emits_every_pair_with_equal_keys() -> None:
    def build(job: Any) -> Any:
        left = job.from_collection([(key % 4, key) for key in range(12)], parallelism=2)
        right = job.from_collection([(1, "a"), (1, "b"), (3, "c"), (9, "d")])
        joined = left.join(right).where(lambda pair: pair[0]).equal_to(lambda pair: pair[0])
        return joined.apply(lambda one, other: (one[1], other[1])).set_parallelism(3)

    right = [(key, tag) for key in (1, 5, 9) for tag in "ab"] + [(key, "c") for key in (3, 7, 11)]
    for executor in executors():
        assert sorted(executor.run(build)) == sorted(right)


def test_a_join_needs_both_keys() -> None:
    def build(job: Any) -> Any:
        left, right = job.from_collection([1]), job.from_collection([1])
        return left.join(right).where(same).apply(lambda one, other: one)

    with pytest.raises(DefinitionError, match="equal_to"):
        ReferenceExecutor().run(build)


@orders
def test_windows_of_a_round_close_with_the_round(seed: int | None) -> None:
    """S24."""

    def body(variables: Any, data: Any) -> Any:
        def part(streams: Any) -> Any:
            summed = streams.get(0).key_by(lambda value: value % 2).window_at_end(_sum)
            return DataStreamList.of(summed)

        sums = for_each_round(DataStreamList.of(variables.get(0)), part).get(0)
        return [sums.map(lambda pair: pair[1] + 2)], {"sums": sums}, None

    build = loop(body, [[1, 2, 3]], max_rounds=3)

    # round 1 has 1 + 3 + 2 and 2 + 2, both even
    assert sorted(run(build, seed)["sums"]) == [(0, 2), (0, 10), (0, 12), (0, 14), (1, 4)]


def _sum(key: int, values: list[int]) -> list[tuple[int, int]]:
    return [(key, sum(values))]


class Alarm:
    """Sets timers of a key, and emits when they fire."""

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        timers = ctx.timer_service()
        assert timers.current_watermark() == -(2**63)
        _, *times = value
        for time in times:
            timers.register_event_time_timer(time)
        timers.delete_event_time_timer(99)

    def on_timer(self, timestamp: int, ctx: Any, out: Any) -> None:
        out.collect((timestamp, ctx.key))
        assert ctx.timer_service().current_watermark() == 2**63 - 1
        if timestamp == 5:
            ctx.timer_service().register_event_time_timer(6)

    def end_input(self, ctx: Any, out: Any) -> None:
        out.collect("input ended")


def test_timers_fire_at_the_end_in_order_of_time_once_per_key_and_time() -> None:
    def build(job: Any) -> Any:
        values = [("b", 7, 5, 99), ("a", 7), ("b", 7), ("a", -1, 99, 6)]
        return job.from_collection(values).key_by(lambda value: value[0]).process(Alarm())

    for executor in executors():
        first, *fired = executor.run(build)
        assert first == "input ended"
        assert [timestamp for timestamp, _ in fired] == [-1, 5, 6, 6, 7, 7]
        assert sorted(map(str, fired)) == sorted(
            map(str, [(-1, "a"), (5, "b"), (6, "a"), (6, "b"), (7, "b"), (7, "a")])
        )


def test_timers_of_a_clock_are_refused() -> None:
    class Clock:
        def process_element(self, value: Any, ctx: Any, out: Any) -> None:
            ctx.timer_service().register_processing_time_timer(value)

    with pytest.raises(JobError, match="processing-time timers are not supported") as error:
        ReferenceExecutor().run(lambda job: job.from_collection([1]).process(Clock()))
    assert "in stage 'collection > process" in error.value.__notes__[0]


class KeepAndGive:
    """Keyed state in records, the subtask's own in callbacks."""

    def process_element1(self, value: int, ctx: Any, out: Any) -> None:
        seen = ctx.state.value("seen")
        seen.update(seen.value(0) + 1)
        out.collect((ctx.key, seen.value(), ctx.state.broadcast("factor").get("factor", 1)))

    def process_element2(self, value: int, ctx: Any, out: Any) -> None:
        ctx.state.broadcast("factor").put("factor", value)
        assert ctx.key is None
        with pytest.raises(JobError, match="keyed state"):
            ctx.state.value("seen").value()


def test_a_keyed_and_a_broadcast_stream_meet_in_one_function() -> None:
    def build(job: Any) -> Any:
        keyed = job.from_collection([1, 2, 1, 1], parallelism=2).key_by(same)
        rules = job.from_collection([7]).broadcast()
        return keyed.connect(rules).process(KeepAndGive()).set_parallelism(2)

    for executor in executors():
        found = executor.run(build)
        assert sorted((key, seen) for key, seen, _ in found) == [(1, 1), (1, 2), (1, 3), (2, 1)]
        assert {factor for _, _, factor in found} <= {1, 7}


class AddWhenClosed(IterationListener):
    """Gives every value plus one when its round is closed, so that nothing runs ahead."""

    def process_element(self, value: int, ctx: Any, out: Any) -> None:
        ctx.state.union_list("held").add(value)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        held = ctx.state.union_list("held")
        for value in held:
            out.collect(value + 1)
        held.clear()


@pytest.mark.parametrize("cycle", OperatorLifeCycle)
def test_two_iterations_may_follow_each_other(cycle: OperatorLifeCycle) -> None:
    def build(job: Any) -> Any:
        def body(variables: Any, data: Any) -> Any:
            added = variables.get(0).process(AddWhenClosed())
            return [added], {"added": added}, None

        config = {"max_rounds": 2, "lifecycle": cycle}
        first = bounded([job.from_collection([0, 10], parallelism=2)], body, **config)["added"]
        between = first.window_all_at_end(lambda values: [max(values)])
        return bounded([between], body, **config)

    for executor in executors():
        assert sorted(executor.run(build)["added"]) == [3, 4, 13, 14]
