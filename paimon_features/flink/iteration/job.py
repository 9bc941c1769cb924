"""``IterationJob``: a program of iterations as a job of Flink."""

from __future__ import annotations

import secrets
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle

from paimon_features.errors import ConfigurationError, DefinitionError
from paimon_features.flink.cluster import LocalCluster
from paimon_features.flink.environment import flink_errors
from paimon_features.flink.gateway import start_gateway
from paimon_features.flink.iteration.drain import JobDrain
from paimon_features.flink.iteration.execution_mode import resolve_mode
from paimon_features.flink.iteration.job_settings import (
    UNKNOWN_CLUSTER,
    IterationSettings,
    execution_target,
    has_workers,
    open_stream_environment,
)
from paimon_features.flink.iteration.memory_limits import (
    MemoryLimits,
    TaskManagerHeap,
    memory_limits,
)
from paimon_features.flink.iteration.outputs import FileOutput, IterationOutput, SinkOutput
from paimon_features.flink.iteration.running_job import RunningIteration
from paimon_features.flink.iteration.source_functions import FlinkSource
from paimon_features.flink.iteration.table_outputs import TableOwnership
from paimon_features.flink.iteration.topology import Topology
from paimon_features.flink_rest import FlinkRest
from paimon_features.iteration.dataflow import NodeKind
from paimon_features.iteration.execution_plan import ExecutionPlan
from paimon_features.iteration.program import (
    BuildResult,
    IterationProgram,
    JobBuilder,
    build_program,
)
from paimon_features.iteration.streams import IterationStream
from paimon_features.iteration.wires.spec import WireSpec
from paimon_features.tables.lease import FlinkJobHolder, ProcessHolder

if TYPE_CHECKING:
    from pyflink.datastream import DataStream, StreamExecutionEnvironment


Build = Callable[[Any], BuildResult]
Sink = IterationOutput | Callable[["DataStream"], Any]
Sinks = Mapping[str, Sink] | Callable[[str], Sink]

_RESUME = "execution.state-recovery.path"


class FlinkJobBuilder(JobBuilder):
    """The ``job`` of a program that runs on Flink."""

    def from_stream(self, stream: DataStream, name: str | None = None) -> IterationStream:
        """The records of a stream of Flink's own, of the job's environment.

        Its records are any that pickle; the iteration's subtasks get them in turn, as many as
        the stream has. Its event-time watermarks end here (S26).
        """
        parallelism = int(stream._j_data_stream.getParallelism())
        return self.from_source(FlinkSource(stream), parallelism, name or stream.get_name())


class IterationJob:
    """Runs programs of iterations on Flink; exactly once, whatever fails.

    Parameters
    ----------
    env
        An environment of pyflink in streaming mode; its streams may be used with
        ``job.from_stream``. By default one is opened: on ``cluster`` (``host:port`` of its REST
        interface), or inside this process.
    settings
        Mode, wire, checkpoints.
    state_dir
        Folder of checkpoints, savepoints and logs; every host of a cluster has to see it under
        the same path. A temporary one by default, for jobs inside this process only.
    resume
        A savepoint or retained checkpoint of the same program, with the same parallelism.
    parallelism
        What the program finds as ``job.parallelism``.

    Raises
    ------
    DefinitionError
        ``batch-mode``: the environment is a batch one (S31).
    ConfigurationError
        For a cluster without ``state_dir``.
    """

    def __init__(
        self,
        env: StreamExecutionEnvironment | None = None,
        *,
        name: str = "iteration",
        settings: IterationSettings | None = None,
        cluster: str | None = None,
        state_dir: Path | None = None,
        resume: Path | str | None = None,
        parallelism: int = 1,
    ) -> None:
        self.name = name
        self.parallelism = parallelism
        self.settings = settings or IterationSettings()
        self.env = env
        self._cluster = cluster
        self._resume = resume
        if state_dir is None:
            if cluster is not None:
                raise ConfigurationError(
                    "an iteration on a cluster needs state_dir: a folder for its checkpoints "
                    "that the cluster's hosts see, too"
                )
            self._temporary = tempfile.TemporaryDirectory(prefix="paimon-features-iteration-")
            state_dir = Path(self._temporary.name)
        self.state_dir = state_dir.absolute()
        if env is not None:
            _check_streaming(env)
            # now, too: a stream of the user's is to run in the job's mode
            self._open_environment()

    def run(self, build: Build) -> Any:
        """Run a program to its end; its outputs as lists of values, in the shape that ``build``
        returned: as ``ReferenceExecutor.run``.

        What is given was committed exactly once; values of different subtasks are in no order.

        Raises
        ------
        DefinitionError
            If the program is not allowed; the message begins with the rule's name.
        JobError
            If the job fails, or is stuck.
        """
        program = self._program(build)
        folder = self.state_dir / "outputs" / secrets.token_hex(4)
        outputs = [FileOutput(folder / str(index)) for index in range(len(program.plan.results))]
        self._start(program.plan, outputs, None).wait()
        return program.give([output.read() for output in outputs])

    def execute(
        self,
        build: Build,
        sinks: Sinks,
        report: Callable[[Sequence[Mapping[str, Any]]], None] | None = None,
    ) -> None:
        """Run a program to its end, its outputs into ``sinks`` by their names.

        A sink is an ``IterationOutput`` (``FileOutput``, ``PaimonTable``) or a function that adds a
        Flink sink to a stream of values; ``sinks`` may also be a function of the output's name. The
        names are the keys of the dictionary that ``build`` returned, ``result`` for one stream, and
        ``result 0``, ``result 1``, ... for a list.
        ``report`` is called several times a second with the status of each iteration.

        Raises
        ------
        DefinitionError, JobError
            As ``run``.
        OwnershipError
            If somebody else writes a table that is a sink.
        """
        self.execute_async(build, sinks).wait(report)

    def execute_async(
        self, build: Build, sinks: Sinks, *, detached: bool = False
    ) -> RunningIteration:
        """Start a program.

        Somebody has to ``wait`` for it: outputs of the last moment are committed when the job is
        drained at its end. A ``detached`` one, on a cluster, drains itself when its iteration has
        ended, and needs nobody.

        Raises
        ------
        DefinitionError, JobError
            As ``run``.
        ConfigurationError
            For a detached job without a cluster, or with more than one iteration.
        """
        program = self._program(build)
        names = program.plan.results
        if isinstance(sinks, Mapping):
            if set(names) != set(sinks):
                raise DefinitionError(
                    f"sinks: the program's outputs are {', '.join(names)}, "
                    f"the sinks are for {', '.join(sinks)}"
                )
            outputs = [_output(sinks[name]) for name in names]
        else:
            outputs = [_output(sinks(name)) for name in names]
        return self._start(program.plan, outputs, self._own_drain(program) if detached else None)

    def _program(self, build: Build) -> IterationProgram:
        self._open_environment()
        ship_by_value(build)
        return build_program(FlinkJobBuilder(self.parallelism), build)

    def _open_environment(self) -> None:
        from pyflink.common import Configuration

        mode = resolve_mode(self.settings.mode, self._place(), self.state_dir)
        self.settings = replace(self.settings, mode=mode)
        if self.env is None:
            threads = mode == "thread"
            self.env = open_stream_environment(
                self._cluster, state_dir=self.state_dir, workers=threads
            )
        configuration = Configuration()
        for name, value in self.settings.options(self.state_dir).items():
            configuration.set_string(name, value)
        if self._resume is not None:
            configuration.set_string(_RESUME, str(self._resume))
        with flink_errors("configuring an iteration job"):
            # what an earlier job of this environment went on from is not for this one
            self.env._j_stream_execution_environment.getConfiguration().removeKey(_RESUME)
            self.env.configure(configuration)

    def _start(
        self, plan: ExecutionPlan, outputs: Sequence[IterationOutput], drain: JobDrain | None
    ) -> RunningIteration:
        env = self.env
        assert env is not None
        wires = self._wires(plan)
        topology = Topology(
            env,
            plan,
            wires,
            self._memory(plan),
            process_mode=self.settings.mode == "process",
            bundle_ms=self.settings.bundle_ms,
            drain=drain,
        )
        owned = TableOwnership(outputs, ProcessHolder.of(start_gateway().pid))
        try:
            topology.build(outputs)
            topology.check()
            with flink_errors(f"starting the iteration job {self.name!r}"):
                client = env.execute_async(self.name if drain is None else drain.job_name)
        except BaseException:
            owned.release()
            raise
        running = RunningIteration(
            self.name, client, plan, wires, self.state_dir, self.settings, owned
        )
        place = self._place()
        if place is not None and place != UNKNOWN_CLUSTER:
            cluster = LocalCluster(self.state_dir).job_manager_at(place)
            owned.hand_over(FlinkJobHolder(FlinkRest(place).url, running.job_id, cluster))
        return running

    def _memory(self, plan: ExecutionPlan) -> MemoryLimits:
        nodes = [node for stage in plan.stages for node in stage.nodes]
        backend = self.settings.options(None)["state.backend.type"]
        return memory_limits(
            TaskManagerHeap.of(self._place()),
            max_record_bytes=self.settings.max_record_bytes,
            replay_memory_mb=self.settings.replay_memory_mb,
            replayers=sum(n.parallelism for n in nodes if n.kind is NodeKind.REPLAY),
            in_heap=backend == "hashmap",
        )

    def _place(self) -> str | None:
        return self._cluster if self.env is None else execution_target(self.env)

    def _own_drain(self, program: IterationProgram) -> JobDrain:
        if self._cluster is None:
            raise ConfigurationError(
                "detached: a job inside this process ends with it; name a cluster"
            )
        if len(program.plan.controls) > 1:
            raise ConfigurationError(
                f"detached: the program has {len(program.plan.controls)} iterations, and a "
                "detached job drains itself at the end of one; wait for it instead"
            )
        folder = (self.state_dir / "savepoints").as_uri()
        return JobDrain(self._cluster, f"{self.name} {secrets.token_hex(4)}", folder)

    def _wires(self, plan: ExecutionPlan) -> WireSpec:
        wanted = self.settings.wire
        if wanted is None:
            kinds = {control.wire for control in plan.controls}
            if "redis" in kinds:
                raise ConfigurationError(
                    "the program's wire is redis; say where it is, IterationSettings("
                    "wire='redis://host:6379/0'), or take wire='memory' (one task manager)"
                )
            wanted = "memory"
        run = f"{self.name}-{secrets.token_hex(6)}"
        if wanted != "memory":
            return WireSpec(run, wanted)
        assert self.env is not None
        if self.settings.mode == "process" and has_workers(self.env):
            raise ConfigurationError(
                "the wire 'memory' reaches no farther than one process, and in process mode every "
                "operator has its own on a cluster, and in an environment with workers; take a "
                "server of the Redis protocol"
            )
        return WireSpec(run, None, self.state_dir / "status")


def ship_by_value(build: Build) -> None:
    """Let functions of the module of ``build`` travel whole: where the job runs, the module may
    be unknown, or be another version of it. Not for what is installed."""
    module = sys.modules.get(getattr(build, "__module__", ""))
    if module is None or module.__name__.partition(".")[0] == "paimon_features":
        return
    path = getattr(module, "__file__", None)
    if module.__name__ != "__main__" and path is not None and "site-packages" not in path:
        cloudpickle.register_pickle_by_value(module)


def _output(sink: Sink) -> IterationOutput:
    return sink if hasattr(sink, "attach") else SinkOutput(sink)  # type: ignore[return-value]


def _check_streaming(env: StreamExecutionEnvironment) -> None:
    from pyflink.java_gateway import get_gateway

    options: Any = get_gateway().jvm.org.apache.flink.configuration.ExecutionOptions
    configuration = env._j_stream_execution_environment.getConfiguration()
    mode = configuration.get(options.RUNTIME_MODE).name()
    if mode != "STREAMING":
        raise DefinitionError(
            f"batch-mode: the environment is in {mode} mode; an iteration is a stream, also over "
            "bounded data: env.set_runtime_mode(RuntimeExecutionMode.STREAMING)"
        )
