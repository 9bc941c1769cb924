"""The feature server: Deployment, Service, autoscaler, disruption budget."""

from __future__ import annotations

from dataclasses import replace

from paimon_features.project.deploy.pods import (
    SERVER_PORT,
    Deployment,
    Json,
    Uses,
    container,
    http_get,
    pod_security,
    resources,
    scraped,
)
from paimon_features.project.deploy.secrets import online_variables, salt_variables

IN_FLIGHT_METRIC = "paimon_features_in_flight"
PREDICT_MB = 512
"""Memory of a worker for onnxruntime and the networks of models, two versions of each."""
GRACE_S = 60
"""Longer than the pause before the end, the slowest request and its reply."""
DRAIN_S = 5
"""How long a pod that is about to end still answers: until load balancers have left it out."""


def serving(deployment: Deployment) -> list[Json]:
    """Return the objects of the feature server."""
    return [_workload(deployment), _service(deployment), _scaler(deployment), _budget(deployment)]


def _workload(deployment: Deployment) -> Json:
    workers = deployment.config.serve.workers
    arguments = ["serve", "--host", "0.0.0.0", "--port", str(SERVER_PORT)]
    arguments += ["--workers", str(workers)]
    if deployment.config.serve.tokens is None:
        arguments.append("--open")
    settings, config = deployment.settings, deployment.config
    uses = Uses(secrets=("tokens", "online-tls"), spools=True, audit=True)
    salt = salt_variables(config, settings)
    size = PREDICT_MB if settings.predict else 0
    server = container(
        "server",
        settings.image("predict" if settings.predict else "serving"),
        arguments,
        deployment.mounts(uses),
        env=[*deployment.variables(uses), *online_variables(config, settings), *salt],
        ports=[{"name": "http", "containerPort": SERVER_PORT}],
        resources=resources(
            f"{500 * workers}m",
            f"{256 + (256 + size) * workers}Mi",
            f"{512 + (512 + size) * workers}Mi",
        ),
        # a slow start is not a hang; afterwards a process that answers nothing is restarted
        startupProbe=http_get("/health/live", periodSeconds=1, failureThreshold=90),
        livenessProbe=http_get(
            "/health/live", periodSeconds=10, timeoutSeconds=5, failureThreshold=6
        ),
        # stale features are served with their status: all pods share one store, and would all be
        # taken out of the load balancer at once
        readinessProbe=http_get("/health/ready?stale=ok", periodSeconds=5, timeoutSeconds=5),
        lifecycle={"preStop": {"exec": {"command": ["sleep", str(DRAIN_S)]}}},
    )
    labels = deployment.labels("serving")
    log = [_request_log(deployment)] if deployment.spools() else []
    pod_uses = replace(uses, lake=bool(log))
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": deployment.metadata("serving"),
        "spec": {
            # the number of replicas belongs to the autoscaler
            "selector": {"matchLabels": labels},
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {"labels": labels, "annotations": scraped(SERVER_PORT)},
                "spec": {
                    "automountServiceAccountToken": False,
                    "securityContext": pod_security(),
                    "terminationGracePeriodSeconds": GRACE_S,
                    "topologySpreadConstraints": [
                        {
                            "maxSkew": 1,
                            "topologyKey": "kubernetes.io/hostname",
                            "whenUnsatisfiable": "ScheduleAnyway",
                            "labelSelector": {"matchLabels": labels},
                        }
                    ],
                    **({"initContainers": log} if log else {}),
                    "containers": [server],
                    "volumes": deployment.volumes(pod_uses),
                },
            },
        },
    }


def _request_log(deployment: Deployment) -> Json:
    """Return the container next to a server that commits its logs to the lake.

    Kubernetes starts a sidecar (an init container that is restarted) before the server and ends
    it after the server, so that its last pass finds all files complete.
    """
    uses = Uses(lake=True, spools=True)
    sidecar = container(
        "request-log",
        deployment.settings.image("materializer"),
        ["request-log", "--follow"],
        deployment.mounts(uses),
        env=deployment.variables(uses),
        envFrom=deployment.lake_variables(),
        resources=resources("50m", "256Mi", "1Gi"),
    )
    return {**sidecar, "restartPolicy": "Always"}


def _service(deployment: Deployment) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": deployment.metadata("serving"),
        "spec": {
            "selector": deployment.labels("serving"),
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
        },
    }


def _scaler(deployment: Deployment) -> Json:
    settings = deployment.settings
    metric = {
        "metric": {"name": IN_FLIGHT_METRIC},
        "target": {"type": "AverageValue", "averageValue": str(settings.in_flight)},
    }
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": deployment.metadata("serving"),
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "name": deployment.name("serving"),
            },
            "minReplicas": settings.replicas,
            "maxReplicas": settings.max_replicas,
            "metrics": [{"type": "Pods", "pods": metric}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 300}},
        },
    }


def _budget(deployment: Deployment) -> Json:
    return budget(deployment, "serving")


def budget(deployment: Deployment, component: str) -> Json:
    """Return a PodDisruptionBudget: nodes are drained one pod after another."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": deployment.metadata(component),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": deployment.labels(component)},
        },
    }
