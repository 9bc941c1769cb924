"""S13 to S20: when an iteration ends, and what still happens then."""

from __future__ import annotations

from typing import Any

import pytest

from paimon_features.iteration import (
    IterationListener,
    OperatorLifeCycle,
    forward_inputs_of_last_round,
    terminate_on_max_iter,
    terminate_on_max_iter_or_tol,
)
from tests.iteration.loops import (
    bounded,
    endless_loop,
    loop,
    nothing,
    orders,
    run,
    widths,
)
from tests.iteration.probes import Hold, Probe, Pulse, epochs, of_subtask, values


@orders
@widths
def test_round_zero_never_ends_the_iteration(seed: int | None, parallelism: int) -> None:
    """S13: not even without any record, nor with criteria without one."""

    def body(given: Any, data: Any) -> Any:
        seen = given.get(0).process(Probe())
        return [nothing(seen)], {"log": seen.get_side_output("log")}, nothing(seen)

    log = run(loop(body, [[]], parallelism=parallelism), seed)["log"]
    for subtask in range(parallelism):
        kinds = [(event.kind, event.epoch) for event in of_subtask(log, subtask)]
        assert kinds[0] == ("watermark", 0)
        assert [kind for kind, _ in kinds] == ["watermark", "end", "end_input"]


@orders
@widths
def test_a_round_without_a_record_is_the_last(seed: int | None, parallelism: int) -> None:
    """S14: the longest living record decides, in whichever loop it is."""

    def body(given: Any, data: Any) -> Any:
        first = given.get(0).process(Probe())
        second = given.get(1).process(Probe())
        logs = {"short": first.get_side_output("log"), "long": second.get_side_output("log")}
        return [first.flat_map(_count_down), second.flat_map(_count_down)], logs, None

    logs = run(loop(body, [[1, 2], ([1, 5], 1)], parallelism=parallelism), seed)
    # 5 becomes 0 in round 5; round 6 has no record
    for name, width in (("short", parallelism), ("long", 1)):
        for subtask in range(width):
            assert epochs(logs[name], "watermark", subtask) == [0, 1, 2, 3, 4, 5]
    assert values(logs["long"], 5) == [0]


def _count_down(value: int) -> list[int]:
    return [value - 1] if value > 0 else []


@orders
def test_criteria_without_a_record_end_it_though_there_is_feedback(seed: int | None) -> None:
    """S14."""

    def body(given: Any, data: Any) -> Any:
        held = given.get(0).process(Hold())
        pulse = given.get(0).process(Pulse(until=2))
        return [held], {"log": held.get_side_output("log")}, pulse

    log = run(loop(body, [[1, 2]], parallelism=2), seed)["log"]
    # the pulse of watermarks 0 and 1 keeps rounds 1 and 2; there is none for round 3
    assert epochs(log, "watermark", 0) == epochs(log, "watermark", 1) == [0, 1, 2]
    assert values(log, 3) == [1, 2]


@orders
def test_criteria_alone_keep_it_going_without_feedback(seed: int | None) -> None:
    """S14: the total counts records of criteria too."""

    def body(given: Any, data: Any) -> Any:
        pulse = given.get(0).process(Pulse(until=3))
        return [nothing(given.get(0))], {"log": pulse.get_side_output("log")}, pulse

    log = run(loop(body, [[1, 2]], parallelism=2), seed)["log"]
    assert epochs(log, "watermark", 0) == epochs(log, "watermark", 1) == [0, 1, 2, 3]
    assert values(log, 1) == []


@orders
@widths
@pytest.mark.parametrize("rounds", [1, 2, 5])
@pytest.mark.parametrize("by", ["criteria", "config"])
def test_n_rounds_are_n_callbacks_and_the_records_of_one_more_round(
    seed: int | None, parallelism: int, rounds: int, by: str
) -> None:
    """S15, S18: the records of the round that ends it are delivered, its watermark is not."""

    def body(given: Any, data: Any) -> Any:
        held = given.get(0).process(Hold())
        criteria = None
        if by == "criteria":
            criteria = given.get(0).flat_map(terminate_on_max_iter(rounds))
        return [held], {"log": held.get_side_output("log"), "values": held}, criteria

    config = {"max_rounds": rounds} if by == "config" else {}
    found = run(loop(body, [[7, 8]], parallelism=parallelism, **config), seed)
    for subtask in range(parallelism):
        log = of_subtask(found["log"], subtask)
        assert epochs(log, "watermark") == [*range(rounds)]
        # once, after all its records
        assert [event.kind for event in log if event.kind in ("record", "end")][-1] == "end"
        assert [event.kind for event in log].count("end") == 1
    for epoch in range(rounds + 1):
        assert values(found["log"], epoch) == [7, 8]
    assert values(found["log"], rounds + 1) == []
    # what the end itself emits is in the outputs (S16)
    assert sorted(found["values"]) == sorted([7, 8] * (rounds + 1))


@orders
@pytest.mark.parametrize("by", ["criteria", "config"])
def test_a_number_of_rounds_is_kept_though_nothing_is_fed_back(seed: int | None, by: str) -> None:
    """S14, S18: ``max_rounds`` is a criterion that is not empty before its round."""

    def body(given: Any, data: Any) -> Any:
        seen = given.get(0).process(Probe())
        criteria = seen.flat_map(terminate_on_max_iter(4)) if by == "criteria" else None
        return [nothing(seen)], {"log": seen.get_side_output("log")}, criteria

    config = {"max_rounds": 4} if by == "config" else {}
    assert epochs(run(loop(body, [[1]], **config), seed)["log"], "watermark") == [0, 1, 2, 3]


@orders
@widths
def test_what_a_tail_without_rounds_fed_back_counts_for_its_round(
    seed: int | None, parallelism: int
) -> None:
    """S9, S14: it depends on no variable and ends at once, with records for round 1."""

    def body(given: Any, data: Any) -> Any:
        seen = given.get(0).process(Probe())
        return [data.get(0).map(int)], {"log": seen.get_side_output("log")}, None

    log = run(loop(body, [[]], once=[[1, 2, 3]], parallelism=parallelism), seed)["log"]
    for subtask in range(parallelism):
        assert epochs(log, "watermark", subtask) == [0, 1]


class Farewell(IterationListener):
    """Emits at the end, and counts records that return."""

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        if value == "bye":
            out.side("heard", value)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        out.collect(epoch)

    def on_iteration_terminated(self, ctx: Any, out: Any) -> None:
        out.collect("bye")
        out.side("said", "bye")


@orders
@widths
def test_what_the_end_emits_reaches_outputs_but_no_feedback(
    seed: int | None, parallelism: int
) -> None:
    """S16."""

    def body(given: Any, data: Any) -> Any:
        last = given.get(0).process(Farewell())
        outputs = {
            "main": last.filter(_is_text),
            "said": last.get_side_output("said").rebalance().map(str),
            "heard": last.get_side_output("heard"),
        }
        return [last], outputs, None

    found = run(loop(body, [[0]], parallelism=parallelism, max_rounds=3), seed)
    assert found["main"] == found["said"] == ["bye"] * parallelism
    assert found["heard"] == []


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


@orders
@widths
def test_a_per_round_criterion_is_silent_in_an_epoch_without_a_record(
    seed: int | None, parallelism: int
) -> None:
    """S14, S17, S24: what counts the rounds lives in those that bring it a record."""

    def body(given: Any, data: Any) -> Any:
        counted = given.get(0).flat_map(terminate_on_max_iter(50))
        logged = given.get(1).process(Probe())
        logs = {"log": logged.get_side_output("log")}
        return [stream.flat_map(_count_down) for stream in given], logs, counted

    build = loop(
        body,
        [[3], [9]],
        parallelism=parallelism,
        lifecycle=OperatorLifeCycle.PER_ROUND,
    )
    log = run(build, seed)["log"]
    # 3 is 0 in epoch 3 and gone in epoch 4, which is closed and has no criteria for round 5;
    # records of the other variable may run ahead of that
    assert epochs(log, "watermark") == [*range(5)]
    assert min(epochs(log, "end")) == 5


@orders
def test_criteria_of_what_has_no_rounds_make_round_one_the_last(seed: int | None) -> None:
    """S17."""

    def body(given: Any, data: Any) -> Any:
        held = given.get(0).process(Hold())
        pulse = data.get(0).process(Pulse(until=50)).map(int)
        return [held], {"log": held.get_side_output("log")}, pulse

    log = run(loop(body, [([1], 1)], once=[[*range(100)]], parallelism=2), seed)["log"]
    assert epochs(log, "watermark") == [0]
    assert values(log, 1) == [1]


def _half(value: float) -> float:
    return value / 2


@orders
@pytest.mark.parametrize(
    ("rounds", "tolerance", "callbacks"),
    [(10, 0.1, 5), (3, 0.1, 3), (10, 0.25, 3), (10, 5.0, 1), (10, 0.0, 10)],
)
def test_it_ends_at_the_maximum_or_when_the_loss_is_small(
    seed: int | None, rounds: int, tolerance: float, callbacks: int
) -> None:
    """S18: the loss is 1, 1/2, 1/4, ...; it continues at e if e + 1 < max and loss > tol."""

    def body(given: Any, data: Any) -> Any:
        held = given.get(0).process(Hold())
        loss = given.get(0).flat_map(terminate_on_max_iter_or_tol(rounds, tolerance))
        return [held.map(_half)], {"log": held.get_side_output("log")}, loss

    assert epochs(run(loop(body, [[1.0]]), seed)["log"], "watermark") == [*range(callbacks)]


@orders
def test_only_the_inputs_of_the_last_round_are_emitted(seed: int | None) -> None:
    """S15, S16: of the round that ended it, which was delivered but never closed."""

    def body(given: Any, data: Any) -> Any:
        held = given.get(0).process(Hold())
        final = given.get(0).flat_map(forward_inputs_of_last_round())
        return [held.map(_add_ten)], {"final": final}, None

    assert sorted(run(loop(body, [[1, 2]], parallelism=2, max_rounds=3), seed)["final"]) == [31, 32]


def _add_ten(value: int) -> int:
    return value + 10


@orders
@widths
def test_an_unbounded_iteration_over_bounded_streams_ends_when_a_round_has_no_record(
    seed: int | None, parallelism: int
) -> None:
    """S19."""

    def body(given: Any, more: Any) -> Any:
        seen = given.get(0).process(Probe())
        both = seen.connect(more.get(0)).map(_Second())
        outputs = {"log": seen.get_side_output("log"), "both": both}
        return [seen.flat_map(_count_down)], outputs, None

    found = run(endless_loop(body, [[3, 1]], data=[([9], 1)], parallelism=parallelism), seed)
    for subtask in range(parallelism):
        assert epochs(found["log"], "watermark", subtask) == [0, 1, 2, 3]
        assert epochs(found["log"], "end", subtask) != []
    assert sorted(found["both"]) == [0, 0, 1, 1, 2, 3, 9]


class _Second:
    def map1(self, value: int) -> int:
        return value

    def map2(self, value: int) -> int:
        return value


class Closing:
    """Outside: what came, and that the input ended."""

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        out.collect(value)

    def end_input(self, ctx: Any, out: Any) -> None:
        out.collect("ended")


@orders
@widths
def test_outside_the_outputs_end_once_per_subtask_and_after_the_iteration(
    seed: int | None, parallelism: int
) -> None:
    """S20."""

    def build(job: Any) -> Any:
        variable = job.from_collection([1, 2, 3], parallelism=parallelism)

        def body(given: Any, data: Any) -> Any:
            held = given.get(0).process(Hold())
            return [held], {"values": held}, None

        inside = bounded([variable], body, max_rounds=3)["values"]
        # timers and end of input see the end of the loop, whatever lies between
        after = inside.rebalance().process(Closing()).set_parallelism(3)
        return {"after": after.map(_same).set_parallelism(1)}

    after = run(build, seed)["after"]
    assert sorted(one for one in after if one != "ended") == sorted([1, 2, 3] * 4)
    assert after.count("ended") == 3


def _same(value: Any) -> Any:
    return value
