"""A rollback reuses snapshot numbers, so it increments the incarnation."""

from __future__ import annotations

import os
from typing import Any

import pytest

from paimon_features.core.errors import SnapshotExpiredError, TableError
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata import table_history
from paimon_features.lake.metadata.consumers import consumers, register_consumer
from paimon_features.lake.metadata.rollback import rollback
from paimon_features.lake.metadata.snapshots import latest_snapshot, snapshot
from paimon_features.lake.reading.table_reader import read_arrow
from paimon_features.lake.side_folder import generations
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.lake.writing.table_writer import append_arrow


@pytest.fixture
def record(lake: Lake, tiles: Any) -> GenerationRecord:
    for _ in range(4):
        append_arrow(lake, tiles.spec.name, tiles.rows(10))
    made = GenerationRecord("spend", 1, tiles.spec.name, "abc", 2)
    generations.save(lake, made)
    return made


def total(lake: Lake, name: str) -> int:
    return int(sum(read_arrow(lake, name).column("p_n").to_pylist()))


def test_a_rollback_restores_the_table_and_increments_the_incarnation(
    lake: Lake, tiles: Any, record: GenerationRecord
) -> None:
    updated = rollback(lake, record, 2)
    assert total(lake, record.table) == 20
    assert updated.incarnation == 1
    assert generations.get(lake, "spend", 1).incarnation == 1
    append_arrow(lake, record.table, tiles.rows(7))
    newest = latest_snapshot(lake, record.table)
    assert newest is not None
    assert newest.id == 3  # the number is reused
    assert total(lake, record.table) == 27


@pytest.mark.parametrize("expired", [False, True])
def test_what_a_rollback_removes_is_recorded_with_its_time(
    lake: Lake, record: GenerationRecord, expired: bool
) -> None:
    #  commits   1    2    3    4 |rolled back to 2|
    name = record.table
    times = [snapshot(lake, name, number).time_ms for number in range(1, 5)]
    if expired:  # the tag retains 2
        lake.table(name).create_tag("kept", 2)
        for number in (1, 2, 3):
            os.remove(f"{lake.path(name)}/snapshot/snapshot-{number}")
    rollback(lake, record, 2)
    (removal,) = table_history.removals(lake, name)
    assert (removal.how, removal.first_id, removal.last_id) == ("rolled back to snapshot 2", 3, 4)
    assert removal.from_ms == (times[1] + 1 if expired else times[2])
    assert removal.covers(times[3])
    assert not removal.covers(times[1])
    assert not removal.covers(removal.until_ms)


def test_a_dropped_table_leaves_a_record_if_it_had_a_commit(lake: Lake, tiles: Any) -> None:
    name = tiles.spec.name
    lake.drop(name)
    assert table_history.removals(lake, name) == ()
    lake.create(tiles.spec)
    created_ms = table_history.created_ms(lake, name)
    first = append_arrow(lake, name, tiles.rows(1))
    first_ms = snapshot(lake, name, first).time_ms
    append_arrow(lake, name, tiles.rows(1))
    lake.drop(name)
    lake.create(tiles.spec)
    append_arrow(lake, name, tiles.rows(1))
    append_arrow(lake, name, tiles.rows(1))
    os.remove(f"{lake.path(name)}/snapshot/snapshot-1")
    again_ms = table_history.created_ms(lake, name)
    lake.drop(name)
    assert [(r.how, r.from_ms, r.last_id) for r in table_history.removals(lake, name)] == [
        ("dropped", first_ms, 2),
        ("dropped", again_ms, 2),
    ]
    assert created_ms <= first_ms <= again_ms


def test_a_rollback_before_a_tag_or_consumer_is_rejected(
    lake: Lake, record: GenerationRecord
) -> None:
    lake.table(record.table).create_tag("training-churn", 3)
    lake.table(record.table).create_tag("2011-12-09 10", 4)  # like Paimon's hourly tags
    register_consumer(lake, record.table, "online-0", 5)
    with pytest.raises(TableError) as caught:
        rollback(lake, record, 2)
    assert "tag 'training-churn' (snapshot 3)" in str(caught.value)
    assert "consumer 'online-0' (has read up to 4)" in str(caught.value)
    assert "2011-12-09" not in str(caught.value)
    assert total(lake, record.table) == 40
    assert generations.get(lake, "spend", 1).incarnation == 0
    rollback(lake, record, 3, release=("online-0",))
    assert consumers(lake, record.table) == {"online-0": 4}
    assert total(lake, record.table) == 30


def test_an_expired_snapshot_cannot_be_rolled_back_to(lake: Lake, record: GenerationRecord) -> None:
    with pytest.raises(SnapshotExpiredError, match="no snapshot 9"):
        rollback(lake, record, 9)
