"""``apply``: register the definitions and create their tables."""

from __future__ import annotations

import click

from paimon_features.cli._changes import print_changes
from paimon_features.cli._options import JSON, PROJECT
from paimon_features.project import Project


@click.command()
@PROJECT
@JSON
def apply(path: str, as_json: bool) -> None:
    """Create tables and generations for the definitions, and write the registry.

    Shows the same difference as 'plan'. Repeating it is harmless.

    \b
    paimon-features apply
    """
    print_changes(Project.open(path).apply(), as_json)
