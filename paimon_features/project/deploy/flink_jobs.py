"""Flink jobs in application mode, and a session cluster, for the Flink Kubernetes Operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paimon_features.flink.metrics import METRICS_PORT, prometheus_options
from paimon_features.lake.storage.filesystems import checkpoint_store
from paimon_features.project.deploy.pods import (
    LAKE,
    REST_PORT,
    Deployment,
    Json,
    container_security,
    pod_security,
    scraped,
)
from paimon_features.project.deploy.project_files import PROJECT
from paimon_features.project.deploy.secrets import kafka_variables

PROGRAMS = "/opt/paimon-features/jobs"
ENTRYPOINT = "/usr/local/bin/flink-entrypoint"
PYTHON_JAR = "local:///opt/flink/opt/flink-python.jar"
PYTHON_DRIVER = "org.apache.flink.client.python.PythonDriver"
FLINK_VERSION = "v2_2"
JOB_MANAGER_MB, TASK_MANAGER_MB = 2048, 2048
PYTHON_MB = 768
"""Of these: the job manager's program, or the Python functions of a task manager."""


def flink_jobs(deployment: Deployment) -> list[Json]:
    """Return a FlinkDeployment for each view, topic and program of iterations."""
    settings, definitions = deployment.settings, deployment.definitions
    parallelism = deployment.config.flink.parallelism
    jobs = [
        _job(deployment, ("tiles", view), "tiles.py", ["--view", view], parallelism)
        for view in sorted(definitions.views)
    ]
    for topic in settings.topics:
        arguments = ["--source", topic.source, "--kafka", topic.brokers, "--topic", topic.topic]
        jobs.append(_job(deployment, ("ingest", topic.source), "ingest.py", arguments, parallelism))
    for iteration in settings.iterations:
        # one task manager: the feedback then needs no server of its own
        file = f"{PROJECT}/" if iteration.file is not None else ""
        arguments = [f"{file}{iteration.program}", "--mode", "thread", "--wire", "memory"]
        name = ("iterate", iteration.name)
        jobs.append(_job(deployment, name, "iterate.py", arguments, parallelism, parallelism))
    return jobs


def flink_session(deployment: Deployment) -> list[Json]:
    """Return a session cluster with two job managers, of which one leads, and their right to elect
    it.

    Jobs in application mode have no high availability: their programs decide from which checkpoint
    they resume (``docs/internals/decisions/kubernetes-manifests.md``).
    """
    if not deployment.settings.session:
        return []
    cluster = _cluster(deployment, "session", ("session",), deployment.settings.slots)
    cluster["spec"]["flinkConfiguration"] |= {
        "high-availability.type": "kubernetes",
        "high-availability.storageDir": f"{_state(deployment)}/ha",
    }
    cluster["spec"]["jobManager"]["replicas"] = 2
    account = deployment.settings.flink_service_account
    role = deployment.metadata("session", "session", "leaders")
    return [
        cluster,
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": role,
            # leaders, and where the states of their jobs are, are in ConfigMaps
            "rules": [
                {
                    "apiGroups": [""],
                    "resources": ["configmaps"],
                    "verbs": ["create", "get", "list", "watch", "update", "patch", "delete"],
                }
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": role,
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "Role",
                "name": role["name"],
            },
            "subjects": [{"kind": "ServiceAccount", "name": account}],
        },
    ]


def _job(
    deployment: Deployment,
    name: tuple[str, str],
    program: str,
    arguments: Sequence[str],
    parallelism: int,
    slots: int | None = None,
) -> Json:
    document = _cluster(deployment, name[0], name, slots or deployment.settings.slots)
    document["spec"]["job"] = {
        "jarURI": PYTHON_JAR,
        "entryClass": PYTHON_DRIVER,
        "args": ["-py", f"{PROGRAMS}/{program}", *arguments, "--project", str(PROJECT)],
        "parallelism": parallelism,
        # the program itself resumes from the checkpoint that fits its tables
        "upgradeMode": "stateless",
        "state": "running",
    }
    return document


def _cluster(deployment: Deployment, component: str, name: tuple[str, ...], slots: int) -> Json:
    settings = deployment.settings
    return {
        "apiVersion": "flink.apache.org/v1beta1",
        "kind": "FlinkDeployment",
        "metadata": deployment.metadata(component, *name),
        "spec": {
            "image": settings.image("jobs"),
            "imagePullPolicy": "IfNotPresent",
            "flinkVersion": FLINK_VERSION,
            "serviceAccount": settings.flink_service_account,
            "flinkConfiguration": _configuration(deployment, slots),
            "podTemplate": _pod_template(deployment, component),
            "jobManager": {"resource": {"memory": f"{JOB_MANAGER_MB}m", "cpu": 0.5}},
            "taskManager": {
                "resource": {"memory": f"{TASK_MANAGER_MB}m", "cpu": slots},
                # it runs users' functions; only the job manager asks Kubernetes for pods
                "podTemplate": {"spec": {"automountServiceAccountToken": False}},
            },
        },
    }


def _configuration(deployment: Deployment, slots: int) -> Json:
    flink, state = deployment.config.flink, _state(deployment)
    store_options: Json = {}
    if flink.checkpoints is not None:
        store_options |= checkpoint_store(flink.checkpoints, flink.checkpoint_options).options
    return {
        "kubernetes.entry.path": ENTRYPOINT,
        "kubernetes.operator.job.restart.failed": "true",
        "taskmanager.numberOfTaskSlots": str(slots),
        # the jobs keep no state in Flink's managed memory
        "taskmanager.memory.managed.fraction": "0.1",
        "taskmanager.memory.jvm-metaspace.size": "384m",
        **_overhead("taskmanager"),
        **_overhead("jobmanager"),
        "taskmanager.network.sort-shuffle.min-buffers": "64",
        # thread mode loads a native library, once in each process
        "classloader.parent-first-patterns.additional": "pemja",
        "execution.checkpointing.dir": f"{state}/checkpoints",
        "execution.checkpointing.savepoint-dir": f"{state}/savepoints",
        **store_options,
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "rest.port": str(REST_PORT),
        "web.submit.enable": "false",
        **prometheus_options(),
    }


def _state(deployment: Deployment) -> str:
    """Return the URI of the folder with checkpoints, savepoints and what job managers share."""
    return deployment.config.flink.checkpoints or f"file://{deployment.state_path}"


def _overhead(process: str) -> Json:
    """Memory of a process that is not Java's: for Python."""
    return {f"{process}.memory.jvm-overhead.{bound}": f"{PYTHON_MB}m" for bound in ("min", "max")}


def _pod_template(deployment: Deployment, component: str) -> Json:
    uses = replace(LAKE, secrets=("kafka-tls",)) if component == "ingest" else LAKE
    kafka = kafka_variables(deployment.config, deployment.settings)
    main = {
        # the operator merges what it needs into the container of this name
        "name": "flink-main-container",
        "env": [*deployment.variables(uses), *(kafka if component == "ingest" else [])],
        "envFrom": deployment.lake_variables(),
        "ports": [{"name": "metrics", "containerPort": METRICS_PORT}],
        "securityContext": container_security(),
        "volumeMounts": deployment.mounts(uses),
    }
    return {
        "metadata": {
            "labels": deployment.labels(component),
            "annotations": scraped(METRICS_PORT),
        },
        "spec": {
            "securityContext": pod_security(),
            "containers": [main],
            "volumes": deployment.volumes(uses),
        },
    }
