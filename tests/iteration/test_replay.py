"""Replayed data beyond their memory: read again from the state, sent in parts, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from paimon_features.core.errors import JobError
from paimon_features.iteration.config import ReplayMemory
from paimon_features.iteration.envelope import CONTROL, RECORDS, WATERMARK, Envelope
from paimon_features.iteration.epochs import END
from paimon_features.iteration.execution_plan import ExecutionPlan
from paimon_features.iteration.operators import replay
from paimon_features.iteration.operators.replay import ReplayRunner
from paimon_features.iteration.operators.subtask import SubtaskRunner, TaskOutput
from paimon_features.iteration.program import JobBuilder, build_program
from paimon_features.iteration.reference.queue_wire import QueueWire
from paimon_features.iteration.state_backend import MemoryState
from tests.iteration.loops import bounded

BLOCKS = [np.full(1000, number) for number in range(20)]
BLOCK_BYTES = 8_000


def program(job: Any) -> Any:
    """The replayed blocks go to another stage."""
    start = job.from_collection([1])
    data = job.from_collection([], name="blocks")

    def body(variables: Any, inputs: Any) -> Any:
        means = inputs.get(0).rebalance().map(np.mean).set_parallelism(3)
        return [variables.get(0)], {"means": means}, None

    return bounded([start], body, replay=[data], max_rounds=5)


class Subtask:
    """The subtask that replays, and what leaves it."""

    def __init__(self, memory: ReplayMemory, state: MemoryState | None = None) -> None:
        plan: ExecutionPlan = build_program(JobBuilder(), program).plan
        (stage,) = (s for s in plan.stages if any(n.kind.value == "replay" for n in s.nodes))
        (self.node,) = (node.id for node in stage.nodes if node.kind.value == "replay")
        self.state = state or MemoryState()
        self.runner = SubtaskRunner(stage, 0, self.state, lambda _: QueueWire(), memory)

    @property
    def replays(self) -> ReplayRunner:
        found = self.runner._runners[self.node]
        assert isinstance(found, ReplayRunner)
        return found

    def feed(self, blocks: list[Any]) -> None:
        for block in blocks:
            self.runner.handle([Envelope(self.node, RECORDS, 0, values=[block])])
            self.runner.flush()

    def end(self) -> None:
        self.runner.handle([Envelope(self.node, WATERMARK, END)])
        self.runner.flush()

    def decide(self, epoch: int) -> Iterator[TaskOutput]:
        envelope = Envelope(self.node, WATERMARK, epoch, channel=CONTROL)
        return self.runner.handle_in_parts([envelope])


def values_of(sents: list[TaskOutput]) -> list[float]:
    envelopes = [e for sent in sents for message in sent.messages for e in message.envelopes]
    return sorted(float(v[0]) for e in envelopes if e.kind == RECORDS for v in e.values)


@pytest.mark.parametrize("held", [0, 3 * BLOCK_BYTES + 1000, 2**20])
def test_an_epoch_replays_all_records_whatever_the_memory_limit(held: int) -> None:
    subtask = Subtask(ReplayMemory(held))
    subtask.feed(BLOCKS)
    subtask.end()
    assert subtask.replays._held_bytes <= held
    for epoch in range(3):
        found = values_of([*subtask.decide(epoch)])
        assert found == ([] if epoch == 0 else [*range(len(BLOCKS))])


@pytest.mark.parametrize("held", [0, 3 * BLOCK_BYTES + 1000, 2**20])
def test_a_restore_during_the_input_keeps_the_stored_records(held: int) -> None:
    before = Subtask(ReplayMemory(held))
    before.feed(BLOCKS[:12])
    after = Subtask(ReplayMemory(held), MemoryState(before.state.snapshot()))
    assert after.replays._held_bytes == before.replays._held_bytes
    after.feed(BLOCKS[12:])
    after.end()
    assert values_of([*after.decide(2)]) == sorted([*range(len(BLOCKS))] * 2)


def test_a_large_replay_leaves_in_parts_and_its_watermark_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replay, "PART_BYTES", 4 * BLOCK_BYTES)
    subtask = Subtask(ReplayMemory(6 * BLOCK_BYTES))
    subtask.feed(BLOCKS)
    subtask.end()
    sents = [*subtask.decide(1)]
    assert len(sents) == 5  # parts of at most 5 blocks, one is not full
    assert max(len(values_of([sent])) for sent in sents) <= 5
    assert values_of(sents) == [*range(len(BLOCKS))]
    kinds = [
        [e.kind for message in sent.messages for e in message.envelopes if e.epoch == 1]
        for sent in sents
    ]
    assert all(WATERMARK not in part for part in kinds[:-1])
    assert kinds[-1].count(WATERMARK) == 3  # one for each reader


def test_data_that_do_not_fit_a_state_in_memory_are_refused_by_name() -> None:
    subtask = Subtask(ReplayMemory(0, state_bytes=5 * BLOCK_BYTES))
    with pytest.raises(JobError, match=r"'blocks > .*in subtask 0 exceed 40,000 .*rocksdb"):
        subtask.feed(BLOCKS)
