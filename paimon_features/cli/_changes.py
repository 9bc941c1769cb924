"""What ``plan`` and ``apply`` print."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from paimon_features.project import Project
    from paimon_features.project.planning.plan import ProjectPlan


def print_changes(project: Project, changes: ProjectPlan, as_json: bool) -> None:
    if as_json:
        click.echo(document_text(project, changes))
        return
    shown = [change for change in changes.changes if change.action != "same" or change.details]
    text = "\n".join(map(str, shown))
    click.echo(text or "no changes: all definitions are applied")


def document_text(project: Project, changes: ProjectPlan) -> str:
    """Return a plan as JSON, for programs and for ``apply --plan``."""
    from paimon_features.project.planning.reviewed import plan_document

    return json.dumps(plan_document(changes, project.name, project.config.database), indent=2)
