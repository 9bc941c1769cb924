"""``submit``: run the tile job of a view."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from paimon_features.cli._names import VIEW_NAME
from paimon_features.cli._options import (
    CLUSTER,
    JSON,
    PROJECT,
    check_options,
    cluster_address,
    message_printer,
)
from paimon_features.cli._progress_line import ProgressLine
from paimon_features.cli._shared_options import changes_data
from paimon_features.cli._tile_jobs import GENERATION, PARALLELISM, REBUILD, tile_target
from paimon_features.tiles.flink import submission
from paimon_features.tiles.jobs.backfill import TileJobResult
from paimon_features.tiles.jobs.jobs import cancel
from paimon_features.tiles.jobs.target import TileTarget


@click.command()
@click.argument("view", shell_complete=VIEW_NAME)
@click.option("--bounded", is_flag=True, help="Stop after reading all current events.")
@click.option("--resume", is_flag=True, help="Only resume the last run; do not start a new one.")
@click.option("--rollback", is_flag=True, help="Roll back tables that are ahead of the checkpoint.")
@REBUILD
@click.option(
    "--checkpoint",
    metavar="FOLDER",
    help="With --rollback: resume from this folder, .../<job id>/chk-N, also of s3://.",
)
@click.option(
    "--stop", is_flag=True, help="Stop the job with a savepoint, in any process or cluster."
)
@CLUSTER
@PARALLELISM
@GENERATION
@changes_data("stop")
@PROJECT
@JSON
def submit(
    view: str,
    bounded: bool,
    resume: bool,
    rollback: bool,
    rebuild: bool,
    checkpoint: str | None,
    stop: bool,
    cluster: str | None,
    parallelism: int | None,
    generation: int | None,
    path: str,
    as_json: bool,
) -> None:
    """Run the tile job of VIEW: aggregate events into tiles, each event exactly once.

    Runs in the foreground until Ctrl-C stops it with a final checkpoint, or detached with
    --cluster. It starts on an empty generation or after a backfill, or resumes the last run.

    \b
    paimon-features submit customer_spend                    # until Ctrl-C
    paimon-features submit customer_spend --bounded          # all current events
    paimon-features submit customer_spend --cluster          # on 'paimon-features cluster'
    paimon-features submit customer_spend --stop             # with a savepoint

    Events are never counted twice. If the job cannot start safely, the error names a remedy:

    \b
    --rollback    the checkpoint is older than the tiles: roll the tiles back to it
    --rebuild     no checkpoint is left: empty the generation and start over
    """
    target = tile_target(path, view, generation, parallelism)
    if stop:
        check_options({"view", "stop", "generation"}, "--stop")
        _stop(target, as_json)
        return
    if (resume or rollback) and rebuild:
        raise click.UsageError(
            "--rebuild starts over; it cannot be combined with --resume or --rollback"
        )
    if checkpoint is not None and not rollback:
        raise click.UsageError("--checkpoint requires --rollback")
    with ProgressLine(as_json, events=as_json) as line:
        outcome = submission.submit(
            target,
            cluster=cluster_address(target.state_dir, cluster),
            bounded=bounded,
            resume=resume,
            rollback=rollback,
            rebuild=rebuild,
            checkpoint=checkpoint,
            progress=line,
            on_message=message_printer(as_json),
        )
    if as_json:
        click.echo(json.dumps(asdict(outcome), indent=2))
        return
    click.echo(_ending(outcome))


def _stop(target: TileTarget, as_json: bool) -> None:
    savepoint = cancel(target)
    if as_json:
        click.echo(json.dumps({"view": target.view.name, "savepoint": savepoint}))
    elif savepoint is None:
        click.echo(f"the backfill of {target} is cancelled; nothing was committed")
    else:
        click.echo(
            f"stopped, savepoint {savepoint}; 'paimon-features submit {target.view.name}' resumes "
            "from it"
        )


def _ending(outcome: TileJobResult) -> str:
    again = f"'paimon-features submit {outcome.view}'"
    if outcome.state == "UNCHANGED":
        return "nothing to do"
    if outcome.state == "RUNNING":
        return (
            f"job {outcome.job_id} runs; 'paimon-features jobs' shows it, "
            f"{again[:-1]} --stop' stops it"
        )
    return f"stopped with checkpoint {outcome.checkpoint}; {again} resumes from it"
