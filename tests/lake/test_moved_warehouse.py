"""A warehouse that was moved, restored elsewhere or mounted twice: the same rows on every way."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from copy import copy
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pytest

from paimon_features.core.errors import TableError
from paimon_features.core.types.schema import Int64
from paimon_features.lake import append_arrow
from paimon_features.lake.catalog import Lake
from paimon_features.lake.specs import TableSpec
from paimon_features.testing.sizes import every_seed
from tests.lake.harm import harm
from tests.lake.ways_of_reading import EVENTS, READS, TILES, sorted_rows, write
from tests.long_cases import quick_cases
from trainer_bridge import SnapshotReader
from trainer_bridge.blocks.layout import Layout
from trainer_bridge.blocks.mask_cache import MaskCache
from trainer_bridge.blocks.open_layout import read_layout
from trainer_bridge.blocks.row_groups import row_groups
from trainer_bridge.blocks.row_selection import MergeUnit, RowSelection

FIELDS = fields(RowSelection)


def units_of(layout: Layout) -> list[MergeUnit]:
    files = layout.selector.data_files.files.values()
    return [tuple(sorted(files, key=lambda file: file.place))]


TILE_ROWS = pa.table({"tile_day": pa.array([0], pa.int32()), "k": [1], "tile_start": [0], "n": [5]})


def moved(warehouse: Path) -> Path:
    return warehouse.rename(warehouse.with_name("moved"))


def restored(warehouse: Path) -> Path:
    shutil.copytree(warehouse, warehouse.with_name("backup"))
    shutil.rmtree(warehouse)
    return shutil.copytree(warehouse.with_name("backup"), warehouse.with_name("restored"))


def mounted(warehouse: Path) -> Path:
    link = warehouse.with_name("mount")
    link.symlink_to(warehouse)
    return link


def in_place(warehouse: Path) -> Path:
    return warehouse


PLACES: dict[str, Callable[[Path], Path]] = {
    "moved": moved,
    "restored": restored,
    "mounted": mounted,
    "in place": in_place,
}


@pytest.mark.parametrize("place", quick_cases(PLACES, "moved", "in place"))
def test_every_way_of_reading_returns_the_rows_that_it_returned_before(
    tmp_path: Path, place: str
) -> None:
    lake = Lake.open(tmp_path / "w", "shop")
    write(lake)
    tables = (EVENTS, TILES)
    before = {(n, t): sorted_rows(read(lake, t)) for n, read in READS.items() for t in tables}
    assert len(before["reader", TILES]) == 300
    assert len(before["reader where", TILES]) == 5
    caches = sorted(lake.side_folder.glob("merges/*/*"))
    assert caches  # the rows of both tables that are read are known without reading keys
    again = Lake.open(PLACES[place](tmp_path / "w"), "shop")
    for (name, table), rows in before.items():
        assert sorted_rows(READS[name](again, table)) == rows, f"{name}, {table}"
    # the cache is found in the new place, too
    assert sorted(again.side_folder.glob("merges/*/*")) == [
        again.side_folder / path.relative_to(lake.side_folder) for path in caches
    ]


@pytest.mark.parametrize("engine", ["deduplicate", "aggregation"])
@pytest.mark.parametrize("where", [None, "k < 7", "n = 1"])
def test_a_moved_table_of_every_engine_is_merged_and_filtered(
    tmp_path: Path, engine: str, where: str | None
) -> None:
    lake = Lake.open(tmp_path / "w", "shop")
    options = {"bucket": "2", "merge-engine": engine}
    if engine == "aggregation":
        options["fields.n.aggregate-function"] = "sum"
    lake.create(TableSpec("keyed", {"k": Int64, "n": Int64}, ("k",), options=options))
    for n in range(3):
        append_arrow(lake, "keyed", pa.table({"k": range(n, n + 20), "n": [n] * 20}))

    def rows(lake: Lake) -> list[tuple[int, int]]:
        options = {"batch_size": 4, "where": where, "shuffle": False, "drop_last": False}
        with SnapshotReader(lake, "keyed", **options) as reader:  # type: ignore[arg-type]
            return [
                pair for b in reader for pair in zip(b["k"].tolist(), b["n"].tolist(), strict=True)
            ]

    before = rows(lake)
    assert 0 < len(before) <= 22
    assert rows(Lake.open(moved(tmp_path / "w"), "shop")) == before


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Files that merge, under a condition."""
    lake = Lake.open(tmp_path_factory.mktemp("layout") / "w", "shop")
    write(lake)
    append_arrow(lake, TILES, TILE_ROWS)
    found = read_layout(lake, TILES, 4, 200, where="n > 3")
    assert found.num_rows < 300
    return found


@pytest.mark.parametrize("name", ["masks", "complete", "folded", "layers"])
def test_a_selection_of_other_files_is_not_used(layout: Layout, tmp_path: Path, name: str) -> None:
    cache = MaskCache(tmp_path / "masks", layout.selector.data_files, "n > 3")
    units = units_of(layout)
    cache.save(layout.selection)
    assert cache.load(units) == layout.selection
    changed = RowSelection(**{f.name: copy(getattr(layout.selection, f.name)) for f in FIELDS})
    part = getattr(changed, name)
    if name == "complete":
        part.add(units[0][0].path)
    else:
        del part[min(part)]
    cache.save(changed)
    assert cache.load(units) is None


def test_rows_that_were_not_examined_are_an_error(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "w", "shop")
    write(lake)
    layout = read_layout(lake, TILES, 3, 200)
    units = units_of(layout)
    with pytest.raises(TableError, match="it is not known which of its 300 rows are read"):
        list(row_groups(layout.selector, units, RowSelection(), 200))


@every_seed(60)
def test_a_damaged_cache_is_a_missing_one(layout: Layout, tmp_path: Path, seed: int) -> None:
    cache = MaskCache(tmp_path, layout.selector.data_files, "n > 3")
    cache.save(layout.selection)
    (path,) = tmp_path.iterdir()
    content, dice = path.read_bytes(), random.Random(seed)
    how = harm(dice, path, [path])
    found = cache.load(units_of(layout))
    assert found == (layout.selection if path.read_bytes() == content else None), how


def test_the_caches_of_an_earlier_version_are_deleted(layout: Layout, tmp_path: Path) -> None:
    (tmp_path / "0123.npz").write_bytes(b"PK")
    MaskCache(tmp_path, layout.selector.data_files, "n > 3").save(layout.selection)
    assert [path.suffix for path in tmp_path.iterdir()] == [".masks"]
