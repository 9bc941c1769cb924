"""Commits from Python: exactly once, and none lost between processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from paimon_features.core.errors import TableError
from paimon_features.core.types.schema import Int64
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.rollback import roll_back_table
from paimon_features.lake.metadata.snapshots import snapshot, snapshots
from paimon_features.lake.reading.table_reader import read_arrow
from paimon_features.lake.specs import TableSpec, registry_spec
from paimon_features.lake.writing import table_writer as writer
from paimon_features.lake.writing.table_writer import append_arrow, committed_identifiers


@pytest.fixture
def table(lake: Lake) -> str:
    lake.create(TableSpec("t", {"a": Int64, "b": Int64}))
    return "t"


def rows(value: int) -> pa.Table:
    return pa.table({"a": [value]})


def values(lake: Lake) -> list[int]:
    return sorted(read_arrow(lake, "t").column("a").to_pylist())


def test_each_append_is_one_snapshot(lake: Lake, table: str) -> None:
    assert append_arrow(lake, table, rows(1)) == 1
    assert append_arrow(lake, table, rows(2)) == 2
    assert values(lake) == [1, 2]


def test_a_repeated_commit_of_a_user_is_skipped(lake: Lake, table: str) -> None:
    for identifier in (0, 1, 0, 1, 2, 1):
        append_arrow(
            lake, table, rows(identifier), commit_user="run/1", commit_identifier=identifier
        )
    append_arrow(lake, table, rows(7), commit_user="run/2", commit_identifier=0)
    assert values(lake) == [0, 1, 2, 7]
    assert committed_identifiers(lake, table, "run/1") == 2
    assert committed_identifiers(lake, table, "run/2") == 0
    assert committed_identifiers(lake, table, "run/3") is None


def test_a_repeated_commit_is_skipped_after_its_snapshots_expired(lake: Lake, table: str) -> None:
    append_arrow(lake, table, rows(1), commit_user="run", commit_identifier=5)
    append_arrow(lake, table, rows(2))
    os.remove(f"{lake.path(table)}/snapshot/snapshot-1")
    assert committed_identifiers(lake, table, "run") == 5
    append_arrow(lake, table, rows(1), commit_user="run", commit_identifier=5)
    assert values(lake) == [1, 2]


def test_a_commit_whose_record_was_lost_is_found_in_the_snapshots(lake: Lake, table: str) -> None:
    # as after a kill -9 between the commit and the record of it
    append_arrow(lake, table, rows(1), commit_user="run", commit_identifier=5)
    shutil.rmtree(lake.side_folder / "commits")
    append_arrow(lake, table, rows(1), commit_user="run", commit_identifier=5)
    assert values(lake) == [1]


def test_a_rolled_back_commit_is_committed_again(lake: Lake, table: str) -> None:
    append_arrow(lake, table, rows(1))
    append_arrow(lake, table, rows(2), commit_user="run", commit_identifier=1)
    lake.table(table).rollback_to(1)
    assert committed_identifiers(lake, table, "run") is None
    append_arrow(lake, table, rows(3))  # takes the number of the lost snapshot
    assert committed_identifiers(lake, table, "run") is None
    append_arrow(lake, table, rows(2), commit_user="run", commit_identifier=1)
    assert values(lake) == [1, 2, 3]


@pytest.mark.parametrize("rolled_back", [False, True])
def test_a_removed_commit_is_committed_again_although_its_number_has_expired_since(
    lake: Lake, table: str, rolled_back: bool
) -> None:
    #  the run's commit is 2;  then 2 is another commit, and has expired
    append_arrow(lake, table, rows(1))
    append_arrow(lake, table, rows(2), commit_user="run", commit_identifier=1)
    if rolled_back:
        roll_back_table(lake, table, 1)
    else:
        lake.drop(table)
        lake.create(TableSpec("t", {"a": Int64, "b": Int64}))
        append_arrow(lake, table, rows(1))
    for value in (3, 4):
        append_arrow(lake, table, rows(value))
    for expired in (1, 2):
        os.remove(f"{lake.path(table)}/snapshot/snapshot-{expired}")
    assert committed_identifiers(lake, table, "run") is None
    append_arrow(lake, table, rows(2), commit_user="run", commit_identifier=1)
    assert values(lake) == [1, 2, 3, 4]


def test_a_commit_before_the_snapshot_of_a_rollback_stays_known(lake: Lake, table: str) -> None:
    append_arrow(lake, table, rows(1), commit_user="run", commit_identifier=1)
    for value in (2, 3):
        append_arrow(lake, table, rows(value))
    os.remove(f"{lake.path(table)}/snapshot/snapshot-1")
    roll_back_table(lake, table, 2)
    assert committed_identifiers(lake, table, "run") == 1


def test_an_error_after_publishing_is_not_a_failed_commit(
    lake: Lake, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = writer._commit

    def published_then_broken(*args: Any) -> None:
        real(*args)
        raise OSError("the answer was lost")

    monkeypatch.setattr(writer, "_commit", published_then_broken)
    assert append_arrow(lake, table, rows(1)) == 1
    monkeypatch.setattr(writer, "_commit", lambda *args: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        append_arrow(lake, table, rows(2))
    assert values(lake) == [1]


def test_properties_are_stored_in_the_snapshot(lake: Lake, table: str) -> None:
    newest = append_arrow(lake, table, rows(1), properties={"source": "x@3"})
    assert snapshot(lake, table, newest).properties == {"source": "x@3"}


def test_an_empty_table_commits_nothing(lake: Lake, table: str) -> None:
    assert append_arrow(lake, table, rows(1).slice(0, 0)) == 0
    assert list(snapshots(lake, table)) == []


def test_columns_are_matched_by_name_and_cast_if_lossless(lake: Lake) -> None:
    lake.create(TableSpec("t", {"a": Int64, "b": Int64}))
    append_arrow(lake, "t", pa.table({"b": pa.array([2], pa.int8()), "a": [1]}))
    assert read_arrow(lake, "t").to_pylist() == [{"a": 1, "b": 2}]
    with pytest.raises(TableError, match="unknown column 'c' of table 't'; available: a, b"):
        append_arrow(lake, "t", pa.table({"c": [1]}))
    with pytest.raises(TableError, match="column 'a'"):
        append_arrow(lake, "t", pa.table({"a": [1.5]}))
    with pytest.raises(TableError, match="must be given together"):
        append_arrow(lake, "t", rows(1), commit_user="x")


def test_a_null_key_is_rejected(lake: Lake, tiles: Any) -> None:
    table = tiles.rows(3)
    nulls = pa.nulls(3, pa.int64())
    table = table.set_column(table.column_names.index("customer_id"), "customer_id", nulls)
    with pytest.raises(TableError, match="key column 'customer_id' is null in 3 of 3 rows"):
        append_arrow(lake, tiles.spec.name, table)


_COMMITS = """
import sys
import pyarrow as pa
from paimon_features.lake.catalog import Lake
from paimon_features.lake.writing.table_writer import append_arrow
lake = Lake.open(sys.argv[1], "features")
for value in range(30):
    row = {"name": [f"{sys.argv[2]}-{value}"], "version": pa.array([value], pa.int32())}
    append_arrow(lake, "registry", pa.table(row))
"""


@pytest.mark.long
def test_concurrent_commits_of_two_processes_are_all_kept(lake: Lake) -> None:
    lake.create(registry_spec())
    command = [sys.executable, "-c", _COMMITS, lake.warehouse]
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    running = [subprocess.Popen([*command, name], env=environment) for name in ("a", "b")]
    assert [process.wait(120) for process in running] == [0, 0]
    names = read_arrow(lake, "registry").column("name").to_pylist()
    assert sorted(names) == sorted(f"{p}-{v}" for p in "ab" for v in range(30))
    assert [s.id for s in snapshots(lake, "registry")] == list(range(1, 61))
