"""Iterations by supersteps: one bounded run per epoch, the variables between two in a Paimon table.

For bodies whose variables are too large to travel as a stream, and for data that is better read
again in each epoch than kept. The same programs run as on the other engines, as far as each epoch
stands for itself: the body is per-round and its data are replayed.

::

    snapshot 1        snapshot 2        snapshot 3           snapshot n + 1     snapshot n + 2
    variables 0 ----> variables 1 ----> variables 2 -- ... -> variables n -----> the end
              epoch 0           epoch 1                      (terminating)
              one commit        one commit                    one commit

A commit holds the variables of the next epoch and all outputs of this one, together. Whoever is
killed, at any moment, has committed an epoch or not; a run under the same name goes on behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from paimon_features.errors import DefinitionError
from paimon_features.iteration.config import OperatorLifeCycle
from paimon_features.iteration.dataflow import DataflowGraph, DataflowNode, Iteration, NodeKind
from paimon_features.iteration.envelope import Envelope
from paimon_features.iteration.program import JobBuilder, build_program
from paimon_features.iteration.sources import SnapshotSource
from paimon_features.iteration.streams import IterationStream
from paimon_features.iteration.supersteps.node_runs import (
    AddressedEnvelopes,
    NodeRun,
    Superstep,
    make_superstep,
)
from paimon_features.iteration.supersteps.variable_table import (
    CommittedEpoch,
    Phase,
    VariableTable,
    check_shape,
)
from paimon_features.tables.catalog import Lake
from paimon_features.tables.splits import plan_splits


class NodeOutput(NamedTuple):
    """What became of a collected node's subtask: its records, as files if they are kept."""

    node: int
    subtask: int
    records: int
    part: bytes | None
    values: list[Any]


@dataclass(frozen=True)
class EpochTask:
    """All that the subtasks of one step need to know, wherever they run. It pickles."""

    step: Superstep
    table: VariableTable
    state: CommittedEpoch | None

    def of(self, members: Sequence[DataflowNode]) -> EpochTask:
        """What the subtasks of some nodes need of it; others' functions and data stay here."""
        nodes = {node.id: node for node in members}
        outs = {number: self.step.outs[number] for number in nodes}
        return replace(self, step=replace(self.step, nodes=nodes, outs=outs))

    def feed(self, node: DataflowNode, subtask: int) -> Iterator[list[Any]]:
        """Batches of records for a node that is fed."""
        if node.kind is NodeKind.HEAD:
            assert self.state is not None
            for variable, values in self.table.variables(self.state, subtask):
                if variable == node.index:
                    yield values
        elif node.kind is NodeKind.OUTPUT:
            for _, values in self.table.outputs(node.index, subtask):
                yield values
        elif node.kind is NodeKind.SOURCE:
            yield from node.source.read(subtask, node.parallelism)

    def done(self, run: NodeRun) -> NodeOutput:
        """Keep what a collected node gave, as its kind says."""
        node, values = run.node, run.collected
        part = None
        if node.kind is NodeKind.RESULT:
            return NodeOutput(node.id, run.subtask, len(values), None, values)
        if values and node.kind is NodeKind.OUTPUT:
            batches = {(node.index, run.subtask): values}
            part = self.table.write(self.step.epoch, node.id, {}, batches)
        elif values and not node.criteria and not self.step.ending:
            batches = {(node.index, run.subtask): values}
            part = self.table.write(self.step.epoch, node.id, batches, {})
        return NodeOutput(node.id, run.subtask, len(values), part, [])


class SuperstepBuilder(JobBuilder):
    """The ``job`` of a program that runs by supersteps.

    ``pins`` are the snapshots of tables that the iteration reads, chosen when it began.
    """

    def __init__(self, pins: Mapping[str, int | None]) -> None:
        super().__init__()
        self.pins = dict(pins)

    def from_table(
        self,
        lake: Lake,
        table: str,
        columns: Sequence[str] | None = None,
        block_rows: int = 8192,
        parallelism: int = 1,
    ) -> IterationStream:
        """A table's content, in record batches of Arrow; every subtask reads its own splits.

        It is that of the newest snapshot when the iteration began, in all epochs, and also when
        another process goes on with it.

        Raises
        ------
        UnknownNameError
            For a table or column that is not there.
        SnapshotExpiredError
            If the snapshot has expired since: tag it, or let the table keep more.
        """
        if block_rows < 1:
            raise DefinitionError(f"block_rows is {block_rows}; it is at least 1")
        place = lake.path(table)
        plan = plan_splits(lake, table, columns, self.pins.get(place))
        if self.pins.setdefault(place, plan.snapshot_id) is None:
            plan = plan.part()  # the table was empty when the iteration began
        return self.from_source(SnapshotSource(plan, block_rows), parallelism, table)


class SuperstepRunner(Protocol):
    """Runs the subtasks of one step, all of them, to their ends."""

    def prepare(self, build: Callable[[Any], Any]) -> None:
        """Called once, before the steps of a program."""
        ...

    def run(self, work: EpochTask) -> list[NodeOutput]:
        """What the collected nodes gave; an error where any subtask failed, and nothing kept."""
        ...


class LocalSuperstepRunner:
    """Runs a step in this process, one envelope after another: the oracle of the others."""

    def prepare(self, build: Callable[[Any], Any]) -> None:
        """Nothing to be done."""

    def run(self, work: EpochTask) -> list[NodeOutput]:
        runs = {
            (node.id, subtask): NodeRun(work.step, node, subtask)
            for node in work.step.nodes.values()
            for subtask in range(node.parallelism)
        }
        queue: deque[tuple[int, Envelope]] = deque()

        def deliver(sent: AddressedEnvelopes) -> None:
            queue.extend(sent)
            while queue:
                subtask, envelope = queue.popleft()
                queue.extend(runs[envelope.node, subtask].handle(envelope))

        # variables first, then data
        for number in sorted(
            work.step.fed, key=lambda n: work.step.nodes[n].kind is not NodeKind.HEAD
        ):
            node = work.step.nodes[number]
            for subtask in range(node.parallelism):
                run = runs[number, subtask]
                for values in work.feed(node, subtask):
                    deliver(run.feed(values))
                deliver(run.end())
        return [work.done(run) for (node, _), run in runs.items() if node in work.step.collected]


class SuperstepExecutor:
    """Runs an iteration epoch by epoch, its state in the table ``iteration_<name>`` of a lake.

    Parameters
    ----------
    lake, name
        Where the variables live, and the name under which a run goes on.
    runner
        What runs an epoch: in this process by default.
    on_epoch
        Called with each committed state, beginning with the one that was found or made first.

    Examples
    --------
    Halve numbers until none is above one; then ask again, which runs nothing:

    >>> import tempfile
    >>> from paimon_features.iteration import (
    ...     DataStreamList, IterationBodyResult, IterationConfig, OperatorLifeCycle,
    ...     ReplayableDataStreamList, iterate_bounded_streams_until_termination)
    >>> def body(variables, data):
    ...     halves = variables.get(0).map(lambda value: value / 2)
    ...     large = halves.filter(lambda value: value > 1)
    ...     return IterationBodyResult(DataStreamList.of(large), DataStreamList.of(halves))
    >>> def build(job):
    ...     return iterate_bounded_streams_until_termination(
    ...         DataStreamList.of(job.from_collection([3.0, 8.0])),
    ...         ReplayableDataStreamList.replay(),
    ...         IterationConfig(lifecycle=OperatorLifeCycle.PER_ROUND),
    ...         body)
    >>> epochs = []
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lake = Lake.open(folder, "shop")
    ...     executor = SuperstepExecutor(
    ...         lake, "halves", on_epoch=lambda state: epochs.append((state.epoch, state.phase)))
    ...     first, again = executor.run(build), executor.run(build)
    >>> first == again == [[1.5, 4.0, 0.75, 2.0, 1.0]]
    True
    >>> epochs[:2], epochs[-2:]
    ([(0, 'running'), (1, 'running')], [(3, 'finished'), (3, 'finished')])
    """

    def __init__(
        self,
        lake: Lake,
        name: str,
        *,
        runner: SuperstepRunner | None = None,
        on_epoch: Callable[[CommittedEpoch], None] = lambda _: None,
    ) -> None:
        self.table = VariableTable(lake, name)
        self.runner = runner or LocalSuperstepRunner()
        self.on_epoch = on_epoch

    def run(self, build: Callable[[Any], Any]) -> Any:
        """Iterate until the end and give the program's outputs, as the other engines do.

        A finished iteration is not run again: its outputs are read.

        Raises
        ------
        DefinitionError
            If the program cannot be run by supersteps; the message begins with the rule's name.
        JobError
            If the table holds the variables of another program.
        OwnershipError
            If another process runs this iteration.
        """
        with self.table.owner():
            state = self.table.committed() if self.table.exists() else None
            job = SuperstepBuilder({} if state is None else state.pins)
            program = build_program(job, build)
            loop = SuperstepLoop.of(job.graph)
            self.runner.prepare(build)
            if state is None:
                self.table.create()
                state = self._begin(loop, job.pins)
            check_shape(state, loop.shape, self.table.name)
            self.on_epoch(state)
            while state.phase != "finished":
                done = self.runner.run(EpochTask(loop.round(state), self.table, state))
                state = self._commit(loop, state, loop.after(state, done), done)
                self.on_epoch(state)
        return program.give(self._results(loop, state))

    def _begin(self, loop: SuperstepLoop, pins: Mapping[str, int | None]) -> CommittedEpoch:
        done = self.runner.run(EpochTask(loop.begin(), self.table, None))
        feedback = sum(each.records for each in done)
        first = CommittedEpoch(0, "running", feedback, 0, loop.shape, dict(pins))
        return self._commit(loop, None, first, done)

    def _commit(
        self,
        loop: SuperstepLoop,
        before: CommittedEpoch | None,
        after: CommittedEpoch,
        done: Sequence[NodeOutput],
    ) -> CommittedEpoch:
        parts = [each.part for each in done if each.part is not None]
        return self.table.commit(before, after, parts, loop.readers)

    def _results(self, loop: SuperstepLoop, state: CommittedEpoch) -> list[list[Any]]:
        # what comes behind the iteration is a function of its outputs: it is computed here
        results = [node for node in loop.graph.nodes if node.kind is NodeKind.RESULT]
        step = make_superstep(
            loop.graph, loop.iteration.outputs, [node.id for node in results], state.epoch
        )
        made: dict[int, list[Any]] = {node.id: [] for node in results}
        for done in LocalSuperstepRunner().run(EpochTask(step, self.table, state)):
            made[done.node] += done.values
        return [made[node.id] for node in sorted(results, key=lambda node: node.index)]


@dataclass(frozen=True)
class SuperstepLoop:
    """The parts of a program that has one iteration."""

    graph: DataflowGraph
    iteration: Iteration

    @classmethod
    def of(cls, graph: DataflowGraph) -> SuperstepLoop:
        """The loop of a program.

        Raises
        ------
        DefinitionError
            For what supersteps cannot run: no loop or several, an unbounded one, state that
            outlives an epoch.
        """
        if len(graph.iterations) != 1:
            raise DefinitionError(
                f"superstep-iterations: the program has {len(graph.iterations)} iterations; "
                "supersteps run one: give the outputs of one as the variables of the next"
            )
        (iteration,) = graph.iterations
        if not iteration.bounded:
            raise DefinitionError("superstep-bounded: supersteps run bounded iterations only")
        for node in graph.nodes:
            inside = node.iteration is not None
            if inside and node.operator and node.life_cycle is not OperatorLifeCycle.PER_ROUND:
                raise DefinitionError(
                    f"superstep-per-round: {node.name!r} lives for all rounds, and supersteps keep "
                    "nothing but variables from one to the next; use IterationConfig("
                    "lifecycle=OperatorLifeCycle.PER_ROUND), and keep what lasts in a variable"
                )
            for link in (link for links in node.inputs for link in links):
                foreign = graph.nodes[link.node].iteration is None
                if inside and foreign and node.kind not in (NodeKind.HEAD, NodeKind.REPLAY):
                    raise DefinitionError(
                        f"superstep-replay: {node.name!r} reads data that are not replayed; "
                        "supersteps read data again in every epoch: use "
                        "ReplayableDataStreamList.replay"
                    )
            source = node.source
            if node.kind is NodeKind.SOURCE and not getattr(source, "bounded", True):
                raise DefinitionError(
                    f"superstep-bounded: {node.name!r} never ends; supersteps read bounded data"
                )
        return cls(graph, iteration)

    @property
    def shape(self) -> str:
        """What has to stay the same for a run to go on with the variables of another."""
        variables = ", ".join(str(self.graph.nodes[n].parallelism) for n in self.iteration.heads)
        outputs = len(self.iteration.outputs)
        return f"variables of parallelism {variables} and {outputs} outputs"

    @property
    def readers(self) -> int:
        """The number of subtasks that read variables."""
        return max(self.graph.nodes[head].parallelism for head in self.iteration.heads)

    def begin(self) -> Superstep:
        """The step that makes the first variables."""
        return make_superstep(self.graph, self._sources, self.iteration.heads, 0)

    def round(self, state: CommittedEpoch) -> Superstep:
        """The step that a state asks for."""
        ending = state.phase == "terminating"
        # data are not replayed when the iteration ends
        data = self.iteration.replays if ending else self._sources
        collected = [*self._tails, *self.iteration.outputs]
        return make_superstep(
            self.graph, [*self.iteration.heads, *data], collected, state.epoch, ending
        )

    def after(self, state: CommittedEpoch, done: Sequence[NodeOutput]) -> CommittedEpoch:
        """The state behind a step (S13 to S15).

        An epoch without records is the last one, or where there are criteria one without these;
        ``max_rounds`` is a criterion that is never empty before its round.
        """
        if state.phase == "terminating":
            return replace(state, phase="finished")
        criteria, most = self.iteration.criteria, self.iteration.config.max_rounds
        told = sum(each.records for each in done if each.node == criteria)
        feedback = sum(each.records for each in done if each.node in self.iteration.tails)
        if criteria is not None:
            over = told == 0
        else:
            over = most is None and feedback == 0
        over = over or (most is not None and state.epoch + 1 >= most)
        phase: Phase = "terminating" if over else "running"
        return replace(state, epoch=state.epoch + 1, phase=phase, feedback=feedback, criteria=told)

    @property
    def _sources(self) -> list[int]:
        return [node.id for node in self.graph.nodes if node.kind is NodeKind.SOURCE]

    @property
    def _tails(self) -> list[int]:
        criteria = self.iteration.criteria
        return self.iteration.tails + ([] if criteria is None else [criteria])
