"""``maintain --only release``: admit held events that are no longer in the future."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import click

from paimon_features.cli._options import time_text
from paimon_features.cli._progress import Progress
from paimon_features.core.times.clock import now_ms
from paimon_features.project import Project


def release(names: Sequence[str], path: str, as_json: bool) -> None:
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
