"""One subtask of one stage: what an engine drives.

A host does, for each message that arrives for a subtask::

    sent = runner.handle(decode(data))      # all work, synchronous
    runner.flush()                          # state to the backend, before a snapshot can be taken
    for message in sent.messages: emit(key_of(message.stage, message.subtask),
                                       encode(message.envelopes))
    for index, values in sent.results: ...  # committed outputs of the program

A source node is fed by ``runner.feed(node, values)``, and ``runner.feed_end(node)`` when the
host's own input of this subtask has ended; both give a ``Sent`` too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from jobs.iteration.envelope import RECORDS, WATERMARK, Envelope, Message
from jobs.iteration.epochs import END
from jobs.iteration.graph import Node, NodeKind, Partition
from jobs.iteration.operators.ends import OutputRunner, ResultRunner, SourceRunner
from jobs.iteration.operators.head import HeadRunner
from jobs.iteration.operators.node import NodeRunner
from jobs.iteration.operators.outlet import LocalRoute, Outbox, RemoteRoute
from jobs.iteration.operators.replay import ReplayRunner
from jobs.iteration.operators.tail import CriteriaRunner, TailRunner
from jobs.iteration.operators.user import operator_runner
from jobs.iteration.plan import Stage
from jobs.iteration.state import Key, StateBackend, StateCache
from jobs.iteration.wires import Wire
from paimon_features.errors import JobError

_CONTROL_KEY: Key = ("control",)


def source_records(node: int, values: list[Any]) -> list[Envelope]:
    """What a host sends to its own subtask of a source's stage for values that it has read."""
    return [Envelope(node, RECORDS, 0, values=values)]


def source_end(node: int) -> list[Envelope]:
    """The same for the end of what it reads."""
    return [Envelope(node, WATERMARK, END)]


class Sent(NamedTuple):
    """What came out of one call."""

    messages: list[Message]
    results: list[tuple[int, list[Any]]]
    """(index of the program's output, values), in order."""


class SubtaskRunner:
    """Runs the nodes of a stage for one subtask.

    Made anew for every attempt with the restored backend; ``wire_of`` gives the wire of an
    iteration and is called on first use. Not for use from several threads.

    Raises
    ------
    JobError
        The backend holds the state of another parallelism (S30) or of another program.
    """

    def __init__(
        self, stage: Stage, subtask: int, state: StateBackend, wire_of: Callable[[int], Wire]
    ) -> None:
        self.stage = stage
        self.subtask = subtask
        self.state = StateCache(state)
        self.results: list[tuple[int, list[Any]]] = []
        self._wire_of = wire_of
        self._wires: dict[int, Wire] = {}
        self._changed = False
        self._outbox = Outbox(stage.batch)
        self._stored: dict[tuple[str, int], list[tuple[Key, Any]]] = {}
        for family in ("entry", "replay"):
            for key, value in self.state.scan(family):
                self._stored.setdefault((family, key[1]), []).append((key, value))
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

    def handle(self, envelopes: Iterable[Envelope]) -> Sent:
        """Do everything that these envelopes cause in this subtask."""
        runners = self._runners
        for node, kind, epoch, input_index, channel, values, keys in envelopes:
            try:
                if kind == RECORDS:
                    runners[node].records(input_index, epoch, values, keys)
                elif kind == WATERMARK and channel >= 0:
                    runners[node].watermark(channel, epoch)
                else:
                    runners[node].control(Envelope(node, kind, epoch, values=values))
            except Exception as error:
                error.add_note(
                    f"in stage {self.stage.name!r}, subtask {self.subtask}, "
                    f"on its way from {runners[node].node.name!r}, epoch {epoch}"
                )
                raise
        return self._sent()

    def feed(self, node: int, values: list[Any]) -> Sent:
        """Values of the source ``node``."""
        return self.handle(source_records(node, values))

    def feed_end(self, node: int) -> Sent:
        """The source ``node`` has ended in this subtask; a repeat is harmless."""
        return self.handle(source_end(node))

    def flush(self) -> None:
        """Write changed state to the backend; nothing is buffered after it."""
        if self._changed:
            self._changed = False
            held = {node: runner.snapshot() for node, runner in self._runners.items()}
            self.state.put(_CONTROL_KEY, (self.stage.parallelism, held))
        self.state.flush()

    def close(self) -> None:
        """Close the functions that are still open; the state stays as it is."""
        for runner in self._runners.values():
            runner.close()

    # for the runners of the nodes

    def touch(self) -> None:
        """What some runner's ``snapshot`` gives has changed."""
        self._changed = True

    def stored(self, family: str, node: int) -> list[tuple[Key, Any]]:
        """Restored entries of a node; only while runners are made."""
        return self._stored.get((family, node), [])

    def wire(self, iteration: int) -> Wire:
        """The iteration's wire."""
        wire = self._wires.get(iteration)
        if wire is None:
            wire = self._wires[iteration] = self._wire_of(iteration)
        return wire

    def _sent(self) -> Sent:
        for runner in self._finishing:
            runner.finish_call()
        results, self.results = self.results, []
        return Sent(self._outbox.take(), results)

    def _runner(self, node: Node) -> NodeRunner:
        make: Callable[[SubtaskRunner, Node, int], NodeRunner] = {
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
        held = self.state.get(_CONTROL_KEY)
        if held is None:
            return
        parallelism, snapshots = held
        if parallelism != self.stage.parallelism or snapshots.keys() != self._runners.keys():
            raise JobError(
                f"rescaled: the state of stage {self.stage.name!r} was written with parallelism "
                f"{parallelism} and nodes {sorted(snapshots)}; the program has parallelism "
                f"{self.stage.parallelism} and nodes {sorted(self._runners)}: an iteration is "
                "restored with the same program and the same parallelism"
            )
        for node, snapshot in snapshots.items():
            self._runners[node].restore(snapshot)
