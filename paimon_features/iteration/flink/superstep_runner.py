"""Supersteps on Flink: one bounded job per epoch, in a session cluster.

Every node of the superstep is an operator, and every subtask has a key that Flink's hash assigns
to it. Tasks read their own variables and data and write their own files; only the names of these
files and record counts return to the client, which commits. A failed job has changed nothing and is
run again.

In thread mode, Python stays in the task managers, so that the job of an epoch starts in a fraction
of a second; in process mode, every operator of every epoch starts a Python process, which takes
seconds.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
from pyflink.common import Configuration, Row
from pyflink.datastream import KeyedProcessFunction
from pyflink.datastream.data_stream import DataStream

from paimon_features.core.configuration.arguments import checked_integer
from paimon_features.core.errors import JobError
from paimon_features.flink.environment import flink_errors
from paimon_features.flink.stream_environment import open_stream_environment
from paimon_features.iteration.envelope import Envelope, decode, encode
from paimon_features.iteration.flink.edge_messages import (
    KICK,
    message_type,
    subtask_keys,
    text_type,
)
from paimon_features.iteration.flink.execution_mode import resolve_mode
from paimon_features.iteration.flink.hosts import (
    StageAddresses,
    result_line,
    result_values,
    stage_tag,
)
from paimon_features.iteration.flink.job import ship_by_value
from paimon_features.iteration.flink.job_settings import MAX_PARALLELISM, Mode
from paimon_features.iteration.flink.memory_limits import (
    MemoryLimits,
    TaskManagerMemory,
    memory_limits,
)
from paimon_features.iteration.flink.topology import keyed_union, message_source
from paimon_features.iteration.supersteps.executor import EpochTask, NodeOutput
from paimon_features.iteration.supersteps.node_runs import AddressedEnvelopes, NodeRun, Superstep

if TYPE_CHECKING:
    from pyflink.datastream import RuntimeContext, StreamExecutionEnvironment

OPTIONS: Mapping[str, str] = {
    "execution.runtime-mode": "STREAMING",
    "pipeline.max-parallelism": str(MAX_PARALLELISM),
    "execution.buffer-timeout.interval": "1 ms",
    # a failed epoch is run again, from the table
    "restart-strategy.type": "none",
    "python.operator-chaining.enabled": "false",
    "python.fn-execution.memory.managed": "false",
}


class NodeGroupHost(KeyedProcessFunction):
    """Runs a group of nodes of a superstep, for the subtasks whose keys arrive here."""

    def __init__(
        self,
        work: bytes,
        groups: Mapping[int, int],
        own_keys: tuple[int, ...],
        addresses: StageAddresses,
        memory: MemoryLimits,
    ) -> None:
        self._memory = memory
        self._pickled, self._groups = work, groups
        self._own_keys, self._addresses = own_keys, addresses

    def open(self, runtime_context: RuntimeContext) -> None:
        self._work: EpochTask = pickle.loads(self._pickled)
        self._tags = self._addresses.tags()
        self._runs: dict[tuple[int, int], NodeRun] = {}

    def process_element(self, value: bytes, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        key = ctx.get_current_key()
        subtask = self._own_keys.index(key[0] if isinstance(key, Row | tuple) else key)
        if value == KICK:
            step = self._work.step
            run = self._run(next(node for node in step.nodes if node in step.inputs), subtask)
            for values in self._work.read_input(run.node, subtask):
                yield from self._sent(run.feed(values))
            yield from self._sent(run.end())
            yield from self._done(run)
        else:
            yield from self._handled(subtask, decode(value))

    def _handled(self, subtask: int, envelopes: Iterable[Envelope]) -> Iterator[Any]:
        for envelope in envelopes:
            run = self._run(envelope.node, subtask)
            yield from self._sent(run.handle(envelope))
            yield from self._done(run)

    def _sent(self, sent: AddressedEnvelopes) -> Iterator[Any]:
        away: dict[tuple[int, int], list[Envelope]] = {}
        for subtask, envelope in sent:
            if envelope.node in self._work.step.nodes:
                yield from self._handled(subtask, [envelope])
            else:
                group = self._groups[envelope.node]
                away.setdefault((group, subtask), []).append(envelope)
        for (group, subtask), envelopes in away.items():
            data = self._memory.checked(encode(envelopes), "superstep: the output of one call")
            row = Row(self._addresses.keys[group][subtask], data)
            yield row if group == self._addresses.main else (self._tags[group], row)

    def _done(self, run: NodeRun) -> Iterator[Any]:
        if run.ended and run.node.id in self._work.step.collected:
            yield result_line([tuple(self._work.store_output(run))])

    def _run(self, node: int, subtask: int) -> NodeRun:
        run = self._runs.get((node, subtask))
        if run is None:
            step = self._work.step
            run = self._runs[node, subtask] = NodeRun(step, step.nodes[node], subtask)
        return run


def groups_of(step: Superstep) -> dict[int, int]:
    """Return the group of each node, identified by its first node; one Flink operator runs a group.

    A node that reads only from its own subtask of one group belongs to that group.
    """
    above: dict[int, set[int | None]] = {node: set() for node in step.nodes}
    groups: dict[int, int] = {}
    for node in step.nodes:
        (group,) = above[node] if len(above[node]) == 1 else (None,)
        groups[node] = node if group is None else group
        for out in step.outs[node]:
            above[out.target].add(groups[node] if out.straight else None)
    return groups


@dataclass
class FlinkSuperstepRunner:
    """Runs each epoch as a Flink job.

    Parameters
    ----------
    cluster
        ``host:port`` of the REST interface of a session cluster; None starts a small cluster
        inside this process for each epoch, which takes seconds.
    mode
        Where Python runs, as in ``IterationSettings``.
    attempts
        Number of attempts of an epoch before its error is raised.
    conf
        Flink options; they override ``OPTIONS``.
    """

    cluster: str | None = None
    mode: Mode = "auto"
    attempts: int = 3
    state_dir: Path | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    _env: StreamExecutionEnvironment | None = field(default=None, init=False, repr=False)
    _in_processes: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        self.attempts = checked_integer("attempts", self.attempts)

    def prepare(self, build: Callable[[Any], Any]) -> None:
        """Ship the functions of the program's module with the jobs."""
        ship_by_value(build)

    def run(self, work: EpochTask) -> list[NodeOutput]:
        """Run the epoch as a job; see ``SuperstepRunner``.

        Raises
        ------
        JobError
            If it failed ``attempts`` times; or if Flink cannot be reached.
        """
        for attempt in range(1, self.attempts + 1):
            try:
                return self._once(work)
            except JobError as error:
                if attempt == self.attempts:
                    error.add_note(
                        f"epoch {work.step.epoch}, attempt {attempt}: no data were changed"
                    )
                    raise
                time.sleep(0.2 * attempt)
        raise AssertionError("there is no attempt 0")

    def _once(self, work: EpochTask) -> list[NodeOutput]:
        with flink_errors(f"running epoch {work.step.epoch}"):
            env = self._environment()
            found = self._job(env, work).execute_and_collect(f"epoch {work.step.epoch}")
            # closing it cancels the job if it is still running
            with found:
                done = [NodeOutput(*fields) for line in found for fields in result_values(line)]
        wanted = sum(work.step.nodes[node].parallelism for node in work.step.collected)
        if len(done) != wanted:
            raise JobError(
                f"epoch {work.step.epoch}: {len(done)} of {wanted} subtasks reported their output"
            )
        return done

    def _environment(self) -> StreamExecutionEnvironment:
        if self._env is None:
            mode = resolve_mode(self.mode, self.cluster, self.state_dir)
            self._in_processes = mode == "process"
            self._env = open_stream_environment(
                self.cluster, state_dir=self.state_dir, workers=mode == "thread"
            )
            configuration = Configuration()
            for name, value in {**OPTIONS, "python.execution-mode": mode, **self.conf}.items():
                configuration.set_string(name, value)
            self._env.configure(configuration)
        return self._env

    def _job(self, env: StreamExecutionEnvironment, work: EpochTask) -> DataStream:
        """Add the operators of a superstep; return the stream of its collected outputs."""
        memory = memory_limits(TaskManagerMemory.of(self.cluster), in_processes=self._in_processes)
        inputs: dict[int, list[Any]] = {}
        done: list[DataStream] = []
        groups = groups_of(work.step)
        for group in dict.fromkeys(groups.values()):
            members = [node for node in work.step.nodes.values() if groups[node.id] == group]
            keys = subtask_keys(members[0].parallelism)
            name = " -> ".join(node.name for node in members)
            if group in work.step.inputs:
                kicks = [(key, KICK) for key in keys]
                inputs[group] = [message_source(env, kicks, f"{name} kick", f"kick-{group}")]
            readers = {
                groups[out.target]: out.parallelism
                for node in members
                for out in work.step.outs[node.id]
                if groups[out.target] != group
            }
            # collected nodes report on the main output: pyflink does not know the side outputs of a
            # stream that is only collected
            reports = any(node.id in work.step.collected for node in members)
            addresses = StageAddresses(
                None if reports else next(iter(readers)),
                {target: subtask_keys(parallelism) for target, parallelism in readers.items()},
            )
            host = NodeGroupHost(
                cloudpickle.dumps(work.restrict_to(members)), groups, keys, addresses, memory
            )
            kind = text_type() if reports else message_type()
            made = keyed_union(inputs.pop(group)).process(host, kind).name(name)
            made.set_parallelism(members[0].parallelism).set_max_parallelism(MAX_PARALLELISM)
            for target in readers:
                java = made._j_data_stream
                if target != addresses.main:
                    java = java.getSideOutput(stage_tag(target).get_java_output_tag())
                inputs.setdefault(target, []).append(java)
            if reports:
                done.append(made)
        return done[0].union(*done[1:]) if len(done) > 1 else done[0]
