"""Tables in Polars and DuckDB: what they give, and what they do not read for it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paimon_features.core.errors import ConfigurationError, UnknownNameError
from paimon_features.core.types.schema import Float64, Int64, String
from paimon_features.lake import Lake, TableSpec, append_arrow
from paimon_features.testing.sizes import seeds
from tests.data_files import replace_file
from trainer_bridge.readers.scanning import TableScan

pl = pytest.importorskip("polars", reason="pip install 'paimon-features[polars]'")
duckdb = pytest.importorskip("duckdb", reason="pip install 'paimon-features[local]'")

from trainer_bridge.adapters.duckdb import relation  # noqa: E402
from trainer_bridge.adapters.polars import pushed_down, scan  # noqa: E402

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("small", pa.float32()),
        ("word", pa.string()),
        ("tags", pa.list_(pa.int64())),
    ]
)


def rows(first: int, count: int, seed: int = 0) -> pa.Table:
    dice = random.Random(seed)
    numbers = range(first, first + count)
    return pa.table(
        {
            "n": [n if dice.random() < 0.9 else None for n in numbers],
            "x": [dice.choice([n / 10, float("nan"), None]) for n in numbers],
            "small": [n / 10 for n in numbers],
            "word": [dice.choice(["a", "it's", "z", None]) for _ in numbers],
            "tags": [[n] * (n % 3) for n in numbers],
        },
        SCHEMA,
    )


@pytest.fixture
def table(lake: Lake) -> str:
    """Two files of 400 rows, in row groups of 100."""
    lake.create_like("samples", SCHEMA)
    for first in (0, 400):
        append_arrow(lake, "samples", rows(first, 400, seed=first))
    for path in data_files(lake):
        replace_file(path, row_group_size=100)
    return "samples"


def data_files(lake: Lake) -> list[Path]:
    return sorted(Path(lake.path("samples")).rglob("data-*.parquet"))


def spoil(path: Path, keep_columns: set[str], keep: range) -> int:
    """Overwrite all pages of a file but some columns' with values of n in ``keep``."""
    content, spoilt = bytearray(path.read_bytes()), 0
    metadata = pq.read_metadata(path)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(place) for place in range(group.num_columns)]
        least = columns[0].statistics.min
        for column in columns:
            if column.path_in_schema.split(".")[0] in keep_columns and least // 100 * 100 in keep:
                continue
            start = column.dictionary_page_offset or column.data_page_offset
            content[start : start + column.total_compressed_size] = bytes(
                column.total_compressed_size
            )
            spoilt += 1
    path.write_bytes(content)
    return spoilt


def eager(lake: Lake) -> Any:
    return pl.DataFrame(pa.concat_tables(TableScan.pin(lake, "samples").tables()))


def same(left: Any, right: Any) -> bool:
    return bool(left.sort("small").equals(right.sort("small")))


def test_a_scan_gives_the_rows_of_its_snapshot(lake: Lake, table: str) -> None:
    frame = scan(lake, table)
    wanted = eager(lake)
    append_arrow(lake, table, rows(800, 10))
    assert frame.collect_schema() == wanted.schema
    for _ in range(2):
        assert same(frame.collect(), wanted)
    assert frame.select(pl.len()).collect().item() == 800
    assert frame.head(5).collect().height == 5
    assert same(scan(lake, table, snapshot_id=1).collect(), wanted.filter(pl.col("small") < 39.95))
    assert scan(lake, table).select(pl.len()).collect().item() == 810
    assert scan(lake, table, where="n > 10000").collect().height == 0
    assert frame.select("tags").filter(pl.col("tags").list.len() > 5).collect().shape == (0, 1)


def test_polars_reads_only_the_columns_and_row_groups_that_it_needs(lake: Lake, table: str) -> None:
    query = scan(lake, table).filter(pl.col("n") >= 500, pl.col("n") < 550).select("n", "tags")
    wanted = query.collect()
    assert 40 <= wanted.height <= 50
    # of 8 row groups with 5 columns all pages but two columns of one group
    assert sum(spoil(path, {"n", "tags"}, range(500, 501)) for path in data_files(lake)) == 38
    assert query.collect().equals(wanted)
    for other in (scan(lake, table).select("word"), scan(lake, table).filter(pl.col("n") < 500)):
        with pytest.raises(pl.exceptions.PolarsError, match="'samples', snapshot 2, .*data-"):
            other.collect()


def test_duckdb_reads_only_the_columns_and_row_groups_that_it_needs(lake: Lake, table: str) -> None:
    connection = duckdb.connect()
    text = "SELECT n, len(tags) FROM samples WHERE n >= 500 AND n < 550 ORDER BY n"
    found = relation(lake, table, connection)
    wanted = found.query("samples", text).fetchall()
    assert 40 <= len(wanted) <= 50
    assert sum(spoil(path, {"n", "tags"}, range(500, 501)) for path in data_files(lake)) == 38
    assert found.query("samples", text).fetchall() == wanted
    with pytest.raises(duckdb.Error, match="Invalid data"):
        found.query("samples", "SELECT max(word) FROM samples").fetchall()


def test_a_relation_stays_at_its_snapshot(lake: Lake, table: str) -> None:
    connection = duckdb.connect()
    found = relation(lake, table, connection)
    append_arrow(lake, table, rows(800, 10))
    assert found.aggregate("count(*), sum(small)").fetchall()[0][0] == 800
    assert relation(lake, table, connection).aggregate("count(*)").fetchall() == [(810,)]
    old = relation(lake, table, connection, snapshot_id=1, columns=["n", "word"])
    assert old.columns == ["n", "word"]
    assert old.aggregate("count(*)").fetchall() == [(400,)]
    some = relation(lake, table, connection, where="n < 7 AND word = 'a'")
    wanted = eager(lake).filter(pl.col("n") < 7, pl.col("word") == "a").height
    assert some.aggregate("count(*)").fetchall() == [(wanted,)]


def test_keys_are_merged_first(lake: Lake) -> None:
    lake.create(
        TableSpec(
            "samples",
            {"n": Int64, "x": Float64, "word": String},
            primary_key=("n",),
            options={"bucket": "2"},
        )
    )
    for turn in range(3):
        numbers = np.arange(turn * 10, 100)
        words = [f"{turn}"] * len(numbers)
        append_arrow(lake, "samples", pa.table({"n": numbers, "x": numbers + turn, "word": words}))
    frame = scan(lake, "samples").collect().sort("n")
    assert frame["n"].to_list() == list(range(100))
    assert frame["word"].value_counts().sort("word").rows() == [("0", 10), ("1", 10), ("2", 80)]
    query = scan(lake, "samples").filter(pl.col("x") <= 50.0, pl.col("word") != "1").select("n")
    assert sorted(query.collect()["n"]) == [*range(10), *range(20, 49)]
    found = relation(lake, "samples", duckdb.connect(), columns=["word", "n"], where="n >= 15")
    assert found.filter("word = '1'").aggregate("count(*), min(n)").fetchall() == [(5, 15)]


@pytest.mark.parametrize("seed", seeds(60))
def test_conditions_that_are_handed_down_keep_every_row_that_polars_keeps(
    tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)

    def condition(depth: int) -> Any:
        if depth and dice.random() < 0.6:
            left, right = condition(depth - 1), condition(depth - 1)
            return dice.choice([left & right, left | right, ~left])
        column, constant = dice.choice(
            [
                ("n", dice.randrange(-5, 45)),
                ("x", dice.choice([1.5, -0.0, 3.9, float("inf"), float("nan")])),
                ("small", 1.1),
                ("small", 2.5),
                ("word", dice.choice(["a", "it's", "m", ""])),
            ]
        )
        col = pl.col(column)
        tests = [
            col == constant,
            col != constant,
            col < constant,
            col <= constant,
            col > constant,
            col >= constant,
            constant < col,
            col.is_null(),
            col.is_not_null(),
            col.is_in([constant]),
        ]
        return dice.choice(tests)

    lake = Lake.open(tmp_path, "features")
    lake.create_like("samples", SCHEMA)
    append_arrow(lake, "samples", rows(0, 40, seed))
    whole = eager(lake)
    for turn in range(6):
        predicate = condition(dice.randrange(3))
        if turn < 2:
            predicate = predicate & (pl.col("n") < 30)
            assert pushed_down(predicate, SCHEMA) is not None
        found = scan(lake, "samples").filter(predicate).select("small", "n").collect()
        assert same(found, whole.filter(predicate).select("small", "n")), str(predicate)


def test_partitions_are_columns_like_any_other(lake: Lake) -> None:
    columns = {"day": Int64, "n": Int64}
    lake.create(TableSpec("samples", columns, partition_by=("day",)))
    numbers = np.arange(90)
    append_arrow(lake, "samples", pa.table({"day": numbers // 30, "n": numbers}))
    found = relation(lake, "samples", duckdb.connect()).filter("day = 1")
    assert found.aggregate("count(*), min(n), max(n)").fetchall() == [(30, 30, 59)]
    for path in data_files(lake):
        if "day=1" not in str(path):
            path.unlink()
    frame = scan(lake, "samples").filter(pl.col("day") == 1).collect()
    assert frame.schema == {"day": pl.Int64, "n": pl.Int64}
    assert sorted(frame["n"]) == list(range(30, 60))


def test_what_is_not_there_is_named_at_once(lake: Lake, table: str) -> None:
    connection = duckdb.connect()
    with pytest.raises(UnknownNameError, match="unknown table 'nothing'"):
        scan(lake, "nothing")
    with pytest.raises(UnknownNameError, match="'y'"):
        relation(lake, table, connection, columns=["y"])
    with pytest.raises(ConfigurationError, match="expected one of them"):
        scan(lake, table, snapshot_id=1, tag="x")
