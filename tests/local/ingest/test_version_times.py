"""Times of versions in files: with more digits than milliseconds they are rounded up."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paimon_features.project import Project
from paimon_features.tables import read_arrow
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


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path, DEFINITIONS, CONFIG)


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


def test_events_are_rounded_down_as_before(project: Project) -> None:
    path = project.root / "visits.csv"
    path.write_text("item,at\n" + "".join(f"{i},{text}\n" for i, text in enumerate(TEXTS)))
    project.jobs.ingest("visits", [path])
    found = read_arrow(project.lake, "events_visits").sort_by("item")
    assert found["at"].to_pylist() == [UP[0] - 1, *UP[1:]]
