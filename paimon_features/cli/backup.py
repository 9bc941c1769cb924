"""``backup``: copy a live project."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from paimon_features.cli._options import JSON, PROJECT
from paimon_features.cli._progress import Progress
from paimon_features.cli._values import size_text
from paimon_features.project import Project
from paimon_features.project.backup import back_up


@click.command()
@click.argument("target", type=click.Path(file_okay=False, path_type=Path))
@PROJECT
@JSON
def backup(target: Path, path: str, as_json: bool) -> None:
    """Copy the project into the new folder TARGET, while jobs and writers run.

    The copy is what a power failure at one moment would have left: tables, the records next to
    them, the newest checkpoint of each job, and the definitions. The online store is not copied,
    'materialize' makes it again. Snapshots are not expired meanwhile. The folder contains personal
    data and the configuration; only its owner can read it.

    \b
    paimon-features backup /backups/shop-$(date +%F)
    paimon-features restore /backups/shop-2026-11-25 /srv/shop    # in another place
    """
    with Progress("copying", as_json, unit="bytes") as progress:
        saved = back_up(Project.open(path), target, progress.message, progress)
    if as_json:
        click.echo(json.dumps({**asdict(saved), "folder": str(target)}, indent=2))
    else:
        click.echo(
            f"{target}: {len(saved.tables)} tables, {saved.files:,} files, {size_text(saved.bytes)}"
        )
