"""Consumers protect the snapshots that a reader still needs from expiry."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from paimon_features.core.errors import SnapshotExpiredError, TableError
from paimon_features.core.types.schema import Int64
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.consumers import (
    advance_consumer,
    consumers,
    delete_consumer,
    register_consumer,
)
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import append_arrow


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
    advance_consumer(lake, table, "spend-0", 3)  # a late call does not move it back
    assert consumers(lake, table) == {"spend-0": 4}
    delete_consumer(lake, table, "spend-0")
    delete_consumer(lake, table, "spend-0")
    assert consumers(lake, table) == {}


def test_a_crash_while_advancing_a_consumer_keeps_its_old_position(
    lake: Lake, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_consumer(lake, table, "spend", 2)

    replace = os.replace

    def killed(source: str, target: str) -> None:
        if threading.current_thread() is not threading.main_thread():
            return replace(source, target)  # the heartbeat of another test's lease
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            advance_consumer(lake, table, "spend", 3)
    assert consumers(lake, table) == {"spend": 2}  # an unfinished file is not a consumer, either
    advance_consumer(lake, table, "spend", 3)
    assert consumers(lake, table) == {"spend": 3}


def test_a_partially_written_consumer_protects_every_snapshot(lake: Lake, table: str) -> None:
    register_consumer(lake, table, "tiles-spend", 3)
    os.remove(f"{lake.path(table)}/snapshot/snapshot-1")
    Path(lake.path(table), "consumer", "consumer-tiles-spend").write_text("")
    assert consumers(lake, table) == {"tiles-spend": 2}
    advance_consumer(lake, table, "tiles-spend", 3)
    assert consumers(lake, table) == {"tiles-spend": 3}


def test_concurrent_advances_of_a_consumer_keep_it_valid(lake: Lake, table: str) -> None:
    register_consumer(lake, table, "spend", 1)
    with ThreadPoolExecutor(4) as movers:
        moves = [
            movers.submit(register_consumer, lake, table, "spend", 1 + i % 3) for i in range(40)
        ]
        for move in moves:
            move.result()
    assert consumers(lake, table)["spend"] in (1, 2, 3)


def test_a_consumer_at_an_expired_snapshot_is_rejected_and_unchanged(
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


def test_an_empty_table_can_have_a_consumer(lake: Lake) -> None:
    lake.create(TableSpec("empty", {"a": Int64}))
    register_consumer(lake, "empty", "spend", 1)
    assert consumers(lake, "empty") == {"spend": 1}


def test_advancing_a_consumer_that_was_deleted_is_an_error(lake: Lake, table: str) -> None:
    with pytest.raises(TableError, match="unknown consumer 'spend' of table '.*'; available: none"):
        advance_consumer(lake, table, "spend", 2)
    with pytest.raises(TableError, match=r"'\.\./x': expected lower-case"):
        register_consumer(lake, table, "../x", 2)
