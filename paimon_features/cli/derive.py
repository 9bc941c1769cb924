"""``derive``: write the windows of a tumbling or session view to a table or a file."""

from __future__ import annotations

import json
from pathlib import Path

import click

from paimon_features.cli._names import VIEW_NAME
from paimon_features.cli._options import (
    AS_OF,
    JSON,
    MEMORY,
    PROJECT,
    OutputFile,
    pins,
    show_sources,
    time_ms,
)
from paimon_features.cli._progress import Progress
from paimon_features.cli._shared_options import changes_data
from paimon_features.project import Project
from paimon_features.project.derived import WindowKeywords


@click.command()
@click.argument("name", shell_complete=VIEW_NAME)
@click.option(
    "--from", "start", help="Windows that start at this time or later; same format as --to."
)
@click.option(
    "--to", "end", help="Windows that start before it: UTC milliseconds, or 2011-12-09T00:00:00."
)
@click.option("--open", "include_open", is_flag=True, help="Include windows that can still grow.")
@click.option(
    "--output",
    type=OutputFile(),
    help="Write a file (.parquet, .csv, .csv.gz, .arrow) instead of the table.",
)
@click.option("--replace", is_flag=True, help="Replace a table with rows of another definition.")
@AS_OF
@MEMORY
@changes_data()
@PROJECT
@JSON
def derive(
    name: str,
    start: str | None,
    end: str | None,
    include_open: bool,
    output: Path | None,
    replace: bool,
    as_of: tuple[str, ...],
    memory_mb: float | None,
    path: str,
    as_json: bool,
) -> None:
    """Write the windows of a TumblingView or SessionView to the table features_NAME.

    Only windows that ended by the newest event in the tiles are written (all with --open). Run
    it again as data arrives: it replaces all rows of each start day (UTC) on which a row changed,
    also due to late events.

    \b
    paimon-features derive daily_spend
    paimon-features derive daily_spend --from 2011-12-01 --to 2011-12-08
    paimon-features derive sessions --output sessions.parquet
    """
    if as_of and output is None:
        raise click.UsageError("--as-of requires --output: the table contains the current state")
    if replace and output is not None:
        raise click.UsageError("--replace applies to the table; a file is always replaced")
    project = Project.open(path)
    from_ms, to_ms = (None if text is None else time_ms(text) for text in (start, end))
    options: WindowKeywords = {
        "from_ms": from_ms, "to_ms": to_ms, "include_open": include_open, "memory_mb": memory_mb
    }  # fmt: skip
    with Progress(f"computing {name}", as_json):
        if output is not None:
            written = project.derived.write(name, output, as_of=pins(as_of), **options)
        else:
            done = project.derived.refresh(name, replace=replace, **options)
    if output is not None:
        sources, document = written.sources, written.to_document()
        lacking = written.commits_not_included
        text = f"{written.path}: {written.rows:,} rows, {len(written.features)} features"
    else:
        sources, document = (done.source,), done.to_document()
        lacking = {name: done.commits_not_included}
        text = (
            f"{done.table}: {done.rows:,} rows; {done.days_written:,} days written, "
            f"{done.days_emptied:,} emptied"
        )
    if as_json:
        click.echo(json.dumps(document, indent=2))
        return
    click.echo(text)
    show_sources(sources, lacking)
