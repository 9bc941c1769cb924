"""Times of versions in files: with more digits than milliseconds they are rounded up."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from paimon_features.core.configuration.input_settings import InputSettings
from paimon_features.core.windows import DAY_MS
from paimon_features.ingest.local.files import ingest_files
from paimon_features.lake import read_arrow
from paimon_features.project import Project
from tests.shop_projects import make_project

CONFIG = '[project]\nname = "shop"\nengine = "local"\n[online]\nurl = "memory://"\n'
DEFINITIONS = """
import paimon_features as pf

prices = pf.TableSource(
    "prices", event_time="since", created_time="known",
    schema={"item": pf.Int64, "since": pf.Timestamp, "known": pf.Timestamp, "price": pf.Int64},
)
item = pf.Entity("item", keys={"item": pf.Int64})
price = pf.TableView("price", source=prices, entity=item)
visits = pf.EventSource("visits", schema={"item": pf.Int64, "at": pf.Timestamp}, event_time="at")
seen = pf.FeatureView("seen", source=visits, entity=item, features=[pf.Count(windows=["1d"])])
"""
TEXTS = ["2026-01-01 00:00:05.000900Z", "2026-01-01 00:00:06.001Z", "2026-01-01 00:00:07.001000Z"]
MICROS = [1_767_225_605_000_900, 1_767_225_606_001_000, 1_767_225_607_001_000]
UP = [1_767_225_605_001, 1_767_225_606_001, 1_767_225_607_001]


def write(project: Project, form: str) -> Path:
    path = project.root / f"prices.{form}"
    known = [each // 1_000 for each in UP]
    if form == "parquet":
        times = pa.array(MICROS, pa.timestamp("us"))
        pq.write_table(
            pa.table({"item": [1, 2, 3], "since": times, "known": times, "price": [1, 2, 3]}), path
        )
        return path
    rows = [
        {"item": i + 1, "since": text, "known": known[i], "price": i + 1}
        for i, text in enumerate(TEXTS)
    ]
    if form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_no_version_of_a_file_counts_before_its_time(project: Project, form: str) -> None:
    project.jobs.ingest("prices", [write(project, form)])
    found = read_arrow(project.lake, "events_prices").sort_by("item")
    assert found["since"].to_pylist() == UP
    if form == "parquet":
        assert found["known"].to_pylist() == UP
    rows = {"item": [1, 1, 2], "event_time_ms": [UP[0] - 1, UP[0], UP[1]]}
    got = project.get_historical_features("price", rows)
    assert got["price"].to_pylist() == [None, 1, 2]


@pytest.mark.parametrize("declared", ["pf.Timestamp", "pf.Int64"])
@pytest.mark.parametrize("form", ["csv", "csv;", "jsonl", "json", "parquet", "days.parquet"])
def test_texts_and_days_at_which_versions_became_known_are_read_as_event_times(
    tmp_path: Path, form: str, declared: str
) -> None:
    """The same texts are in both columns, and one of them is none."""
    made = DEFINITIONS.replace('"known": pf.Timestamp', f'"known": {declared}')
    project = make_project(tmp_path, made, CONFIG)
    texts = [*TEXTS, "2026-01-02", None, "2026-01-01T00:00:05+01:00", "soon"]
    days = pa.array([20_454, None, 20_455], pa.int32()).cast(pa.date32())
    known: pa.Array = days if form == "days.parquet" else pa.array(texts)
    since = pa.array(TEXTS * 3)[: len(known)]
    items = pa.array(range(len(known)))
    rows = pa.table({"item": items, "since": since, "known": known, "price": items})
    path = project.root / f"prices.{form.removesuffix(';')}"
    settings = None
    if form.endswith("parquet"):
        pq.write_table(rows, path)
    elif form.startswith("csv"):
        if form == "csv;":
            settings = InputSettings.of("prices", {"delimiter": ";"})
        options = pyarrow.csv.WriteOptions(delimiter=";" if settings else ",")
        pyarrow.csv.write_csv(rows, path, options)
    else:
        lines = [json.dumps(row) for row in rows.to_pylist()]
        path.write_text("\n".join(lines) if form == "jsonl" else f"[{','.join(lines)}]")
    source = project.definitions.sources["prices"]
    done = ingest_files(
        project.lake, source, [path], state_dir=tmp_path / "state", settings=settings
    )
    found = read_arrow(project.lake, "events_prices").sort_by("item")
    if form == "days.parquet":
        assert found["known"].to_pylist() == [20_454 * DAY_MS, None, 20_455 * DAY_MS]
        return
    assert done.rejected == {"wrong_type": 1}
    assert "known: expected int64 or a time, got 'soon'" in done.examples["wrong_type"]
    day, hour_before = 1_767_312_000_000, 1_767_222_005_000
    assert found["known"].to_pylist() == [*UP, day, None, hour_before]


def test_events_are_rounded_down_as_before(project: Project) -> None:
    path = project.root / "visits.csv"
    path.write_text("item,at\n" + "".join(f"{i},{text}\n" for i, text in enumerate(TEXTS)))
    project.jobs.ingest("visits", [path])
    found = read_arrow(project.lake, "events_visits").sort_by("item")
    assert found["at"].to_pylist() == [UP[0] - 1, *UP[1:]]
