"""``drop``: delete the tables and registry entries of definitions that are no longer used."""

from __future__ import annotations

import json

import click

from paimon_features.cli._options import JSON, PROJECT
from paimon_features.cli._shared_options import changes_data
from paimon_features.core.times.clock import now_ms
from paimon_features.lake import Lake
from paimon_features.lake.storage.file_path import job_state_folder
from paimon_features.project import Project
from paimon_features.project.planning.drop import KINDS, Drop, plan_drop, rows_of


@click.command()
@click.argument("kind", type=click.Choice([kind.replace("_", "-") for kind in KINDS]))
@click.argument("name")
@click.option("--generation", type=int, help="Only this generation of a feature view.")
@click.option("--yes", is_flag=True, help="Delete without confirmation.")
@changes_data()
@PROJECT
@JSON
def drop(kind: str, name: str, generation: int | None, yes: bool, path: str, as_json: bool) -> None:
    """Drop the tables, online records and registry entry of a definition.

    Shows what would be deleted and asks you to type the name, unless --yes. Refuses definitions
    that are still in the definitions file or that others depend on, and the active generation.

    \b
    paimon-features drop feature-view spend --generation 1   # an old generation
    paimon-features drop feature-view spend                  # a view that is no longer defined
    paimon-features drop training-set churn_2011
    """
    project = Project.open(path)
    planned = plan_drop(project.lake, project.definitions, kind.replace("-", "_"), name, generation)
    if not as_json:
        click.echo(_shown(project.lake, planned))
    if not yes:
        typed = click.prompt(
            f"Type {name} to delete this", default="", show_default=False, err=True
        )
        if typed != name:
            raise click.ClickException("nothing was deleted: the name was not typed")
    store = project.store if planned.online else None
    job_state = job_state_folder(project.config.state_dir, project.config.flink)
    details = {"kind": planned.kind, "generation": generation, "tables": list(planned.tables)}
    with project.audited("drop", name, details):
        planned.carry_out(project.lake, project.name, store, job_state, now_ms())
    if as_json:
        click.echo(json.dumps({"kind": planned.kind, "name": name, "tables": planned.tables}))
    else:
        click.echo("deleted")


def _shown(lake: Lake, planned: Drop) -> str:
    lines = [f"- table {table}, {rows_of(lake, table):,} rows" for table in planned.tables]
    if planned.online:
        lines.append(f"- all records of {planned.name} in the online store")
    if planned.registered:
        lines.append(f"- {planned.kind.replace('_', ' ')} {planned.name} in the registry")
    return "\n".join([*lines, *(f"  note: {note}" for note in planned.notes)])
