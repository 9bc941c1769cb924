"""Short partitions of an events table become longer ones; its rows stay, for every reader."""

from __future__ import annotations

import pyarrow as pa
import pytest

from paimon_features.core.errors import DamagedFileError
from paimon_features.core.types.schema import Int64, String
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import EventSource
from paimon_features.lake import Lake, latest_snapshot, read_arrow, snapshots, table_options
from paimon_features.lake.reading.deltas import live_files, read_delta
from paimon_features.lake.specs import events_spec
from paimon_features.lake.writing.partition_merge import MergedPartitions, merge_partitions
from paimon_features.lake.writing.table_writer import EventWriter

SOURCE = EventSource("visits", schema={"t": Int64, "word": String}, event_time="t")


@pytest.fixture
def table(lake: Lake) -> str:
    """Daily partitions, two commits, and days before 1970."""
    lake.create(events_spec(SOURCE.table, SOURCE.schema, 1))
    for late in (0, 3):
        write(lake, range(-20, 60, 4), late)
    return SOURCE.table


def write(lake: Lake, days: range, late: int = 0) -> None:
    times = [day * DAY_MS + late for day in days]
    rows = pa.table({"t": times, "word": [None if t % 3 else f"w{t}" for t in times]})
    EventWriter.of(lake, SOURCE, lambda: 100 * DAY_MS).write(rows)


def content(lake: Lake, snapshot: int | None = None) -> pa.Table:
    rows = read_arrow(lake, SOURCE.table, snapshot_id=snapshot)
    return rows.drop_columns("event_day").sort_by("t")


def test_merged_partitions_have_the_same_rows_in_fewer_files(lake: Lake, table: str) -> None:
    before = content(lake)
    assert merge_partitions(lake, table) == MergedPartitions(), "each is as long as it should be"
    table_options.set_partition_days(lake, table, 64)
    write(lake, range(60, 70, 4))  # the first partition of the longer ones is there already
    expected = content(lake)
    assert merge_partitions(lake, table) == MergedPartitions(before=20, after=2)
    assert content(lake).equals(expected)
    newest = latest_snapshot(lake, table)
    assert newest is not None
    assert newest.kind == "COMPACT"
    assert newest.total_records == expected.num_rows
    files = live_files(lake, table, newest.id)
    assert sorted(file.partition["event_day"] for file in files) == [-64, 0, 64]
    added = [file for file in read_delta(lake, table, newest.id).files if file.kind == "ADD"]
    assert sum(file.rows for file in added) < expected.num_rows, "one was long enough"
    assert content(lake, 2).equals(before), "earlier snapshots stay readable"
    assert merge_partitions(lake, table) == MergedPartitions()
    write(lake, range(70, 72))
    assert content(lake).num_rows == expected.num_rows + 2


def test_a_list_of_files_knows_a_changed_option(lake: Lake, table: str) -> None:
    newest = latest_snapshot(lake, table)
    assert newest is not None
    live_files(lake, table, newest.id)  # kept, and changed by no snapshot
    table_options.set_partition_days(lake, table, 64)
    assert {file.partition_days for file in live_files(lake, table, newest.id)} == {64}


def test_a_damaged_file_leaves_the_table_as_it_was(lake: Lake, table: str) -> None:
    table_options.set_partition_days(lake, table, 64)
    count = len(list(snapshots(lake, table)))
    newest = latest_snapshot(lake, table)
    assert newest is not None
    path = live_files(lake, table, newest.id)[-1].path
    with open(path, "r+b") as file:
        file.seek(4)
        file.write(bytes(12))
    with pytest.raises(DamagedFileError):
        merge_partitions(lake, table)
    assert len(list(snapshots(lake, table))) == count
