"""``apply``: register the definitions and create their tables."""

from __future__ import annotations

from pathlib import Path

import click

from paimon_features.cli._changes import print_changes
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
@PROJECT
@JSON
def apply(file: Path | None, take_over: bool, path: str, as_json: bool) -> None:
    """Create tables and generations for the definitions, and write the registry.

    Shows the same difference as 'plan'. Repeating it is harmless. The audit log has who did it.

    \b
    paimon-features apply
    paimon-features apply --plan plan.json    # exactly what was reviewed
    """
    project = Project.open(path)
    reviewed = None
    if file is not None:
        from paimon_features.project.planning.reviewed import ReviewedPlan

        reviewed = ReviewedPlan.read(file)
    print_changes(project, project.apply(reviewed, take_over=take_over), as_json)
