"""S1 to S5: which epoch a record has."""

from __future__ import annotations

from typing import Any

from paimon_features.iteration import IterationListener
from paimon_features.testing.sizes import seeds
from tests.iteration.loops import bounded, loop, nothing, orders, run, unbounded, widths
from tests.iteration.probes import Hold, Probe, Pulse, epochs, values


@orders
@widths
def test_records_from_outside_have_epoch_zero(seed: int | None, parallelism: int) -> None:
    """S1."""

    def body(given: Any, data: Any) -> Any:
        seen = given.get(0).union(data.get(0), data.get(1)).process(Probe())
        return [nothing(given.get(0))], {"log": seen.get_side_output("log")}, None

    build = loop(body, [[1, 2, 3]], replay=[[4, 5]], once=[[6, 7]], parallelism=parallelism)
    log = run(build, seed)["log"]
    assert values(log, 0) == [1, 2, 3, 4, 5, 6, 7]


class Echo(IterationListener):
    """Emits on the main output and on a side one, for records and at watermarks."""

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        out.collect(("record", ctx.epoch))
        out.side("aside", ("record", ctx.epoch))

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        out.collect(("watermark", epoch))
        out.side("aside", ("watermark", epoch))


@orders
@widths
def test_what_is_emitted_has_the_epoch_of_the_record_or_callback_that_emits_it(
    seed: int | None, parallelism: int
) -> None:
    """S2."""

    def body(given: Any, data: Any) -> Any:
        echo = given.get(0).process(Echo())
        # elsewhere: the epoch travels with the record
        seen = echo.rebalance().process(Probe()).get_side_output("log")
        aside = echo.get_side_output("aside").rebalance().process(Probe())
        held = given.get(0).process(Hold())
        return [held], {"main": seen, "side": aside.get_side_output("log")}, None

    logs = run(loop(body, [[1, 2, 3, 4]], parallelism=parallelism, max_rounds=3), seed)
    for log in (logs["main"], logs["side"]):
        for epoch in range(3):
            marks = [("watermark", epoch)] * parallelism
            assert values(log, epoch) == [("record", epoch)] * 4 + marks
        assert values(log, 3) == [("record", 3)] * 4


@orders
@widths
def test_feedback_adds_one_to_the_epoch_of_records_and_watermarks(
    seed: int | None, parallelism: int
) -> None:
    """S3."""

    def body(given: Any, data: Any) -> Any:
        held = given.get(0).process(Hold())
        return [held.map(_add_ten)], {"log": held.get_side_output("log")}, None

    log = run(loop(body, [[1, 2, 3]], parallelism=parallelism, max_rounds=4), seed)["log"]
    for epoch in range(5):
        assert values(log, epoch) == [one + 10 * epoch for one in (1, 2, 3)]
    for subtask in range(parallelism):
        assert epochs(log, "watermark", subtask) == [0, 1, 2, 3]


def _add_ten(value: int) -> int:
    return value + 10


class Aware:
    """A plain map that reads the epoch."""

    def open(self, ctx: Any) -> None:
        self.ctx = ctx

    def map(self, value: int) -> tuple[int, int]:
        return value, self.ctx.epoch


@orders
def test_any_function_can_ask_for_the_epoch(seed: int | None) -> None:
    """S4."""

    def body(given: Any, data: Any) -> Any:
        return [given.get(0).process(Hold())], {"seen": given.get(0).map(Aware())}, None

    build = loop(body, [[1, 2]], max_rounds=2)
    assert sorted(run(build, seed)["seen"]) == [(v, epoch) for v in (1, 2) for epoch in range(3)]


def _below(value: int) -> list[int]:
    return [value + 1] if value < 20 else []


@orders
def test_fed_back_records_are_processed_before_their_round_is_aligned(seed: int | None) -> None:
    """S5: with a variable stream that never ends no round ever is."""

    def build(job: Any) -> Any:
        variable = job.from_collection([0], bounded=False)

        def body(given: Any, data: Any) -> Any:
            seen = given.get(0).process(Probe())
            return [seen.flat_map(_below)], {"log": seen.get_side_output("log")}, None

        return unbounded([variable], body)

    log = run(build, seed)["log"]
    assert [(event.epoch, event.value) for event in log] == [(n, n) for n in range(21)]


def test_a_bounded_iteration_does_not_wait_for_alignment_either() -> None:
    """S5: in some order a record of epoch 1 arrives before watermark 0; S6 forbids epoch 0."""
    overtaken = 0
    for seed in seeds(30):

        def build(job: Any) -> Any:
            variable = job.from_collection([*range(8)], parallelism=2)

            def body(given: Any, data: Any) -> Any:
                seen = given.get(0).process(Probe())
                return [seen], {"log": seen.get_side_output("log")}, None

            return bounded([variable], body, max_rounds=3)

        log = [event for event in run(build, seed)["log"] if event.subtask == 0]
        kinds = [(event.kind, event.epoch) for event in log]
        first = kinds.index(("watermark", 0))
        overtaken += any(kind == "record" and epoch > 0 for kind, epoch in kinds[:first])
        assert not any(kind == "record" and epoch == 0 for kind, epoch in kinds[first:])
    assert overtaken


@orders
def test_a_body_that_emits_only_at_watermarks_is_synchronous(seed: int | None) -> None:
    """S5: no record of a round is seen before the round before it is closed."""

    def body(given: Any, data: Any) -> Any:
        held = given.get(0).process(Hold())
        return [held], {"log": held.get_side_output("log")}, None

    log = run(loop(body, [[*range(8)]], parallelism=3, max_rounds=4), seed)["log"]
    for subtask in range(3):
        seen = [event for event in log if event.subtask == subtask]
        order = [event.epoch for event in seen if event.kind in ("record", "watermark")]
        assert order == sorted(order)


@orders
def test_a_record_made_at_a_watermark_alone_keeps_the_loop_going(seed: int | None) -> None:
    """S2 and S3: the empty body of a benchmark, one record a round."""

    def body(given: Any, data: Any) -> Any:
        pulse = given.get(0).process(Pulse(until=5))
        return [pulse], {"log": pulse.get_side_output("log")}, None

    log = run(loop(body, [[0]]), seed)["log"]
    assert epochs(log, "watermark") == [0, 1, 2, 3, 4, 5]
    assert [values(log, epoch) for epoch in range(1, 6)] == [[0], [1], [2], [3], [4]]
