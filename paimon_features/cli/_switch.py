"""``apply --generation``: read another generation of a view."""

from __future__ import annotations

import json

import click

from paimon_features.core.errors import ConfigurationError, GenerationError, UnfilledError
from paimon_features.project import Project


def switch(text: str, force: bool, project: Project, as_json: bool) -> None:
    """Activate another generation atomically: ``VIEW`` (the newest) or ``VIEW@NUMBER``."""
    view, at, wanted = text.partition("@")
    if at and not wanted.isdecimal():
        raise ConfigurationError(f"--generation {text!r}: expected VIEW or VIEW@NUMBER")
    from paimon_features.lake.side_folder import generations
    from paimon_features.tiles.consumed import check_filled

    compiled = project.view(view)
    records = generations.load(project.lake, view)
    number = int(wanted) if at else max((r.generation for r in records), default=0)
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
    if as_json:
        document = {"view": view, "generation": record.generation, "table": record.table}
        click.echo(json.dumps(document))
    else:
        click.echo(f"{view}: generation {record.generation} ({record.table}) is now active")
    if record.fingerprint != compiled.fingerprint:
        click.echo(
            f"note: the definitions file describes other tiles than generation {number} contains; "
            "restore the definition it was created for: reads with the current one are rejected",
            err=True,
        )
