"""One Flink cluster inside the JVM of a test process, for all SQL jobs that run there.

A local job starts a cluster of its own, which loads Flink's RPC system with classes of its own
each time: a third of the processor time of a small job. Here jobs are submitted to a cluster that
the process has already, by the steps of Flink's ``LocalExecutor`` and ``PerJobMiniClusterFactory``.
Nothing else is different: planner, job graph, job client and the running of the job are Flink's.
Jobs of child processes, and iterations, whose settings decide on their cluster, have their own.
"""

from __future__ import annotations

import threading
from typing import Any

from paimon_features.core.process.ports import free_ports

SLOTS = 32
"""Of the cluster; jobs that a test left running have theirs until the process ends."""

OPTIONS = {
    "rest.address": "127.0.0.1",
    "rest.bind-address": "127.0.0.1",
    "web.refresh-interval": "200",
    "metrics.fetcher.update-interval": "200",
    "taskmanager.network.sort-shuffle.min-buffers": "64",
    "taskmanager.memory.network.min": "256m",
    "taskmanager.memory.network.max": "256m",
}


class MiniClusterExecutor:
    """Flink's interfaces of an executor of pipelines, which submits to a running cluster.

    Java calls the methods, in threads of py4j.
    """

    def __init__(self, jvm: Any, port: str) -> None:
        self._jvm = jvm
        self._port = port
        self._lock = threading.Lock()
        self._cluster: Any = None

    def getExecutorFactory(self, _configuration: Any) -> MiniClusterExecutor:  # noqa: N802
        return self

    def getExecutorNames(self) -> Any:  # noqa: N802
        return self._jvm.java.util.stream.Stream.of("shared")

    def getName(self) -> str:  # noqa: N802
        return "shared"

    def isCompatibleWith(self, _configuration: Any) -> bool:  # noqa: N802
        return True

    def getExecutor(self, _configuration: Any) -> MiniClusterExecutor:  # noqa: N802
        return self

    def execute(self, pipeline: Any, configuration: Any, class_loader: Any) -> Any:
        """Submit a job; returns a future of its client."""
        client = self._jvm.org.apache.flink.client
        graph = client.deployment.executors.PipelineExecutorUtils.getStreamGraph(
            pipeline, configuration
        )
        graph.serializeUserDefinedInstances()
        cluster = self._started()
        job_id = cluster.submitJob(graph).get().getJobID()
        minicluster = self._jvm.org.apache.flink.runtime.minicluster
        ending = getattr(minicluster, "MiniClusterJobClient$JobFinalizationBehavior").NOTHING
        return self._jvm.java.util.concurrent.CompletableFuture.completedFuture(
            minicluster.MiniClusterJobClient(job_id, cluster, class_loader, ending)
        )

    def createExecutionEnvironment(self, configuration: Any) -> Any:  # noqa: N802
        options = self._jvm.org.apache.flink.configuration.Configuration(configuration)
        # as Flink's own environment of local jobs sets them
        options.setString("execution.target", "local")
        options.setString("execution.attached", "true")
        environments = self._jvm.org.apache.flink.streaming.api.environment
        return environments.StreamExecutionEnvironment(self, options, None)

    def _started(self) -> Any:
        with self._lock:
            if self._cluster is None:
                options = self._jvm.org.apache.flink.configuration.Configuration()
                for name, value in (OPTIONS | {"rest.port": self._port}).items():
                    options.setString(name, value)
                runtime = self._jvm.org.apache.flink.runtime.minicluster
                built = runtime.MiniClusterConfiguration.Builder().setConfiguration(options)
                built = built.setNumTaskManagers(1).setNumSlotsPerTaskManager(SLOTS)
                cluster = runtime.MiniCluster(built.build())
                cluster.start()
                self._cluster = cluster
            return self._cluster

    class Java:
        implements = (
            "org.apache.flink.core.execution.PipelineExecutorServiceLoader",
            "org.apache.flink.core.execution.PipelineExecutorFactory",
            "org.apache.flink.core.execution.PipelineExecutor",
            "org.apache.flink.streaming.api.environment.StreamExecutionEnvironmentFactory",
        )


def share_mini_cluster() -> None:
    """Let the local jobs of all later table environments of this process share a cluster."""
    from pyflink.table import TableEnvironment

    from paimon_features.flink import environment
    from paimon_features.ingest.flink import job
    from paimon_features.iteration.flink import job as iteration_job

    create = TableEnvironment.create
    executors: list[MiniClusterExecutor] = []
    port = str(free_ports(1)[0])

    def shared_rest() -> tuple[str, dict[str, str]]:
        return f"127.0.0.1:{port}", {}

    # where the product watches and stops a local job of SQL; an iteration has its own cluster
    vars(iteration_job)["local_rest"] = environment.local_rest
    environment.local_rest = shared_rest
    vars(job)["local_rest"] = shared_rest

    def create_shared(settings: Any) -> Any:
        from pyflink.java_gateway import get_gateway

        target = settings.get_configuration().get_string("execution.target", "local")
        if target != "local":
            return create(settings)
        gateway = get_gateway()
        if not executors:
            executors.append(MiniClusterExecutor(gateway.jvm, port))
        _set_context(gateway, executors[0])
        try:
            return create(settings)
        finally:
            _set_context(gateway, None)

    TableEnvironment.create = staticmethod(create_shared)


def _set_context(gateway: Any, factory: MiniClusterExecutor | None) -> None:
    """What creates the environments of this thread of Java: ``factory``, or Flink itself."""
    named = gateway.jvm.java.lang.Class.forName
    package = "org.apache.flink.streaming.api.environment.StreamExecutionEnvironment"
    given = gateway.jvm.java.util.ArrayList()
    if factory is not None:
        given.add(factory)
    types = gateway.new_array(gateway.jvm.java.lang.Class, len(given))
    if factory is not None:
        types[0] = named(f"{package}Factory")
    name = "resetContextEnvironment" if factory is None else "initializeContextEnvironment"
    method = named(package).getDeclaredMethod(name, types)
    method.setAccessible(True)
    method.invoke(None, given.toArray())
