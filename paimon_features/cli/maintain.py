"""``maintain``: keep tables small."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import click

from paimon_features.cli._options import JSON, PROJECT, time_text
from paimon_features.cli._progress import Progress, steps
from paimon_features.cli._shared_options import changes_data
from paimon_features.core.times.clock import now_ms
from paimon_features.project import Project
from paimon_features.project.maintenance.maintenance_sql import TableSize
from paimon_features.project.maintenance.tables import MaintainedTable
from paimon_features.project.maintenance.tables import maintain as run


@click.command()
@click.argument("tables", nargs=-1, metavar="[NAMES]...")
@click.option(
    "--only",
    type=click.Choice(["release", "rollup"]),
    help="Only release events of the sources NAMES that were held for a future timestamp, or only "
    "roll up the tiles of the views NAMES (default: of all with lifetime windows).",
)
@click.option("--no-compact", is_flag=True, help="Only expire snapshots.")
@click.option(
    "--keep-newest",
    type=click.IntRange(min=1),
    help="Snapshots to keep; default: the tables' options (two hours).",
)
@click.option(
    "--pause", is_flag=True, help="Stop detached tile jobs during maintenance, then resume them."
)
@click.option(
    "--allow-skipped",
    is_flag=True,
    help="Exit code 0 although tables were skipped, for schedulers.",
)
@changes_data()
@PROJECT
@JSON
def maintain(
    tables: tuple[str, ...],
    only: str | None,
    no_compact: bool,
    keep_newest: int | None,
    pause: bool,
    allow_skipped: bool,
    path: str,
    as_json: bool,
) -> None:
    """Compact small files and expire snapshots, in all tables or in the tables NAMES.

    Snapshots that readers, training sets and materializers protect by a consumer or tag are kept.
    Tables that a job or a trainer is writing are skipped and reported, because a table has one
    committing owner; --pause stops detached tile jobs with a savepoint and resumes them from it.

    All tables are those of events, tiles, feedback, logged requests and predictions, outcomes,
    models, fitted transformers, derived views, the registry, and training sets. Of a training set
    the snapshots stay that registered model versions were trained on, and the later ones, which
    'train --again' and 'retrain' read; unless it is named, it is compacted only if it has 16 files
    or more of less than 16 MiB, because training on the compacted snapshot is another run.

    Partitions of events that are shorter than the source's partition_days are merged first. Tiles
    of views with lifetime windows are rolled up at the end.

    --only release: an event ahead of the clock by more than the source's max_skew is held in
    rejected_SOURCE (reason time_in_future). 'ingest' releases due events at the start of each run;
    this does only that. Each event is released once. No job may be writing the source.

    --only rollup: historical reads and rebuilds of the online store read past days, months and
    years as one row per entity where no window starts or ends within them. Later changes (late
    events, a repair, a compaction) are read from tiles until this runs again; results never depend
    on it. Needs no Java, and may run alongside the tile job.

    Run it once a day after midnight UTC, so that each bucket of the previous day has one file.

    \b
    paimon-features maintain --pause
    paimon-features maintain feedback_churn --keep-newest 20
    paimon-features maintain --only release retail
    paimon-features maintain --only rollup

    Exit code 1 if a table was skipped, unless --allow-skipped.
    """
    if only is not None:
        if no_compact or keep_newest is not None or pause or allow_skipped:
            raise click.UsageError("--only takes nothing but NAMES")
        if only == "release":
            _release_all(tables, path, as_json)
        else:
            _roll_up(tables, path, as_json)
        return
    with Progress("maintaining", as_json, unit="tables") as progress:
        done = run(
            Project.open(path),
            tables,
            compact=not no_compact,
            keep_newest=keep_newest,
            pause=pause,
            on_message=progress.message,
            on_phase=progress,
        )
    if as_json:
        click.echo(json.dumps([asdict(report) for report in done], indent=2))
    else:
        click.echo("\n".join(map(_line, done)) or "no tables yet")
    if any(report.skipped for report in done) and not allow_skipped:
        raise SystemExit(1)


def _line(done: MaintainedTable) -> str:
    if done.skipped is not None:
        return f"{done.table}: skipped: {done.skipped}"
    return f"{done.table}: {_size(done.before)} -> {_size(done.after)}"


def _size(size: TableSize) -> str:
    return (
        f"{size.live_files:,} live files, {size.snapshots:,} snapshots, "
        f"{size.bytes / 2**20:,.1f} MiB in {size.files:,}"
    )


def _release_all(names: Sequence[str], path: str, as_json: bool) -> None:
    """Release events of sources that were held for a future timestamp."""
    if not names:
        raise click.UsageError("--only release requires the names of sources")
    documents = [_release(Project.open(path), name, as_json) for name in names]
    if as_json:
        click.echo(json.dumps(documents[0] if len(documents) == 1 else documents, indent=2))


def _release(project: Project, source: str, as_json: bool) -> dict[str, object]:
    from paimon_features.ingest.release import release_due
    from paimon_features.lake.ownership import lease

    lake, defined = project.lake, project.definitions.source(source)
    purpose = f"release events of {source!r}"
    with (
        lease.acquire(lake, defined.table, purpose=purpose),
        lease.acquire(lake, defined.rejected_table, purpose=purpose),
        Progress("reading held events", as_json),
    ):
        done = release_due(lake, defined, now_ms())
    if as_json:
        return asdict(done)
    click.echo(f"{done.events:,} events released to {defined.table}")
    if done.duplicates:
        click.echo(f"{done.duplicates:,} were duplicates of ingested ids")
    if done.next_ms is not None:
        click.echo(f"{done.waiting:,} still held, the first until {time_text(done.next_ms)}")
    return asdict(done)


def _roll_up(views: Sequence[str], path: str, as_json: bool) -> None:
    """Roll up tiles of past days to one row per entity, for all lifetime views or ``views``."""
    project = Project.open(path)
    defined = project.definitions.views
    # a view without keys is read by ranges of time, which takes no rollups
    names = views or tuple(
        name for name, view in defined.items() if view.compiled.has_lifetime and view.compiled.keys
    )
    done = {}
    for name in names:
        with steps("rolling up", as_json) as progress:
            done[name] = project.jobs.roll_up(name, progress)
        if not as_json:
            click.echo(f"{name}: {done[name]}")
    if as_json:
        click.echo(json.dumps({name: asdict(rolled) for name, rolled in done.items()}, indent=2))
    elif not names:
        click.echo("no view has a lifetime window; name a view to roll it up anyway")
