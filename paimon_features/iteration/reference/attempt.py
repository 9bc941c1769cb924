"""One attempt of the reference executor: channels, barriers, single steps."""

from __future__ import annotations

import random
from collections import deque
from typing import Any, Final, NamedTuple

from paimon_features.core.errors import DefinitionError, JobError
from paimon_features.iteration.config import ReplayMemory
from paimon_features.iteration.envelope import StageMessage, decode, encode
from paimon_features.iteration.execution_plan import ExecutionPlan
from paimon_features.iteration.operators.control import ControlHead
from paimon_features.iteration.operators.subtask import (
    SubtaskRunner,
    TaskOutput,
    source_end,
    source_records,
)
from paimon_features.iteration.reference.queue_wire import QueueWire
from paimon_features.iteration.sources import CollectionSource, SnapshotSource
from paimon_features.iteration.state_backend import MemoryState

Actor = tuple[str, int, int]
"""``("source" | "control" | "stage", node or iteration or stage, subtask)``."""

OrderedResults = list[tuple[int, int, list[Any]]]
"""(order, index of the result, values)."""

BARRIER: Final = None


class InjectedFailure(Exception):  # noqa: N818 - raised by tests, not an error of the program
    """Makes the attempt fail; the reference executor continues from the last checkpoint."""


class ReferenceCheckpoint(NamedTuple):
    """A consistent snapshot: source positions, state of every subtask, results before it."""

    positions: dict[Actor, int]
    states: dict[Actor, dict[bytes, bytes]]
    results: OrderedResults


class _SourceCursor:
    """The values of one source subtask, and the read position."""

    def __init__(self, values: list[Any], bounded: bool, position: int) -> None:
        self.values = values
        self.position = position
        self.last = len(values) + 1 if bounded else len(values)

    @property
    def left(self) -> bool:
        return self.position < self.last


class Attempt:
    """All subtasks of a plan, initialized from a checkpoint or empty."""

    def __init__(
        self,
        plan: ExecutionPlan,
        wires: list[QueueWire],
        restored: ReferenceCheckpoint | None,
        draw: random.Random | None,
        replay_memory: ReplayMemory | None = None,
    ) -> None:
        self._replay_memory = replay_memory
        self._plan = plan
        self._wires = wires
        self._draw = draw
        self._emitted = restored.results[-1][0] if restored and restored.results else 0
        self._results: dict[Actor, OrderedResults] = {}
        self._sources: dict[Actor, _SourceCursor] = {}
        self._controls: dict[Actor, ControlHead] = {}
        self._states: dict[Actor, MemoryState] = {}
        self._runners: dict[Actor, SubtaskRunner] = {}
        self._outputs: dict[Actor, list[Actor]] = {}
        self._inputs: dict[Actor, list[Actor]] = {}
        self._channels: dict[tuple[Actor, Actor], deque[bytes | None]] = {}
        self._queued: deque[tuple[Actor, Actor]] = deque()
        self._make(restored)
        # checkpoint in progress: sources and heads to trigger, channels with their barrier
        self._triggers: list[Actor] = []
        self._waiting: set[Actor] = set()
        self._aligned: dict[Actor, set[Actor]] = {}
        self._cut: ReferenceCheckpoint | None = None
        self.completed: ReferenceCheckpoint | None = None

    # structure

    def _make(self, restored: ReferenceCheckpoint | None) -> None:
        plan = self._plan
        for node in plan.sources:
            source = node.source
            if not isinstance(source, CollectionSource | SnapshotSource):
                raise DefinitionError(
                    f"source {node.name!r} can only be read by an engine; the reference executor "
                    "reads job.from_collection and job.from_table"
                )
            for subtask in range(node.parallelism):
                actor = ("source", node.id, subtask)
                position = restored.positions[actor] if restored else 0
                blocks = source.read(subtask, node.parallelism)
                values = [value for block in blocks for value in block]
                self._sources[actor] = _SourceCursor(values, source.bounded, position)
                self._edge(actor, ("stage", plan.stage_of(node.id).id, subtask))
        for control in plan.controls:
            actor = ("control", control.iteration, 0)
            self._controls[actor] = ControlHead(control, self._wires[control.iteration])
            for number in control.targets:
                self._to_all(actor, number)
        for source_stage, target in plan.edges:
            for subtask in range(plan.stages[source_stage].parallelism):
                self._to_all(("stage", source_stage, subtask), target)
        for stage in plan.stages:
            for subtask in range(stage.parallelism):
                actor = ("stage", stage.id, subtask)
                state = MemoryState(restored.states[actor] if restored else None)
                self._states[actor] = state
                self._runners[actor] = SubtaskRunner(
                    stage, subtask, state, self._wires.__getitem__, self._replay_memory
                )

    def _to_all(self, sender: Actor, stage: int) -> None:
        for subtask in range(self._plan.stages[stage].parallelism):
            self._edge(sender, ("stage", stage, subtask))

    def _edge(self, sender: Actor, receiver: Actor) -> None:
        if (sender, receiver) not in self._channels:
            self._channels[sender, receiver] = deque()
            self._outputs.setdefault(sender, []).append(receiver)
            self._inputs.setdefault(receiver, []).append(sender)

    # one step

    def step(self) -> bool:
        """Execute one step; return ``False`` if there is nothing left to do."""
        if self._draw is None:
            return self._step_in_order()
        choices: list[tuple[Any, Any]] = [
            (self._deliver, channel)
            for channel, queue in self._channels.items()
            if queue and not self._blocked(channel)
        ]
        choices += [(self._emit, actor) for actor, source in self._sources.items() if source.left]
        choices += [(self._tick, actor) for actor in self._controls if self._has_tick(actor)]
        choices += [(self._trigger, actor) for actor in self._triggers]
        if not choices:
            return False
        act, argument = self._draw.choice(choices)
        act(argument)
        return True

    def _step_in_order(self) -> bool:
        if self._triggers:
            self._trigger(self._triggers[0])
            return True
        # sources first: otherwise a loop runs ahead of its own input
        left = [actor for actor, source in self._sources.items() if source.left]
        if left:
            self._emit(min(left, key=lambda actor: self._sources[actor].position))
            return True
        for _ in range(len(self._queued)):
            channel = self._queued.popleft()
            if not self._blocked(channel):
                self._deliver(channel)
                return True
            self._queued.append(channel)
        for actor in self._controls:
            if self._has_tick(actor):
                self._tick(actor)
                return True
        return False

    def _blocked(self, channel: tuple[Actor, Actor]) -> bool:
        sender, receiver = channel
        return sender in self._aligned.get(receiver, ())

    def _has_tick(self, actor: Actor) -> bool:
        return not self._controls[actor].started or self._wires[actor[1]].waiting() > 0

    def _tick(self, actor: Actor) -> None:
        self._send(actor, self._controls[actor].tick(wait_ms=0))

    def _emit(self, actor: Actor) -> None:
        """Emit the next values of a source, or its end."""
        source = self._sources[actor]
        stage = self._plan.stage_of(actor[1])
        most = stage.batch if self._draw is None else self._draw.randint(1, 4)
        values = source.values[source.position : source.position + most]
        source.position += len(values) or 1
        # directly into the queue of the first stage, as the host's source operator does
        envelopes = source_records(actor[1], values) if values else source_end(actor[1])
        self._put((actor, ("stage", stage.id, actor[2])), encode(envelopes))

    def _deliver(self, channel: tuple[Actor, Actor]) -> None:
        sender, receiver = channel
        data = self._channels[channel].popleft()
        if data is BARRIER:
            self._align(sender, receiver)
            return
        runner = self._runners[receiver]
        sent = runner.handle(decode(data))
        if self._draw is not None and self._draw.random() < 0.2:
            runner.flush()  # hosts may flush at any time
        self._keep(receiver, sent)
        self._send(receiver, sent.messages)

    def _keep(self, actor: Actor, sent: TaskOutput) -> None:
        for index, values in sent.results:
            self._emitted += 1
            self._results.setdefault(actor, []).append((self._emitted, index, values))

    def _send(self, sender: Actor, messages: list[StageMessage]) -> None:
        for stage, subtask, envelopes in messages:
            self._put((sender, ("stage", stage, subtask)), encode(envelopes))

    def _put(self, channel: tuple[Actor, Actor], data: bytes | None) -> None:
        self._channels[channel].append(data)
        if self._draw is None:
            self._queued.append(channel)

    # checkpoints

    def begin_checkpoint(self) -> None:
        """Trigger barriers at all sources and control heads, unless a checkpoint is in progress."""
        if self._cut is None and self.completed is None:
            self._triggers = [*self._sources, *self._controls]
            self._waiting = set(self._runners)
            self._cut = ReferenceCheckpoint({}, {}, [])

    def _trigger(self, actor: Actor) -> None:
        assert self._cut is not None
        self._triggers.remove(actor)
        if actor in self._sources:
            self._cut.positions[actor] = self._sources[actor].position
        self._send_barrier(actor)

    def _send_barrier(self, actor: Actor) -> None:
        for receiver in self._outputs.get(actor, ()):
            self._put((actor, receiver), BARRIER)

    def _align(self, sender: Actor, receiver: Actor) -> None:
        arrived = self._aligned.setdefault(receiver, set())
        arrived.add(sender)
        if len(arrived) < len(self._inputs[receiver]):
            return
        assert self._cut is not None
        self._runners[receiver].flush()
        self._cut.states[receiver] = self._states[receiver].snapshot()
        self._cut.results.extend(self._results.pop(receiver, []))
        self._send_barrier(receiver)
        del self._aligned[receiver]
        self._waiting.remove(receiver)
        if not self._waiting:
            self._cut.results.sort(key=lambda result: result[0])
            self.completed, self._cut = self._cut, None

    # the end

    def uncommitted(self) -> OrderedResults:
        """Return the results since the last checkpoint's barriers, in order."""
        pending = [result for results in self._results.values() for result in results]
        if self._cut is not None:
            pending += self._cut.results
        return sorted(pending, key=lambda result: result[0])

    def check_ended(self) -> None:
        """Raise if a program of bounded sources is deadlocked before its end."""
        endless = any(not node.source.bounded for node in self._plan.sources)
        if not endless and not all(control.finished for control in self._controls.values()):
            raise JobError(f"the program is deadlocked before its end; {self.pending()}")

    def pending(self) -> str:
        """Describe the reporters that have not ended, for error messages."""
        return "; ".join(control.pending() for control in self._controls.values())

    def close(self) -> None:
        """Close all functions."""
        for runner in self._runners.values():
            runner.close()
