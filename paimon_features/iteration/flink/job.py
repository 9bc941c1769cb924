"""``IterationJob``: runs a program of iterations as a Flink job."""

from __future__ import annotations

import secrets
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle

from paimon_features.core.configuration.arguments import checked_integer, checked_text, shown
from paimon_features.core.errors import ConfigurationError, DefinitionError
from paimon_features.core.process.flink_rest import FlinkRest
from paimon_features.core.times.clock import now_ms
from paimon_features.flink.cluster import LocalCluster
from paimon_features.flink.environment import flink_errors, is_application, local_rest
from paimon_features.flink.gateway import check_checkpoint_store, start_gateway
from paimon_features.flink.stream_environment import (
    UNKNOWN_CLUSTER,
    execution_target,
    has_workers,
    open_stream_environment,
)
from paimon_features.flink.stream_jobs import StreamJobRecord, record_end, record_job
from paimon_features.iteration.dataflow import NodeKind
from paimon_features.iteration.execution_plan import ExecutionPlan
from paimon_features.iteration.flink.drain import JobDrain
from paimon_features.iteration.flink.execution_mode import resolve_mode
from paimon_features.iteration.flink.job_settings import IterationSettings
from paimon_features.iteration.flink.memory_limits import (
    MemoryLimits,
    TaskManagerMemory,
    memory_limits,
)
from paimon_features.iteration.flink.outputs import FileOutput, IterationOutput, SinkOutput
from paimon_features.iteration.flink.running_job import RunningIteration
from paimon_features.iteration.flink.source_functions import FlinkSource
from paimon_features.iteration.flink.table_outputs import PaimonTable, TableOwnership
from paimon_features.iteration.flink.topology import Topology
from paimon_features.iteration.program import (
    BuildResult,
    IterationProgram,
    JobBuilder,
    build_program,
)
from paimon_features.iteration.streams import IterationStream
from paimon_features.iteration.wires.spec import WireSpec
from paimon_features.lake.ownership.lease import FlinkJobHolder, ProcessHolder
from paimon_features.lake.storage.file_path import SAVEPOINTS, FilePath

if TYPE_CHECKING:
    from pyflink.datastream import DataStream, StreamExecutionEnvironment


BuildProgram = Callable[[Any], BuildResult]
Sink = IterationOutput | Callable[["DataStream"], Any]
Sinks = Mapping[str, Sink] | Callable[[str], Sink]

_RESUME = "execution.state-recovery.path"


class FlinkJobBuilder(JobBuilder):
    """The ``job`` argument of a program that runs on Flink."""

    def from_stream(self, stream: DataStream, name: str | None = None) -> IterationStream:
        """Return the records of a Flink stream of the job's environment.

        Records must be picklable; they are distributed round-robin to as many subtasks as the
        stream has. Event-time watermarks are dropped here (S26). After a failure the stream has to
        continue at its position, as those of ``env.from_source`` do: pyflink's ``from_collection``
        begins again, which is logged as a warning, and its records enter once more.
        """
        parallelism = int(stream._j_data_stream.getParallelism())
        return self.from_source(FlinkSource(stream), parallelism, name or stream.get_name())


class IterationJob:
    """Runs programs of iterations on Flink, exactly-once in spite of failures.

    Parameters
    ----------
    env
        A pyflink environment in streaming mode; its streams may be used with
        ``job.from_stream``. By default, one is opened: on ``cluster`` (``host:port`` of its REST
        interface), or inside this process.
    settings
        Mode, wire, checkpoints.
    state_dir
        Folder for checkpoints, savepoints and logs, accessible by all hosts of a cluster under
        the same path. By default a temporary folder, for jobs inside this process only.
    job_state
        Folder for checkpoints and savepoints in place of ``state_dir``, such as one on S3
        (``job_state_folder``).
    resume
        A savepoint or retained checkpoint of the same program, with the same parallelism.
    parallelism
        Value of ``job.parallelism`` for the program.

    Raises
    ------
    DefinitionError
        ``batch-mode``: the environment is in batch mode (S31).
    ConfigurationError
        If ``cluster`` is used without ``state_dir``.
    """

    def __init__(
        self,
        env: StreamExecutionEnvironment | None = None,
        *,
        name: str = "iteration",
        settings: IterationSettings | None = None,
        cluster: str | None = None,
        state_dir: Path | None = None,
        job_state: FilePath | None = None,
        resume: Path | str | None = None,
        parallelism: int = 1,
    ) -> None:
        self.name = checked_text("the name of a job", name)
        self.parallelism = checked_integer("parallelism", parallelism)
        if settings is not None and not isinstance(settings, IterationSettings):
            raise DefinitionError(f"settings={shown(settings)}; expected IterationSettings")
        self.settings = settings or IterationSettings()
        self.env = env
        self._cluster = cluster
        self._resume = resume
        self._rest: str | None = None
        if state_dir is None:
            if cluster is not None:
                raise ConfigurationError(
                    "an iteration on a cluster needs state_dir: a folder for its checkpoints "
                    "that the hosts of the cluster can access, too"
                )
            self._temporary = tempfile.TemporaryDirectory(prefix="paimon-features-iteration-")
            state_dir = Path(self._temporary.name)
        self.state_dir = Path(state_dir).absolute()
        self.job_state = job_state or self.state_dir
        if env is not None:
            _check_streaming(env)
            # already here: the user's streams must run in the mode of the job
            self._open_environment()

    def run(self, build: BuildProgram) -> Any:
        """Run a program to its end; return its results as lists of values, in the shape that
        ``build`` returned, as ``ReferenceExecutor.run`` does.

        Results are exactly-once; the order between values of different subtasks is undefined.

        Raises
        ------
        DefinitionError
            If the program breaks a rule; the message starts with the rule's name.
        JobError
            If the job fails or makes no progress.
        """
        program = self._program(build)
        folder = self.state_dir / "outputs" / secrets.token_hex(4)
        outputs = [FileOutput(folder / str(index)) for index in range(len(program.plan.results))]
        self._start(program.plan, outputs, None).wait()
        return program.shape_results([output.read() for output in outputs])

    def execute(
        self,
        build: BuildProgram,
        sinks: Sinks,
        report: Callable[[Sequence[Mapping[str, Any]]], None] | None = None,
    ) -> None:
        """Run a program to its end, and write its outputs to ``sinks`` by name.

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
            If another job or process writes a table that is a sink.
        """
        self.execute_async(build, sinks).wait(report)

    def execute_async(
        self, build: BuildProgram, sinks: Sinks, *, detached: bool = False
    ) -> RunningIteration:
        """Start a program.

        The caller has to ``wait`` for it: the last outputs are committed when the job is drained
        at its end. A ``detached`` job, on a cluster, drains itself when its iteration has ended,
        and needs no client.

        Raises
        ------
        DefinitionError, JobError
            As ``run``.
        ConfigurationError
            If a detached job has no cluster, or more than one iteration.
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

    def _program(self, build: BuildProgram) -> IterationProgram:
        self._open_environment()
        ship_by_value(build)
        return build_program(FlinkJobBuilder(self.parallelism), build)

    def _open_environment(self) -> None:
        from pyflink.common import Configuration

        if self.env is not None:
            start_gateway(self.state_dir)  # says so if the JVM of the environment has ended
        mode = resolve_mode(self.settings.mode, self._target(), self.state_dir)
        self.settings = replace(self.settings, mode=mode)
        if self.env is None:
            threads = mode == "thread"
            self.env = open_stream_environment(
                self._target(), state_dir=self.state_dir, workers=threads
            )
        options = self.settings.options(self.job_state)
        if self._target() is None:
            # its restarts and last error are only known from there
            options = {**local_rest()[1], **options}
            self._rest = f"{options['rest.address']}:{options['rest.port']}"
        if self._resume is not None:
            options[_RESUME] = str(self._resume)
        check_checkpoint_store(options)
        configuration = Configuration()
        for name, value in options.items():
            configuration.set_string(name, value)
        with flink_errors("configuring an iteration job"):
            # an earlier job of this environment may have resumed a savepoint; this one does not
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
        jvm = ProcessHolder.of(start_gateway().pid)
        owned = TableOwnership(outputs, jvm)
        rest = None if self._rest is None else FlinkRest(self._rest).url
        try:
            topology.build(outputs)
            topology.check()
            with flink_errors(f"starting the iteration job {self.name!r}"):
                client = env.execute_async(self.name if drain is None else drain.job_name)
        except BaseException:
            owned.release()
            raise
        running = RunningIteration(
            self.name,
            client,
            plan,
            wires,
            self.job_state,
            self.settings,
            owned,
            partial(record_end, self.state_dir, str(client.get_job_id())),
        )
        target = self._target()
        process: ProcessHolder | None = jvm
        if target is not None and target != UNKNOWN_CLUSTER:
            cluster = LocalCluster(self.state_dir).process_of(target)
            owned.hand_over(FlinkJobHolder(FlinkRest(target).url, running.job_id, cluster))
            rest, process = FlinkRest(target).url, cluster
        record_job(
            self.state_dir,
            StreamJobRecord(
                "iteration",
                self.name,
                running.job_id,
                rest,
                target is None,
                process if target != UNKNOWN_CLUSTER else None,
                now_ms(),
                tuple(map(_written, outputs)),
                tuple(o.table for o in outputs if isinstance(o, PaimonTable)),
            ),
        )
        return running

    def _memory(self, plan: ExecutionPlan) -> MemoryLimits:
        nodes = [node for stage in plan.stages for node in stage.nodes]
        backend = self.settings.options(None)["state.backend.type"]
        return memory_limits(
            TaskManagerMemory.of(self._target()),
            max_record_bytes=self.settings.max_record_bytes,
            replay_memory_mb=self.settings.replay_memory_mb,
            replayers=sum(n.parallelism for n in nodes if n.kind is NodeKind.REPLAY),
            in_heap=backend == "hashmap",
            in_processes=self.settings.mode == "process",
        )

    def _target(self) -> str | None:
        if self.env is not None:
            return execution_target(self.env)
        return UNKNOWN_CLUSTER if is_application() else self._cluster

    def _own_drain(self, program: IterationProgram) -> JobDrain:
        if self._cluster is None:
            raise ConfigurationError(
                "detached: a job inside this process ends with it; pass cluster="
            )
        if len(program.plan.controls) > 1:
            raise ConfigurationError(
                f"detached: the program has {len(program.plan.controls)} iterations, and a "
                "detached job drains itself at the end of one; wait for it instead"
            )
        folder = (self.job_state / SAVEPOINTS).as_uri()
        return JobDrain(self._cluster, f"{self.name} {secrets.token_hex(4)}", folder)

    def _wires(self, plan: ExecutionPlan) -> WireSpec:
        wanted = self.settings.wire
        if wanted is None:
            kinds = {control.wire for control in plan.controls}
            if "redis" in kinds:
                raise ConfigurationError(
                    "the program's wire is redis; pass its address, IterationSettings("
                    "wire='redis://host:6379/0'), or use wire='memory' (one task manager)"
                )
            wanted = "memory"
        run = f"{self.name}-{secrets.token_hex(6)}"
        if wanted != "memory":
            return WireSpec(run, wanted)
        assert self.env is not None
        if self.settings.mode == "process" and has_workers(self.env):
            raise ConfigurationError(
                "the wire 'memory' works within one process only, and in process mode every "
                "operator has a process of its own on a cluster and in an environment with "
                "workers; use a server of the Redis protocol"
            )
        return WireSpec(run, None, self.state_dir / "status")


def ship_by_value(build: BuildProgram) -> None:
    """Pickle functions of the module of ``build`` by value: where the job runs, the module may be
    missing or have another version. Installed modules are excluded."""
    module = sys.modules.get(getattr(build, "__module__", ""))
    if module is None or module.__name__.partition(".")[0] == "paimon_features":
        return
    path = getattr(module, "__file__", None)
    if module.__name__ != "__main__" and path is not None and "site-packages" not in path:
        cloudpickle.register_pickle_by_value(module)


def _output(sink: Sink) -> IterationOutput:
    return sink if hasattr(sink, "attach") else SinkOutput(sink)  # type: ignore[return-value]


def _written(output: IterationOutput) -> str:
    """Return what an output writes, as ``status`` shows it."""
    if isinstance(output, PaimonTable):
        return output.table
    return str(output.folder) if isinstance(output, FileOutput) else type(output).__name__


def _check_streaming(env: StreamExecutionEnvironment) -> None:
    from pyflink.java_gateway import get_gateway

    options: Any = get_gateway().jvm.org.apache.flink.configuration.ExecutionOptions
    configuration = env._j_stream_execution_environment.getConfiguration()
    mode = configuration.get(options.RUNTIME_MODE).name()
    if mode != "STREAMING":
        raise DefinitionError(
            f"batch-mode: the environment is in {mode} mode; iterations need streaming mode, also "
            "for bounded data: env.set_runtime_mode(RuntimeExecutionMode.STREAMING)"
        )
