"""``apply``: register the definitions and create their tables."""

from __future__ import annotations

from pathlib import Path

import click

from paimon_features.cli._changes import print_changes
from paimon_features.cli._names import VIEW_NAME
from paimon_features.cli._options import JSON, PROJECT
from paimon_features.project import Project


@click.command()
@click.option(
    "--plan",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Apply only this plan, of 'plan --out FILE': nothing if definitions, applied versions or "
    "generations are others now.",
)
@click.option(
    "--take-over",
    is_flag=True,
    help="Make a database this project's that belonged to another one: after a renaming.",
)
@click.option(
    "--generation",
    metavar="VIEW[@NUMBER]",
    shell_complete=VIEW_NAME,
    help="Only activate another generation of a view: the newest, or this one.",
)
@click.option("--force", is_flag=True, help="With --generation: allow one without data.")
@PROJECT
@JSON
def apply(
    file: Path | None,
    take_over: bool,
    generation: str | None,
    force: bool,
    path: str,
    as_json: bool,
) -> None:
    """Create tables and generations for the definitions, and write the registry.

    Shows the same difference as 'plan'. Repeating it is harmless. The audit log has who did it.

    \b
    paimon-features apply
    paimon-features apply --plan plan.json    # exactly what was reviewed
    paimon-features apply --generation customer_spend      # switch to the newest generation
    paimon-features apply --generation customer_spend@1    # and back

    With --generation nothing is created or registered: readers switch to the other generation
    atomically. A generation stays until it is dropped, so switching back is as easy. Readers must
    have the definition that it was created for; 'describe' shows which one that is.
    """
    if generation is not None:
        if file is not None or take_over:
            raise click.UsageError("--generation takes neither --plan nor --take-over")
        from paimon_features.cli._switch import switch

        switch(generation, force, Project.open(path), as_json)
        return
    if force:
        raise click.UsageError("--force requires --generation")
    project = Project.open(path)
    reviewed = None
    if file is not None:
        from paimon_features.project.planning.reviewed import ReviewedPlan

        reviewed = ReviewedPlan.read(file)
    print_changes(project, project.apply(reviewed, take_over=take_over), as_json)
