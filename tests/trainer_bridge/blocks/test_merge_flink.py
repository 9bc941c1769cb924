"""Primary-key tables that a real Flink wrote and compacted: levels, vectors, first rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from paimon_features.tables.catalog import Lake
from paimon_features.tables.content import read_content
from paimon_features.tables.reader import latest_snapshot, read_arrow
from trainer_bridge.readers.snapshot_reader import SnapshotReader

pytestmark = pytest.mark.flink

TABLES = {
    "levels": {"rowkind.field": "op", "num-sorted-run.compaction-trigger": "3"},
    "vectors": {"rowkind.field": "op", "deletion-vectors.enabled": "true"},
    "firsts": {"merge-engine": "first-row", "changelog-producer": "lookup"},
    "sums": {
        "merge-engine": "aggregation",
        "fields.n.aggregate-function": "sum",
        "fields.name.aggregate-function": "last_non_null_value",
        "num-sorted-run.compaction-trigger": "3",
    },
}


def statements(dice: random.Random) -> list[str]:
    made = []
    for table, options in TABLES.items():
        text = ", ".join(f"'{k}' = '{v}'" for k, v in {"bucket": "2", **options}.items())
        made.append(
            f"CREATE TABLE {table} (a INT, k STRING, n BIGINT, name STRING, op STRING, "
            f"PRIMARY KEY (a, k) NOT ENFORCED) WITH ({text})"
        )
    for turn in range(4):
        inserts = []
        for table, options in TABLES.items():
            rows = ", ".join(
                f"({dice.randrange(6)}, 'key-{dice.randrange(9)}', {dice.randrange(99)}, "
                + ("CAST(NULL AS STRING)" if dice.random() < 0.3 else f"'{table} {turn}'")
                + (f", '{'-D' if 'rowkind.field' in options and dice.random() < 0.3 else '+I'}')")
                for _ in range(25)
            )
            # what is written last stays at level 0, where that is read
            last = turn == 3 and "num-sorted-run.compaction-trigger" in options
            hint = "/*+ OPTIONS('write-only' = 'true') */" if last else ""
            inserts.append(f"INSERT INTO {table} {hint} VALUES {rows};")
        # one job for all tables: starting it is what takes the time
        made.append(f"EXECUTE STATEMENT SET BEGIN {' '.join(inserts)} END")
    return made


def test_what_flink_wrote_and_compacted_is_read_as_pypaimon_reads_it(
    lake: Lake, flink_sql: Callable[..., None]
) -> None:
    flink_sql(lake.warehouse, statements(random.Random(5)), config={"table.dml-sync": "true"})
    levels: dict[str, set[int]] = {}
    for table in TABLES:
        wanted = read_arrow(lake, table, native=False)
        for where in (None, "n >= 50 AND a < 4", "k = 'key-3'"):
            options: dict[str, Any] = {"where": where, "batch_size": 5, "output": "arrow"}
            with SnapshotReader(lake, table, **options) as reader:
                found = pa.concat_tables([batch.arrow for batch in reader])
            rows = [
                repr(row)
                for row in wanted.to_pylist()
                if where is None
                or (row["n"] >= 50 and row["a"] < 4 if "n" in where else row["k"] == "key-3")
            ]
            assert sorted(map(repr, found.to_pylist())) == sorted(rows), (table, where)
        newest = latest_snapshot(lake, table)
        assert newest is not None
        files = read_content(lake, table, newest.id).files
        levels[table] = {file.level for file in files}
        if table == "vectors":
            assert any(file.deletion is not None for file in files)
    # the test is of what it says: merged with compacted files, and without level 0
    assert levels["levels"] > {0}
    assert 0 not in levels["vectors"] | levels["firsts"]
