"""``backfill``: compute the tiles of all past events of a view."""

from __future__ import annotations

import json
import time
from dataclasses import asdict

import click

from paimon_features.cli._day_comparison import Days, compare_days
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
from paimon_features.cli._shared_options import changes_data, grouped
from paimon_features.cli._tile_jobs import GENERATION, PARALLELISM, REBUILD, tile_target
from paimon_features.project import Project
from paimon_features.tiles.flink import submission
from paimon_features.tiles.jobs.rewrite import rewrite
from paimon_features.tiles.local import submission as local_backfill

DAY = click.DateTime(["%Y-%m-%d"])


@click.command()
@click.argument("view", shell_complete=VIEW_NAME)
@click.option(
    "--engine",
    type=click.Choice(["flink", "local"]),
    help="Flink, or DuckDB in this process, which needs no Java; default: engine under "
    "[project], else flink.",
)
@click.option("--memory", help="With --engine local: DuckDB's memory limit, such as 4GB.")
@click.option(
    "--from-generation",
    "copied",
    type=int,
    metavar="N",
    help="Copy the tiles of generation N, which differs only in its buckets or partitions.",
)
@click.option("--from", "first", type=DAY, help="Compute only days from this one on (UTC).")
@click.option("--to", "last", type=DAY, help="With --from: the last day, inclusive.")
@click.option("--dry-run", is_flag=True, help="With --from: only show the days that differ.")
@REBUILD
@CLUSTER
@PARALLELISM
@GENERATION
@changes_data("dry_run")
@grouped(Days, "days")
@PROJECT
@JSON
def backfill(
    view: str,
    engine: str | None,
    memory: str | None,
    copied: int | None,
    days: Days,
    rebuild: bool,
    cluster: str | None,
    parallelism: int | None,
    generation: int | None,
    path: str,
    as_json: bool,
) -> None:
    """Compute the tiles of all past events of VIEW in one commit.

    Requires an empty generation. 'submit' continues with events that arrive later. How many days a
    partition of the tiles contains is chosen by the density of the events, unless the view says.

    \b
    paimon-features backfill customer_spend
    paimon-features backfill customer_spend --engine local   # DuckDB, without Java
    paimon-features submit customer_spend

    After a change of only 'buckets' or 'partition_days', --from-generation copies the tiles
    instead, without the events. It stops the old generation's job with a savepoint, from which
    'submit' continues.

    \b
    paimon-features apply                                       # buckets=16, makes generation 2
    paimon-features backfill customer_spend --from-generation 1
    paimon-features submit customer_spend --cluster
    paimon-features apply --generation customer_spend

    With --from and --to, the tiles of these days are computed again on Flink and compared with the
    table, and days that differ are replaced, after a bounded run up to the newest event. Days are
    event-time days; those in one partition of the tiles are replaced together. Tiles whose events
    are no longer in the events table are removed: look at --dry-run first. The materializer
    rebuilds by itself.

    \b
    paimon-features submit customer_spend --stop        # no job may be writing
    paimon-features backfill customer_spend --from 2011-12-01 --to 2011-12-09 --dry-run
    paimon-features backfill customer_spend --from 2011-12-01 --to 2011-12-09
    paimon-features submit customer_spend --resume

    Exit code 1 if --dry-run finds differences.
    """
    if days != Days(None, None, False):
        check_options({"view", "first", "last", "dry_run", "generation"}, "--from and --to")
        compare_days(tile_target(path, view, generation, None), days, as_json)
        return
    if engine is None:
        only_flink = cluster is not None or copied is not None
        engine = "flink" if only_flink else Project.open(path).config.engine
    if copied is not None and (engine == "local" or cluster is not None or memory is not None):
        raise click.UsageError("--from-generation copies in this process; it takes no engine")
    if engine == "local" and cluster is not None:
        raise click.UsageError(
            "--engine local runs in this process; --cluster requires --engine flink"
        )
    if engine != "local" and memory is not None:
        raise click.UsageError("--memory requires --engine local")
    target = tile_target(path, view, generation, parallelism)
    began = time.monotonic()
    if copied is not None:
        messages = message_printer(as_json)
        outcome = rewrite(target, copied, rebuild=rebuild, on_message=messages)
    elif engine == "local":
        with ProgressLine(as_json, events=as_json) as line:
            outcome = local_backfill.backfill(
                target,
                memory=memory,
                threads=parallelism,
                rebuild=rebuild,
                progress=line,
                on_message=message_printer(as_json),
            )
    else:
        outcome = submission.backfill(
            target,
            cluster=cluster_address(target.state_dir, cluster),
            rebuild=rebuild,
            on_message=message_printer(as_json),
        )
    if as_json:
        click.echo(json.dumps(asdict(outcome), indent=2))
        return
    if copied is not None:
        click.echo(
            f"tiles at snapshot {outcome.snapshot}. 'paimon-features submit {view}' continues"
        )
        return
    elapsed = time.monotonic() - began
    click.echo(
        f"{outcome.events_read:,} events in {elapsed:.1f} s; tiles at snapshot "
        f"{outcome.snapshot}. 'paimon-features submit {view}' continues with new events"
    )
