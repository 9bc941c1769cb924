"""``cancel``: stop the tile job of a view with a savepoint."""

from __future__ import annotations

import click

from paimon_features.cli._names import VIEW_NAME
from paimon_features.cli._options import PROJECT
from paimon_features.cli._tile_jobs import GENERATION, tile_target
from paimon_features.tiles.jobs import jobs as job_control


@click.command()
@click.argument("view", shell_complete=VIEW_NAME)
@GENERATION
@PROJECT
def cancel(view: str, generation: int | None, path: str) -> None:
    """Stop the tile job of VIEW with a savepoint, in any process or cluster.

    'submit' resumes from the savepoint.

    \b
    paimon-features cancel customer_spend
    """
    target = tile_target(path, view, generation, None)
    savepoint = job_control.cancel(target)
    if savepoint is None:
        click.echo(f"the backfill of {target} is cancelled; nothing was committed")
    else:
        click.echo(
            f"stopped, savepoint {savepoint}; 'paimon-features submit {view}' resumes from it"
        )
