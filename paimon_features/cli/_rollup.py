"""``maintain --only rollup``: keep reads of lifetime windows cheap."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import click

from paimon_features.cli._progress_bar import steps
from paimon_features.project import Project


def roll_up(views: Sequence[str], path: str, as_json: bool) -> None:
    """Roll up tiles of past days to one row per entity, for all lifetime views or ``views``."""
    project = Project.open(path)
    defined = project.definitions.views
    # a view without keys is read by ranges of time, which takes no rollups
    names = views or tuple(
        name for name, view in defined.items() if view.compiled.has_lifetime and view.compiled.keys
    )
    done = {}
    for name in names:
        with steps("rolling up", as_json) as progress:
            done[name] = project.jobs.roll_up(name, progress)
        if not as_json:
            click.echo(f"{name}: {done[name]}")
    if as_json:
        click.echo(json.dumps({name: asdict(rolled) for name, rolled in done.items()}, indent=2))
    elif not names:
        click.echo("no view has a lifetime window; name a view to roll it up anyway")
