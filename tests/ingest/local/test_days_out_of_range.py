"""Days and times that no Python date has are rejected with a count, in every form of file."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from paimon_features.core.types.schema import Date, Int64, Timestamp
from paimon_features.core.windows import DAY_MS, MAX_TIME_MS, MIN_TIME_MS
from paimon_features.definitions import Definitions, EventSource
from paimon_features.ingest.local.files import ingest_files
from paimon_features.lake import Lake, read_arrow
from paimon_features.project.planning.plan import apply_plan

SOURCE = EventSource(
    "contracts",
    schema={"id": Int64, "time": Int64, "day": Date, "until": Timestamp},
    event_time="time",
)
FIRST, LAST = MIN_TIME_MS // DAY_MS, MAX_TIME_MS // DAY_MS
DAYS = [FIRST - 1, FIRST, LAST, LAST + 1, 10**7, -(10**7), 0, None]


def days(kind: pa.DataType) -> pa.Array:
    if kind == pa.date32():
        return pa.array(DAYS, pa.int32()).cast(kind)
    unit = DAY_MS if kind == pa.date64() else 86_400
    return pa.array([d and d * unit for d in DAYS], pa.int64()).cast(kind)


def write(rows: pa.Table, path: Path) -> None:
    if path.suffix == ".parquet":
        pq.write_table(rows, path)
    elif path.suffix == ".arrow":
        pyarrow.feather.write_feather(rows, path, compression="uncompressed")
    else:
        pyarrow.orc.write_table(rows, path)


@pytest.mark.parametrize(
    ("name", "column", "kind"),
    [
        ("a.parquet", "day", pa.date32()),
        pytest.param("a.parquet", "day", pa.date64(), marks=pytest.mark.long),
        ("a.arrow", "day", pa.date64()),
        ("a.orc", "day", pa.date32()),
        pytest.param("a.parquet", "until", pa.date32(), marks=pytest.mark.long),
        ("a.parquet", "until", pa.timestamp("s")),
        pytest.param("a.arrow", "until", pa.timestamp("s"), marks=pytest.mark.long),
        pytest.param("a.arrow", "until", pa.date64(), marks=pytest.mark.long),
    ],
)
def test_days_that_no_date_has_are_rejected(
    name: str, column: str, kind: pa.DataType, tmp_path: Path
) -> None:
    lake = Lake.open(str(tmp_path / "lake"), "features")
    apply_plan(lake, Definitions.of([SOURCE]), now_ms=1)
    rows = pa.table({"id": range(len(DAYS)), "time": range(len(DAYS)), column: days(kind)})
    other = {"day": "until", "until": "day"}[column]
    rows = rows.append_column(other, pa.nulls(len(DAYS), SOURCE.schema[other].arrow))
    write(rows, tmp_path / name)
    done = ingest_files(lake, SOURCE, [tmp_path / name], state_dir=tmp_path / "state")
    assert (done.accepted, done.rejected) == (4, {"wrong_type": 4})
    kept = read_arrow(lake, SOURCE.table).sort_by("id")
    assert kept["id"].to_pylist() == [1, 2, 6, 7]
    if column == "day":
        assert kept["day"].to_pylist() == [date.min, date.max, date(1970, 1, 1), None]
    read_arrow(lake, SOURCE.rejected_table).to_pylist()
