"""Requests of pypaimon's tables and read builders are translated or rejected."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import ConfigurationError, RequestError, UnknownNameError
from paimon_features.core.types.schema import Date, Float64, Int64, String
from paimon_features.lake.catalog import Lake
from paimon_features.lake.handles import TableRead, condition
from paimon_features.lake.metadata.snapshots import snapshot
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import append_arrow
from trainer_bridge.readers.snapshot_reader import SnapshotReader

ROWS = pa.table(
    {
        "n": pa.array([None, *range(19)], pa.int64()),
        "y": np.arange(20) / 4,
        "name": pa.array(["it's", None, "b", "c"] * 5),
        "day": pa.array([dt.date(2011, 12, d % 3 + 1) for d in range(20)]),
    }
)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake.open(tmp_path / "warehouse", "shop")
    lake.create(TableSpec("t", {"n": Int64, "y": Float64, "name": String, "day": Date}))
    append_arrow(lake, "t", ROWS)
    return lake


def test_a_filter_keeps_the_rows_that_pypaimon_keeps(lake: Lake) -> None:
    table = lake.table("t")
    p = table.new_read_builder().new_predicate_builder()
    for predicate in [
        p.equal("name", "it's"),
        p.not_equal("n", 3),
        p.and_predicates([p.less_than("n", 9), p.greater_or_equal("y", 0.75)]),
        p.or_predicates([p.less_or_equal("n", 2), p.greater_than("y", 4.5)]),
        p.is_null("name"),
        p.is_not_null("n"),
        p.is_in("n", [1, 5, 99]),
        p.is_not_in("name", ["b", "c"]),
        p.between("n", 3, 6),
        p.equal("day", dt.date(2011, 12, 2)),
    ]:
        builder = table.new_read_builder().with_filter(predicate)
        splits = builder.new_scan().plan().splits()
        expected = builder.new_read().to_arrow(splits).column("y").to_pylist()
        read = TableRead.of(table, builder)
        with SnapshotReader(
            lake, "t", where=read.where, batch_size=99, shuffle=False, columns=["y"]
        ) as reader:
            assert [y for batch in reader for y in batch["y"].tolist()] == expected, read.where


def test_projection_and_pins_are_kept(lake: Lake) -> None:
    append_arrow(lake, "t", ROWS)
    table = lake.table("t")
    narrow = TableRead.of(table, table.new_read_builder().with_projection(["y", "n"]))
    assert (narrow.lake.warehouse, narrow.table) == (lake.warehouse, "t")
    assert (narrow.columns, narrow.where, narrow.snapshot_id) == (("y", "n"), None, None)
    assert TableRead.of(table).columns == ("n", "y", "name", "day")
    with pytest.raises(UnknownNameError, match="unknown column read of table 't' 'name'"):
        narrow.check_columns(["n", "name"])

    table.create_tag("first", 1)
    millis = str(table.snapshot_manager().get_snapshot_by_id(2).time_millis)
    for options, pinned in [
        ({"scan.snapshot-id": "1"}, 1),
        ({"scan.tag-name": "first"}, snapshot(lake, "t", 1).ref),
        (
            {"scan.timestamp-millis": millis, "scan.mode": "from-timestamp"},
            snapshot(lake, "t", 2).ref,
        ),
    ]:
        assert TableRead.of(table.copy(options)).snapshot_id == pinned
    with pytest.raises(
        UnknownNameError, match="unknown tag of table 't' 'second'; available: first"
    ):
        TableRead.of(table.copy({"scan.tag-name": "second"}))
    for options in ({"scan.timestamp-millis": "1"}, {"scan.watermark": "1"}):
        with pytest.raises(RequestError, match="has the scan options"):
            TableRead.of(table.copy(options))


def test_unsupported_reads_are_rejected(lake: Lake) -> None:
    table = lake.table("t")
    p = table.new_read_builder().new_predicate_builder()

    def refused(builder: Any, words: str) -> None:
        with pytest.raises(RequestError, match=words):
            TableRead.of(table, builder)

    refused(table.new_read_builder().with_limit(3), "has a limit")
    refused(table.new_read_builder().with_filter(p.startswith("name", "b")), "'startsWith'")
    refused(table.new_read_builder().with_filter(p.equal("y", float("inf"))), "with inf")
    with pytest.raises(RequestError, match="'like'"):
        condition(p.and_predicates([p.equal("n", 1), p.like("name", "b%")]))
    lake.create(TableSpec("other", {"n": Int64}))
    with pytest.raises(ConfigurationError, match="the read builder is of the table in"):
        TableRead.of(table, lake.table("other").new_read_builder())
