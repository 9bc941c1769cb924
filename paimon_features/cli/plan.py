"""``plan``: what ``apply`` would change."""

from __future__ import annotations

import click

from paimon_features.cli._changes import print_changes
from paimon_features.cli._options import JSON, PROJECT
from paimon_features.project import Project


@click.command()
@PROJECT
@JSON
def plan(path: str, as_json: bool) -> None:
    """Check the definitions and show what 'apply' would change. Changes nothing.

    \b
    paimon-features plan

    \b
    + would be created    ~ would change    - no longer defined (its tables stay)
    """
    print_changes(Project.open(path).plan(), as_json)
