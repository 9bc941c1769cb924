"""``plan``: what ``apply`` would change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from paimon_features.cli._changes import document_text, print_changes
from paimon_features.cli._options import JSON, PROJECT, OutputFile
from paimon_features.project import Project

FAILED = 3
"""The exit code of a plan that has what ``--fail-on`` names."""


@click.command()
@click.option(
    "--fail-on",
    multiple=True,
    type=click.Choice(["backfill", "drop", "any"]),
    help="Exit with 3 if a change needs a backfill, if a definition is gone, or for any change.",
)
@click.option(
    "--out",
    "file",
    type=OutputFile(),
    help="Also write the plan as JSON to this file, for a review and 'apply --plan FILE'.",
)
@PROJECT
@JSON
def plan(fail_on: Sequence[str], file: Path | None, path: str, as_json: bool) -> None:
    """Check the definitions and show what 'apply' would change. Changes nothing.

    \b
    paimon-features plan
    paimon-features plan --out plan.json --fail-on backfill    # in CI: exit code 3 needs approval
    paimon-features apply --plan plan.json                     # what was reviewed, or nothing

    \b
    + would be created    ~ would change    - no longer defined (its tables stay)
    """
    project = Project.open(path)
    changes = project.plan()
    from paimon_features.project.planning.reviewed import FAIL_ON

    print_changes(project, changes, as_json)
    if file is not None:
        file.write_text(document_text(project, changes) + "\n", encoding="utf-8")
    for condition in fail_on:
        if effects := set(FAIL_ON[condition]) & set(changes.effects):
            named = [c.name for c in changes.changes if effects & set(c.effects)]
            more = f" and {len(named) - 5:,} more" if len(named) > 5 else ""
            click.echo(f"--fail-on {condition}: {', '.join(named[:5])}{more}", err=True)
            raise SystemExit(FAILED)
