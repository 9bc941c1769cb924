"""The control head that waits for the rest of a round's notices before it sends anything."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from paimon_features.iteration import (
    DataStreamList,
    IterationBodyResult,
    IterationConfig,
    ReplayableDataStreamList,
    iterate_bounded_streams_until_termination,
)
from paimon_features.iteration.envelope import ACK, CLOSED, DELIVER, HELLO, WATERMARK, StageMessage
from paimon_features.iteration.execution_plan import ControlPlan
from paimon_features.iteration.operators.control import ControlHead
from paimon_features.iteration.program import JobBuilder, build_program
from paimon_features.iteration.wires import ENTRY, INIT_ENDED, ROUND_CLOSED, Notice
from paimon_features.iteration.wires.memory import MemoryWire, discard

LONG_MS = 600_000  # a test that waited this long would exceed its timeout


def loop(job: Any) -> Any:
    def body(variables: DataStreamList, _: DataStreamList) -> IterationBodyResult:
        went = variables.get(0).map(lambda value: value)
        return IterationBodyResult(DataStreamList.of(went), DataStreamList.of(went))

    return iterate_bounded_streams_until_termination(
        DataStreamList.of(job.from_collection([1, 2], 2)),
        ReplayableDataStreamList.not_replay(),
        IterationConfig(),
        body,
    ).get(0)


class Loop:
    """A control head over a wire, in its first round."""

    def __init__(self, name: str, gather_ms: int) -> None:
        plan: ControlPlan = build_program(JobBuilder(2), loop).plan.controls[0]
        self.tail, self.wire = plan.tails[0].node, MemoryWire(name)
        self.head = ControlHead(plan, self.wire, gather_ms)
        assert {kind for kind, _ in kinds(self.head.tick())} == {HELLO}
        self.generation = self.wire._generation
        for subtask in range(2):
            self.publish(Notice(INIT_ENDED, plan.heads[0].node, subtask, -1))
        assert set(kinds(self.head.tick(LONG_MS))) == {(WATERMARK, 0)}

    def publish(self, *notices: Notice) -> None:
        self.wire.publish(self.generation, notices)

    def ends_round(self, subtask: int) -> None:
        entry = Notice(ENTRY, self.tail, subtask, 1, seq=1, records=1, payload=b"")
        self.publish(entry, Notice(ROUND_CLOSED, self.tail, subtask, 1, records=1))


def kinds(messages: list[StageMessage]) -> list[tuple[int, int]]:
    return [(one.kind, one.epoch) for message in messages for one in message.envelopes]


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Any:
    yield request.node.name
    discard(request.node.name)


def test_a_round_that_some_have_ended_waits_for_the_others_and_is_sent_at_once(name: str) -> None:
    made = Loop(name, LONG_MS)
    made.ends_round(0)
    late = threading.Timer(0.1, made.ends_round, [1])
    late.start()
    sent = kinds(made.head.tick(LONG_MS))
    late.join()
    assert sorted(sent) == sorted(2 * [(DELIVER, 1), (ACK, 1), (CLOSED, 1), (WATERMARK, 1)])


def test_it_does_not_wait_for_longer_than_it_may(name: str) -> None:
    made = Loop(name, 50)
    made.ends_round(0)
    assert sorted(kinds(made.head.tick(LONG_MS))) == sorted([(DELIVER, 1), (ACK, 1)])
    made.ends_round(1)
    sent = kinds(made.head.tick(LONG_MS))
    assert sorted(sent) == sorted([(DELIVER, 1), (ACK, 1), *2 * [(CLOSED, 1), (WATERMARK, 1)]])


def test_records_ahead_of_their_round_are_not_delayed(name: str) -> None:
    made = Loop(name, LONG_MS)
    made.publish(Notice(ENTRY, made.tail, 0, 1, seq=1, records=1, payload=b""))
    assert sorted(kinds(made.head.tick(LONG_MS))) == sorted([(DELIVER, 1), (ACK, 1)])
