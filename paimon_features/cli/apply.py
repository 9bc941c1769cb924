"""``apply``: register the definitions and create their tables."""

from __future__ import annotations

import json
from pathlib import Path

import click

from paimon_features.cli._changes import print_changes
from paimon_features.cli._names import VIEW_NAME
from paimon_features.cli._options import JSON, PROJECT
from paimon_features.cli._shared_options import changes_data
from paimon_features.core.errors import ConfigurationError, GenerationError, UnfilledError
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
@click.option(
    "--bundle",
    "where",
    is_flag=False,
    flag_value="",
    metavar="[FILE|online]",
    help="Only publish the bundle for serving hosts: to a file or the online store; without a "
    "value, where [serve] bundle says.",
)
@changes_data("where")
@PROJECT
@JSON
def apply(
    file: Path | None,
    take_over: bool,
    generation: str | None,
    force: bool,
    where: str | None,
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
    paimon-features apply --bundle shop.bundle    # a file, for: serve --bundle shop.bundle
    paimon-features apply --bundle online         # the online store, for: serve --bundle online

    With --generation nothing is created or registered: readers switch to the other generation
    atomically. A generation stays until it is dropped, so switching back is as easy. Readers must
    have the definition that it was created for; 'describe' shows which one that is.

    A bundle contains definitions, generations and fitted transformers. It is data: a host that
    serves it needs neither the definitions file nor the lake, and runs no code of the project.
    Servers notice a new one within a second. With [serve] bundle, 'apply' publishes it anyway.
    """
    if where is not None:
        if file is not None or take_over or generation is not None or force:
            raise click.UsageError("--bundle takes no other option")
        _publish(Project.open(path), where, as_json)
        return
    if generation is not None:
        if file is not None or take_over:
            raise click.UsageError("--generation takes neither --plan nor --take-over")
        _switch(generation, force, Project.open(path), as_json)
        return
    if force:
        raise click.UsageError("--force requires --generation")
    project = Project.open(path)
    reviewed = None
    if file is not None:
        from paimon_features.project.planning.reviewed import ReviewedPlan

        reviewed = ReviewedPlan.read(file)
    print_changes(project, project.apply(reviewed, take_over=take_over), as_json)


def _publish(project: Project, target: str, as_json: bool) -> None:
    """Publish the bundle; to the place of ``[serve] bundle`` if ``target`` is empty."""
    from paimon_features.online.store.bundles import ONLINE  # with a client of Redis

    where = target or project.config.serve.bundle
    if not where:
        raise ConfigurationError(
            "nowhere to publish: pass --bundle FILE or --bundle online, or set [serve] bundle in "
            "paimon-features.toml"
        )
    if where != ONLINE:
        where = str(Path(where).resolve())
    size = project.publish_bundle(where)
    if as_json:
        click.echo(json.dumps({"bundle": where, "bytes": size}))
        return
    place = "the online store" if where == ONLINE else where
    click.echo(f"{project.name}: published {size:,} bytes to {place}")


def _switch(text: str, force: bool, project: Project, as_json: bool) -> None:
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
