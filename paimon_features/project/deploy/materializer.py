"""The materializer: a StatefulSet with a pod per shard of the buckets."""

from __future__ import annotations

from paimon_features.project.deploy.pods import (
    MONITOR_PORT,
    Deployment,
    Json,
    Uses,
    container,
    http_get,
    pod_security,
    resources,
    scraped,
)
from paimon_features.project.deploy.secrets import online_variables
from paimon_features.project.deploy.serving import budget

SHARD = "SHARD"
POD_INDEX = "apps.kubernetes.io/pod-index"
"""The label with a pod's number, which Kubernetes sets from 1.28 on."""


def materializer(deployment: Deployment) -> list[Json]:
    """Return the objects of the materializer."""
    return [_workload(deployment), _service(deployment), budget(deployment, "materializer")]


def _workload(deployment: Deployment) -> Json:
    shards = deployment.settings.shards
    index = {"fieldRef": {"fieldPath": f"metadata.labels['{POD_INDEX}']"}}
    uses = Uses(lake=True, secrets=("online-tls",))
    worker = container(
        "materializer",
        deployment.settings.image("materializer"),
        [
            *("materialize", "--follow", "--listen", f"0.0.0.0:{MONITOR_PORT}"),
            *("--shard", f"$({SHARD})/{shards}"),
        ],
        deployment.mounts(uses),
        env=[
            *deployment.variables(uses),
            *online_variables(deployment.config, deployment.settings),
            {"name": SHARD, "valueFrom": index},
        ],
        envFrom=deployment.lake_variables(),
        ports=[{"name": "http", "containerPort": MONITOR_PORT}],
        resources=resources("500m", "1Gi", "2Gi"),
        startupProbe=http_get("/health/live", periodSeconds=2, failureThreshold=60),
        # 503 if a view has reported nothing for two minutes
        livenessProbe=http_get("/health/live", periodSeconds=20, timeoutSeconds=5),
        # nobody sends requests to it: ready, in the sense of an update, is what is caught up
        readinessProbe=http_get("/health/ready", periodSeconds=5, timeoutSeconds=5),
    )
    labels = deployment.labels("materializer")
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": deployment.metadata("materializer"),
        "spec": {
            "replicas": shards,
            "serviceName": deployment.name("materializer"),
            "selector": {"matchLabels": labels},
            # shards do not wait for one another
            "podManagementPolicy": "Parallel",
            "template": {
                "metadata": {"labels": labels, "annotations": scraped(MONITOR_PORT)},
                "spec": {
                    "automountServiceAccountToken": False,
                    "securityContext": pod_security(),
                    "terminationGracePeriodSeconds": 60,
                    "containers": [worker],
                    "volumes": deployment.volumes(uses),
                },
            },
        },
    }


def _service(deployment: Deployment) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": deployment.metadata("materializer"),
        "spec": {
            "clusterIP": "None",
            "selector": deployment.labels("materializer"),
            "ports": [{"name": "http", "port": MONITOR_PORT, "targetPort": "http"}],
        },
    }
