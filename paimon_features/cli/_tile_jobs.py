"""Options that the commands about tile jobs share, and the generation that they choose."""

from __future__ import annotations

from dataclasses import replace

import click

from paimon_features.project import Project
from paimon_features.tiles.jobs.target import TileTarget

GENERATION = click.option(
    "--generation", type=int, help="Generation; default: the one that matches the definition."
)
PARALLELISM = click.option(
    "--parallelism", type=click.IntRange(min=1), help="Parallel tasks; default: the project's."
)
REBUILD = click.option(
    "--rebuild", is_flag=True, help="Empty the generation first, then recompute its tiles."
)


def tile_target(
    path: str, view: str, generation: int | None, parallelism: int | None
) -> TileTarget:
    target = TileTarget.of(Project.open(path), view, generation)
    if parallelism is None:
        return target
    return replace(target, flink=replace(target.flink, parallelism=parallelism))
