"""Thread or process mode: a probe, run once, shows whether thread mode works."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pyflink.datastream import KeyedProcessFunction

from paimon_features.core.errors import JobError
from paimon_features.core.installation.cache import cache_root
from paimon_features.core.process.flink_rest import FlinkRest
from paimon_features.flink.environment import flink_errors
from paimon_features.flink.gateway import start_gateway
from paimon_features.flink.stream_environment import UNKNOWN_CLUSTER, open_stream_environment
from paimon_features.iteration.flink.edge_messages import KICK, subtask_keys, text_type
from paimon_features.iteration.flink.job_settings import Mode
from paimon_features.iteration.flink.keyed_state import FlinkStateBackend
from paimon_features.iteration.flink.memory_limits import MemoryLimits
from paimon_features.iteration.flink.topology import keyed_union, message_source
from paimon_features.lake.storage.json_files import read_json, write_json

if TYPE_CHECKING:
    from pyflink.datastream import RuntimeContext, StreamExecutionEnvironment

PROBE_S = 300.0
"""Timeout of the probe: the first interpreter of a task manager loads its packages, which takes
minutes on a loaded host."""
POLL_S = 0.01
OPTIONS: Mapping[str, str] = {
    "execution.runtime-mode": "STREAMING",
    "python.execution-mode": "thread",
    "restart-strategy.type": "none",
}
REMEMBERED = 50
"""Number of task managers whose result is cached."""

_ENTRY = ("all", 0)
_failed_probes: dict[str, str] = {}
"""Reasons of this process against thread mode, by task manager."""


class ThreadModeProbe(KeyedProcessFunction):
    """Uses state like an operator: empty, written, read; then emits one result."""

    def open(self, runtime_context: RuntimeContext) -> None:
        import numpy  # noqa: F401 - bodies need it, and an interpreter may lack it

        self._state = FlinkStateBackend(runtime_context, MemoryLimits())

    def process_element(self, value: bytes, ctx: Any) -> Any:
        values = [self._state.get(_ENTRY)]
        self._state.put(_ENTRY, value)
        values.append(self._state.get(_ENTRY))
        if values != [None, KICK]:
            raise JobError(f"a Flink state returned {values!r}, expected {[None, KICK]!r}")
        yield "passed"


def resolve_mode(
    mode: Mode, cluster: str | None, state_dir: Path | None = None
) -> Literal["thread", "process"]:
    """Resolve ``auto``: thread mode if a probe has passed, otherwise process mode with a warning.

    The probe is a job of one record in thread mode. It runs once for the task managers of
    ``cluster`` (inside this process if None; see ``execution_target``), on one of them, and for
    this interpreter and its packages: a success is stored in the user's cache, a failure in this
    process. Without a free slot, and for ``UNKNOWN_CLUSTER``, there is no probe, and the packages
    installed here decide.

    Raises
    ------
    JobError
        If the cluster does not respond, or the JVM of this process ends with the probe.
    """
    if mode != "auto":
        return mode
    reason = _thread_mode_obstacle(cluster, state_dir)
    if reason is None:
        return "thread"
    warnings.warn(
        f"iteration: Python runs in processes, which is slower, as thread mode is not available: "
        f"{reason}. Set IterationSettings(mode='process') to avoid this warning",
        stacklevel=2,
    )
    return "process"


def _thread_mode_obstacle(cluster: str | None, state_dir: Path | None) -> str | None:
    """Return why thread mode is not available; None if it is."""
    if importlib.util.find_spec("pemja") is None:
        return "the package pemja is not installed here (pip install pemja)"
    if cluster == UNKNOWN_CLUSTER:
        return None
    managers: Iterable[str] = ()
    if cluster is not None:
        rest = FlinkRest(cluster)
        managers = rest.task_managers()
        if not int(rest.overview()["slots-available"]):
            return None  # a probe would wait as long as the job: the packages here decide
    place = _probe_key(cluster, managers)
    path = cache_root() / "python-threads.json"
    passed: dict[str, float] = {}
    with contextlib.suppress(Exception):
        passed = read_json(path) or {}
    if place in passed:
        return None
    if place not in _failed_probes:
        refusal = _probe(cluster, state_dir)
        if refusal is None:
            newest = sorted(passed, key=lambda one: passed[one])[-REMEMBERED + 1 :]
            with contextlib.suppress(OSError):  # a cache: the next process runs the probe again
                write_json(path, {**{one: passed[one] for one in newest}, place: time.time()})
            return None
        _failed_probes[place] = refusal
    return _failed_probes[place]


def _probe_key(cluster: str | None, managers: Iterable[str]) -> str:
    """Return the cache key of a probe; a restarted task manager has another one."""
    versions = [importlib.metadata.version(name) for name in ("apache-flink", "pemja", "numpy")]
    parts = [sys.executable, sys.version, *versions, cluster or "here", *sorted(managers)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _probe(cluster: str | None, state_dir: Path | None) -> str | None:
    env = open_stream_environment(cluster, state_dir=state_dir, workers=True)
    try:
        with flink_errors("probing thread mode"):
            return _run(env)
    except JobError as error:
        return str(error)
    except Exception:
        # the JVM has ended: this process cannot continue, but the next one can
        with _advice():
            start_gateway(state_dir)
        raise


@contextlib.contextmanager
def _advice() -> Iterator[None]:
    try:
        yield
    except JobError as error:
        error.add_note("it ended during the probe of thread mode: use mode='process'")
        raise


def _run(env: StreamExecutionEnvironment) -> str | None:
    from pyflink.common import Configuration
    from pyflink.java_gateway import get_gateway

    configuration = Configuration()
    for name, value in OPTIONS.items():
        configuration.set_string(name, value)
    env.configure(configuration)
    (key,) = subtask_keys(1)
    source = message_source(env, [(key, KICK)], "probe", "probe")
    tried = keyed_union([source]).process(ThreadModeProbe(), text_type()).set_parallelism(1)
    java: Any = get_gateway().jvm.org.apache.flink.streaming.api
    tried._j_data_stream.sinkTo(java.functions.sink.v2.DiscardingSink()).setParallelism(1)
    client = env.execute_async("probe of thread mode")
    end = client.get_job_execution_result()
    deadline = time.monotonic() + PROBE_S
    while not end.done():
        if time.monotonic() > deadline:
            client.cancel()
            return f"a job of one record did not end within {PROBE_S:g} s"
        time.sleep(POLL_S)
    end.result()
    return None
