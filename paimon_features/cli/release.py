"""``release``: admit held events that are no longer in the future."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from paimon_features.cli._names import SOURCE_NAME
from paimon_features.cli._options import JSON, PROJECT, time_text
from paimon_features.cli._progress import Progress
from paimon_features.core.times.clock import now_ms
from paimon_features.project import Project


@click.command()
@click.argument("source", shell_complete=SOURCE_NAME)
@PROJECT
@JSON
def release(source: str, path: str, as_json: bool) -> None:
    """Release events of SOURCE that were held for a future timestamp.

    An event ahead of the clock by more than the source's max_skew is held in rejected_SOURCE
    (reason time_in_future). 'ingest' releases due events at the start of each run; this command
    does only that. Each event is released once. No job may be writing the source.

    \b
    paimon-features release retail
    """
    from paimon_features.ingest.release import release_due
    from paimon_features.lake.ownership import lease

    project = Project.open(path)
    lake, defined = project.lake, project.definitions.source(source)
    purpose = f"release events of {source!r}"
    with (
        lease.acquire(lake, defined.table, purpose=purpose),
        lease.acquire(lake, defined.rejected_table, purpose=purpose),
        Progress("reading held events", as_json),
    ):
        done = release_due(lake, defined, now_ms())
    if as_json:
        click.echo(json.dumps(asdict(done), indent=2))
        return
    click.echo(f"{done.events:,} events released to {defined.table}")
    if done.duplicates:
        click.echo(f"{done.duplicates:,} were duplicates of ingested ids")
    if done.next_ms is not None:
        click.echo(f"{done.waiting:,} still held, the first until {time_text(done.next_ms)}")
