"""Arguments and output that the commands of ``ingest`` share; jobs on a cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from paimon_features.cli._names import SOURCE_NAME
from paimon_features.cli._options import LOCAL_CLUSTER, check_options
from paimon_features.core.errors import ConfigurationError
from paimon_features.lake.storage.file_path import job_state_folder
from paimon_features.project import Project

if TYPE_CHECKING:
    from paimon_features.ingest.ingest_progress import OnIngestProgress

STOPPED = "stopped; the same command resumes from its last checkpoint"

SOURCE = click.argument("source", shell_complete=SOURCE_NAME)
COLUMNS = click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="COLUMN=NAME",
    help="A column of the source and its name in what is read; repeatable.",
)
MAX_LINE_BYTES = click.option(
    "--max-line-bytes",
    type=click.IntRange(1_000, 256 << 20),
    default=8 << 20,
    show_default=True,
    help="Longer lines of text files, and longer messages, are rejected.",
)
STOP = click.option(
    "--stop", is_flag=True, help="Stop the job of this source that runs on a cluster."
)
STATUS = click.option(
    "--status", is_flag=True, help="Show the job of this source on a cluster: rows read, rate, lag."
)


def stop_or_show(path: str, source: str, stop: bool, status: bool, as_json: bool) -> bool:
    """Run ``--stop`` or ``--status``; returns False if neither was given.

    ``--cluster`` may stand next to them, as in the command that started the job.

    Raises
    ------
    click.UsageError
        If the command has other arguments.
    ConfigurationError
        If the job runs on another cluster than the named one.
    """
    if not (stop or status):
        return False
    context = click.get_current_context()
    option = "stop" if stop else "status"
    check_options({"source", option, "cluster"}, f"--{option}")
    project = Project.open(path)
    if context.params["cluster"] not in (None, LOCAL_CLUSTER):
        _check_cluster(project, source, context.params["cluster"])
    (_stop if stop else _show)(project, source, as_json)
    return True


def _check_cluster(project: Project, source: str, cluster: str) -> None:
    from paimon_features.ingest.ledger import IngestLedger

    sent = IngestLedger(project.lake, project.definitions.source(source)).cluster_job()
    if sent is not None and not {*sent.rest_url.split(",")} & {*cluster.split(",")}:
        raise ConfigurationError(
            f"the job of source {source!r} runs on {sent.rest_url}, not on {cluster}"
        )


def _stop(project: Project, source: str, as_json: bool) -> None:
    from paimon_features.ingest.flink.topic import stop_cluster_job

    job_id, savepoint = stop_cluster_job(
        project.lake, project.definitions.source(source), project.config.state_dir
    )
    if as_json:
        click.echo(json.dumps({"job_id": job_id, "savepoint": savepoint}))
    elif savepoint is None:
        click.echo(f"job {job_id} is cancelled; the next 'ingest' reports its state")
    else:
        click.echo(f"job {job_id} is stopped, savepoint {savepoint}; 'ingest' resumes from it")


def _show(project: Project, source: str, as_json: bool) -> None:
    """Show the job of a source that runs on a cluster: its state, rows read, lag."""
    from paimon_features.ingest.flink.topic import cluster_job_status

    status = cluster_job_status(project.lake, project.definitions.source(source))
    click.echo(json.dumps(status.to_document()) if as_json else str(status))


def print_running(command: str, job_id: str, cluster: str | None, as_json: bool) -> None:
    """Print the job that continues on a cluster, and the command that stops it."""
    if as_json:
        click.echo(json.dumps({"job_id": job_id, "cluster": cluster}))
    else:
        click.echo(
            f"job {job_id} runs on {cluster}; 'paimon-features ingest {command} --stop' stops it"
        )


def stream_options(
    project: Project, cluster: str | None, progress: OnIngestProgress
) -> dict[str, Any]:
    """Return the arguments that every stream takes."""
    return {
        "state_dir": project.config.state_dir,
        "job_state": job_state_folder(project.config.state_dir, project.config.flink),
        "checkpoint_interval_ms": project.config.flink.checkpoint_interval_ms,
        "parallelism": project.config.flink.parallelism,
        "cluster": cluster,
        "progress": progress,
    }
