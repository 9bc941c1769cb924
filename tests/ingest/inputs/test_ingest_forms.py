"""Files in any form enter the lake once, and what is no event of them is kept with the reason."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from paimon_features.core.configuration.input_settings import InputSettings
from paimon_features.core.types.schema import Bytes, Float64, Int64, String
from paimon_features.definitions import Definitions, EventSource
from paimon_features.ingest.local.files import ingest_files
from paimon_features.lake import Lake, read_arrow
from paimon_features.project.planning.plan import apply_plan

pytest.importorskip("duckdb")
SCHEMA = {"customer_id": Int64, "time": Int64, "amount": Float64, "note": String}


def test_a_dialect_is_ingested_once_and_its_bad_rows_are_kept(tmp_path: Path) -> None:
    source = EventSource("sales", schema=SCHEMA, event_time="time")
    lake = Lake.open(str(tmp_path / "lake"), "features")
    apply_plan(lake, Definitions.of([source]), now_ms=1)
    file = tmp_path / "sales.csv"
    file.write_bytes(
        "Kunde;time;amount;note\n"
        '1;01.03.2024 08:00;1.234,50;"two\nlines, Köln"\n'
        "2;31.02.2024 08:00;1,00;no such day\n"
        "3;01.03.2024 08:00;12.34,5;no number\n"
        "4;01.03.2024 08:00\n"
        # a null behind a quoted cell, and no line end
        '5;01.03.2024 08:01;"1,00";'.encode("cp1252")
    )
    settings = InputSettings.of(
        "sales",
        {
            "delimiter": ";",
            "encoding": "cp1252",
            "decimal": ",",
            "thousands": ".",
            "line_breaks": True,
            "time_format": "%d.%m.%Y %H:%M",
            "columns": {"customer_id": "Kunde"},
        },
    )
    state = tmp_path / "state"
    done = ingest_files(lake, source, [file], state_dir=state, settings=settings)
    assert done.accepted == 2
    assert done.rejected == {"too_few_columns": 1, "wrong_type": 2}
    event, last = read_arrow(lake, source.table, columns=list(SCHEMA)).sort_by("time").to_pylist()
    assert (last["customer_id"], last["note"]) == (5, None)
    assert event == {
        "customer_id": 1,
        "time": 1_709_280_000_000,
        "amount": 1234.5,
        "note": "two\nlines, Köln",
    }
    rejected = read_arrow(lake, source.rejected_table).to_pylist()
    assert {row["origin"] for row in rejected} == {str(file)}
    assert any("31.02.2024" in row["detail"] for row in rejected)
    again = ingest_files(lake, source, [file], state_dir=state, settings=settings)
    assert again.accepted == 0
    assert [path for path, _ in again.skipped] == [str(file)]
    assert not list(state.rglob("*.parquet"))


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_a_row_kind_that_is_none_and_a_time_that_is_none_are_rejected(
    name: str, tmp_path: Path
) -> None:
    schema = {"id": Int64, "time": Int64, "op": String}
    if name == "a.parquet":
        schema |= {"raw": Bytes}
    source = EventSource("orders", schema=schema, event_time="time", retraction="op")
    lake = Lake.open(str(tmp_path / "lake"), "features")
    apply_plan(lake, Definitions.of([source]), now_ms=1)
    rows = pa.table(
        {
            "id": [1, 2, 3, 4, 5, 6],
            "time": [
                "2024-01-02 10:00", "2024-01-02T10:00:00", "2024-01-02", "2024x01x02",
                "2024-01-02x10:00", "2024-01-02",
            ],
            "op": ["+I", "-D", "delete", "+I", "+I", None],
        }
    )  # fmt: skip
    if name == "a.csv":
        pyarrow.csv.write_csv(rows, tmp_path / name)
    else:
        pq.write_table(rows.append_column("raw", [[b"\xff\x00"] * 6]), tmp_path / name)
    done = ingest_files(lake, source, [tmp_path / name], state_dir=tmp_path / "state")
    assert (done.accepted, sum(done.rejected.values())) == (2, 4)
    found = read_arrow(lake, source.rejected_table).to_pylist()
    assert sorted(row["detail"] for row in found) == [
        "column op: expected +I, +U, -U, -D, got delete",
        "column op: expected +I, +U, -U, -D, got null",
        "column time: expected int64 or a time, got '2024-01-02x10:00'",
        "column time: expected int64 or a time, got '2024x01x02'",
    ]
