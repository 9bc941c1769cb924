"""Tables that a real Flink wrote and compacted: levels, vectors, first rows, order of commits."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from paimon_features.lake.catalog import Lake
from paimon_features.lake.reading.snapshot_content import read_content
from paimon_features.lake.reading.table_reader import latest_snapshot, read_arrow
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


IN_ORDER = {"counted": {"bucket": "1", "bucket-key": "k"}, "plain": {"bucket": "-1"}}
"""Append tables whose files Flink numbers through the bucket, and in each commit from 0."""
COMMIT_ROWS = (9, 8, 7, 6)
"""Rows of the commits: fewer each time, so that sequence numbers of commits are not their order."""


def statements(dice: random.Random) -> list[str]:
    made = []
    for table, options in IN_ORDER.items():
        text = ", ".join(f"'{k}' = '{v}'" for k, v in {"write-only": "true", **options}.items())
        made.append(f"CREATE TABLE {table} (n INT, k INT) WITH ({text})")
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
        first = sum(COMMIT_ROWS[:turn])
        counted = ", ".join(f"({n}, 1)" for n in range(first, first + COMMIT_ROWS[turn]))
        inserts += [f"INSERT INTO {table} VALUES {counted};" for table in IN_ORDER]
        # one job for all tables: starting it is what takes the time
        made.append(f"EXECUTE STATEMENT SET BEGIN {' '.join(inserts)} END")
        if turn == 2:
            made.append("CALL sys.compact(`table` => 'features.counted')")
    return made


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, flink_sql: Callable[..., None]) -> Lake:
    lake = Lake.open(tmp_path_factory.mktemp("flink") / "warehouse", "features")
    flink_sql(lake.warehouse, statements(random.Random(5)), config={"table.dml-sync": "true"})
    return lake


@pytest.mark.long
def test_files_of_flink_are_read_in_the_order_of_their_commits(lake: Lake) -> None:
    for table in IN_ORDER:
        newest = latest_snapshot(lake, table)
        assert newest is not None
        files = sorted(read_content(lake, table, newest.id).files, key=lambda file: file.place)
        with SnapshotReader(lake, table, batch_size=100, shuffle=False) as reader:
            (batch,) = reader
        assert batch["n"].tolist() == list(range(sum(COMMIT_ROWS)))
        sequences = [file.sequence for file in files]
        # the test is of what it says: numbered through the bucket, or from 0 in each commit
        if table == "plain":
            assert sequences == [(0, rows - 1) for rows in COMMIT_ROWS]
        else:
            assert sequences[-1] == (sum(COMMIT_ROWS[:3]), sum(COMMIT_ROWS) - 1)
            assert len(files) < len(COMMIT_ROWS)


@pytest.mark.long
def test_what_flink_wrote_and_compacted_is_read_as_pypaimon_reads_it(lake: Lake) -> None:
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
