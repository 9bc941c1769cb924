"""``submit``, ``backfill``, ``jobs``, ``cancel``: the tile jobs of a project."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import click

from paimon_features.cli.cluster_option import CLUSTER, cluster_address
from paimon_features.cli.iterate import iterate
from paimon_features.cli.options import JSON, PROJECT
from paimon_features.cli.progress_line import ProgressLine
from paimon_features.flink.tiles import submission as submission
from paimon_features.job_control import jobs as progress
from paimon_features.job_control.backfill import TileJobResult
from paimon_features.job_control.jobs import JobRow
from paimon_features.job_control.target import TileTarget
from paimon_features.local import backfill_job as local_backfill
from paimon_features.project import Project

GENERATION = click.option(
    "--generation", type=int, help="Generation; default: the one that fits the definition."
)
PARALLELISM = click.option(
    "--parallelism", type=click.IntRange(min=1), help="Parallel tasks; default: the project's."
)
REBUILD = click.option(
    "--rebuild", is_flag=True, help="Empty the generation first: its tiles are computed anew."
)


@click.command()
@click.argument("view")
@click.option("--bounded", is_flag=True, help="Stop once everything that is there now is read.")
@click.option("--resume", is_flag=True, help="Only go on where the last run ended; do not begin.")
@click.option("--rollback", is_flag=True, help="Take tables back that are ahead of the checkpoint.")
@REBUILD
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="With --rollback: go on from this folder, .../<job id>/chk-N.",
)
@CLUSTER
@PARALLELISM
@GENERATION
@PROJECT
@JSON
def submit(
    view: str,
    bounded: bool,
    resume: bool,
    rollback: bool,
    rebuild: bool,
    checkpoint: Path | None,
    cluster: str | None,
    parallelism: int | None,
    generation: int | None,
    path: str,
    as_json: bool,
) -> None:
    """Run the tile job of VIEW: events become tiles, each event once.

    In the foreground, until Ctrl-C stops it with a last checkpoint; or detached, with --cluster.
    It begins on an empty generation, or behind a backfill, or goes on where the last run ended.

    \b
    paimon-features submit customer_spend                    # until Ctrl-C
    paimon-features submit customer_spend --bounded          # what is there now
    paimon-features submit customer_spend --cluster          # on 'paimon-features cluster'

    Events are never counted twice. If the job may not start, the error names what helps:

    \b
    --rollback    the checkpoint is older than the tiles: takes the tiles back to it
    --rebuild     no checkpoint is left: empties the generation and begins anew
    """
    target = _target(path, view, generation, parallelism)
    if (resume or rollback) and rebuild:
        raise click.UsageError("--rebuild begins anew; it does not go with --resume or --rollback")
    if checkpoint is not None and not rollback:
        raise click.UsageError("--checkpoint goes with --rollback")
    say = _say(as_json)
    with ProgressLine(as_json) as line:
        outcome = submission.submit(
            target,
            cluster=cluster_address(target.state_dir, cluster),
            bounded=bounded,
            resume=resume,
            rollback=rollback,
            rebuild=rebuild,
            checkpoint=checkpoint,
            report=line,
            on_message=say,
        )
    if as_json:
        click.echo(json.dumps(asdict(outcome), indent=2))
        return
    click.echo(_ending(outcome))


@click.command()
@click.argument("view")
@click.option(
    "--engine",
    type=click.Choice(["flink", "local"]),
    default="flink",
    show_default=True,
    help="Flink, or DuckDB in this process, which needs no Java.",
)
@click.option("--memory", help="With --engine local: what DuckDB may use, such as 4GB.")
@REBUILD
@CLUSTER
@PARALLELISM
@GENERATION
@PROJECT
@JSON
def backfill(
    view: str,
    engine: str,
    memory: str | None,
    rebuild: bool,
    cluster: str | None,
    parallelism: int | None,
    generation: int | None,
    path: str,
    as_json: bool,
) -> None:
    """Compute the tiles of all past events of VIEW in one commit.

    For an empty generation. Events that come later are held until 'submit' goes on behind it.

    \b
    paimon-features backfill customer_spend
    paimon-features backfill customer_spend --engine local   # DuckDB, without Java
    paimon-features submit customer_spend
    """
    if engine == "local" and cluster is not None:
        raise click.UsageError("--engine local runs in this process; it takes no --cluster")
    if engine != "local" and memory is not None:
        raise click.UsageError("--memory goes with --engine local")
    target = _target(path, view, generation, parallelism)
    began = time.monotonic()
    if engine == "local":
        with ProgressLine(as_json) as line:
            outcome = local_backfill.backfill(
                target,
                memory=memory,
                threads=parallelism,
                rebuild=rebuild,
                report=line,
                on_message=_say(as_json),
            )
    else:
        outcome = submission.backfill(
            target,
            cluster=cluster_address(target.state_dir, cluster),
            rebuild=rebuild,
            on_message=_say(as_json),
        )
    if as_json:
        click.echo(json.dumps(asdict(outcome), indent=2))
        return
    elapsed = time.monotonic() - began
    click.echo(
        f"{outcome.events_read:,} events in {elapsed:.1f} s; tiles at snapshot "
        f"{outcome.snapshot}. 'paimon-features submit {view}' goes on with what comes"
    )


@click.group(invoke_without_command=True)
@click.option(
    "--release",
    metavar="TABLE",
    help="End the lease of this table by force: only if its holder is certainly gone.",
)
@PROJECT
@JSON
@click.pass_context
def jobs(context: click.Context, release: str | None, path: str, as_json: bool) -> None:
    """List the newest tile job of each generation, running or not; or run an iteration.

    LOST and FAILED jobs ended without a last checkpoint: 'submit' goes on from the one before.
    UNKNOWN: the job's cluster does not answer.

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
        ended = progress.release(project.lake, release)
        text = "nobody held it" if ended is None else f"{ended.holder} does not hold it any more"
        click.echo(f"{release}: {text}", err=as_json)
    rows = progress.list_jobs(project.lake)
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=2))
    elif not rows:
        click.echo("no job was started yet; 'paimon-features submit VIEW' starts one")
    else:
        click.echo("\n".join(_table([_HEADINGS, *map(_cells, rows)])))


jobs.add_command(iterate)


@click.command()
@click.argument("view")
@GENERATION
@PROJECT
def cancel(view: str, generation: int | None, path: str) -> None:
    """Stop the tile job of VIEW with a savepoint, wherever it runs.

    'submit' goes on from it.

    \b
    paimon-features cancel customer_spend
    """
    target = _target(path, view, generation, None)
    savepoint = progress.cancel(target)
    if savepoint is None:
        click.echo(f"the backfill of {target} is cancelled; nothing of it counts")
    else:
        click.echo(f"stopped, savepoint {savepoint}; 'paimon-features submit {view}' goes on")


def _say(silent: bool) -> Callable[[str], None]:
    return (lambda _: None) if silent else (lambda line: click.echo(line, err=True))


def _target(path: str, view: str, generation: int | None, parallelism: int | None) -> TileTarget:
    target = TileTarget.of(Project.open(path), view, generation)
    if parallelism is None:
        return target
    return replace(target, flink=replace(target.flink, parallelism=parallelism))


def _ending(outcome: TileJobResult) -> str:
    again = f"'paimon-features submit {outcome.view}'"
    if outcome.state == "UNCHANGED":
        return "nothing to do"
    if outcome.state == "RUNNING":
        return (
            f"job {outcome.job_id} runs; 'paimon-features jobs' shows it, "
            f"'paimon-features cancel {outcome.view}' stops it"
        )
    return f"stopped with checkpoint {outcome.checkpoint}; {again} goes on from there"


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


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
