"""``deploy``: manifests for running a project elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import click

from paimon_features.cli import SuggestingGroup
from paimon_features.cli._options import JSON, PROJECT
from paimon_features.core.configuration.project_config import find_root, read_config
from paimon_features.core.errors import ConfigurationError
from paimon_features.definitions import load_definitions
from paimon_features.project.deploy import (
    NAMED_SETTINGS,
    DeploySettings,
    IterationDeployment,
    Manifests,
    Topic,
    parse_settings,
    read_project_files,
)
from paimon_features.project.deploy import render as render_manifests

DEFAULTS = DeploySettings()


@click.group(cls=SuggestingGroup)
def deploy() -> None:
    """Write what runs a project on Kubernetes.

    \b
    paimon-features deploy render --warehouse-volume lake --into deploy/base
    kubectl apply -k deploy/base
    """


class _RenderCommand(click.Command):
    """A command whose help ends with the settings of ``--set``."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        with formatter.section("Settings of --set"):
            formatter.write_dl(
                [
                    (
                        f"{name} {setting.type}",
                        setting.meaning
                        + ("" if setting.default is None else f"  [default: {setting.default}]"),
                    )
                    for name, setting in NAMED_SETTINGS.items()
                ]
            )


@deploy.command(cls=_RenderCommand)
@click.option(
    "--into",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder to write; default: standard output.",
)
@click.option("--namespace", help="Namespace of all objects; default: that of kubectl.")
@click.option(
    "--images",
    default="",
    metavar="PREFIX",
    help="Prefix of image names, such as registry.example.com/ml/.",
)
@click.option("--tag", default=DEFAULTS.tag, show_default=True, help="Tag of the images.")
@click.option(
    "--digest",
    multiple=True,
    metavar="IMAGE=sha256:...",
    help="Pin an image (serving, predict, materializer, jobs) to its digest; repeatable.",
)
@click.option(
    "--warehouse-volume",
    "warehouse_claim",
    metavar="CLAIM",
    help="PersistentVolumeClaim (ReadWriteMany) of a warehouse that is a folder.",
)
@click.option(
    "--state-volume",
    "state_claim",
    metavar="CLAIM",
    help="PersistentVolumeClaim of the project's state (checkpoints); default: the warehouse's.",
)
@click.option("--open", "may_be_open", is_flag=True, help="Serve without tokens.")
@click.option("--predict", is_flag=True, help="Serve models: servers run the image predict.")
@click.option(
    "--kafka",
    multiple=True,
    metavar="SOURCE=HOST:PORT,.../TOPIC",
    help="Ingest a topic; repeatable.",
)
@click.option(
    "--iterate",
    multiple=True,
    metavar="NAME=FILE.py:FUNCTION",
    help="Run a program of iterations; repeatable.",
)
@click.option(
    "--session",
    is_flag=True,
    help="Add a Flink session cluster for submitted jobs, highly available by Kubernetes.",
)
@click.option(
    "--file",
    "extra",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Another file of the project, such as a module of the definitions; repeatable.",
)
@click.option(
    "--set",
    "named",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the list below, such as replicas=3; repeatable.",
)
@PROJECT
@JSON
def render(
    into: Path | None,
    digest: tuple[str, ...],
    kafka: tuple[str, ...],
    iterate: tuple[str, ...],
    extra: tuple[Path, ...],
    named: tuple[str, ...],
    path: str,
    as_json: bool,
    **settings: object,
) -> None:
    """Write Kubernetes manifests for the project.

    They go to a folder (--into) or to standard output.

    \b
    server        Deployment, Service, autoscaler on requests in flight, disruption budget; with
                  [serve] request_log or prediction_log a container that commits the logs
    materializer  StatefulSet, a pod per shard
    Flink jobs    FlinkDeployments in application mode: a tile job per view, --kafka, --iterate
    session       a FlinkDeployment for 'submit --cluster', with high availability: --session
    maintenance   CronJobs of 'maintain' and 'check', a Job of 'apply'
    and           a ConfigMap with the project's files, NetworkPolicies, kustomization.yaml

    The Flink jobs need the Flink Kubernetes Operator (1.13 or later), the autoscaler a metrics
    adapter for Prometheus. Build the images with docker/Dockerfile.

    \b
    paimon-features deploy render --warehouse-volume lake --tag 0.1.0 --into deploy/base
    paimon-features deploy render --warehouse-volume lake --set shards=4 \\
        --kafka clicks=kafka:9092/clicks --iterate train=train.py:build --file train.py
    kubectl create secret generic shop-online --from-literal=url=redis://redis:6379/0 \\
        --from-literal=password=...
    kubectl apply -k deploy/base

    The output is the same for the same project and options: keep it in a repository, and change
    it by a kustomize overlay. Secrets are referred to by name and never written. Nothing connects
    to a cluster, the warehouse or the online store. See docs/how-to/serving/kubernetes.md.
    """
    config = read_config(find_root(Path(path)))
    definitions = load_definitions(config.definitions)
    chosen = DeploySettings(
        digests={name: pin for name, _, pin in (entry.partition("=") for entry in digest)},
        topics=tuple(map(Topic.parse, kafka)),
        iterations=tuple(map(IterationDeployment.parse, iterate)),
        **settings,  # type: ignore[arg-type]
        **parse_settings(named),  # type: ignore[arg-type]
    )
    programs = [one.file for one in chosen.iterations if one.file is not None]
    files = read_project_files(config, [*extra, *programs])
    manifests = render_manifests(config, definitions, files, chosen)
    if into is None:
        click.echo(_as_json(manifests) if as_json else manifests.to_text(), nl=False)
        return
    try:
        written = manifests.write(into)
    except OSError as error:
        raise ConfigurationError(f"cannot write into {into}: {error}") from error
    if as_json:
        click.echo(json.dumps({"files": [str(path) for path in written]}))
        return
    for name, documents in manifests.files.items():
        kinds = ", ".join(dict.fromkeys(document["kind"] for document in documents))
        click.echo(f"{into / name}  {kinds}")


def _as_json(manifests: Manifests) -> str:
    """Return a list that kubectl takes, too."""
    items = {"apiVersion": "v1", "kind": "List", "items": list(manifests.documents)}
    return json.dumps(items, indent=2) + "\n"
