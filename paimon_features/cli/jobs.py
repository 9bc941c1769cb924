"""``jobs``: the newest tile job of each generation; and the subcommand ``jobs iterate``."""

from __future__ import annotations

import json
import time
from dataclasses import asdict

import click

from paimon_features.cli import SuggestingGroup
from paimon_features.cli._options import JSON, PROJECT
from paimon_features.cli._tables import table_lines
from paimon_features.cli.jobs_iterate import iterate
from paimon_features.core.times.clock import now_ms
from paimon_features.flink.stream_jobs import list_stream_jobs
from paimon_features.project import Project
from paimon_features.tiles.jobs import jobs as job_control
from paimon_features.tiles.jobs.jobs import JobRow


@click.group(cls=SuggestingGroup, invoke_without_command=True)
@click.option(
    "--release",
    metavar="TABLE",
    help="Force-release the lease of this table: only if its holder is certainly dead.",
)
@PROJECT
@JSON
@click.pass_context
def jobs(context: click.Context, release: str | None, path: str, as_json: bool) -> None:
    """List the newest job of each generation, ingested stream and iteration; or run an iteration.

    LOST and FAILED jobs ended without a final checkpoint: 'submit' resumes from the previous one.
    UNKNOWN: the job's cluster does not respond.

    \b
    paimon-features jobs
    paimon-features jobs --json
    paimon-features jobs --release tiles_customer_spend_g1
    paimon-features jobs iterate train.py --watch
    """
    if context.invoked_subcommand is not None:
        return
    project = Project.open(path)
    if release is not None:
        ended = job_control.release(project.lake, release)
        text = "it was not held" if ended is None else f"{ended.holder} no longer holds it"
        click.echo(f"{release}: {text}", err=as_json)
    rows = job_control.list_jobs(project.lake)
    streams = list_stream_jobs(project.lake, project.config.state_dir)
    if as_json:
        no_view = dict.fromkeys(JobRow.__slots__)
        documents = [*map(asdict, rows), *({**no_view, **asdict(job)} for job in streams)]
        click.echo(json.dumps(documents, indent=2))
    elif not rows and not streams:
        click.echo("no jobs yet; 'paimon-features submit VIEW' starts one")
    else:
        lines = table_lines([_HEADINGS, *map(_cells, rows)]) if rows else []
        if streams:
            from paimon_features.cli._status_screen import STREAM_JOBS, stream_job

            shown = [stream_job(job, now_ms()) for job in streams]
            lines += [*([""] if lines else []), *table_lines([STREAM_JOBS, *shown])]
        click.echo("\n".join(lines))


jobs.add_command(iterate)


_HEADINGS = ("VIEW", "GEN", "KIND", "JOB", "STATE", "WHERE", "SINCE (UTC)", "TILES AT", "LAG")


def _cells(row: JobRow) -> tuple[str, ...]:
    at = "-" if row.snapshot is None else f"snapshot {row.snapshot}"
    if row.committed_checkpoint is not None:
        at += f", checkpoint {row.committed_checkpoint}"
    return (
        row.view,
        str(row.generation),
        row.kind,
        row.job_id,
        row.state,
        row.where,
        time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(row.since_ms / 1000)),
        at,
        f"{row.lag_snapshots} snapshots",
    )
