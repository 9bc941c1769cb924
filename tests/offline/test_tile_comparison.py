"""Recomputed tiles equal the reference tiler's, and every tampered value is reported."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from paimon_features.core.columns.column import Column
from paimon_features.core.times.partition_days import first_day
from paimon_features.definitions import FeatureView
from paimon_features.definitions.aggregates.fold import canonical
from paimon_features.lake import latest_snapshot, read_arrow
from paimon_features.testing.generators import random_events
from paimon_features.testing.sizes import seeds
from paimon_features.tiles import tile_comparison as retile
from paimon_features.tiles.tile_comparison import DayComparison, compare_day
from tests import generators
from tests.offline.lake_of_views import LakeOfViews, partition_days


def compare_all(lake: LakeOfViews, view: FeatureView) -> list[DayComparison]:
    compiled = view.compiled
    table = compiled.table(1)
    events, tiles = latest_snapshot(lake.lake, view.source.table), latest_snapshot(lake.lake, table)
    assert events is not None
    first = set(read_arrow(lake.lake, view.source.table, ["event_day"])["event_day"].to_pylist())
    first |= set(read_arrow(lake.lake, table, ["tile_day"])["tile_day"].to_pylist())
    at, step = None if tiles is None else tiles.id, max(lake.partition_days)
    return [
        compare_day(lake.lake, compiled, table, day, events.id, at, step)
        for day in sorted({first_day(day, step) for day in first})
    ]


@pytest.mark.parametrize("seed", seeds(6))
def test_tiles_of_random_views_are_found_right_and_tampered_ones_wrong(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(retile, "FOLD_ROWS", rng.choice((3, 10**6)))
    view = generators.random_view(rng)
    lake = LakeOfViews(tmp_path, view, partition_days=partition_days(seed))
    events = random_events(rng, view, 60)
    for start in range(0, events.num_rows, 25):
        lake.commit(events[start : start + 25])
    days = compare_all(lake, view)
    assert [day for day in days if day.differs] == []
    tiles = read_arrow(lake.lake, view.compiled.table(1))
    again = pa.concat_tables([day.tiles for day in days]).select(tiles.column_names)
    assert _exact(view, again) == _exact(view, tiles)

    lake.commit_tiles(events[:5])
    entered = read_arrow(lake.lake, view.compiled.table(1))
    differs = [day for day in compare_all(lake, view) if day.differs]
    assert bool(differs) == (_exact(view, entered) != _exact(view, tiles))


def test_every_kind_of_difference_is_counted_with_old_and_new_value(tmp_path: Path) -> None:
    rng = random.Random(2)
    view = generators.random_view(rng)
    lake = LakeOfViews(tmp_path, view)
    lake.commit(random_events(rng, view, 30), tiles=False)
    days = compare_all(lake, view)
    missing = sum(day.tiles.num_rows for day in days)
    assert missing == sum(day.missing for day in days) > 0
    assert all(c.partial == "p_rows" and c.found is None for day in days for c in day.examples)


def _exact(view: FeatureView, tiles: pa.Table) -> list[dict[str, Any]]:
    """The rows without their float sums, which may differ by rounding, in one order.

    Lists of items, which the lake keeps as they came, are in theirs.
    """
    partials = [replace(p, limit=None) for p in view.compiled.partials]
    columns = {p.name: Column.from_arrow(tiles.column(p.name)) for p in partials}
    for p, column in zip(partials, canonical(partials, columns).values(), strict=True):
        at, kind = tiles.schema.get_field_index(p.name), tiles.schema.field(p.name).type
        tiles = tiles.set_column(at, p.name, column.to_arrow(kind))
    floats = [p.name for p in view.compiled.partials if p.type.is_float and p.merge.retractable]
    rows = tiles.drop_columns(floats).to_pylist()
    return sorted(rows, key=lambda row: repr([row[k] for k in (*view.compiled.keys, "tile_start")]))
