"""Files of an append table: any order of partitions, bounded memory, all rows or none."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from paimon_features.core.errors import TableError
from paimon_features.core.types.schema import Int32, Int64, String
from paimon_features.lake import Lake, latest_snapshot, read_arrow
from paimon_features.lake.reading.deltas import live_files
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.append_files import AppendFiles
from paimon_features.lake.writing.table_writer import append_files

SPEC = TableSpec("t", {"day": Int32, "n": Int64, "text": String}, partition_by=("day",))


def rows(numbers: list[int]) -> pa.Table:
    days = pa.array([number % 7 - 3 for number in numbers], pa.int32())
    texts = [None if number % 5 == 0 else f"text {number}" for number in numbers]
    return pa.table({"day": days, "n": pa.array(numbers, pa.int64()), "text": texts})


def lake_with(folder: Path, spec: TableSpec) -> Lake:
    lake = Lake.open(str(folder / "lake"), "features")
    lake.create(spec)
    return lake


def test_rows_are_those_that_were_written_in_any_order(tmp_path: Path) -> None:
    lake = lake_with(tmp_path, SPEC)
    numbers = list(range(5_000))
    random.Random(1).shuffle(numbers)
    # so little that files are written while rows arrive
    with AppendFiles(lake, "t", "u", held_bytes=20_000, file_bytes=4_000) as files:
        for start in range(0, 5_000, 400):
            files.write(rows(numbers[start : start + 400]))
        assert append_files(lake, "t", files, "u") == 1
    found = read_arrow(lake, "t").sort_by("n")
    assert found.equals(rows(list(range(5_000))).cast(found.schema))
    written = live_files(lake, "t", 1)
    assert len(written) > 7
    assert {file.partition["day"] for file in written} == set(range(-3, 4))
    # readers skip files by the statistics of their columns
    low = read_arrow(lake, "t", where={"n": [3]})
    assert low["text"].to_pylist() == ["text 3"]


def test_rows_that_are_not_committed_leave_no_file(tmp_path: Path) -> None:
    lake = lake_with(tmp_path, SPEC)
    with AppendFiles(lake, "t", "u", held_bytes=1, file_bytes=1) as files:
        files.write(rows(list(range(100))))
        assert files.messages()
        assert list(Path(lake.path("t")).rglob("*.parquet"))
    assert latest_snapshot(lake, "t") is None
    assert not list(Path(lake.path("t")).rglob("*.parquet"))


def test_a_table_without_partitions_and_no_rows(tmp_path: Path) -> None:
    lake = lake_with(tmp_path, TableSpec("t", {"day": Int32, "n": Int64, "text": String}))
    with AppendFiles(lake, "t", "u") as files:
        assert append_files(lake, "t", files, "u") is None
    with AppendFiles(lake, "t", "u") as files:
        files.write(rows([1, 2]))
        files.write(rows([]))
        assert append_files(lake, "t", files, "u") == 1
    assert sorted(read_arrow(lake, "t")["n"].to_pylist()) == [1, 2]


def test_a_table_with_a_primary_key_is_rejected(tmp_path: Path) -> None:
    spec = TableSpec("t", {"n": Int64}, primary_key=("n",), options={"bucket": "1"})
    lake = lake_with(tmp_path, spec)
    with pytest.raises(TableError, match="expected an append table"):
        AppendFiles(lake, "t", "u")
