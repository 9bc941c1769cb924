"""Deltas: the files of one snapshot, and their rows."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import DamagedFileError, SnapshotExpiredError, TableError
from paimon_features.core.hashing.buckets import bucket_of
from paimon_features.core.types.schema import Int64, String
from paimon_features.lake.catalog import Lake
from paimon_features.lake.reading.deltas import (
    DataFile,
    live_files,
    read_delta,
    read_file,
)
from paimon_features.lake.reading.table_reader import read_arrow
from paimon_features.lake.writing.table_writer import append_arrow
from tests.lake.spec_forms import raw_bucket

ByKey = Callable[[pa.Table], dict[tuple[Any, ...], dict[str, Any]]]


def test_the_deltas_together_contain_every_row_once(lake: Lake, tiles: Any) -> None:
    name = tiles.spec.name
    for count in (50, 80):
        append_arrow(lake, name, tiles.rows(count))
    for snapshot_id, count in ((1, 50), (2, 80)):
        delta = read_delta(lake, name, snapshot_id)
        assert delta.snapshot.id == snapshot_id
        assert {(f.kind, f.level) for f in delta.files} == {("ADD", 0)}
        added = [read_file(f, ["p_n", "tile_day"]) for f in delta.files]
        assert [t.num_rows for t in added] == [f.rows for f in delta.files]
        assert sum(pc.sum(t.column("p_n")).as_py() for t in added) == count
        for file, table in zip(delta.files, added, strict=True):
            assert set(table.column("tile_day").to_pylist()) == {file.partition["tile_day"]}
            assert os.path.getsize(file.path) == file.size


def test_a_file_contains_only_entities_of_its_bucket(lake: Lake, tiles: Any) -> None:
    append_arrow(lake, tiles.spec.name, tiles.rows(200))
    for bucket, files in read_delta(lake, tiles.spec.name, 1).by_bucket().items():
        for file in files:
            table = read_file(file, ["customer_id", "country"])
            keys = [Column.from_arrow(table.column(i)).values for i in (0, 1)]
            assert set(bucket_of(keys, [Int64, String], 2).tolist()) == {bucket}


def test_the_live_files_are_those_of_all_snapshots_up_to_one(lake: Lake, tiles: Any) -> None:
    name = tiles.spec.name
    for _ in range(3):
        append_arrow(lake, name, tiles.rows(60))
    paths: set[str] = set()
    for snapshot_id in (1, 2, 3):
        paths |= {f.path for f in read_delta(lake, name, snapshot_id).files}
        live = live_files(lake, name, snapshot_id)
        assert {f.path for f in live} == paths
        one = live_files(lake, name, snapshot_id, [1])
        assert sorted(f.path for f in one) == sorted(f.path for f in live if f.bucket == 1)


def test_folding_the_raw_files_of_a_bucket_equals_its_merged_read(
    lake: Lake, tiles: Any, by_key: ByKey
) -> None:
    name, keys = tiles.spec.name, list(tiles.spec.primary_key)
    for _ in range(4):
        append_arrow(lake, name, tiles.rows(100))
    whole: dict[Any, Any] = {}
    for bucket in (0, 1):
        raw = raw_bucket(lake, name, bucket, 4, [*keys, "p_n", "p_i"])
        folded = raw.group_by(keys).aggregate([("p_n", "sum"), ("p_i", "max")])
        merged = read_arrow(lake, name, tiles.spec.columns, 4, buckets=[bucket])
        assert raw.num_rows > merged.num_rows == folded.num_rows
        order = [(key, "ascending") for key in keys]
        for column in ("p_n_sum", "p_i_max"):
            expected = merged.sort_by(order).column(column[:3]).to_pylist()
            assert folded.sort_by(order).column(column).to_pylist() == expected
        whole |= by_key(merged)
    assert whole == tiles.merged
    assert raw_bucket(lake, name, 9, 4, ["p_n"]).num_rows == 0


def test_an_expired_snapshot_manifest_or_file_is_an_error_not_an_empty_delta(
    lake: Lake, tiles: Any
) -> None:
    name = tiles.spec.name
    for _ in range(2):
        append_arrow(lake, name, tiles.rows(20))
    file = read_delta(lake, name, 1).files[0]
    os.remove(file.path)
    with pytest.raises(SnapshotExpiredError, match="no longer exists.*rebuild"):
        read_file(file, ["p_n"])
    os.remove(f"{lake.path(name)}/snapshot/snapshot-1")
    with pytest.raises(SnapshotExpiredError, match="no snapshot 1; it has 2 to 2"):
        read_delta(lake, name, 1)
    for manifest in Path(lake.path(name), "manifest").glob("manifest-*"):
        manifest.unlink()
    with pytest.raises(SnapshotExpiredError):
        read_delta(lake, name, 2)
    with pytest.raises(SnapshotExpiredError):
        live_files(lake, name, 2)


def test_a_tag_keeps_a_delta_readable(lake: Lake, tiles: Any) -> None:
    name = tiles.spec.name
    for _ in range(2):
        append_arrow(lake, name, tiles.rows(20))
    before = read_delta(lake, name, 1)
    lake.table(name).create_tag("kept", 1)
    os.remove(f"{lake.path(name)}/snapshot/snapshot-1")
    assert read_delta(lake, name, 1) == before


@pytest.mark.parametrize(("kind", "text"), [(1, "UPDATE_BEFORE"), (3, "DELETE")])
def test_a_row_other_than_an_insert_stops_the_reader(tmp_path: Path, kind: int, text: str) -> None:
    path = str(tmp_path / "data.parquet")
    kinds = pa.array([0, kind, kind], pa.int8())
    pq.write_table(pa.table({"_VALUE_KIND": kinds, "p_n": [1, 2, 3]}), path)
    file = DataFile(0, {}, path, 0, "ADD", 3, os.stat(path).st_size, 0)
    with pytest.raises(TableError, match=f"2 of 3 rows are not INSERT, the first is {text}"):
        read_file(file, ["p_n"])
    assert read_file(file, ["p_n"], insert_only=False).num_rows == 3


def test_a_column_added_after_a_file_is_null(tmp_path: Path) -> None:
    path = str(tmp_path / "data.parquet")
    pq.write_table(pa.table({"a": [1, 2]}), path)
    file = DataFile(0, {}, path, 0, "ADD", 2, os.stat(path).st_size, 0)
    table = read_file(file, ["b", "a"])
    assert table.to_pylist() == [{"b": None, "a": 1}, {"b": None, "a": 2}]


def test_reading_all_columns_of_a_bucket_keeps_the_tables_types(lake: Lake, tiles: Any) -> None:
    append_arrow(lake, tiles.spec.name, tiles.rows(50))
    names = list(tiles.spec.columns)
    raw = raw_bucket(lake, tiles.spec.name, 0, 1, names)
    merged = read_arrow(lake, tiles.spec.name, names, 1)
    assert [f.type for f in raw.schema] == [f.type for f in merged.schema]


def test_files_are_listed_again_where_a_manifest_has_changed(lake: Lake, tiles: Any) -> None:
    name = tiles.spec.name
    append_arrow(lake, name, tiles.rows(20))
    found = live_files(lake, name, 1)
    found.clear()  # a list of the caller's own
    assert live_files(lake, name, 1)
    for path in (Path(lake.path(name)) / "manifest").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedFileError):
        live_files(lake, name, 1)
