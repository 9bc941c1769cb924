"""Entity rows from everywhere: the same features, whatever the rows come in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from paimon_features.core.errors import RequestError, SnapshotExpiredError, UnknownNameError
from paimon_features.core.types.schema import Int64, String
from paimon_features.core.windows import DAY_MS
from paimon_features.lake import append_arrow
from paimon_features.lake.specs import training_spec
from paimon_features.offline.inputs.row_source import row_source
from tests.offline.lake_of_views import LakeOfViews
from tests.offline.test_store import SPEND, clicks

ROWS = pa.table(
    {
        "user": [2, 1, None, 1] * 500,
        "event_time_ms": [0, 60_001, 5, DAY_MS] * 500,
        "note": ["a", None, "ü", "b"] * 500,
    }
)


@pytest.fixture
def lake(tmp_path: Path) -> LakeOfViews:
    lake = LakeOfViews(tmp_path / "lake", SPEND)
    lake.commit(clicks((1, 0, 1.25, "a"), (1, 60_000, None, "b"), (2, -5, 3.0, "a")))
    lake.lake.create(
        training_spec("requested", {"user": Int64, "event_time_ms": Int64, "note": String})
    )
    append_arrow(lake.lake, "requested", ROWS)
    append_arrow(lake.lake, "requested", ROWS[:10])
    pq.write_table(ROWS, tmp_path / "rows.parquet", row_group_size=300)
    (tmp_path / "parts" / "_hidden").mkdir(parents=True)
    pq.write_table(ROWS[:700], tmp_path / "parts" / "a.parquet")
    pq.write_table(ROWS[700:], tmp_path / "parts" / "b.parquet")
    (tmp_path / "parts" / "_SUCCESS.parquet").write_text("")
    pyarrow.csv.write_csv(ROWS, tmp_path / "rows.csv")
    return lake


def _duckdb(folder: Path) -> Any:
    connection = duckdb.connect()
    return connection.sql(f"SELECT * FROM read_parquet('{folder}/rows.parquet')")


KINDS: dict[str, Callable[[Path], Any]] = {
    "table": lambda _: ROWS,
    "batch": lambda _: ROWS.combine_chunks().to_batches()[0],
    "reader": lambda _: ROWS.to_reader(100),
    "dataset": lambda folder: ds.dataset(folder / "rows.parquet"),
    "dict": lambda _: {name: ROWS[name] for name in ROWS.column_names},
    "pandas": lambda _: ROWS.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get),
    "polars": lambda _: pl.from_arrow(ROWS),
    "lazy polars": lambda folder: pl.scan_parquet(folder / "rows.parquet"),
    "duckdb": _duckdb,
    "file": lambda folder: folder / "rows.parquet",
    "text of a file": lambda folder: f"{folder}/rows.parquet",
    "folder": lambda folder: folder / "parts",
    "pattern": lambda folder: f"{folder}/parts/[ab].parquet",
    "csv": lambda folder: folder / "rows.csv",
    "snapshot of a table": lambda _: "requested@1",
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_every_kind_give_the_same_features(
    lake: LakeOfViews, tmp_path: Path, kind: str
) -> None:
    refs = lake.refs("spend")
    expected = lake.store.get_historical_features(refs, ROWS)
    for memory_mb in (None, 0.05):
        rows = KINDS[kind](tmp_path)
        got = lake.store.get_historical_features(refs, rows, memory_mb=memory_mb)
        note = got["note"].cast(pa.string())
        if kind == "csv":
            note = pa.chunked_array([[v or None for v in note.to_pylist()]])
        got = got.set_column(2, "note", note)
        assert got.cast(expected.schema).equals(expected)


def test_a_table_without_a_snapshot_is_read_at_its_newest(lake: LakeOfViews) -> None:
    assert sum(t.num_rows for t in _pieces("requested", lake)) == 2_010
    assert sum(t.num_rows for t in _pieces("requested@1", lake)) == 2_000


def _pieces(rows: Any, lake: LakeOfViews) -> list[pa.Table]:
    chunks = row_source(rows, lake.lake).chunks()
    found = []
    while (piece := chunks.take(64)).num_rows:
        found.append(piece)
    return found


def test_pieces_have_the_size_that_is_requested(lake: LakeOfViews) -> None:
    sizes = [piece.num_rows for piece in _pieces(ROWS.to_reader(100), lake)]
    assert sizes == [64] * 31 + [16]


def test_categories_that_differ_between_batches_stay_what_they_are(lake: LakeOfViews) -> None:
    words = [pa.array(["x", "y"]).dictionary_encode(), pa.array(["z", "x"]).dictionary_encode()]
    batches = [
        pa.record_batch([[1, 2], [0, 0], word], ["user", "event_time_ms", "w"]) for word in words
    ]
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, batches * 200)
    got = lake.store.get_historical_features(lake.refs("spend"), reader, memory_mb=0.01)
    assert got["w"].to_pylist() == ["x", "y", "z", "x"] * 200


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([1, 2], RequestError, "entity rows of type list; expected"),
        (Path("nowhere.parquet"), RequestError, "no such file"),
        ("*.nothing", RequestError, "a pattern that matches files"),
        ("tables", UnknownNameError, "unknown table 'tables'"),
        ("requested@9", SnapshotExpiredError, "no snapshot 9"),
        (Path(__file__), RequestError, "expected Parquet or CSV"),
        (
            pa.table([[1], [2]], names=["user", "user"]),
            RequestError,
            "two columns 'user'",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(
    lake: LakeOfViews, rows: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        lake.store.get_historical_features(lake.refs("spend"), rows)


def test_files_of_other_columns_are_refused(lake: LakeOfViews, tmp_path: Path) -> None:
    pq.write_table(ROWS.drop_columns(["note"]), tmp_path / "parts" / "c.parquet")
    with pytest.raises(RequestError, match="one part has the columns user, event_time_ms"):
        lake.store.get_historical_features(lake.refs("spend"), tmp_path / "parts")
