"""Jobs that end: the definitions once for each version of them, maintenance every night."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paimon_features.project.deploy.names import object_name
from paimon_features.project.deploy.pods import (
    LAKE,
    Deployment,
    Json,
    container,
    pod_security,
    resources,
)
from paimon_features.project.deploy.secrets import online_variables

NIGHTLY, WEEKLY = "15 0 * * *", "45 3 * * 0"
"""After midnight UTC the day before is complete; the complete check reads every file."""


def apply_job(deployment: Deployment) -> list[Json]:
    """Return the Job that registers the definitions; its name contains their hash."""
    name = object_name(deployment.config.name, "apply", deployment.files.digest)
    pod = _pod(deployment, "apply", "materializer", ["apply"], resources("200m", "512Mi", "1Gi"))
    return [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {**deployment.metadata("apply"), "name": name},
            "spec": {"backoffLimit": 6, "template": pod},
        }
    ]


def maintenance(deployment: Deployment) -> list[Json]:
    """Return the CronJobs: compaction and expiry, and a search for damaged files."""
    return [
        _cron(
            deployment,
            "maintain",
            NIGHTLY,
            # the tables of running jobs are compacted by these jobs themselves
            _pod(
                deployment,
                "maintain",
                "jobs",
                ["maintain", "--allow-skipped"],
                resources("1", "3Gi", "4Gi"),
            ),
        ),
        _cron(
            deployment,
            "check",
            WEEKLY,
            _pod(deployment, "check", "materializer", ["check"], resources("500m", "1Gi", "2Gi")),
        ),
    ]


def _cron(deployment: Deployment, name: str, schedule: str, pod: Json) -> Json:
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": deployment.metadata(name),
        "spec": {
            "schedule": schedule,
            "timeZone": "Etc/UTC",
            # one owner for each table: a second run would only be refused
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": 3600,
            "jobTemplate": {"spec": {"backoffLimit": 1, "template": pod}},
        },
    }


def _pod(
    deployment: Deployment, component: str, image: str, arguments: Sequence[str], sizes: Json
) -> Json:
    # 'apply' publishes the definitions where servers read them
    publishes = component == "apply" and deployment.config.serve.bundle is not None
    uses = replace(LAKE, secrets=("online-tls",)) if publishes else LAKE
    online = online_variables(deployment.config, deployment.settings) if publishes else []
    task = container(
        component,
        deployment.settings.image(image),
        arguments,
        deployment.mounts(uses),
        env=[*deployment.variables(uses), *online],
        envFrom=deployment.lake_variables(),
        resources=sizes,
    )
    return {
        "metadata": {"labels": deployment.labels(component)},
        "spec": {
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
            "securityContext": pod_security(),
            "containers": [task],
            "volumes": deployment.volumes(uses),
        },
    }
