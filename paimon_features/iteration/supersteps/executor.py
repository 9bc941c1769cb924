"""Iterations by supersteps: one bounded run per epoch, with the variables in a Paimon table.

For bodies whose variables are too large for a stream, and for data that are better read again in
each epoch than cached. Programs are the same as for the other engines, provided that epochs are
independent of each other: the body is per-round and its data are replayed.

::

    snapshot 1        snapshot 2        snapshot 3           snapshot n + 1     snapshot n + 2
    variables 0 ----> variables 1 ----> variables 2 -- ... -> variables n -----> the end
              epoch 0           epoch 1                      (terminating)
              one commit        one commit                    one commit

A commit contains the variables of the next epoch and all outputs of this one. A process that is
killed at any moment has committed an epoch or not; a run with the same name continues after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from paimon_features.core.configuration.arguments import checked_integer
from paimon_features.core.errors import DefinitionError
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
from paimon_features.lake.catalog import Lake
from paimon_features.lake.reading.splits import plan_splits


class NodeOutput(NamedTuple):
    """Output of one subtask of a collected node: its records, as files if they are stored."""

    node: int
    subtask: int
    records: int
    part: bytes | None
    values: list[Any]


@dataclass(frozen=True)
class EpochTask:
    """Everything that the subtasks of one superstep need, wherever they run. It can be pickled."""

    step: Superstep
    table: VariableTable
    state: CommittedEpoch | None

    def restrict_to(self, members: Sequence[DataflowNode]) -> EpochTask:
        """Return the part that some nodes need, without the functions and data of others."""
        nodes = {node.id: node for node in members}
        outs = {number: self.step.outs[number] for number in nodes}
        return replace(self, step=replace(self.step, nodes=nodes, outs=outs))

    def read_input(self, node: DataflowNode, subtask: int) -> Iterator[list[Any]]:
        """Yield batches of records for a node with external input."""
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

    def store_output(self, run: NodeRun) -> NodeOutput:
        """Store the records of a collected node, according to its kind."""
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

    ``pins`` are the snapshots of the tables that the iteration reads, fixed at its start.
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
        """Return the rows of a table as Arrow record batches; every subtask reads its own splits.

        All epochs read the snapshot that was the latest one when the iteration began, also if
        another process continues it.

        Raises
        ------
        UnknownNameError
            If there is no such table or column.
        SnapshotExpiredError
            If the snapshot has expired: tag it, or retain more snapshots.
        """
        block_rows = checked_integer("block_rows", block_rows)
        path = lake.path(table)
        plan = plan_splits(lake, table, columns, self.pins.get(path))
        if self.pins.setdefault(path, plan.snapshot_id) is None:
            plan = plan.part()  # the table was empty when the iteration began
        return self.from_source(SnapshotSource(plan, block_rows), parallelism, table)


class SuperstepRunner(Protocol):
    """Runs all subtasks of one superstep to their ends."""

    def prepare(self, build: Callable[[Any], Any]) -> None:
        """Called once, before the supersteps of a program."""
        ...

    def run(self, work: EpochTask) -> list[NodeOutput]:
        """Return the outputs of the collected nodes; raise if any subtask failed."""
        ...


class LocalSuperstepRunner:
    """Runs a superstep in this process, one envelope after another; the oracle for Flink."""

    def prepare(self, build: Callable[[Any], Any]) -> None:
        """Do nothing."""

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
            work.step.inputs, key=lambda n: work.step.nodes[n].kind is not NodeKind.HEAD
        ):
            node = work.step.nodes[number]
            for subtask in range(node.parallelism):
                run = runs[number, subtask]
                for values in work.read_input(node, subtask):
                    deliver(run.feed(values))
                deliver(run.end())
        return [
            work.store_output(run) for (node, _), run in runs.items() if node in work.step.collected
        ]


class SuperstepExecutor:
    """Runs an iteration epoch by epoch, with its state in the table ``iteration_<name>``.

    Parameters
    ----------
    lake, name
        The lake of the variables, and the name by which a run is continued.
    runner
        Runs an epoch; in this process by default.
    on_epoch
        Called with each committed state, starting with the existing or the first one.

    Examples
    --------
    Halve numbers until none is above one; a second call runs nothing:

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
        """Iterate until the end and return the program's results, as the other engines do.

        A finished iteration is not run again; its outputs are read.

        Raises
        ------
        DefinitionError
            If the program cannot be run by supersteps; the message starts with the rule's name.
        JobError
            If the table contains the variables of another program.
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
        return program.shape_results(self._results(loop, state))

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
        # what follows the iteration is a function of its outputs, computed in this process
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
    """A program with one iteration, as a sequence of supersteps."""

    graph: DataflowGraph
    iteration: Iteration

    @classmethod
    def of(cls, graph: DataflowGraph) -> SuperstepLoop:
        """Return the loop of a program.

        Raises
        ------
        DefinitionError
            If supersteps cannot run it: no loop or several, an unbounded one, state that
            outlives an epoch.
        """
        if len(graph.iterations) != 1:
            raise DefinitionError(
                f"superstep-iterations: the program has {len(graph.iterations)} iterations; "
                "supersteps run one: use the outputs of one as the variables of the next"
            )
        (iteration,) = graph.iterations
        if not iteration.bounded:
            raise DefinitionError("superstep-bounded: supersteps run bounded iterations only")
        for node in graph.nodes:
            inside = node.iteration is not None
            if inside and node.operator and node.life_cycle is not OperatorLifeCycle.PER_ROUND:
                raise DefinitionError(
                    f"superstep-per-round: {node.name!r} lives for all rounds, but only variables "
                    "are kept from one superstep to the next; use IterationConfig("
                    "lifecycle=OperatorLifeCycle.PER_ROUND), and keep lasting state in a variable"
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
        """Description of what must not change for a run to continue another one."""
        variables = ", ".join(str(self.graph.nodes[n].parallelism) for n in self.iteration.heads)
        outputs = len(self.iteration.outputs)
        return f"variables of parallelism {variables} and {outputs} outputs"

    @property
    def readers(self) -> int:
        """Number of subtasks that read variables."""
        return max(self.graph.nodes[head].parallelism for head in self.iteration.heads)

    def begin(self) -> Superstep:
        """Return the superstep that creates the first variables."""
        return make_superstep(self.graph, self._sources, self.iteration.heads, 0)

    def round(self, state: CommittedEpoch) -> Superstep:
        """Return the superstep that follows a state."""
        ending = state.phase == "terminating"
        # data are not replayed when the iteration ends
        data = self.iteration.replays if ending else self._sources
        collected = [*self._tails, *self.iteration.outputs]
        return make_superstep(
            self.graph, [*self.iteration.heads, *data], collected, state.epoch, ending
        )

    def after(self, state: CommittedEpoch, done: Sequence[NodeOutput]) -> CommittedEpoch:
        """Return the state after a superstep (S13 to S15).

        The last epoch is the first one without records, or, if there are criteria, without
        records of these; ``max_rounds`` is a criterion that is not empty before its round.
        """
        if state.phase == "terminating":
            return replace(state, phase="finished")
        criteria, most = self.iteration.criteria, self.iteration.config.max_rounds
        criteria_records = sum(each.records for each in done if each.node == criteria)
        feedback = sum(each.records for each in done if each.node in self.iteration.tails)
        if criteria is not None:
            over = criteria_records == 0
        else:
            over = most is None and feedback == 0
        over = over or (most is not None and state.epoch + 1 >= most)
        phase: Phase = "terminating" if over else "running"
        return replace(
            state, epoch=state.epoch + 1, phase=phase, feedback=feedback, criteria=criteria_records
        )

    @property
    def _sources(self) -> list[int]:
        return [node.id for node in self.graph.nodes if node.kind is NodeKind.SOURCE]

    @property
    def _tails(self) -> list[int]:
        criteria = self.iteration.criteria
        return self.iteration.tails + ([] if criteria is None else [criteria])
