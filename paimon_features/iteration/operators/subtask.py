"""One subtask of one stage, driven by the host function of an engine.

For each message to a subtask, its host runs::

    for output in runner.handle_in_parts(decode(data)):  # synchronous
        runner.flush()                      # state to the backend, before a snapshot can be taken
        for message in output.messages: emit(key_of(message.stage, message.subtask),
                                             encode(message.envelopes))
        for index, values in output.results: ...  # results of the program

No snapshot may be taken between two parts. The input of a source node is ``source_records(node,
values)``, and ``source_end(node)`` at the end of the host's own input of this subtask.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from paimon_features.core.errors import JobError
from paimon_features.iteration.config import ReplayMemory
from paimon_features.iteration.dataflow import DataflowNode, NodeKind, Partition
from paimon_features.iteration.envelope import RECORDS, WATERMARK, Envelope, StageMessage
from paimon_features.iteration.epochs import END
from paimon_features.iteration.execution_plan import ExecutionStage
from paimon_features.iteration.operators.endpoints import OutputRunner, ResultRunner, SourceRunner
from paimon_features.iteration.operators.function_runners import operator_runner
from paimon_features.iteration.operators.head import HeadRunner
from paimon_features.iteration.operators.node import NodeRunner
from paimon_features.iteration.operators.outlet import LocalRoute, Outbox, RemoteRoute
from paimon_features.iteration.operators.protocols import Task
from paimon_features.iteration.operators.replay import ReplayRunner
from paimon_features.iteration.operators.tail import CriteriaRunner, TailRunner
from paimon_features.iteration.state_backend import Key, StateBackend, StateCache
from paimon_features.iteration.wires import Notice, Wire

_CONTROL_KEY: Key = ("control",)


def source_records(node: int, values: list[Any]) -> list[Envelope]:
    """Return the envelopes for values that the host has read for a source node."""
    return [Envelope(node, RECORDS, 0, values=values)]


def source_end(node: int) -> list[Envelope]:
    """Return the envelopes for the end of a source node's input."""
    return [Envelope(node, WATERMARK, END)]


class TaskOutput(NamedTuple):
    """Messages and results of one call."""

    messages: list[StageMessage]
    results: list[tuple[int, list[Any]]]
    """(index of the program's output, values), in order."""


class SubtaskRunner:
    """Runs the nodes of a stage for one subtask.

    Created for every attempt with the restored backend; ``wire_of`` returns the wire of an
    iteration and is called on first use. Not thread-safe.

    Raises
    ------
    JobError
        The backend contains the state of another parallelism (S30) or of another program.
    """

    def __init__(
        self,
        stage: ExecutionStage,
        subtask: int,
        state: StateBackend,
        wire_of: Callable[[int], Wire],
        replay_memory: ReplayMemory | None = None,
    ) -> None:
        self.stage = stage
        self.subtask = subtask
        self.state = StateCache(state)
        self.results: list[tuple[int, list[Any]]] = []
        self.replay_memory = replay_memory or ReplayMemory()
        self._parts: deque[Iterator[None]] = deque()
        self._wire_of = wire_of
        self._wires: dict[int, Wire] = {}
        self._notices: dict[tuple[int, int], list[Notice]] = {}
        self._changed = False
        self._outbox = Outbox(stage.batch)
        self._stored: dict[int, list[tuple[Key, Any]]] = {}
        for key, value in self.state.scan("entry"):
            self._stored.setdefault(key[1], []).append((key, value))
        self._runners = {node.id: self._runner(node) for node in stage.nodes}
        self._stored.clear()
        self._connect()
        self._restore()
        self._finishing = [
            runner
            for runner in self._runners.values()
            if type(runner).finish_call is not NodeRunner.finish_call
        ]
        for runner in self._runners.values():
            runner.open()

    def handle(self, envelopes: Iterable[Envelope]) -> TaskOutput:
        """Process envelopes and all that they cause in this subtask; return the complete output."""
        together = TaskOutput([], [])
        for sent in self.handle_in_parts(envelopes):
            together.messages.extend(sent.messages)
            together.results.extend(sent.results)
        return together

    def handle_in_parts(self, envelopes: Iterable[Envelope]) -> Iterator[TaskOutput]:
        """Process envelopes and all that they cause in this subtask; yield the output in parts,
        so that a large replay need not be in memory at once."""
        runners = self._runners
        for node, kind, epoch, input_index, channel, values, keys in envelopes:
            try:
                if kind == RECORDS:
                    runners[node].records(input_index, epoch, values, keys)
                elif kind == WATERMARK and channel >= 0:
                    runners[node].watermark(channel, epoch)
                else:
                    runners[node].control(Envelope(node, kind, epoch, values=values))
                while self._parts:
                    for _ in self._parts[0]:
                        yield self._sent()
                    self._parts.popleft()
            except Exception as error:
                error.add_note(
                    f"in stage {self.stage.name!r}, subtask {self.subtask}, "
                    f"on its way from {runners[node].node.name!r}, epoch {epoch}"
                )
                raise
        yield self._sent()

    def flush(self) -> None:
        """Write all changed state to the backend."""
        if self._changed:
            self._changed = False
            packed = {node: runner.snapshot().pack() for node, runner in self._runners.items()}
            self.state.put(_CONTROL_KEY, (self.stage.parallelism, packed))
        self.state.flush()

    def close(self) -> None:
        """Close the functions that are still open; the state is not changed."""
        for runner in self._runners.values():
            runner.close()

    # the interface of Task, for the runners of the nodes

    def touch(self) -> None:
        self._changed = True

    def do_in_parts(self, work: Iterator[None]) -> None:
        self._parts.append(work)

    def stored(self, node: int) -> list[tuple[Key, Any]]:
        return self._stored.get(node, [])

    def wire(self, iteration: int) -> Wire:
        wire = self._wires.get(iteration)
        if wire is None:
            wire = self._wires[iteration] = self._wire_of(iteration)
        return wire

    def publish(self, iteration: int, generation: int, notices: list[Notice]) -> None:
        # together at the end of the call: the control head receives the end of a round at once
        self._notices.setdefault((iteration, generation), []).extend(notices)

    def _sent(self) -> TaskOutput:
        for runner in self._finishing:
            runner.finish_call()
        if self._notices:
            unsent, self._notices = self._notices, {}
            for (iteration, generation), notices in unsent.items():
                self.wire(iteration).publish(generation, notices)
        results, self.results = self.results, []
        return TaskOutput(self._outbox.take(), results)

    def _runner(self, node: DataflowNode) -> NodeRunner:
        make: Callable[[Task, DataflowNode, int], NodeRunner] = {
            NodeKind.SOURCE: SourceRunner,
            NodeKind.OPERATOR: operator_runner,
            NodeKind.HEAD: HeadRunner,
            NodeKind.REPLAY: ReplayRunner,
            NodeKind.TAIL: CriteriaRunner if node.criteria else TailRunner,
            NodeKind.OUTPUT: OutputRunner,
            NodeKind.RESULT: ResultRunner,
        }[node.kind]
        return make(self, node, self.stage.channels[node.id])

    def _connect(self) -> None:
        for route in self.stage.routes:
            local = route.target_stage == self.stage.id and route.partition is Partition.FORWARD
            self._runners[route.source].outlet.add(
                route.tag,
                LocalRoute(route, self._runners[route.target])
                if local
                else RemoteRoute(route, self.subtask, self._outbox),
            )

    def _restore(self) -> None:
        stored = self.state.get(_CONTROL_KEY)
        if stored is None:
            return
        parallelism, snapshots = stored
        if parallelism != self.stage.parallelism or snapshots.keys() != self._runners.keys():
            raise JobError(
                f"rescaled: the state of stage {self.stage.name!r} was written with parallelism "
                f"{parallelism} and nodes {sorted(snapshots)}; the program has parallelism "
                f"{self.stage.parallelism} and nodes {sorted(self._runners)}: an iteration is "
                "restored with the same program and the same parallelism"
            )
        for node, packed in snapshots.items():
            runner = self._runners[node]
            runner.restore(runner.state_type.unpack(packed))
