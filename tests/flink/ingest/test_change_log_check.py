"""Rows of a table against the events of its change log, without Flink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from paimon_features.core.errors import JobError
from paimon_features.core.types.schema import Bool, Float64, Int64, String
from paimon_features.definitions import EventSource
from paimon_features.ingest.flink.change_log_check import (
    check_complete,
    check_position,
    compare_rows,
)
from paimon_features.ingest.flink.change_log_sql import ChangeLog, find_change_columns
from paimon_features.lake import Lake, append_arrow, latest_snapshot
from paimon_features.lake.specs import events_spec, rejected_spec

ORDERS = EventSource(
    "orders",
    schema={"id": Int64, "item": String, "price": Float64, "at_ms": Int64, "op": String},
    event_time="at_ms",
    retraction="op",
)
FLAGGED = EventSource(
    "orders",
    schema={"id": Int64, "item": String, "price": Float64, "at_ms": Int64, "gone": Bool},
    event_time="at_ms",
    retraction="gone",
)


class Shop:
    """A table with a change log, and the events of what was read of it."""

    def __init__(self, warehouse: Path, source: EventSource = ORDERS) -> None:
        from pypaimon import CatalogFactory, Schema

        self.lake = Lake.open(str(warehouse), "features")
        self.source = source
        self.lake.create(events_spec(source.table, source.schema))
        self.lake.create(rejected_spec(source.rejected_table))
        self.schema = pa.schema(
            [
                pa.field("id", pa.int64(), False),
                ("item", pa.string()),
                ("price", pa.float64()),
                ("at_ms", pa.int64()),
            ]
        )
        catalog = CatalogFactory.create({"warehouse": self.lake.warehouse})
        options = {"bucket": "1", "changelog-producer": "lookup"}
        made = Schema.from_pyarrow_schema(self.schema, primary_keys=["id"], options=options)
        catalog.create_table("features.o", made, False)
        self.table = catalog.get_table("features.o")

    def put(self, *rows: tuple[Any, ...]) -> None:
        builder = self.table.new_batch_write_builder()
        write, commit = builder.new_write(), builder.new_commit()
        columns = dict(zip(self.schema.names, zip(*rows, strict=True), strict=True))
        write.write_arrow(pa.table({k: list(v) for k, v in columns.items()}, schema=self.schema))
        commit.commit(write.prepare_commit())
        write.close()
        commit.close()

    def event(self, kind: Any, *row: Any) -> None:
        values = dict(zip(self.schema.names, row, strict=True))
        values |= {self.source.retraction: kind, "event_day": 0, "ingest_time_ms": 1}
        schema = self.lake.schema(self.source.table)
        append_arrow(self.lake, self.source.table, pa.Table.from_pylist([values], schema))

    @property
    def log(self) -> ChangeLog:
        columns = find_change_columns(self.lake, "o", self.source, {})
        return ChangeLog(self.lake, "o", columns, 1, "c")

    @property
    def newest(self) -> int:
        found = latest_snapshot(self.lake, "o")
        assert found is not None
        return found.id

    def compare(self) -> tuple[int, int]:
        return compare_rows(self.lake, self.source, self.log, self.newest)

    def check(self) -> None:
        check_complete(self.lake, self.source, self.log, self.newest)


@pytest.fixture
def shop(warehouse: Path) -> Shop:
    return Shop(warehouse)


def test_rows_that_are_in_no_change_log_are_an_error_that_counts_them(shop: Shop) -> None:
    shop.put((1, "a", 1.5, 10), (2, None, None, 20), (3, "", 2.5, 30))
    shop.event("+I", 2, None, None, 20)
    assert shop.compare() == (2, 0)
    with pytest.raises(JobError, match=r"features.o: .*snapshot 1.* 2 rows .*CALL sys.compact"):
        shop.check()
    shop.event("+I", 1, "a", 1.5, 10)
    shop.event("+U", 3, None, 2.5, 30)  # an empty text is null among the events
    shop.check()


def test_replaced_rows_must_be_retracted(shop: Shop) -> None:
    shop.put((1, "a", 1.5, 10))
    shop.event("+I", 1, "a", 1.5, 10)
    shop.put((1, "b", 1.5, 10))
    assert shop.compare() == (1, 1)
    shop.event("+U", 1, "b", 1.5, 10)
    with pytest.raises(JobError, match="1 events are of rows that were replaced"):
        shop.check()
    shop.event("-U", 1, "a", 1.5, 10)
    shop.check()


def test_rows_that_were_rejected_are_not_left_out(shop: Shop) -> None:
    shop.put((1, "a", 1.5, None))
    row = dict.fromkeys(shop.lake.schema(shop.source.rejected_table).names)
    types = shop.lake.schema(shop.source.rejected_table)
    row |= {field.name: 0 for field in types if not field.nullable and field.type != pa.string()}
    row |= {field.name: "x" for field in types if not field.nullable and field.type == pa.string()}
    row["origin"] = "table:features.o"
    append_arrow(shop.lake, shop.source.rejected_table, pa.Table.from_pylist([row], types))
    shop.check()


def test_what_changed_after_the_position_is_not_expected(shop: Shop) -> None:
    shop.put((1, "a", 1.5, 10))
    shop.event("+I", 1, "a", 1.5, 10)
    goal = shop.newest
    shop.put((1, "b", 1.5, 10), (2, "c", 1.0, 20))
    check_complete(shop.lake, shop.source, shop.log, goal)


def test_a_flag_of_retractions_counts_like_a_kind(warehouse: Path) -> None:
    shop = Shop(warehouse, FLAGGED)
    shop.put((1, "b", 1.5, 10))
    for kind, item in ((False, "a"), (True, "a"), (None, "b")):
        shop.event(kind, 1, item, 1.5, 10)
    shop.check()


def test_a_position_behind_the_end_of_a_table_that_was_rolled_back_is_refused(shop: Shop) -> None:
    for number in range(3):
        shop.put((number, "a", 1.5, 10))
    check_position(shop.log, 4, shop.newest)
    shop.table.rollback_to(1)  # as another program does, which leaves consumers as they are
    with pytest.raises(JobError, match="up to 3 were read, and its newest is 1: it was rolled"):
        check_position(shop.log, 4, shop.newest)


def test_an_expired_position_is_not_reported_as_complete(shop: Shop) -> None:
    shop.put((1, "a", 1.5, 10))
    shop.event("+I", 1, "a", 1.5, 10)
    with pytest.raises(JobError, match="could not be checked.*repeat the command"):
        check_complete(shop.lake, shop.source, shop.log, 7)
