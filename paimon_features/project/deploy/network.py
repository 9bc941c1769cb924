"""Who may connect to the pods: nobody but those who have to."""

from __future__ import annotations

from collections.abc import Sequence

from paimon_features.flink.metrics import METRICS_PORT
from paimon_features.project.deploy.pods import (
    MONITOR_PORT,
    REST_PORT,
    SERVER_PORT,
    Deployment,
    Json,
)

FLINK_COMPONENTS = ("tiles", "ingest", "iterate", "session")


def network(deployment: Deployment) -> list[Json]:
    """Return the NetworkPolicies; traffic that leaves a pod is not restricted.

    Whoever reaches Flink's ports can run code there, so only its own pods, the operator and this
    project's pods (REST alone, to see whether a job lives) do.
    """
    settings = deployment.settings
    instance = [{"podSelector": {"matchLabels": deployment.instance}}]
    monitoring = _namespace(settings.monitoring_namespace)
    operator = _namespace(settings.operator_namespace)
    flink = {
        "matchLabels": deployment.instance,
        "matchExpressions": [
            {
                "key": "app.kubernetes.io/component",
                "operator": "In",
                "values": list(FLINK_COMPONENTS),
            }
        ],
    }
    return [
        _policy(deployment, "default", {"matchLabels": deployment.instance}, []),
        _policy(
            deployment,
            "serving",
            {"matchLabels": deployment.labels("serving")},
            # every pod of the namespace; an overlay names others
            [_rule([{"podSelector": {}}, *monitoring], SERVER_PORT)],
        ),
        _policy(
            deployment,
            "materializer",
            {"matchLabels": deployment.labels("materializer")},
            [_rule(monitoring, MONITOR_PORT)],
        ),
        _policy(
            deployment,
            "flink",
            flink,
            [
                {"from": [{"podSelector": flink}]},
                _rule([*instance, *operator], REST_PORT),
                _rule(monitoring, METRICS_PORT),
            ],
        ),
    ]


def _policy(deployment: Deployment, name: str, selector: Json, rules: Sequence[Json]) -> Json:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": deployment.metadata(name),
        "spec": {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": list(rules)},
    }


def _rule(sources: Sequence[Json], port: int) -> Json:
    return {"from": list(sources), "ports": [{"protocol": "TCP", "port": port}]}


def _namespace(name: str) -> list[Json]:
    return [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}]
