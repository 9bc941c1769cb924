"""S6 to S12: when an epoch is closed, and for whom."""

from __future__ import annotations

from typing import Any

import pytest

from paimon_features.core.errors import JobError
from paimon_features.iteration import IterationListener
from tests.iteration.loops import loop, nothing, orders, run, unbounded, widths
from tests.iteration.probes import Event, Hold, Probe, Pulse, epochs, of_subtask, values


def assert_nothing_is_late(log: list[Event]) -> None:
    """S6: after watermark e no record of epoch e or before."""
    watermark = -1
    for event in log:
        if event.kind == "watermark":
            watermark = event.epoch
        if event.kind == "record":
            assert event.epoch > watermark, log


class CoProbe(Probe):
    """Reads two streams."""

    process_element1 = Probe.process_element
    process_element2 = Probe.process_element


@orders
@widths
def test_no_record_of_an_epoch_arrives_after_its_watermark_on_any_input(
    seed: int | None, parallelism: int
) -> None:
    """S6, S10: also where inputs are uneven in width, path and life, and records run ahead."""

    def body(given: Any, data: Any) -> Any:
        far = data.get(0).map(int).set_parallelism(2).rebalance().map(int).set_parallelism(3)
        near = given.get(0).union(data.get(1), far, given.get(1))
        seen = given.get(1).rebalance().connect(near.rebalance()).process(CoProbe())
        seen.set_parallelism(parallelism)
        held = given.get(1).process(Hold())
        return [given.get(0).map(int), held], {"log": seen.get_side_output("log")}, None

    build = loop(
        body,
        [([*range(6)], parallelism), ([100, 101], 1)],
        replay=[([*range(50, 57)], 3)],
        once=[[*range(60, 63)]],
        parallelism=2,
        max_rounds=4,
    )
    log = run(build, seed)["log"]
    for subtask in range(parallelism):
        assert_nothing_is_late(of_subtask(log, subtask))
        assert epochs(log, "watermark", subtask) == [0, 1, 2, 3]
    # S10: all there are have come, each once; those of variable 1 come twice, over both inputs
    replay, first = [*range(50, 57)], [*range(6)]
    assert values(log, 0) == sorted([*replay, 60, 61, 62, *first, *[100, 101] * 2])
    for epoch in (1, 2, 3):
        assert values(log, epoch) == sorted([*replay, *first, *[100, 101] * 2])


@orders
@widths
def test_the_callback_is_called_once_per_epoch_from_zero(
    seed: int | None, parallelism: int
) -> None:
    """S7."""

    def body(given: Any, data: Any) -> Any:
        seen = given.get(0).rebalance().process(Probe()).set_parallelism(parallelism)
        again = seen.rebalance().process(Probe()).set_parallelism(3)
        held = given.get(0).process(Hold())
        logs = {"near": seen.get_side_output("log"), "far": again.get_side_output("log")}
        return [held], logs, None

    logs = run(loop(body, [[1]], max_rounds=5), seed)
    # subtasks without a record as well
    for log, width in ((logs["near"], parallelism), (logs["far"], 3)):
        for subtask in range(width):
            assert epochs(log, "watermark", subtask) == [0, 1, 2, 3, 4]
            assert [event.kind for event in of_subtask(log, subtask)].count("end") == 1


@orders
@widths
def test_epoch_zero_closes_when_variables_and_data_have_ended(
    seed: int | None, parallelism: int
) -> None:
    """S8."""

    def body(given: Any, more: Any) -> Any:
        both = given.get(0).union(given.get(1)).map(int)
        only = both.process(Probe()).set_parallelism(parallelism)
        seen = both.connect(more.get(0)).process(CoProbe()).set_parallelism(1)
        logs = {"only": only.get_side_output("log"), "all": seen.get_side_output("log")}
        return [nothing(given.get(0)), nothing(given.get(1))], logs, None

    build = loop(
        body,
        [([*range(5)], parallelism), [*range(5, 8)]],
        once=[([*range(20, 60)], 1)],
        parallelism=2,
    )
    logs = run(build, seed)
    before = [event.kind for event in logs["all"]].index("watermark")
    assert sorted(event.value for event in logs["all"][:before]) == [*range(8), *range(20, 60)]
    assert values(logs["only"], 0) == [*range(8)]
    for subtask in range(parallelism):
        log = of_subtask(logs["only"], subtask)
        assert epochs(log, "watermark") == [0]
        assert_nothing_is_late(log)


@orders
@widths
def test_an_operator_of_data_only_is_notified_of_the_end_only(
    seed: int | None, parallelism: int
) -> None:
    """S9: data that is not replayed has no rounds; data that is replayed has."""

    def body(given: Any, data: Any) -> Any:
        rounds = data.get(0).process(Probe())
        seen = data.get(1).process(Probe())
        logs = {"replayed": rounds.get_side_output("log"), "once": seen.get_side_output("log")}
        return [given.get(0).process(Hold())], logs, None

    build = loop(
        body,
        [([0], 1)],
        replay=[[1, 2, 3]],
        once=[[4, 5, 6]],
        parallelism=parallelism,
        max_rounds=3,
    )
    logs = run(build, seed)
    for subtask in range(parallelism):
        assert epochs(logs["once"], "watermark", subtask) == []
        kinds = [event.kind for event in of_subtask(logs["once"], subtask)]
        assert kinds[-2:] == ["end", "end_input"]
        assert epochs(logs["replayed"], "watermark", subtask) == [0, 1, 2]
    assert values(logs["once"], 0) == [4, 5, 6]


@orders
def test_with_a_variable_that_never_ends_no_callback_is_ever_called(seed: int | None) -> None:
    """S11."""

    def build(job: Any) -> Any:
        variable = job.from_collection([5, 6, 7], parallelism=2, bounded=False)
        data = job.from_collection([1, 2], parallelism=1)

        def body(given: Any, more: Any) -> Any:
            seen = given.get(0).union(more.get(0)).process(Probe())
            return [seen.flat_map(_count_down)], {"log": seen.get_side_output("log")}, None

        return unbounded([variable], body, data=[data])

    log = run(build, seed)["log"]
    assert {event.kind for event in log} == {"record"}
    assert values(log, 0) == [1, 2, 5, 6, 7]
    assert values(log, 1) == [0, 1, 4, 5, 6]
    assert values(log, 7) == [0]


def _count_down(value: int) -> list[int]:
    return [value - 1] if value > 0 else []


@orders
def test_with_data_that_never_ends_only_what_does_not_read_it_sees_rounds(
    seed: int | None,
) -> None:
    """S11."""

    def build(job: Any) -> Any:
        variable = job.from_collection([0])
        data = job.from_collection([1, 2, 3], parallelism=2, bounded=False)

        def body(given: Any, more: Any) -> Any:
            pulse = given.get(0).process(Pulse(until=3))
            seen = given.get(0).union(more.get(0)).process(Probe())
            logs = {"variable": pulse.get_side_output("log"), "both": seen.get_side_output("log")}
            return [pulse], logs, None

        return unbounded([variable], body, data=[data])

    logs = run(build, seed)
    assert epochs(logs["both"], "watermark") == []
    assert epochs(logs["variable"], "watermark")[:4] == [0, 1, 2, 3]


class Nosy(IterationListener):
    """Requests the state of a key that has none."""

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        ctx.state.value("last").update(value)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        assert ctx.key is None
        out.collect(ctx.state.value("last").value())


def test_in_a_callback_there_is_no_key() -> None:
    """S12."""

    def body(given: Any, data: Any) -> Any:
        seen = given.get(0).key_by(int).process(Nosy())
        return [nothing(given.get(0))], {"seen": seen}, None

    with pytest.raises(JobError, match="without a current key"):
        run(loop(body, [[1, 2, 3]]))
