"""A table environment for jobs, local or on a cluster."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from paimon_features.core.errors import ConfigurationError, JobError, PaimonFeaturesError
from paimon_features.core.process.flink_rest import FlinkRest
from paimon_features.core.process.interrupts import interruptible
from paimon_features.core.process.ports import free_ports
from paimon_features.core.process.waiting import wait_until
from paimon_features.flink.gateway import (
    DEFAULT_HEAP,
    check_checkpoint_store,
    check_jars,
    jvm_end,
    start_gateway,
    started_by_flink,
)
from paimon_features.lake import Lake
from paimon_features.lake.ddl import literal, quote
from paimon_features.lake.storage import RemoteStorage
from paimon_features.lake.storage.filesystems import paimon_options

if TYPE_CHECKING:
    from pyflink.table import TableEnvironment, TableResult

CATALOG = "lake"
"""The name of the catalog that ``register_lake`` creates."""

ANSWER_TIMEOUT_S = 60.0
CANCEL_TIMEOUT_S = 30.0
"""How long to wait for the end of a cancelled job."""

TRACEBACK = "Traceback (most recent call last):"
PYTHON_CLASS = re.compile(r"^\S*PythonException: <class '([^']*)'>")

FIXED_JOB_ID = "$internal.pipeline.job-id"
"""Flink's option for the id of a job."""
TARGET = "execution.target"
_PYTHON_CLASS = "org/apache/flink/client/python/PythonDriver.class"

SORT_SHUFFLE_BUFFERS = 64
"""Minimum network buffers of each output of a batch stage. Flink's 512 for each parallel task of
each join exceed a small task manager, and the job then fails."""

STANDARD_OPTIONS: Mapping[str, str] = {
    # none of the functions and sinks keeps a reference to a row
    "pipeline.object-reuse": "true",
    # Paimon merges by key itself; Flink's own step before the sink would keep state
    "table.exec.sink.upsert-materialize": "NONE",
    "table.local-time-zone": "UTC",
    # a checkpoint outlives its job, so that a job that died can be resumed
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    "execution.checkpointing.num-retained": "3",
    # checkpoints of stateless jobs are small and frequent
    "execution.checkpointing.tolerable-failed-checkpoints": "3",
    # for jobs inside this process; a cluster has its own setting
    "taskmanager.network.sort-shuffle.min-buffers": str(SORT_SHUFFLE_BUFFERS),
}


PIPELINED_BATCH: Mapping[str, str] = {
    # by default a stage of a batch begins when the one before it has ended, with its rows on disk
    "execution.batch-shuffle-mode": "ALL_EXCHANGES_PIPELINED",
    # the default scheduler of batches refuses that
    "jobmanager.scheduler": "Default",
}
"""Options of a batch job in this process all of whose tasks run at the same time.

On a cluster it might have to wait for slots, and a sort or join would hold its memory too long.
"""


def open_environment(
    mode: Literal["streaming", "batch"] = "streaming",
    parallelism: int = 2,
    conf: Mapping[str, str] | None = None,
    cluster: str | None = None,
    *,
    state_dir: Path | None = None,
    heap: str = DEFAULT_HEAP,
) -> TableEnvironment:
    """Return a new table environment; the first one of a process starts its JVM (2 to 3 s).

    Parameters
    ----------
    conf
        Options of Flink; they override ``STANDARD_OPTIONS``.
    cluster
        ``host:port`` of the REST interface of a session cluster that runs the jobs, detached:
        they continue when this process ends. Its class path must contain the jars of
        ``paimon-features jars`` (in its ``lib`` folder, or by HADOOP_CLASSPATH at its start).
        None runs them inside this process's JVM, where they end with it. In a program that Flink
        itself started, the jobs run where Flink was configured to run them.
    state_dir
        The project's state folder, for the log of the JVM.
    heap
        Maximum heap of the JVM; only the first call of a process has an effect.

    Raises
    ------
    ConfigurationError
        For a cluster address that is not ``host:port``.
    SetupError, MissingExtraError, JobError
        If the JVM cannot be started.
    """
    remote = {} if cluster is None or started_by_flink() else remote_options(cluster)
    start_gateway(state_dir, heap)
    from pyflink.common import Configuration
    from pyflink.table import EnvironmentSettings, TableEnvironment

    options = {
        **STANDARD_OPTIONS,
        "parallelism.default": str(parallelism),
        "execution.runtime-mode": mode.upper(),
        **(conf or {}),
        **remote,
        **application_options(),
    }
    check_checkpoint_store(options)
    configuration = Configuration()
    for key, value in options.items():
        configuration.set_string(key, value)
    builder = EnvironmentSettings.new_instance().with_configuration(configuration)
    with flink_errors("opening a Flink environment"):
        chosen = builder.in_batch_mode() if mode == "batch" else builder.in_streaming_mode()
        # the jobs are SQL, without functions in Python
        with no_python_server():
            return TableEnvironment.create(chosen.build())


@contextmanager
def no_python_server(wanted: bool = True) -> Iterator[None]:
    """Prevent pyflink from starting a server for Python functions of local jobs in this process.

    It imports Beam for it, which takes 3 s of processor time for each process. Functions of process
    mode run in processes of their own then, as on a cluster. No effect if not ``wanted``, or if a
    variable of pyflink decides.
    """
    name = "_python_worker_execution_mode"
    if not wanted or name in os.environ:
        yield
        return
    os.environ[name] = "process"
    try:
        yield
    finally:
        del os.environ[name]


def host_cluster() -> str | None:
    """Return the ``host:port`` of the cluster on which Flink runs this program's jobs.

    None in a program that Flink did not start. In application mode it waits until the cluster
    answers: the name of a new host may not be known yet.

    Raises
    ------
    JobError
        If the cluster does not answer within ``ANSWER_TIMEOUT_S``.
    """
    if not started_by_flink():
        return None
    configuration = _host_configuration()
    from pyflink.java_gateway import get_gateway

    rest = get_gateway().jvm.org.apache.flink.configuration.RestOptions
    address = f"{configuration.get(rest.ADDRESS) or '127.0.0.1'}:{configuration.get(rest.PORT)}"
    if is_application() and not wait_until(FlinkRest(address).alive, ANSWER_TIMEOUT_S):
        raise JobError(
            f"the cluster that runs this program does not answer at {address}: rest.address and "
            "rest.port of Flink's configuration must be reachable from its job manager"
        )
    return address


def new_job_id() -> str:
    """Return the id of a job that is about to start: a random one, or the one that Flink demands.

    In application mode the cluster may be configured for one job with a given id, by which its
    operator watches the job: ``standalone-job.sh --job-id``, or the Kubernetes operator. Such an
    id stays the same when the cluster restarts the program.
    """
    configured = None
    if started_by_flink():
        configured = _host_configuration().toMap().get(FIXED_JOB_ID)
    return configured or uuid.uuid4().hex


def is_application() -> bool:
    """Return True if Flink runs this program in application mode: inside the job manager."""
    return started_by_flink() and _host_configuration().toMap().get(TARGET) == "embedded"


def application_options() -> dict[str, str]:
    """Options for a job in application mode: it ships no jar that its cluster has already.

    Flink adds the jar of its Python API to a program's jobs. A task manager that outlives its job
    manager rejects such a job when it comes again with the same id (``references a different set
    of library BLOBs``), because each upload has another key.
    """
    if not is_application():
        return {}
    from pyflink.java_gateway import get_gateway

    loader = get_gateway().jvm.java.lang.ClassLoader.getSystemClassLoader()
    is_loaded = loader.getResource(_PYTHON_CLASS) is not None
    return {"pipeline.jars": ""} if is_loaded else {}


def _host_configuration() -> Any:
    """Return Flink's configuration in a program that it started."""
    start_gateway()
    from pyflink.java_gateway import get_gateway

    java = get_gateway().jvm.org.apache.flink.streaming.api.environment
    return java.StreamExecutionEnvironment.getExecutionEnvironment().getConfiguration()


def local_rest() -> tuple[str, dict[str, str]]:
    """Return a free ``host:port`` of this host, and options for a local job's REST interface
    there."""
    port = str(free_ports(1)[0])
    return f"127.0.0.1:{port}", {
        "rest.address": "127.0.0.1",
        "rest.bind-address": "127.0.0.1",
        "rest.port": port,
        "rest.bind-port": port,
        # the defaults refresh the numbers of a progress line every 3 and 10 s
        "web.refresh-interval": "200",
        "metrics.fetcher.update-interval": "200",
    }


def catalog_options(lake: Lake) -> dict[str, str]:
    """Return the options of Paimon's catalog in Flink; keys are among them.

    Raises
    ------
    ConfigurationError
        For a warehouse that Flink cannot open.
    """
    catalog = {"warehouse": lake.warehouse} if lake.rest is None else lake.rest.options()
    if not isinstance(lake.storage, RemoteStorage):
        return catalog
    if lake.storage.settings is None:
        raise ConfigurationError(
            f"Flink cannot open the warehouse {lake.warehouse!r} through the file system of "
            "Python that was given for it: open it by its address and options"
        )
    return {**catalog, **paimon_options(lake.warehouse, lake.storage.settings)}


def register_lake(env: TableEnvironment, lake: Lake, catalog: str = CATALOG) -> str:
    """Register the lake as a catalog of ``env`` and use its database; returns the catalog's name.

    Raises
    ------
    JobError
        If Paimon's catalog cannot be opened.
    ConfigurationError
        For a remote warehouse that Flink cannot open.
    """
    check_jars(lake.warehouse)
    options = {"type": "paimon", **catalog_options(lake)}
    given = ", ".join(f"{literal(name)} = {literal(value)}" for name, value in options.items())
    with flink_errors(f"opening the lake {lake.warehouse}"):
        env.execute_sql(f"CREATE CATALOG IF NOT EXISTS {quote(catalog)} WITH ({given})")
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
        If the job fails; the message contains ``doing``.
    """
    client = result.get_job_client()
    assert client is not None, "a query without a job cannot be waited for"
    await_client(client, doing, tick, tick_s)


def await_client(
    client: Any,
    doing: str,
    tick: Callable[[float], None] | None = None,
    tick_s: float = 0.2,
) -> None:
    """``await_job`` of a job that was submitted as a program."""
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
            # until its end it still writes to what the caller is about to clean up
            deadline = time.monotonic() + CANCEL_TIMEOUT_S
            while not end.done() and time.monotonic() < deadline:
                time.sleep(tick_s)
            raise
        end.result()


@contextmanager
def flink_errors(doing: str) -> Iterator[None]:
    """Turn an exception of Flink inside the block into a JobError, also the end of its JVM.

    Its message is the root cause, then ``doing``; the chain of causes follows as notes.
    """
    try:
        yield
    except PaimonFeaturesError:
        raise
    except Exception as error:
        ended = jvm_end(error)
        if ended is not None:
            ended.add_note(f"while {doing}")
            raise ended from error
        causes = java_causes(error)
        if not causes:
            raise
        raised = JobError(f"{causes[-1].removeprefix('JobError: ')} (while {doing})")
        for cause in reversed(causes[:-1]):
            if cause not in str(raised):
                raised.add_note(f"in: {cause}")
        raise raised from error


def java_causes(error: BaseException) -> list[str]:
    """Return the messages of a Java exception and its causes, outermost first.

    Empty for another one.
    """
    java: Any = getattr(error, "java_exception", None)
    if java is None:
        trace = getattr(error, "stack_trace", None)
        return [] if trace is None else _causes_of_trace(str(trace))
    causes: list[str] = []
    while java is not None and len(causes) < 50:
        causes.append(_one_line(java.toString()))
        java = java.getCause()
    return list(dict.fromkeys(causes))


def _causes_of_trace(trace: str) -> list[str]:
    lines = trace.splitlines()
    causes = lines[:1] + [line for line in lines if line.startswith("Caused by: ")]
    return list(dict.fromkeys(_one_line(line.removeprefix("Caused by: ")) for line in causes))


def _one_line(message: str) -> str:
    """Return one line of an exception: its class without the package, then the message.

    >>> _one_line("org.apache.flink.table.api.ValidationException: SQL validation failed.\\nAt 1")
    'ValidationException: SQL validation failed. At 1'

    Of an error in Python only Python's message:

    >>> _one_line("pemja.core.PythonException: <class 'paimon_features.errors.JobError'>: stuck")
    'JobError: stuck'
    >>> _one_line("java.lang.RuntimeException: Error received from SDK harness for instruction 1: "
    ...        "Traceback (most recent call last):\\n  File ...\\nKeyError: 'x'\\n\\n\\tat org")
    "KeyError: 'x'"
    """
    if TRACEBACK in message:
        trace = message.rpartition(TRACEBACK)[2].partition("\n\n")[0].strip("\n").split("\n")
        message = "\n".join(line for line in trace if not line.startswith(" ")) or message
    message = PYTHON_CLASS.sub(r"\1", message)
    head, _, tail = " ".join(message.split()).partition(":")
    name = head.rsplit(".", 1)[-1] if " " not in head else head
    return f"{name}:{tail}" if tail else name


def remote_options(cluster: str) -> dict[str, str]:
    host, port = FlinkRest(cluster).answering()
    return {
        "execution.target": "remote",
        "rest.address": host,
        "rest.port": str(port),
        "execution.attached": "false",
    }
