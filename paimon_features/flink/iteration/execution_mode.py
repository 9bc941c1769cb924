"""Whether Python can run in threads of Flink's task managers: tried once, and remembered."""

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

from paimon_features.errors import JobError
from paimon_features.flink.environment import flink_errors
from paimon_features.flink.gateway import start_gateway
from paimon_features.flink.iteration.edge_messages import KICK, subtask_keys, text_type
from paimon_features.flink.iteration.job_settings import (
    UNKNOWN_CLUSTER,
    Mode,
    open_stream_environment,
)
from paimon_features.flink.iteration.keyed_state import FlinkStateBackend
from paimon_features.flink.iteration.memory_limits import MemoryLimits
from paimon_features.flink.iteration.topology import keyed_union, message_source
from paimon_features.flink_rest import FlinkRest
from paimon_features.setup.cache import cache_root
from paimon_features.tables.files import read_json, write_json

if TYPE_CHECKING:
    from pyflink.datastream import RuntimeContext, StreamExecutionEnvironment

PROBE_S = 300.0
"""How long the probe may take: the first interpreter of a task manager loads its packages, which
takes minutes on a host that is very busy."""
POLL_S = 0.01
OPTIONS: Mapping[str, str] = {
    "execution.runtime-mode": "STREAMING",
    "python.execution-mode": "thread",
    "restart-strategy.type": "none",
}
REMEMBERED = 50
"""Places whose answer is kept."""

_ENTRY = ("all", 0)
_failed_probes: dict[str, str] = {}
"""Of this process: why threads cannot be had, by place."""


class ThreadModeProbe(KeyedProcessFunction):
    """Does what operators do: state that is empty, written, read; then one result."""

    def open(self, runtime_context: RuntimeContext) -> None:
        import numpy  # noqa: F401 - bodies need it, and an interpreter may lack it

        self._state = FlinkStateBackend(runtime_context, MemoryLimits())

    def process_element(self, value: bytes, ctx: Any) -> Any:
        found = [self._state.get(_ENTRY)]
        self._state.put(_ENTRY, value)
        found.append(self._state.get(_ENTRY))
        if found != [None, KICK]:
            raise JobError(f"a state of Flink gave {found!r}, expected {[None, KICK]!r}")
        yield "passed"


def resolve_mode(
    mode: Mode, cluster: str | None, state_dir: Path | None = None
) -> Literal["thread", "process"]:
    """``auto`` decided: threads where a probe has passed, else processes, with a warning.

    The probe is a job of one record in thread mode. It runs once for the task managers of
    ``cluster`` (inside this process where it is None; see ``place_of``), of which it tries one,
    and for this interpreter and its packages: what passed is remembered in the user's cache, what
    failed by this process. Where no slot is free, and ``UNKNOWN_CLUSTER``, it is left out: what is
    installed here decides.

    Raises
    ------
    JobError
        If the cluster does not answer, or the JVM of this process ends with the probe.
    """
    if mode != "auto":
        return mode
    reason = _thread_mode_obstacle(cluster, state_dir)
    if reason is None:
        return "thread"
    warnings.warn(
        f"iteration: Python runs in processes, which takes longer, as threads cannot be had: "
        f"{reason}. IterationSettings(mode='process') says so without this warning",
        stacklevel=2,
    )
    return "process"


def _thread_mode_obstacle(cluster: str | None, state_dir: Path | None) -> str | None:
    """Why threads cannot be had; None where they can."""
    if importlib.util.find_spec("pemja") is None:
        return "the package pemja is not installed here (pip install pemja)"
    if cluster == UNKNOWN_CLUSTER:
        return None
    managers: Iterable[str] = ()
    if cluster is not None:
        rest = FlinkRest(cluster)
        managers = rest.task_managers()
        if not int(rest.overview()["slots-available"]):
            return None  # a probe would wait as long as the job: what is installed here decides
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
            with contextlib.suppress(OSError):  # a cache: the next process tries once more
                write_json(path, {**{one: passed[one] for one in newest}, place: time.time()})
            return None
        _failed_probes[place] = refusal
    return _failed_probes[place]


def _probe_key(cluster: str | None, managers: Iterable[str]) -> str:
    """A task manager that was started anew is another one."""
    versions = [importlib.metadata.version(name) for name in ("apache-flink", "pemja", "numpy")]
    parts = [sys.executable, sys.version, *versions, cluster or "here", *sorted(managers)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _probe(cluster: str | None, state_dir: Path | None) -> str | None:
    env = open_stream_environment(cluster, state_dir=state_dir, workers=True)
    try:
        with flink_errors("trying Python in threads"):
            return _run(env)
    except JobError as error:
        return str(error)
    except Exception:
        # no JVM to talk to any more: this process cannot go on, but the next one can
        with _advice():
            start_gateway(state_dir)
        raise


@contextlib.contextmanager
def _advice() -> Iterator[None]:
    try:
        yield
    except JobError as error:
        error.add_note("it ended when Python was tried in threads: use mode='process'")
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
    client = env.execute_async("trying Python in threads")
    end = client.get_job_execution_result()
    deadline = time.monotonic() + PROBE_S
    while not end.done():
        if time.monotonic() > deadline:
            client.cancel()
            return f"a job of one record did not end within {PROBE_S:g} s"
        time.sleep(POLL_S)
    end.result()
    return None
