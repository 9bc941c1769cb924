"""``forget``: delete an entity from all tables and the online store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from paimon_features.cli._options import JSON, PROJECT, time_text
from paimon_features.cli._progress import Progress
from paimon_features.cli._shared_options import changes_data
from paimon_features.project import Project
from paimon_features.project.forget import Deletion, EntitySet, ForgetReport


@click.command()
@click.option(
    "--entity",
    "entities",
    multiple=True,
    metavar="COLUMN=VALUE[,COLUMN=VALUE]",
    help="Key columns of an entity and their values; repeat it for several.",
)
@click.option(
    "--file",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A CSV file with a header of key columns, one entity per line.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--no-online", is_flag=True, help="Leave the online store out.")
@click.option(
    "--expire-now",
    is_flag=True,
    help="Then expire older snapshots of these tables and their hourly tags; other tags and "
    "consumers retain theirs (needs Flink).",
)
@changes_data("dry_run")
@PROJECT
@JSON
def forget(
    entities: tuple[str, ...],
    file: Path | None,
    dry_run: bool,
    yes: bool,
    no_online: bool,
    expire_now: bool,
    path: str,
    as_json: bool,
) -> None:
    """Delete all rows of an entity: events, tiles, online records, and derived data.

    Searches every table that has the key columns (events, tiles of all generations, training sets,
    feedback, derived views), feedback and difficulty of the entity's samples, rejected and held
    rows, and the request log. No other row changes. The report lists what was not searched. Jobs
    that own a table must be stopped and have read all events; the error says by which command.
    Repeat it after an interruption: it deletes what is left.

    \b
    paimon-features forget --entity customer_id=12346 --dry-run
    paimon-features forget --entity customer_id=12346 --yes
    paimon-features forget --file ids.csv --yes --expire-now
    paimon-features forget --entity user=7,shop=north    # an entity of several keys

    Older snapshots and tags still contain the rows; the report says until when. Events that arrive
    later are stored as before.
    """
    if bool(entities) == (file is not None):
        raise click.UsageError("pass either --entity or --file")
    project = Project.open(path)
    types = {
        name: kind
        for view in project.definitions.views.values()
        for name, kind in view.compiled.keys.items()
    }
    for table in project.definitions.tables.values():
        types |= dict(table.compiled.keys)
    chosen = EntitySet.of(entities, types) if file is None else EntitySet.read(file, types)

    def deletion(progress: Progress) -> Deletion:
        return Deletion(
            project,
            chosen,
            online=not no_online,
            on_message=progress.message,
            on_phase=progress,
        )

    if dry_run or not (yes or as_json):
        with Progress("looking for rows", as_json, unit="tables") as progress:
            preview = deletion(progress).dry_run()
        _print(preview, as_json)
    if dry_run:
        return
    if not yes:
        typed = click.prompt("Type forget to delete this", default="", show_default=False, err=True)
        if typed != "forget":
            raise click.ClickException("nothing was deleted: 'forget' was not typed")
    # whom it is about is what the log must not keep
    with (
        project.audited("forget", "", {"online": not no_online}) as details,
        Progress("looking for rows", as_json, unit="tables") as progress,
    ):
        report = deletion(progress).carry_out()
        details |= {"entities": report.entities, "rows": report.rows}
    if expire_now and report.remains:
        from paimon_features.project.forget.expiry import expire_now as expire

        with Progress("expiring snapshots", as_json) as progress:
            report.remains = expire(project, report.remains, progress.message)
    _print(report, as_json)


def _print(report: ForgetReport, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(report), indent=2))
    else:
        click.echo("\n".join(_lines(report)))


def _lines(report: ForgetReport) -> Iterator[str]:
    verb = "would be deleted" if report.dry_run else "deleted"
    yield f"{report.entities:,} entities: {report.rows:,} rows {verb}"
    for table in report.tables:
        if table.rows:
            yield f"  {table.table}: {table.rows:,} rows in {table.partitions:,} partitions"
    for view, count in report.online.items():
        yield f"  online records of {view}: {count:,}"
    for one in report.remains:
        kept = "".join(
            f"; {holder} {', '.join(names)}"
            for holder, names in (("tags", one.tags), ("consumers", one.consumers))
            if names
        )
        yield (
            f"  remains in {one.snapshots:,} older snapshots of {one.table} until a 'maintain' "
            f"after {time_text(one.until_ms)}{kept}"
        )
    for note in report.notes:
        yield f"  note: {note}"
