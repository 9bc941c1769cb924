"""What ``plan`` and ``apply`` print."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from paimon_features.planning.plan import ProjectPlan


def print_changes(changes: ProjectPlan, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([asdict(change) for change in changes.changes], indent=2))
        return
    shown = [change for change in changes.changes if change.action != "same" or change.details]
    text = "\n".join(map(str, shown))
    click.echo(text or "no changes: all definitions are applied")
