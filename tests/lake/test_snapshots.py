"""Snapshots: listed in order, found by time, and an error where one has expired."""

from __future__ import annotations

import os
import time

import pyarrow as pa
import pytest

from paimon_features.core.errors import SnapshotExpiredError, TableError, UnknownNameError
from paimon_features.core.types.schema import Int64
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata import table_history
from paimon_features.lake.metadata.snapshots import (
    earliest_snapshot_id,
    latest_snapshot,
    snapshot,
    snapshot_as_of,
    snapshots,
)
from paimon_features.lake.metadata.tags import create_tag, delete_tag, tagged
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import append_arrow


@pytest.fixture
def table(lake: Lake) -> str:
    lake.create(TableSpec("t", {"a": Int64}))
    return "t"


def commit(lake: Lake, count: int) -> None:
    for value in range(count):
        append_arrow(lake, "t", pa.table({"a": [value] * (value + 1)}))
        time.sleep(0.003)  # commit times that differ


def expire(lake: Lake, *ids: int) -> None:
    for snapshot_id in ids:
        os.remove(f"{lake.path('t')}/snapshot/snapshot-{snapshot_id}")


def test_an_empty_table_has_no_snapshot(lake: Lake, table: str) -> None:
    assert latest_snapshot(lake, table) is None
    assert earliest_snapshot_id(lake, table) is None
    assert list(snapshots(lake, table)) == []
    assert list(snapshots(lake, table, from_id=1)) == []
    assert snapshot_as_of(lake, table, time.time_ns()) is None
    with pytest.raises(SnapshotExpiredError, match="it has none"):
        snapshot(lake, table, 1)


def test_a_tag_is_made_once_and_of_a_snapshot_that_is_retained(lake: Lake, table: str) -> None:
    commit(lake, 3)
    create_tag(lake, table, "kept", 1)
    create_tag(lake, table, "kept", 1)  # again
    with pytest.raises(TableError, match="the tag 'kept' exists for snapshot 1, not 2; delete"):
        create_tag(lake, table, "kept", 2)
    expire(lake, 1, 2)
    create_tag(lake, table, "copy", 1)  # of the tag's snapshot, which is only there
    assert {name: found.id for name, found in tagged(lake, table).items()} == {"kept": 1, "copy": 1}
    with pytest.raises(SnapshotExpiredError, match="no snapshot 2; it has 3 to 3, and"):
        create_tag(lake, table, "late", 2)
    delete_tag(lake, table, "kept")
    delete_tag(lake, table, "kept")  # again
    delete_tag(lake, "no_such_table", "kept")
    assert [*tagged(lake, table)] == ["copy"]


def test_snapshots_come_in_order_with_what_they_added(lake: Lake, table: str) -> None:
    commit(lake, 4)
    found = list(snapshots(lake, table))
    assert [s.id for s in found] == [1, 2, 3, 4]
    assert [s.delta_records for s in found] == [1, 2, 3, 4]
    assert [s.total_records for s in found] == [1, 3, 6, 10]
    assert {s.kind for s in found} == {"APPEND"}
    assert [s.id for s in snapshots(lake, table, from_id=3)] == [3, 4]
    assert list(snapshots(lake, table, from_id=5)) == []
    assert latest_snapshot(lake, table) == found[-1]
    assert snapshot(lake, table, 2) == found[1]


def test_following_from_an_expired_snapshot_raises_and_does_not_start_later(
    lake: Lake, table: str
) -> None:
    commit(lake, 4)
    expire(lake, 1, 2)
    assert earliest_snapshot_id(lake, table) == 3
    assert [s.id for s in snapshots(lake, table)] == [3, 4]
    with pytest.raises(SnapshotExpiredError, match="no snapshot 2; it has 3 to 4"):
        list(snapshots(lake, table, from_id=2))


def test_following_from_beyond_the_next_snapshot_raises(lake: Lake, table: str) -> None:
    commit(lake, 2)
    with pytest.raises(SnapshotExpiredError, match="no snapshot 9; it has 1 to 2"):
        list(snapshots(lake, table, from_id=9))


def test_a_snapshot_that_expires_while_following_raises(lake: Lake, table: str) -> None:
    commit(lake, 3)
    following = snapshots(lake, table, from_id=1)
    assert next(following).id == 1
    expire(lake, 1, 2)
    with pytest.raises(SnapshotExpiredError, match="no snapshot 2"):
        next(following)


def test_the_snapshot_of_a_time_is_the_newest_at_or_before_it(lake: Lake, table: str) -> None:
    commit(lake, 5)
    found = list(snapshots(lake, table))
    for moment in {s.time_ms + step for s in found for step in (-1, 0, 1)}:
        naive = [s for s in found if s.time_ms <= moment]
        assert snapshot_as_of(lake, table, moment) == (naive[-1] if naive else None)


def test_an_error_lists_some_of_many_tags_and_the_last_of_many_drops(lake: Lake) -> None:
    for _ in range(3):
        lake.create(TableSpec("t", {"a": Int64}))
        commit(lake, 2)
        lake.drop("t")
    lake.create(TableSpec("t", {"a": Int64}))
    commit(lake, 1)
    for number in range(33):
        create_tag(lake, "t", f"tag{number:02}", 1)
    last = table_history.removals(lake, "t")[-1].until_ms
    with pytest.raises(SnapshotExpiredError) as raised:
        snapshot(lake, "t", 2)
    assert str(raised.value) == (
        "table 't' has no snapshot 2; it has 1 to 1, and the tagged ones "
        + ", ".join(f"1 (tag{number:02})" for number in range(30))
        + f" and 3 more; the table was dropped at {last} ms, and 2 times before. Read a newer one; "
        "a consumer or a tag prevents expiry"
    )


def test_a_time_whose_snapshot_has_expired_is_rejected(lake: Lake, table: str) -> None:
    commit(lake, 4)
    times = [s.time_ms for s in snapshots(lake, table)]
    lake.table(table).create_tag("kept", 1)
    expire(lake, 1, 2)
    with pytest.raises(SnapshotExpiredError, match=r"expired; the oldest is 3.*tagged: 1 of"):
        snapshot_as_of(lake, table, times[0])
    lake.table(table).create_tag("kept_too", 3)
    expire(lake, 3)
    found = snapshot_as_of(lake, table, times[2])  # there is no snapshot between 3 and 4
    assert found is not None
    assert found.id == 3


@pytest.mark.parametrize("hint", ["1", "99", "", None])
def test_the_newest_snapshot_does_not_depend_on_the_hint_file(
    lake: Lake, table: str, hint: str | None
) -> None:
    commit(lake, 3)
    path = f"{lake.path(table)}/snapshot/LATEST"
    os.remove(path)
    if hint is not None:
        with open(path, "w") as file:
            file.write(hint)
    newest = latest_snapshot(lake, table)
    assert newest is not None
    assert newest.id == 3


def test_an_unknown_table_is_not_an_empty_table(lake: Lake) -> None:
    with pytest.raises(UnknownNameError):
        latest_snapshot(lake, "nope")
