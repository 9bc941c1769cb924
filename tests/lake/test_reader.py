"""Reads of a pinned snapshot against a naive merge, on both routes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import SnapshotExpiredError, TableError, UnknownNameError
from paimon_features.core.types.schema import Int64
from paimon_features.lake.catalog import Lake
from paimon_features.lake.reading.deltas import live_files
from paimon_features.lake.reading.table_reader import iter_batches, read_arrow, read_route
from paimon_features.lake.specs import TableSpec, events_spec
from paimon_features.lake.writing.table_writer import append_arrow

ByKey = Callable[[pa.Table], dict[tuple[Any, ...], dict[str, Any]]]


@pytest.mark.parametrize("native", [True, False])
def test_an_aggregation_table_equals_the_naive_merge_after_every_commit(
    lake: Lake, tiles: Any, by_key: ByKey, native: bool
) -> None:
    states = []
    for _ in range(5):  # the same keys within a commit and in many commits
        append_arrow(lake, tiles.spec.name, tiles.rows(150))
        states.append({key: dict(values) for key, values in tiles.merged.items()})
    for snapshot_id, state in enumerate(states, 1):
        table = read_arrow(lake, tiles.spec.name, snapshot_id=snapshot_id, native=native)
        assert by_key(table) == state


def test_the_native_reader_is_used(lake: Lake, tiles: Any) -> None:
    pytest.importorskip("pypaimon_rust")
    assert read_route(lake, tiles.spec.name) == "native"


@pytest.mark.parametrize("native", [True, False])
def test_filters_are_exact(lake: Lake, tiles: Any, by_key: ByKey, native: bool) -> None:
    append_arrow(lake, tiles.spec.name, tiles.rows(200))
    append_arrow(lake, tiles.spec.name, tiles.rows(200))
    got = read_arrow(
        lake,
        tiles.spec.name,
        partitions={"tile_day": (-1, 1), "tile_start": (-86_400_000, None)},
        where={"customer_id": [3, 7, 99]},
        native=native,
    )
    expected = {k: v for k, v in tiles.merged.items() if -1 <= k[0] < 1 and k[1] in (3, 7)}
    assert expected
    assert by_key(got) == expected


def test_the_buckets_are_a_partition_of_the_table(lake: Lake, tiles: Any, by_key: ByKey) -> None:
    append_arrow(lake, tiles.spec.name, tiles.rows(200))
    parts = [by_key(read_arrow(lake, tiles.spec.name, buckets=[b])) for b in (0, 1)]
    assert parts[0].keys().isdisjoint(parts[1].keys())
    assert parts[0] | parts[1] == tiles.merged
    assert all(parts)


def test_batches_contain_the_same_rows_and_the_requested_columns(lake: Lake, tiles: Any) -> None:
    append_arrow(lake, tiles.spec.name, tiles.rows(300))
    columns = ["p_n", "country"]
    batches = list(iter_batches(lake, tiles.spec.name, columns))
    assert all(batch.schema.names == columns for batch in batches)
    assert sum(sum(batch.column("p_n").to_pylist()) for batch in batches) == 300


def test_a_table_without_snapshots_is_empty_and_has_its_schema(lake: Lake, tiles: Any) -> None:
    table = read_arrow(lake, tiles.spec.name, ["p_n"])
    assert table.num_rows == 0
    assert table.schema.names == ["p_n"]


def test_an_append_table_keeps_equal_rows(lake: Lake) -> None:
    lake.create(events_spec("events_x", {"v": Int64}))
    days = pa.array(np.repeat([14_975, 14_976], 2).astype(np.int32))
    rows = pa.table({"v": [1, 1, 2, 2], "event_day": days})
    append_arrow(lake, "events_x", rows)
    append_arrow(lake, "events_x", rows)
    assert sorted(read_arrow(lake, "events_x", ["v"]).column("v").to_pylist()) == [1] * 4 + [2] * 4
    day = read_arrow(lake, "events_x", ["v"], partitions={"event_day": (14_976, 14_977)})
    assert day.column("v").to_pylist() == [2] * 4
    value = read_arrow(lake, "events_x", partitions={"v": (None, 2)})
    assert value.column("v").to_pylist() == [1] * 4


def test_a_filter_on_a_merged_column_is_rejected(lake: Lake, tiles: Any) -> None:
    with pytest.raises(TableError, match="cannot filter on 'p_n'"):
        read_arrow(lake, tiles.spec.name, where={"p_n": [1]})


def test_an_unknown_column_or_snapshot_is_named(lake: Lake, tiles: Any) -> None:
    append_arrow(lake, tiles.spec.name, tiles.rows(10))
    with pytest.raises(UnknownNameError, match="column 'nope' of table 'tiles_spend_g1'"):
        read_arrow(lake, tiles.spec.name, ["nope"])
    with pytest.raises(SnapshotExpiredError, match="no snapshot 7; it has 1 to 1"):
        read_arrow(lake, tiles.spec.name, snapshot_id=7)


@pytest.mark.parametrize("native", [True, False])
def test_a_snapshot_that_expires_during_a_read_is_an_error(lake: Lake, native: bool) -> None:
    lake.create(TableSpec("t", {"a": Int64}))
    for value in range(3):
        append_arrow(lake, "t", pa.table({"a": [value]}))
    batches = iter_batches(lake, "t", snapshot_id=2, native=native)
    for file in live_files(lake, "t", 2):
        os.remove(file.path)
    os.remove(f"{lake.path('t')}/snapshot/snapshot-2")
    with pytest.raises(SnapshotExpiredError, match="no snapshot 2"):
        list(batches)


@pytest.mark.parametrize("native", [True, False])
def test_a_tag_keeps_a_snapshot_readable(lake: Lake, native: bool) -> None:
    lake.create(TableSpec("t", {"a": Int64}))
    for value in (1, 2):
        append_arrow(lake, "t", pa.table({"a": [value]}))
    lake.table("t").create_tag("kept", 1)
    os.remove(f"{lake.path('t')}/snapshot/snapshot-1")  # like expiry
    assert read_arrow(lake, "t", snapshot_id=1, native=native).column("a").to_pylist() == [1]
