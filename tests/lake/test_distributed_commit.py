"""Commits in parts: no part is visible before all are published together."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from paimon_features.core.errors import TableError
from paimon_features.core.types.schema import Int32, Int64
from paimon_features.lake import Lake, TableSpec, append_arrow, read_arrow, snapshots
from paimon_features.lake.writing.distributed_commit import replace_partitions, write_part


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake.open(tmp_path, "shop")
    lake.create(TableSpec("scores", {"part": Int32, "n": Int64}, partition_by=("part",)))
    return lake


def rows(part: int, *numbers: int) -> pa.Table:
    return pa.table({"part": [part] * len(numbers), "n": list(numbers)})


def found(lake: Lake) -> dict[int, list[int]]:
    read: dict[int, list[int]] = {}
    for row in read_arrow(lake, "scores").to_pylist():
        read.setdefault(row["part"], []).append(row["n"])
    return {part: sorted(numbers) for part, numbers in sorted(read.items())}


def test_parts_replace_their_partitions_together_and_no_others(lake: Lake) -> None:
    append_arrow(lake, "scores", pa.concat_tables([rows(1, 1, 2), rows(2, 3), rows(3, 4)]))
    parts = [write_part(lake, "scores", each) for each in (rows(1, 10), rows(2, 20), rows(2, 21))]
    assert found(lake) == {1: [1, 2], 2: [3], 3: [4]}
    elsewhere = Lake.open(lake.warehouse, "shop")
    made = replace_partitions(
        elsewhere, "scores", parts, after=1, commit_user="me", properties={"epoch": "7"}
    )
    assert found(lake) == {1: [10], 2: [20, 21], 3: [4]}
    assert (made.id, made.commit_user, made.properties["epoch"]) == (2, "me", "7")
    assert [each.id for each in snapshots(lake, "scores")] == [1, 2]


def test_a_commit_on_an_outdated_snapshot_changes_nothing(lake: Lake) -> None:
    first, second = (write_part(lake, "scores", rows(1, n)) for n in (1, 2))
    replace_partitions(lake, "scores", [first], after=0, commit_user="a", properties={})
    with pytest.raises(TableError, match="is at snapshot 1, expected 0"):
        replace_partitions(lake, "scores", [second], after=0, commit_user="b", properties={})
    assert found(lake) == {1: [1]}


def test_a_commit_without_rows_is_rejected(lake: Lake) -> None:
    empty = pickle.dumps([])
    with pytest.raises(TableError, match="a commit of no rows replaces no partition"):
        replace_partitions(lake, "scores", [empty], after=0, commit_user="a", properties={})


def test_rows_of_another_schema_are_rejected_before_writing(lake: Lake) -> None:
    with pytest.raises(TableError, match="has no column 'm'"):
        write_part(lake, "scores", pa.table({"part": [1], "m": [1]}))
    assert not list(Path(lake.path("scores")).rglob("*.parquet"))
