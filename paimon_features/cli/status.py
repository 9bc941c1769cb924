"""``status``: one screen for a project."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from paimon_features.cli._names import SOURCE_NAME
from paimon_features.cli._options import JSON, PROJECT
from paimon_features.cli._signals import stop_event
from paimon_features.project import Project

if TYPE_CHECKING:
    from paimon_features.project.status import StatusReader


@click.command()
@click.option("--watch", is_flag=True, help="Redraw until Ctrl-C.")
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    help="With --watch: seconds between two reads.",
)
@click.option("--no-online", is_flag=True, help="Do not look at the online store.")
@click.option(
    "--lateness",
    metavar="SOURCE",
    shell_complete=SOURCE_NAME,
    help="Show only how late events of this source arrive, as a histogram.",
)
@click.option(
    "--since",
    metavar="DURATION",
    help="With --lateness: only events ingested within this time, such as 7d.",
)
@PROJECT
@JSON
def status(
    watch: bool,
    every_s: float,
    no_online: bool,
    lateness: str | None,
    since: str | None,
    path: str,
    as_json: bool,
) -> None:
    """Show the state of the project: jobs, lag, freshness, sizes, leases and errors.

    It starts nothing and needs neither Java nor Flink. What does not respond, such as the online
    store or a cluster, is reported in its line after at most a few seconds. It reads the manifests
    of each table's newest snapshot, and two columns of rejected tables of up to 100,000 rows, but
    no other data file. With --watch only what has changed is read again.

    \b
    paimon-features status
    paimon-features status --watch
    paimon-features status --json | jq -r '.attention[]'
    paimon-features status --no-online    # a project that serves nothing
    paimon-features status --lateness retail --since 7d   # without the initial bulk load

    Lateness is the time from an event to its ingestion. A late event is added to its tile, however
    late it is: a feature read an hour after an event lacks events that arrive later than that.

    Exit code 1 if something needs attention, see the last lines of the screen: a job that failed,
    was lost or has no new checkpoint for 5 minutes, a view that cannot be served or is behind, a
    lease whose owner died, a lost record, a table that cannot be read. --watch exits with 0.
    """
    if watch and as_json:
        raise click.UsageError("--watch draws a screen; for programs, repeat --json")
    if lateness is not None:
        from paimon_features.cli._lateness import show_lateness

        show_lateness(lateness, since, path, as_json)
        return
    if since is not None:
        raise click.UsageError("--since requires --lateness")
    # these take longer to import than all else of the command, which --help does not need
    from paimon_features.cli._status_screen import screen
    from paimon_features.project.status import StatusReader

    reader = StatusReader(Project.open(path), online=not no_online)
    try:
        if watch:
            _watch(reader, every_s)
            return
        current = reader.read()
        document = json.dumps(current.document(), indent=2)
        click.echo(document if as_json else "\n".join(screen(current)))
    finally:
        reader.close()
    sys.exit(1 if current.attention else 0)


def _watch(reader: StatusReader, every_s: float) -> None:
    from paimon_features.cli._status_screen import screen

    stop = stop_event()
    while not stop.is_set():
        lines = screen(reader.read())
        if sys.stdout.isatty():
            click.clear()
        click.echo("\n".join(lines))
        stop.wait(every_s)
