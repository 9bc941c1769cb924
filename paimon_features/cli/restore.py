"""``restore``: a project from a backup."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from paimon_features.cli._options import JSON, time_ms, time_text
from paimon_features.cli._progress import Progress
from paimon_features.project import Project
from paimon_features.project.backup import restore as run
from paimon_features.project.backup import set_back


@click.command()
@click.argument("source", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("target", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--as-of",
    help="Set all tables back to this time (UTC ms, or 2011-12-09T12:50:00), within the retention "
    "of their snapshots and tags.",
)
@click.option(
    "--outside",
    is_flag=True,
    help="Allow a warehouse or state folder that the backup places outside of TARGET.",
)
@JSON
def restore(source: Path, target: Path, as_of: str | None, outside: bool, as_json: bool) -> None:
    """Create the project folder TARGET from the backup SOURCE.

    A warehouse inside the project folder is restored inside TARGET; one elsewhere at its own path,
    which must be empty, and only with --outside. Owners of tables in the original are not owners
    of the copy, and its jobs are LOST: 'submit VIEW --resume' continues from their checkpoints,
    'materialize' makes the online store again. If the original still runs, give the copy another
    [online] url or key_prefix first.

    \b
    paimon-features restore /backups/shop-2026-11-25 /srv/shop
    paimon-features restore /backups/shop-2026-11-25 /srv/noon --as-of 2026-11-25T12:00:00

    After --as-of, jobs cannot continue from their checkpoints: 'backfill VIEW --rebuild' computes
    the tiles of the events of that time.
    """
    time = None if as_of is None else time_ms(as_of)
    with Progress("copying", as_json, unit="bytes") as progress:
        restored = run(source, target, progress.message, progress, may_write_outside=outside)
        if time is not None:
            progress.start("setting back")
            set_back(Project.open(target), time, progress.message)
    if as_json:
        click.echo(json.dumps({**asdict(restored), "folder": str(target)}, indent=2))
    else:
        click.echo(f"{target}: project {restored.project} as of {time_text(restored.cut_ms)}")
