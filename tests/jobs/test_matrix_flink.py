"""The differential matrix of windows over tiles that Flink makes, as a batch and as a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest

from jobs.submission import backfill, submit
from jobs.target import TileTarget
from paimon_features.definitions import FeatureView
from paimon_features.tables import read_arrow
from paimon_features.testing.matrix import BATCHES, Cell, cells, wrong
from paimon_features.testing.matrix_paths import events_table, from_tiles
from paimon_features.testing.tile_jobs import append_events
from paimon_features.windows import KINDS, Kind

pytestmark = pytest.mark.flink

TargetOf = Callable[[str, FeatureView], TileTarget]


@pytest.mark.parametrize(
    ("mode", "kinds", "tile"),
    [("batch", KINDS, "5min"), ("stream", ["exact"], "5min"), ("stream", ["exact"], "1ms")],
)
def test_flinks_tiles_answer_every_cell_like_the_oracle(
    target_of: TargetOf, mode: str, kinds: Sequence[Kind], tile: str
) -> None:
    # the tile job does not know windows: one job makes the tiles for all kinds, grains and orders
    matrix = cells([(kind, tile) for kind in kinds])
    target = target_of(mode, matrix[0].view)
    for number in range(BATCHES):
        sources = {cell.stem: cell for cell in matrix}.values()
        arrived = events_table([event for cell in sources for event in cell.batches[number]])
        append_events(target.lake, matrix[0].view, arrived)
    if mode == "batch":
        backfill(target)
    else:
        assert submit(target, bounded=True).state == "STOPPED"
    tiles = read_arrow(target.lake, target.tables[0])
    for cell in matrix:
        assert not wrong(cell, cell.questions, from_tiles(cell, of(tiles, cell), cell.questions))


def of(tiles: pa.Table, cell: Cell) -> pa.Table:
    """The tiles of a cell's users."""
    mine = [user.startswith(f"{cell.stem}-") for user in tiles["user"].to_pylist()]
    return tiles.filter(pa.array(mine))
