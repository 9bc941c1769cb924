"""``switch``: read another generation of a view."""

from __future__ import annotations

import click

from paimon_features.cli._names import VIEW_NAME
from paimon_features.cli._options import PROJECT
from paimon_features.core.errors import GenerationError, UnfilledError
from paimon_features.project import Project


@click.command()
@click.argument("view", shell_complete=VIEW_NAME)
@click.option("--to", type=int, help="Generation; default: the newest. An older one rolls back.")
@click.option("--force", is_flag=True, help="Allow a generation without data.")
@PROJECT
def switch(view: str, to: int | None, force: bool, path: str) -> None:
    """Activate another generation of VIEW atomically.

    A generation stays until it is dropped, so switching back is as easy. Readers must have the
    definition that the generation was created for; 'describe' shows which one that is.

    \b
    paimon-features switch customer_spend          # to the newest generation
    paimon-features switch customer_spend --to 1   # and back
    """
    from paimon_features.lake.side_folder import generations
    from paimon_features.tiles.consumed import check_filled

    project = Project.open(path)
    compiled = project.view(view)
    records = generations.load(project.lake, view)
    number = to if to is not None else max((r.generation for r in records), default=0)
    record = generations.get(project.lake, view, number)
    if not force:
        try:
            check_filled(project.lake, record)
        except UnfilledError as error:
            raise GenerationError(
                f"feature view {view!r}: nothing was written to generation {number} yet, or not "
                f"everything: {error}; --force switches anyway"
            ) from error
    before = next((r.generation for r in records if r.state == "active"), None)
    with project.audited("switch", view, {"from": before, "to": number}):
        record = generations.activate(project.lake, view, number)
    project.publish_bundle()
    click.echo(f"{view}: generation {record.generation} ({record.table}) is now active")
    if record.fingerprint != compiled.fingerprint:
        click.echo(
            f"note: the definitions file describes other tiles than generation {number} contains; "
            "restore the definition it was created for: reads with the current one are rejected",
            err=True,
        )
