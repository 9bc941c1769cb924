"""S21 to S26: data streams, and how long an instance lives."""

from __future__ import annotations

from typing import Any

import pytest

from paimon_features.iteration import (
    DataStreamList,
    IterationListener,
    OperatorLifeCycle,
    for_each_round,
)
from paimon_features.iteration.program import JobBuilder, build_program
from paimon_features.iteration.reference.attempt import Attempt
from paimon_features.iteration.reference.queue_wire import QueueWire
from tests.iteration.loops import bounded, loop, nothing, orders, run, widths
from tests.iteration.probes import Hold, Probe, epochs, of_subtask, values

PER_ROUND = OperatorLifeCycle.PER_ROUND
END = 2**31 - 2


@orders
@widths
def test_replayed_data_arrive_in_every_round_but_not_at_the_end(
    seed: int | None, parallelism: int
) -> None:
    """S21: each copy with its epoch, before the epoch's watermark; none in the last round."""

    def body(given: Any, data: Any) -> Any:
        seen = data.get(0).process(Probe())
        held = given.get(0).process(Hold())
        return [held], {"log": seen.get_side_output("log")}, None

    build = loop(body, [([0], 1)], replay=[[*range(1, 8)]], parallelism=parallelism, max_rounds=3)
    log = run(build, seed)["log"]
    for epoch in range(3):
        assert values(log, epoch) == [*range(1, 8)]
    assert values(log, 3) == []
    for subtask in range(parallelism):
        order = [(e.epoch, e.kind) for e in of_subtask(log, subtask) if e.kind != "end_input"]
        assert order == sorted(order)  # records of an epoch, its watermark, the next epoch, the end


@orders
@widths
def test_other_data_arrive_once_and_replayed_streams_are_first_in_the_body(
    seed: int | None, parallelism: int
) -> None:
    """S22."""

    def body(given: Any, data: Any) -> Any:
        logs = {
            str(number): stream.process(Probe()).get_side_output("log")
            for number, stream in enumerate(data)
        }
        return [given.get(0).process(Hold())], logs, None

    build = loop(
        body,
        [([0], 1)],
        replay=[[3], [4]],
        once=[[1, 1], [2, 2]],
        parallelism=parallelism,
        max_rounds=2,
    )
    logs = run(build, seed)
    found = [[values(logs[str(n)], epoch) for epoch in range(3)] for n in range(4)]
    assert found == [[[3], [3], []], [[4], [4], []], [[1, 1], [], []], [[2, 2], [], []]]


class Instance(Probe):
    """Knows when it was opened, and keeps what it saw in itself."""

    opened = False

    def open(self, ctx: Any) -> None:
        assert not self.opened
        self.opened = True

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        assert self.opened
        super().process_element(value, ctx, out)


@orders
@widths
def test_an_all_round_function_is_one_instance_that_ends_after_the_end(
    seed: int | None, parallelism: int
) -> None:
    """S23."""

    def body(given: Any, data: Any) -> Any:
        seen = given.get(0).process(Instance())
        return [seen.process(Hold())], {"log": seen.get_side_output("log")}, None

    log = run(loop(body, [[1, 2, 3, 4]], parallelism=parallelism, max_rounds=3), seed)["log"]
    for subtask in range(parallelism):
        mine = of_subtask(log, subtask)
        # the instance's own counter never starts again
        assert [event.instance for event in mine] == [*range(len(mine))]
        assert [(event.kind, event.epoch) for event in mine[-2:]] == [
            ("end", END),
            ("end_input", END),
        ]


@orders
@widths
def test_a_per_round_function_is_an_instance_for_each_epoch_that_has_records(
    seed: int | None, parallelism: int
) -> None:
    """S24: made at the first record; callback, then end of input; the live ones at the end too."""

    def body(given: Any, data: Any) -> Any:
        held = given.get(0).process(Hold())
        seen = given.get(0).process(Instance())
        return [held], {"log": seen.get_side_output("log")}, None

    build = loop(body, [[1, 2, 3, 4]], parallelism=parallelism, max_rounds=3, lifecycle=PER_ROUND)
    log = run(build, seed)["log"]
    for subtask in range(parallelism):
        for epoch in range(4):
            mine = [event for event in of_subtask(log, subtask) if event.epoch == epoch]
            if not mine:
                continue
            last = "watermark" if epoch < 3 else "end"
            assert [event.kind for event in mine[-2:]] == [last, "end_input"]
            assert {event.kind for event in mine[:-2]} == {"record"}
            assert [event.instance for event in mine] == [*range(len(mine))]
    assert sum(event.kind == "record" for event in log) == 16


class Stateful(IterationListener):
    """Reads and writes all kinds of state that need no key."""

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        ctx.state.list("list").add(value)
        ctx.state.union_list("union").add(value)
        ctx.state.broadcast("broadcast").put(value, True)
        ctx.state.map("map").put(value, True)
        count = ctx.state.value("value")
        count.update((count.value() or 0) + 1)

    def end_input(self, ctx: Any, out: Any) -> None:
        state = ctx.state
        seen = sorted(state.list("list").get())
        assert seen == sorted(state.union_list("union").get())
        assert sorted({*seen}) == sorted(state.broadcast("broadcast").keys())
        assert sorted({*seen}) == sorted(state.map("map").keys())
        assert len(seen) == state.value("value").value()
        out.collect((ctx.epoch, seen))


class Keyed:
    """Counts its key's values."""

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        count = ctx.state.value("count")
        count.update((count.value() or 0) + 1)
        seen = ctx.state.list("seen")
        seen.add(value)
        assert len([*seen.get()]) == count.value()
        out.collect((ctx.epoch, value % 2, count.value()))


@orders
@widths
@pytest.mark.parametrize("cycle", OperatorLifeCycle)
def test_state_is_an_epochs_own_per_round_and_the_iterations_else(
    seed: int | None, parallelism: int, cycle: OperatorLifeCycle
) -> None:
    """S24: list, union, broadcast, map, value and keyed state, with records running ahead."""

    def body(given: Any, data: Any) -> Any:
        all_of_it = given.get(0).process(Stateful()).set_parallelism(1)
        keyed = given.get(0).key_by(_odd).process(Keyed())
        return [given.get(0).map(_same)], {"all": all_of_it, "keyed": keyed}, None

    build = loop(body, [[1, 2, 3]], parallelism=parallelism, max_rounds=3, lifecycle=cycle)
    found = run(build, seed)
    counted = sorted(one for one in found["keyed"] if one[0] <= 3)
    if cycle is PER_ROUND:
        assert [one for one in sorted(found["all"]) if one[0] <= 3] == [
            (epoch, [1, 2, 3]) for epoch in range(4)
        ]
        assert counted == [
            (epoch, *of_key) for epoch in range(4) for of_key in [(0, 1), (1, 1), (1, 2)]
        ]
    else:
        ((epoch, seen),) = found["all"]
        assert epoch == END
        assert seen.count(1) >= 4  # records may run ahead of the end
        evens = sorted(count for _, key, count in found["keyed"] if key == 0)
        assert evens == [*range(1, len(evens) + 1)]


def _odd(value: int) -> int:
    return value % 2


def _same(value: int) -> int:
    return value


@orders
def test_several_instances_may_live_at_once(seed: int | None) -> None:
    """S24: records run ahead into later epochs while the first one is open."""

    def body(given: Any, data: Any) -> Any:
        seen = given.get(0).union(data.get(0)).process(Instance())
        return [given.get(0).flat_map(_up_to_30)], {"log": seen.get_side_output("log")}, None

    log = run(loop(body, [[1, 2, 3, 4]], once=[[*range(200)]], lifecycle=PER_ROUND), seed)["log"]
    most = live = 0
    for event in log:
        live += event.kind == "record" and event.instance == 0
        live -= event.kind == "end_input"
        most = max(most, live)
    assert live == 0
    assert epochs(log, "watermark") == [*range(max(event.epoch for event in log) + 1)]
    if seed is not None:
        assert most > 1


def _up_to_30(value: int) -> list[int]:
    return [value + 10] if value < 30 else []


@orders
@widths
@pytest.mark.parametrize("cycle", OperatorLifeCycle)
def test_for_each_round_makes_just_its_part_per_round(
    seed: int | None, parallelism: int, cycle: OperatorLifeCycle
) -> None:
    """S25: whatever the iteration's own life cycle is."""

    def build(job: Any) -> Any:
        variable = job.from_collection([1, 2, 3, 4], parallelism=parallelism)

        def part(inputs: Any) -> Any:
            return DataStreamList.of(inputs.get(0).process(Instance()))

        def body(given: Any, data: Any) -> Any:
            inside = for_each_round(given, part).get(0)
            outside = given.get(0).process(Instance())
            logs = {
                "inside": inside.get_side_output("log"),
                "outside": outside.get_side_output("log"),
            }
            return [given.get(0).process(Hold())], logs, None

        return bounded([variable], body, max_rounds=2, lifecycle=cycle)

    logs = run(build, seed)

    def ends(log: Any) -> list[int]:
        return sorted({event.epoch for event in log if event.kind == "end_input"})

    assert ends(logs["inside"]) == [0, 1, 2]
    assert ends(logs["outside"]) == ([0, 1, 2] if cycle is PER_ROUND else [END])


class EndOfEpoch:
    """A window by an event-time timer, as the windows of Flink are."""

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        ctx.state.list("seen").add(value)
        ctx.timer_service().register_event_time_timer(5)

    def on_timer(self, timestamp: int, ctx: Any, out: Any) -> None:
        out.collect((timestamp, ctx.key, sorted(ctx.state.list("seen").get())))


@orders
@pytest.mark.parametrize("cycle", OperatorLifeCycle)
def test_event_time_does_not_advance_until_an_instance_ends(
    seed: int | None, cycle: OperatorLifeCycle
) -> None:
    """S24, S26: watermarks of inputs do not enter; MAX arrives at the end of the instance."""

    def body(given: Any, data: Any) -> Any:
        window = given.get(0).key_by(_odd).process(EndOfEpoch())
        return [given.get(0).process(Hold())], {"windows": window}, None

    build = loop(body, [[1, 2, 3]], parallelism=2, max_rounds=2, lifecycle=cycle)
    found = sorted(run(build, seed)["windows"])
    if cycle is PER_ROUND:
        assert found == [(5, 0, [2])] * 3 + [(5, 1, [1, 3])] * 3
    else:
        assert found == [(5, 0, [2] * 3), (5, 1, [1] * 3 + [3] * 3)]


@orders
@pytest.mark.parametrize("cycle", OperatorLifeCycle)
def test_windows_at_the_end_are_those_of_the_epoch_or_of_the_iteration(
    seed: int | None, cycle: OperatorLifeCycle
) -> None:
    """S24: end-of-stream windows and joins, by key and without, and counted windows."""

    def body(given: Any, data: Any) -> Any:
        stream, other = given.get(0), data.get(0)
        join = stream.join(other).where(_same).equal_to(_same).apply(_product)
        outputs = {
            "keyed": stream.key_by(_odd).window_at_end(_key_and_sum),
            "all": stream.rebalance().window_all_at_end(_one_sum).set_parallelism(1),
            "join": join,
            "counted": stream.count_window_all(2, len),
        }
        return [stream.process(Hold())], outputs, None

    build = loop(
        body, [[1, 2, 3]], replay=[([2, 3, 4], 1)], parallelism=2, max_rounds=2, lifecycle=cycle
    )
    found = {name: sorted(values) for name, values in run(build, seed).items()}
    if cycle is PER_ROUND:
        # the last round has no replayed data, hence no pairs
        assert found == {
            "keyed": [(0, 2)] * 3 + [(1, 4)] * 3,
            "all": [6] * 3,
            "join": [4, 4, 9, 9],
            "counted": [2, 2, 2],
        }
    else:
        assert found == {
            "keyed": [(0, 6), (1, 12)],
            "all": [18],
            "join": [4] * 6 + [9] * 6,
            "counted": [2, 2, 2, 2],
        }


def _key_and_sum(key: int, values: list[int]) -> list[tuple[int, int]]:
    return [(key, sum(values))]


def _one_sum(values: list[int]) -> list[int]:
    return [sum(values)]


def _product(left: int, right: int) -> int:
    return left * right


@orders
def test_a_per_round_function_without_a_record_in_an_epoch_has_no_instance(
    seed: int | None,
) -> None:
    """S24."""

    def body(given: Any, data: Any) -> Any:
        seen = nothing(given.get(0)).process(Instance())
        return [given.get(0).process(Hold())], {"log": seen.get_side_output("log")}, None

    assert run(loop(body, [[1, 2]], max_rounds=3, lifecycle=PER_ROUND), seed)["log"] == []


@orders
@widths
def test_every_instance_that_lives_at_the_end_is_ended(seed: int | None, parallelism: int) -> None:
    """S24: that of the last round, and that of what was emitted at the end itself."""

    def build(job: Any) -> Any:
        variable = job.from_collection([1, 2, 3, 4], parallelism=parallelism)

        def part(inputs: Any) -> Any:
            return DataStreamList.of(inputs.get(0).process(Instance()))

        def body(given: Any, data: Any) -> Any:
            held = given.get(0).process(Hold())
            both = held.union(given.get(0)).map(_same)
            inside = for_each_round(DataStreamList.of(both), part).get(0)
            return [held], {"log": inside.get_side_output("log")}, None

        return bounded([variable], body, max_rounds=2)

    log = run(build, seed)["log"]
    for subtask in range(parallelism):
        mine = of_subtask(log, subtask)
        assert epochs(mine, "watermark") == [0, 1]
        assert epochs(mine, "end") == [2, END]
        assert epochs(mine, "end_input") == [0, 1, 2, END]


def test_state_of_closed_rounds_is_deleted() -> None:
    """S24: from the backend too, else a long iteration would fill it."""

    def body(given: Any, data: Any) -> Any:
        keyed = given.get(0).key_by(_odd).process(Keyed())
        held = given.get(0).process(Hold())
        return [held], {"all": held.process(Stateful()), "keyed": keyed}, None

    build = loop(body, [[1, 2, 3]], parallelism=2, max_rounds=3, lifecycle=PER_ROUND)

    plan = build_program(JobBuilder(), build).plan
    attempt = Attempt(plan, [QueueWire() for _ in plan.controls], None, None)
    most = 0
    while attempt.step():
        left = 0
        for actor, runner in attempt._runners.items():
            runner.flush()
            left += len([*attempt._states[actor].scan("round")])
        most = max(most, left)
    assert most > 0
    assert left == 0
