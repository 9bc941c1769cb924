"""Settings of an iteration job: mode, wire, checkpoints; and its Flink environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from paimon_features.arguments import check_arguments, plain_arguments
from paimon_features.config import FlinkConfig
from paimon_features.errors import ConfigurationError
from paimon_features.flink.environment import (
    application_options,
    flink_errors,
    no_python_server,
    remote_options,
)
from paimon_features.flink.gateway import DEFAULT_HEAP, start_gateway
from paimon_features.tables.storage.file_path import CHECKPOINTS, FilePath

if TYPE_CHECKING:
    from pyflink.datastream import StreamExecutionEnvironment

Mode = Literal["auto", "thread", "process"]

MAX_PARALLELISM = 128
"""Number of key groups of every operator; a savepoint depends on it."""

UNKNOWN_CLUSTER = "elsewhere"
"""Target of a job whose cluster a resource manager starts, or that Flink runs in application mode:
its task managers cannot be queried yet, and a job of its own cannot probe them."""

LOCAL_TASK_MANAGERS = 3
"""Number for a job inside this process in process mode; each has all slots that the job needs."""


def choose_wire(given: str | None, config: FlinkConfig, cluster: str | None) -> str:
    """Return the wire of a job: ``given``, else ``[flink] wire``, else memory without a cluster.

    Never the online store: writers of features must not disturb jobs, and the other way
    round.

    Raises
    ------
    ConfigurationError
        If a job on a cluster has none.
    """
    wire = given or config.wire or ("memory" if cluster is None else None)
    if wire is None:
        raise ConfigurationError(
            "an iteration on a cluster needs a wire for its feedback: pass --wire "
            "redis://HOST:6379/0, or set [flink] wire in paimon-features.toml; a Redis database "
            "of its own, not the online store. --wire memory works with one task manager and "
            "--mode thread"
        )
    return wire


@dataclass(frozen=True, slots=True)
class IterationSettings:
    """Settings of a job, independent of the program.

    Parameters
    ----------
    mode
        Where Python runs: ``"thread"`` inside Flink's task managers, ``"process"`` in separate
        processes, ``"auto"`` in thread mode if a small job, run once, shows that it is available
        (``resolve_mode``).
    wire
        ``"memory"`` or the URL of a server of the Redis protocol. ``None`` uses the setting of
        the program's ``IterationConfig``.
    checkpoint_interval_ms
        Time between checkpoints, with which outputs are committed.
    restarts
        Number of failures within five minutes after which the job fails.
    stuck_s
        Seconds without progress after which ``wait`` cancels the job, with an error that says
        what the job waits for. ``None``: never.
    bundle_ms
        In process mode, how long an operator buffers records before it passes them to Python.
    replay_memory_mb
        Maximum of replayed data in Python's memory per subtask, in pickled size; the rest is
        read from Flink's state in every epoch.
    max_record_bytes
        Maximum size of data that are passed to Java in one piece; an eighth of the smallest task
        manager's heap by default, in process mode at most a quarter of its direct memory (32 MiB,
        unless the cluster has been started with ``--off-heap-mb``).
    conf
        Flink options; they override everything that is set here.
    """

    mode: Mode = "auto"
    wire: str | None = None
    checkpoint_interval_ms: int = 1_000
    restarts: int = 10
    stuck_s: float | None = 300.0
    bundle_ms: int = 2
    replay_memory_mb: int = 256
    max_record_bytes: int | None = None
    conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mode not in ("auto", "thread", "process"):
            raise ConfigurationError(f"mode {self.mode!r}: expected auto, thread or process")
        plain_arguments(self)
        check_arguments("iteration settings", self, ConfigurationError)
        for name in ("checkpoint_interval_ms", "bundle_ms"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} = {getattr(self, name)}; expected 1 or more")
        for name in ("replay_memory_mb", "restarts"):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name} = {getattr(self, name)}; expected 0 or more")
        if self.max_record_bytes is not None and self.max_record_bytes < 1:
            raise ConfigurationError(
                f"max_record_bytes = {self.max_record_bytes}; expected 1 or more"
            )

    def options(self, job_state: FilePath | None) -> dict[str, str]:
        """Return the Flink options of this job, whose mode is resolved.

        ``job_state`` is the folder of its checkpoints and savepoints.
        """
        assert self.mode != "auto"
        options = {
            "execution.runtime-mode": "STREAMING",
            "pipeline.max-parallelism": str(MAX_PARALLELISM),
            "pipeline.operator-chaining.enabled": "true",
            # an epoch waits for each buffer on its path: records are sent at once, which costs
            # little compared to Python's cost per record
            "execution.buffer-timeout.interval": "0 ms",
            "execution.checkpointing.interval": f"{self.checkpoint_interval_ms} ms",
            "execution.checkpointing.mode": "EXACTLY_ONCE",
            # also of the savepoint that drains a job; one that hangs is retried
            "execution.checkpointing.timeout": "60 s",
            # acknowledgements of the protocol must not overtake one another
            "execution.checkpointing.unaligned.enabled": "false",
            "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
            "execution.checkpointing.tolerable-failed-checkpoints": "1000",
            "state.backend.type": "hashmap",
            "restart-strategy.type": "failure-rate",
            "restart-strategy.failure-rate.delay": "100 ms",
            "restart-strategy.failure-rate.failure-rate-interval": "5 min",
            "restart-strategy.failure-rate.max-failures-per-interval": str(self.restarts),
            "python.execution-mode": self.mode,
            # each of our operators is one Python stage already, with settings of its own
            "python.operator-chaining.enabled": "false",
            # a task that is cancelled with an open bundle often terminates the task manager
            # (FLINK-40135), but rarely with one Python process per operator
            "python.fn-execution.memory.managed": "false",
        }
        if self.mode == "process":
            # inside this process a lost one is not replaced: the others have the slots
            options["minicluster.number-of-taskmanagers"] = str(LOCAL_TASK_MANAGERS)
        if job_state is not None:
            options["execution.checkpointing.dir"] = (job_state / CHECKPOINTS).as_uri()
        return {**options, **self.conf}


def open_stream_environment(
    cluster: str | None = None,
    *,
    state_dir: Path | None = None,
    slots: int = 16,
    heap: str = DEFAULT_HEAP,
    workers: bool = False,
) -> StreamExecutionEnvironment:
    """Open a new streaming environment; the first one of a process starts its JVM.

    ``cluster`` is ``host:port`` of a session cluster's REST interface; ``UNKNOWN_CLUSTER`` is the
    one that runs this program in application mode; ``None`` runs jobs inside this process's JVM,
    with ``slots`` slots. Python of process mode then runs in this process, or
    with ``workers`` in separate processes, as on a cluster; thread mode needs neither, and starts
    faster with ``workers``.

    Raises
    ------
    ConfigurationError
        If the cluster address is not ``host:port``.
    SetupError, MissingExtraError, JobError
        If the JVM cannot be started.
    """
    remote = {} if cluster in (None, UNKNOWN_CLUSTER) else remote_options(str(cluster))
    start_gateway(state_dir, heap)
    from pyflink.common import Configuration
    from pyflink.datastream import StreamExecutionEnvironment
    from pyflink.java_gateway import get_gateway

    configuration = Configuration()
    for name, value in {**remote, **application_options()}.items():
        configuration.set_string(name, value)
    with flink_errors("opening a Flink environment"):
        if cluster == UNKNOWN_CLUSTER:
            return StreamExecutionEnvironment.get_execution_environment(configuration)
        if cluster is None:
            configuration.set_string("taskmanager.numberOfTaskSlots", str(slots))
            with no_python_server(workers):
                return StreamExecutionEnvironment.get_execution_environment(configuration)
        gateway: Any = get_gateway()
        # get_execution_environment would start a cluster of its own, whatever the target
        java = gateway.jvm.org.apache.flink.streaming.api.environment
        jars = gateway.new_array(gateway.jvm.java.lang.String, 0)
        return StreamExecutionEnvironment(
            java.StreamExecutionEnvironment.createRemoteEnvironment(
                remote["rest.address"],
                int(remote["rest.port"]),
                configuration._j_configuration,
                jars,
            )
        )


def execution_target(env: StreamExecutionEnvironment) -> str | None:
    """Return where an environment's jobs run: inside this process (None), the REST address of a
    cluster, or ``UNKNOWN_CLUSTER``."""
    configured = _configured(env)
    target = configured.get("execution.target")
    if target == "remote":
        return f"{configured.get('rest.address')}:{configured.get('rest.port') or 8081}"
    return None if target in (None, "local") else UNKNOWN_CLUSTER


def has_workers(env: StreamExecutionEnvironment) -> bool:
    """Return whether Python of process mode has separate processes instead of this one."""
    return _configured(env).get("python.loopback-server.address") is None


def _configured(env: StreamExecutionEnvironment) -> Mapping[str, str]:
    options: Mapping[str, str] = env._j_stream_execution_environment.getConfiguration().toMap()
    return options
