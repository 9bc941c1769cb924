"""The differential matrix of windows over tiles computed by Flink, in batch and streaming."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest

from paimon_features.core.windows import KINDS, Kind
from paimon_features.definitions import FeatureView
from paimon_features.lake import read_arrow
from paimon_features.tiles.flink.submission import backfill, submit
from paimon_features.tiles.jobs.target import TileTarget
from tests.chaos import part_of_chaos
from tests.matrix import BATCHES, Cell, cells, wrong
from tests.matrix_paths import events_table, from_tiles
from tests.tile_jobs import append_events

pytestmark = pytest.mark.flink

TargetOf = Callable[[str, FeatureView], TileTarget]


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "kinds", "tile", "retracted"),
    [
        ("batch", KINDS, "5min", True),
        ("stream", KINDS, "5min", False),
        pytest.param("batch", KINDS, "5min", False, marks=part_of_chaos("the others cover it")),
        pytest.param("stream", ["exact"], "1ms", True, marks=part_of_chaos("the others cover it")),
    ],
)
def test_features_from_flink_tiles_equal_the_oracle_in_every_cell(
    target_of: TargetOf, mode: str, kinds: Sequence[Kind], tile: str, retracted: bool
) -> None:
    # tiles do not depend on windows: one job computes those for all kinds, grains and orders of
    # a source
    matrix = [
        cell
        for cell in cells([(kind, tile) for kind in kinds])
        if (cell.order == "retracted") == retracted
    ]
    target = target_of(mode, matrix[0].view)
    for number in range(BATCHES):
        sources = {cell.stem: cell for cell in matrix}.values()
        events = [event for cell in sources for event in cell.batches[number]]
        arrived = events_table(matrix[0].view, events)
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
