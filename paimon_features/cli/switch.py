"""``switch``: read another generation of a view."""

from __future__ import annotations

import click

from paimon_features.cli._options import PROJECT
from paimon_features.errors import GenerationError
from paimon_features.project import Project


@click.command()
@click.argument("view")
@click.option("--to", type=int, help="Generation; default: the newest. An older one rolls back.")
@click.option("--force", is_flag=True, help="Also to a generation that nothing was written to.")
@PROJECT
def switch(view: str, to: int | None, force: bool, path: str) -> None:
    """Make another generation of VIEW the one that is read, in one write.

    A generation stays until it is dropped, so the way back is as short. Readers have to have
    the definition that the generation was made for; 'describe' shows which one that is.

    \b
    paimon-features switch customer_spend          # to the newest generation
    paimon-features switch customer_spend --to 1   # and back
    """
    from paimon_features.tables import generations, latest_snapshot

    project = Project.open(path)
    compiled = project.view(view)
    records = generations.load(project.lake, view)
    number = to if to is not None else max((r.generation for r in records), default=0)
    record = generations.get(project.lake, view, number)
    if not force and latest_snapshot(project.lake, record.table) is None:
        raise GenerationError(
            f"feature view {view!r}: nothing was written to generation {number} yet; "
            f"'paimon-features backfill {view}' first, or --force"
        )
    record = generations.activate(project.lake, view, number)
    click.echo(f"{view}: generation {record.generation} ({record.table}) is read from now on")
    if record.fingerprint != compiled.fingerprint:
        click.echo(
            f"note: the definitions file describes other tiles than generation {number} holds; "
            "bring the definition back that it was made for, until then reads with this file "
            "are refused",
            err=True,
        )
