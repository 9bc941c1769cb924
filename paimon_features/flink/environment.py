"""A table environment that is ready to run our jobs, local or on a session cluster."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from paimon_features.errors import ConfigurationError, JobError, PaimonFeaturesError
from paimon_features.flink.gateway import DEFAULT_HEAP, start_gateway
from paimon_features.interrupts import interruptible
from paimon_features.tables import Lake
from paimon_features.tables.ddl import literal, quote

if TYPE_CHECKING:
    from pyflink.table import TableEnvironment, TableResult

CATALOG = "lake"
"""The name under which ``register_lake`` makes the project's tables known."""

CANCEL_TIMEOUT_S = 30.0
"""How long the end of a job that was cancelled is waited for."""

TRACEBACK = "Traceback (most recent call last):"
PYTHON_CLASS = re.compile(r"^\S*PythonException: <class '([^']*)'>")

SORT_SHUFFLE_BUFFERS = 64
"""Network buffers each output of a batch stage asks for at least. Flink's 512 for each parallel
task of each join is more than a small task manager has, and its job then fails."""

STANDARD_OPTIONS: Mapping[str, str] = {
    # functions and sinks of ours keep no reference to a row
    "pipeline.object-reuse": "true",
    # Paimon merges by key itself; Flink's own step before the sink would keep state
    "table.exec.sink.upsert-materialize": "NONE",
    "table.local-time-zone": "UTC",
    # a checkpoint outlives its job: only so can a job that died go on
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    "execution.checkpointing.num-retained": "3",
    # checkpoints of stateless jobs are small and frequent
    "execution.checkpointing.tolerable-failed-checkpoints": "3",
    # read where the job runs inside this process; a cluster has its own
    "taskmanager.network.sort-shuffle.min-buffers": str(SORT_SHUFFLE_BUFFERS),
}


def open_environment(
    mode: Literal["streaming", "batch"] = "streaming",
    parallelism: int = 2,
    conf: Mapping[str, str] | None = None,
    cluster: str | None = None,
    *,
    state_dir: Path | None = None,
    heap: str = DEFAULT_HEAP,
) -> TableEnvironment:
    """A new table environment; the first one of a process starts its JVM (2 to 3 s).

    Parameters
    ----------
    conf
        Options of Flink; they win over ``STANDARD_OPTIONS``.
    cluster
        ``host:port`` of the REST interface of a session cluster that runs the jobs, detached:
        they go on when this process ends. Its class path has to hold the jars of
        ``paimon-features jars`` (in its ``lib`` folder, or by HADOOP_CLASSPATH at its start).
        None runs them inside this process's JVM, where they end with it.
    state_dir
        The project's state folder, for the log of the JVM.
    heap
        Greatest heap of the JVM; the first call of a process decides.

    Raises
    ------
    ConfigurationError
        For a cluster address that is not ``host:port``.
    SetupError, MissingExtraError, JobError
        If the JVM cannot be started.
    """
    remote = {} if cluster is None else remote_options(cluster)
    start_gateway(state_dir, heap)
    from pyflink.common import Configuration
    from pyflink.table import EnvironmentSettings, TableEnvironment

    options = {
        **STANDARD_OPTIONS,
        "parallelism.default": str(parallelism),
        "execution.runtime-mode": mode.upper(),
        **(conf or {}),
        **remote,
    }
    configuration = Configuration()
    for key, value in options.items():
        configuration.set_string(key, value)
    builder = EnvironmentSettings.new_instance().with_configuration(configuration)
    with flink_errors("opening a Flink environment"):
        chosen = builder.in_batch_mode() if mode == "batch" else builder.in_streaming_mode()
        return TableEnvironment.create(chosen.build())


def local_rest() -> tuple[str, dict[str, str]]:
    """A free ``host:port`` of this host, and options that let a local job answer REST there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    return f"127.0.0.1:{port}", {
        "rest.address": "127.0.0.1",
        "rest.bind-address": "127.0.0.1",
        "rest.port": port,
        "rest.bind-port": port,
        # the numbers of a progress line are refreshed every 3 and 10 s otherwise
        "web.refresh-interval": "200",
        "metrics.fetcher.update-interval": "200",
    }


def register_lake(env: TableEnvironment, lake: Lake, catalog: str = CATALOG) -> str:
    """Make the lake's tables known to ``env`` and use its database; returns the catalog's name.

    Raises
    ------
    JobError
        If Paimon's catalog cannot be opened.
    ConfigurationError
        For a remote warehouse: its options are not handed on to Flink.
    """
    lake.require_folder("a Flink job")
    with flink_errors(f"opening the lake {lake.warehouse}"):
        env.execute_sql(
            f"CREATE CATALOG IF NOT EXISTS {quote(catalog)} WITH ('type' = 'paimon', "
            f"'warehouse' = {literal(lake.warehouse)})"
        )
        env.use_catalog(catalog)
        env.use_database(lake.database)
    return catalog


def await_job(
    result: TableResult,
    doing: str,
    tick: Callable[[float], None] | None = None,
    tick_s: float = 0.2,
) -> None:
    """Wait until the job behind ``result`` has ended; ``tick(elapsed seconds)`` is called.

    After Ctrl-C or SIGTERM (KeyboardInterrupt), and after any error in ``tick``, the job is
    cancelled, and has ended when this returns (unless that takes longer than half a minute).

    Raises
    ------
    JobError
        If the job fails; ``doing`` says in its message what was being done.
    """
    client = result.get_job_client()
    assert client is not None, "a query without a job cannot be waited for"
    started = time.monotonic()
    with flink_errors(doing):
        end = client.get_job_execution_result()
        try:
            with interruptible() as stop:
                while not end.done():
                    if stop.wait(tick_s):
                        raise KeyboardInterrupt
                    if tick is not None:
                        tick(time.monotonic() - started)
        except BaseException:
            client.cancel().result()
            # until it has ended it still writes, into what its caller is about to clean up
            deadline = time.monotonic() + CANCEL_TIMEOUT_S
            while not end.done() and time.monotonic() < deadline:
                time.sleep(tick_s)
            raise
        end.result()


@contextmanager
def flink_errors(doing: str) -> Iterator[None]:
    """Turn an exception of Flink inside the block into a JobError.

    Its message says first what is at the root, then what was being done; the chain of causes
    follows as a note.
    """
    try:
        yield
    except PaimonFeaturesError:
        raise
    except Exception as error:
        causes = java_causes(error)
        if not causes:
            raise
        raised = JobError(f"{causes[-1].removeprefix('JobError: ')} (while {doing})")
        for cause in reversed(causes[:-1]):
            if cause not in str(raised):
                raised.add_note(f"in: {cause}")
        raise raised from error


def java_causes(error: BaseException) -> list[str]:
    """The messages of a Java exception and its causes, outermost first; empty for another one."""
    java: Any = getattr(error, "java_exception", None)
    if java is None:
        trace = getattr(error, "stack_trace", None)
        return [] if trace is None else _causes_of_trace(str(trace))
    causes: list[str] = []
    while java is not None and len(causes) < 50:
        causes.append(_brief(java.toString()))
        java = java.getCause()
    return list(dict.fromkeys(causes))


def _causes_of_trace(trace: str) -> list[str]:
    lines = trace.splitlines()
    found = lines[:1] + [line for line in lines if line.startswith("Caused by: ")]
    return list(dict.fromkeys(_brief(line.removeprefix("Caused by: ")) for line in found))


def _brief(message: str) -> str:
    """One line of an exception: its class without the package, then the message.

    >>> _brief("org.apache.flink.table.api.ValidationException: SQL validation failed.\\nAt 1")
    'ValidationException: SQL validation failed. At 1'

    Of an error in Python what Python says, without the way there:

    >>> _brief("pemja.core.PythonException: <class 'paimon_features.errors.JobError'>: stuck")
    'JobError: stuck'
    >>> _brief("java.lang.RuntimeException: Error received from SDK harness for instruction 1: "
    ...        "Traceback (most recent call last):\\n  File ...\\nKeyError: 'x'\\n\\n\\tat org")
    "KeyError: 'x'"
    """
    if TRACEBACK in message:
        said = message.rpartition(TRACEBACK)[2].partition("\n\n")[0].strip("\n").split("\n")
        told = [line for line in said if not line.startswith(" ")]
        message = "\n".join(told) or message
    message = PYTHON_CLASS.sub(r"\1", message)
    head, _, tail = " ".join(message.split()).partition(":")
    name = head.rsplit(".", 1)[-1] if " " not in head else head
    return f"{name}:{tail}" if tail else name


def remote_options(cluster: str) -> dict[str, str]:
    host, separator, port = cluster.rpartition(":")
    if not separator or not host or not port.isdigit():
        raise ConfigurationError(
            f"cluster {cluster!r}: expected host:port of its REST interface, "
            "for example 127.0.0.1:8081"
        )
    return {
        "execution.target": "remote",
        "rest.address": host,
        "rest.port": port,
        "execution.attached": "false",
    }
