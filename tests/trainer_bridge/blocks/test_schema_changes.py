"""A table whose columns changed between the files of one snapshot."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from pypaimon.schema.data_types import AtomicType
from pypaimon.schema.schema_change import SchemaChange

from paimon_features.core.errors import TableError, UnknownNameError
from paimon_features.core.types.schema import Float32, Int32, String
from paimon_features.lake.catalog import Lake
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import append_arrow
from trainer_bridge.readers.snapshot_reader import SnapshotReader


def alter(lake: Lake, *changes: Any) -> None:
    lake.catalog.alter_table("features.t", list(changes))


def python_rows(lake: Lake) -> list[dict[str, Any]]:
    """pypaimon's Python reader, at the newest snapshot and today's schema."""
    off = {"read.native.enabled": "false", "scan.native-plan.enabled": "false"}
    builder = lake.table("t").copy(off).new_read_builder()
    found: pa.Table = builder.new_read().to_arrow(builder.new_scan().plan().splits())
    return sorted(found.to_pylist(), key=repr)


def read(lake: Lake, **options: Any) -> list[dict[str, Any]]:
    with SnapshotReader(lake, "t", batch_size=2, output="arrow", **options) as reader:
        rows = [row for batch in reader for row in batch.arrow.to_pylist()]
    return sorted(rows, key=repr)


@pytest.mark.parametrize("engine", ["append", "deduplicate", "aggregation"])
def test_columns_are_added_renamed_widened_and_dropped_between_files(
    lake: Lake, engine: str
) -> None:
    columns = {"k": Int32, "small": Int32, "ratio": Float32, "old": String, "gone": Int32}
    options = {"bucket": "1", "merge-engine": engine} if engine != "append" else {}
    key = () if engine == "append" else ("k",)
    lake.create(TableSpec("t", columns, key, options=options))
    first = {"k": [1, 2, 3], "small": [1, None, 3], "ratio": [0.5, 1.5, None]}
    append_arrow(lake, "t", pa.table({**first, "old": ["a", "b", None], "gone": [7, 8, 9]}))
    alter(
        lake,
        SchemaChange.add_column("late", AtomicType("STRING")),
        SchemaChange.rename_column("old", "renamed"),
        SchemaChange.update_column_type("small", AtomicType("BIGINT")),
        SchemaChange.update_column_type("ratio", AtomicType("DOUBLE")),
        SchemaChange.drop_column("gone"),
    )
    second = {"k": [3, 4], "small": [2**40, 5], "ratio": [1e300, 0.1], "late": ["x", None]}
    append_arrow(lake, "t", pa.table({**second, "renamed": ["c", "d"]}))
    # another column by the name of one that was dropped, and by that of one that was renamed
    alter(
        lake,
        SchemaChange.add_column("gone", AtomicType("STRING")),
        SchemaChange.add_column("old", AtomicType("DATE")),
    )
    born = pa.array([dt.date(2020, 1, 2)])
    append_arrow(lake, "t", pa.table({"k": [5], "gone": ["here"], "old": born}))
    wanted = python_rows(lake)
    assert read(lake) == wanted
    assert {row["k"]: row["gone"] for row in wanted}[1] is None
    for condition, keys in {
        "small >= 3": [3, 4],
        "gone IS NULL AND late IS NULL": [1, 2, 4],
        "renamed = 'b' OR old > DATE '2000-01-01'": [2, 5],
        "ratio > 0.25 AND ratio < 1e10": [1, 2],
    }.items():
        found = {row["k"] for row in read(lake, where=condition) if engine != "append"}
        assert engine == "append" or sorted(found) == keys
        exact = [row for row in read(lake, where=condition) if row not in wanted]
        assert exact == []


def test_an_older_snapshot_has_todays_columns(lake: Lake) -> None:
    lake.create(TableSpec("t", {"k": Int32, "old": String}))
    append_arrow(lake, "t", pa.table({"k": [1], "old": ["a"]}))
    alter(lake, SchemaChange.rename_column("old", "renamed"))
    alter(lake, SchemaChange.add_column("late", AtomicType("INT")))
    append_arrow(lake, "t", pa.table({"k": [2], "renamed": ["b"], "late": [3]}))
    assert read(lake, snapshot_id=1) == [{"k": 1, "renamed": "a", "late": None}]
    with pytest.raises(UnknownNameError, match="unknown column 'old' of table 't'"):
        read(lake, columns=["old"])


def test_a_value_that_does_not_fit_todays_type_is_an_error_that_names_it(lake: Lake) -> None:
    lake.create(TableSpec("t", {"k": Int32, "text": String}))
    append_arrow(lake, "t", pa.table({"k": [1], "text": ["one"]}))
    alter(lake, SchemaChange.update_column_type("text", AtomicType("INT")))
    with pytest.raises(TableError, match=r"column 'text' is string, today int32.*columns="):
        read(lake)
    assert read(lake, columns=["k"]) == [{"k": 1}]
