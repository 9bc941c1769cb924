"""Streaming environments of Flink: in this process, on a cluster, or inside a running program."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paimon_features.flink.environment import (
    application_options,
    flink_errors,
    no_python_server,
    remote_options,
)
from paimon_features.flink.gateway import DEFAULT_HEAP, start_gateway

if TYPE_CHECKING:
    from pyflink.datastream import StreamExecutionEnvironment

UNKNOWN_CLUSTER = "elsewhere"
"""Target of a job whose cluster a resource manager starts, or that Flink runs in application mode:
its task managers cannot be queried yet, and a job of its own cannot probe them."""


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
