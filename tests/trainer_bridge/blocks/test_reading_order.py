"""Unshuffled rows come by partition, bucket and commit, wherever a table is read."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.errors import RequestError
from paimon_features.core.types.schema import DataType, Float64, Int64, String
from paimon_features.lake.catalog import Lake
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import append_arrow, append_stream
from paimon_features.testing.sizes import cases
from trainer_bridge import FollowingReader
from trainer_bridge.dataframe import Dataset
from trainer_bridge.readers.scanning import TableScan
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.testing.sample_tables import make_samples

COMMITS = 12
"""Random names of so many files are in the order of their commits once in 479,001,600 times."""

Commit = list[tuple[int, int | None]]
"""Rows, and the partition they belong to, of the files of a commit."""


def in_order(lake: Lake, table: str) -> list[int]:
    with SnapshotReader(lake, table, columns=["x"], batch_size=10**6, shuffle=False) as reader:
        return [x for batch in reader for x in batch["x"].tolist()]


def test_every_way_of_reading_a_table_returns_the_rows_in_the_order_of_commits(lake: Lake) -> None:
    duckdb = pytest.importorskip("duckdb")
    polars = pytest.importorskip("polars")
    from trainer_bridge.adapters.duckdb import relation
    from trainer_bridge.adapters.polars import scan

    table = make_samples(lake, [3] * COMMITS)
    wanted = list(range(3 * COMMITS))
    assert in_order(lake, table) == wanted
    scanned = TableScan.pin(lake, table)
    assert [x for part in scanned.tables(["x"], "x >= 0") for x in part["x"].to_pylist()] == wanted
    assert relation(lake, table, duckdb.connect()).to_arrow_table()["x"].to_pylist() == wanted
    frame = scan(lake, table).collect()
    assert isinstance(frame, polars.DataFrame)
    assert frame["x"].to_list() == wanted
    frames = Dataset.from_table(lake, table, fields=["x"]).batch(5)
    assert [x for batch in frames for x in batch["x"].tolist()] == wanted
    with FollowingReader(
        lake, table, columns=["x"], batch_size=4, shuffle=False, until_snapshot=COMMITS
    ) as following:
        assert [x for batch in following for x in batch["x"].tolist()] == wanted


def test_the_files_of_one_commit_are_read_as_they_were_written(lake: Lake) -> None:
    lake.create(TableSpec("t", {"x": Int64}))
    parts = [pa.table({"x": np.arange(n, n + 1_000)}) for n in range(0, 20_000, 1_000)]
    append_stream(lake, "t", parts, file_bytes=16_000)
    with SnapshotReader(lake, "t", batch_size=1) as reader:
        assert len(reader.layout.selector.data_files.files) > 5
    assert in_order(lake, "t") == list(range(20_000))
    with FollowingReader(
        lake, "t", start=1, batch_size=30_000, shuffle=False, until_snapshot=1
    ) as following:
        (batch,) = following
    assert batch["x"].tolist() == list(range(20_000))


@pytest.mark.parametrize("kind", [Int64, Float64, String])
def test_partitions_are_ordered_by_their_values_and_null_comes_first(
    lake: Lake, kind: DataType
) -> None:
    lake.create(TableSpec("t", {"x": Int64, "part": kind}, partition_by=("part",)))
    for x, value in enumerate([10, -3, 9, 2, None]):
        part = pa.array([value]).cast(kind.arrow)
        append_arrow(lake, "t", pa.table({"x": [x], "part": part}))
    assert in_order(lake, "t") == ([4, 1, 0, 3, 2] if kind is String else [4, 1, 3, 2, 0])


@cases(25)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 5), st.sampled_from([None, -1, 2, 10])), max_size=3),
        min_size=1,
        max_size=7,
    )
)
def test_random_commits_come_by_partition_and_commit(commits: list[Commit]) -> None:
    with TemporaryDirectory() as folder:
        lake = Lake.open(Path(folder) / "warehouse", "features")
        lake.create(TableSpec("t", {"x": Int64, "part": Int64}, partition_by=("part",)))
        x, rows = 0, []
        for commit in commits:
            tables = []
            for count, part in commit:
                tables.append(
                    pa.table(
                        {
                            "x": pa.array(range(x, x + count), pa.int64()),
                            "part": pa.array([part] * count, pa.int64()),
                        }
                    )
                )
                rows += [(part is not None, part or 0, n) for n in range(x, x + count)]
                x += count
            if tables:
                append_stream(lake, "t", tables, file_bytes=64)
        if rows:
            assert in_order(lake, "t") == [n for *_, n in sorted(rows)]


def test_a_state_of_a_stream_that_counted_rows_by_names_of_files_says_where_to_start(
    lake: Lake,
) -> None:
    table = make_samples(lake, [3, 3])
    with FollowingReader(lake, table, columns=["x"], batch_size=2, until_snapshot=2) as reader:
        state = {**reader.state_dict(), "version": 1, "snapshot_id": 2}
        with pytest.raises(RequestError, match=r"order of commits.* commit again: start=2"):
            reader.load_state_dict(state)
