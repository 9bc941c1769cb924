"""Repair of tiles of a local backfill, which needs no Flink; ``test_repair_flink`` has a job."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from paimon_features.core.configuration.project_config import FlinkConfig
from paimon_features.core.times.partition_days import first_day
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import Definitions
from paimon_features.lake import Lake, append_arrow, read_arrow, table_options
from paimon_features.lake.metadata.snapshots import BATCH_IDENTIFIER
from paimon_features.lake.writing.table_writer import EventWriter
from paimon_features.project.planning.plan import apply_plan
from paimon_features.tiles.flink.repair import repair
from paimon_features.tiles.jobs.target import TileTarget
from paimon_features.tiles.local.submission import backfill
from tests.clicks import clicks_view
from tests.long_cases import quick_cases

DAY = 15_000


@pytest.mark.parametrize(("of_events", "of_tiles"), quick_cases([(1, 64), (64, 8)], (64, 8)))
def test_partitions_of_several_days_are_repaired_as_a_whole(
    tmp_path: Path, of_events: int, of_tiles: int
) -> None:
    lake = Lake.open(tmp_path / "lake", "features")
    view = clicks_view()
    apply_plan(lake, Definitions.of([view]), now_ms=0)
    target = TileTarget("shop", lake, view.compiled, 1, tmp_path / "state", FlinkConfig(1, 1_000))
    source = view.source
    table_options.set_partition_days(lake, source.table, of_events)
    times = [(DAY + day) * DAY_MS for day in range(0, 200, 3)]
    nulls = {
        name: pa.nulls(len(times), kind.arrow)
        for name, kind in source.schema.items()
        if name not in (source.event_time, *view.entity.keys)
    }
    keys = {name: pa.array([1] * len(times), kind.arrow) for name, kind in view.entity.keys.items()}
    events = pa.table({**keys, source.event_time: times, **nulls}).select(list(source.schema))
    EventWriter.of(lake, source, lambda: 2 * times[-1]).write(events)
    table_options.set_partition_days(lake, target.tables[0], of_tiles)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TileTarget, "choose_partitions", lambda *_: None)
        backfill(target)
    right = read_arrow(lake, target.tables[0])
    assert right.num_rows == len(times)

    # a tile twice, one too much, and all of one partition that has no events
    row = right.slice(0, 1)
    day = first_day(DAY + 400, of_tiles)
    stray = row.set_column(0, right.schema.field(0), pa.array([day], pa.int32()))
    start = right.schema.get_field_index("tile_start")
    stray = stray.set_column(start, right.schema.field(start), pa.array([(DAY + 400) * DAY_MS]))
    user = f"{target.record().commit_user}_mistake"
    rows = pa.concat_tables([row, stray])
    append_arrow(lake, target.tables[0], rows, commit_user=user, commit_identifier=BATCH_IDENTIFIER)
    shown = repair(target, 0, 20_000)
    assert [found.changed + found.spurious for found in shown.days] == [1, 1]
    part = repair(target, DAY + 400, DAY + 400)
    assert [found.days for found in part.days] == [max(of_events, of_tiles)]
    assert repair(target, 0, 20_000, fix=True).ok
    assert repair(target, 0, 20_000).days == ()
    order = [("tile_start", "ascending")]
    fixed = read_arrow(lake, target.tables[0]).sort_by(order)
    assert fixed.equals(right.sort_by(order))
