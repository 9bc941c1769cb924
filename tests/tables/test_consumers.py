"""Consumers hold the snapshots that a reader still needs."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from paimon_features.errors import SnapshotExpiredError, TableError
from paimon_features.schema import Int64
from paimon_features.tables.catalog import Lake
from paimon_features.tables.consumers import (
    advance_consumer,
    consumers,
    delete_consumer,
    register_consumer,
)
from paimon_features.tables.specs import TableSpec
from paimon_features.tables.writer import append_arrow


@pytest.fixture
def table(lake: Lake) -> str:
    lake.create(TableSpec("t", {"a": Int64}))
    for value in range(3):
        append_arrow(lake, "t", pa.table({"a": [value]}))
    return "t"


def test_a_consumer_is_a_file_of_the_table_that_moves_forward(lake: Lake, table: str) -> None:
    register_consumer(lake, table, "spend-0", 2)
    path = Path(lake.path(table), "consumer", "consumer-spend-0")
    assert '"nextSnapshot": 2' in path.read_text()
    advance_consumer(lake, table, "spend-0", 4)
    advance_consumer(lake, table, "spend-0", 3)  # a late call takes nothing back
    assert consumers(lake, table) == {"spend-0": 4}
    delete_consumer(lake, table, "spend-0")
    delete_consumer(lake, table, "spend-0")
    assert consumers(lake, table) == {}


def test_a_consumer_that_dies_while_it_moves_leaves_the_old_hold_whole(
    lake: Lake, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_consumer(lake, table, "spend", 2)

    def killed(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            advance_consumer(lake, table, "spend", 3)
    assert consumers(lake, table) == {"spend": 2}  # what was begun is no consumer, too
    advance_consumer(lake, table, "spend", 3)
    assert consumers(lake, table) == {"spend": 3}


def test_a_consumer_that_flink_left_half_written_holds_all_there_is(lake: Lake, table: str) -> None:
    register_consumer(lake, table, "tiles-spend", 3)
    os.remove(f"{lake.path(table)}/snapshot/snapshot-1")
    Path(lake.path(table), "consumer", "consumer-tiles-spend").write_text("")
    assert consumers(lake, table) == {"tiles-spend": 2}
    advance_consumer(lake, table, "tiles-spend", 3)
    assert consumers(lake, table) == {"tiles-spend": 3}


def test_several_that_move_one_consumer_at_the_same_time_leave_it_whole(
    lake: Lake, table: str
) -> None:
    register_consumer(lake, table, "spend", 1)
    with ThreadPoolExecutor(4) as movers:
        moves = [
            movers.submit(register_consumer, lake, table, "spend", 1 + i % 3) for i in range(40)
        ]
        for move in moves:
            move.result()
    assert consumers(lake, table)["spend"] in (1, 2, 3)


def test_a_hold_on_an_expired_snapshot_is_refused_and_leaves_the_old_one(
    lake: Lake, table: str
) -> None:
    os.remove(f"{lake.path(table)}/snapshot/snapshot-1")
    with pytest.raises(SnapshotExpiredError, match="no snapshot 1; it has 2 to 3"):
        register_consumer(lake, table, "spend", 1)
    assert consumers(lake, table) == {}
    register_consumer(lake, table, "spend", 4)
    with pytest.raises(SnapshotExpiredError):
        register_consumer(lake, table, "spend", 9)
    assert consumers(lake, table) == {"spend": 4}


def test_an_empty_table_can_be_held_from_its_first_snapshot(lake: Lake) -> None:
    lake.create(TableSpec("empty", {"a": Int64}))
    register_consumer(lake, "empty", "spend", 1)
    assert consumers(lake, "empty") == {"spend": 1}


def test_advancing_a_consumer_that_was_deleted_is_an_error(lake: Lake, table: str) -> None:
    with pytest.raises(TableError, match="no consumer 'spend'; it has: none"):
        advance_consumer(lake, table, "spend", 2)
    with pytest.raises(TableError, match=r"'\.\./x': expected lower-case"):
        register_consumer(lake, table, "../x", 2)
