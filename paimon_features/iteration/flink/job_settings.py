"""Settings of an iteration job: mode, wire, checkpoints; and its Flink environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from paimon_features.core.configuration.arguments import check_arguments, plain_arguments
from paimon_features.core.configuration.project_config import FlinkConfig
from paimon_features.core.errors import ConfigurationError
from paimon_features.lake.storage.file_path import CHECKPOINTS, FilePath

Mode = Literal["auto", "thread", "process"]

MAX_PARALLELISM = 128
"""Number of key groups of every operator; a savepoint depends on it."""


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
