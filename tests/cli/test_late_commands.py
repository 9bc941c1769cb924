"""``status --lateness`` and ``maintain --only release`` as a user types them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from paimon_features.cli import cli
from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.lake import EventWriter, read_arrow
from paimon_features.lake.ownership import lease
from paimon_features.lake.ownership.lease import ProcessHolder
from paimon_features.project import Project
from tests.commands import run
from tests.shop_projects import make_project

DEFINITIONS = """
import paimon_features as pf

clicks = pf.EventSource("clicks", schema={"id": pf.Int64, "at_ms": pf.Int64}, event_time="at_ms")
"""

pytestmark = pytest.mark.usefixtures("project")
NOW_MS = time.time_ns() // 1_000_000


def write(project: Project, now_ms: int, *times_ms: int) -> None:
    source = project.definitions.source("clicks")
    writer = EventWriter.of(project.lake, source, lambda: now_ms)
    writer.write(pa.table({"id": range(len(times_ms)), "at_ms": times_ms}))


def test_lateness_is_drawn_with_counts_shares_and_quantiles(project: Project) -> None:
    assert run("status", "--lateness", "clicks").output == "clicks has no events (of that time)\n"
    write(project, NOW_MS - 30 * DAY_MS, NOW_MS - 400 * DAY_MS)
    write(project, NOW_MS, NOW_MS + 5, *[NOW_MS - 20] * 8, NOW_MS - 2 * HOUR_MS)
    shown = run("status", "--lateness", "clicks").output.splitlines()
    assert shown[0] == "clicks: 11 events by how late they came"
    assert [line.split()[-2:] for line in shown[1:3]] == [["1", "9.091%"], ["8", "72.727%"]]
    assert shown[2].lstrip().startswith("< 1s")
    assert shown[2].count("█") == 40
    assert shown[-2].startswith("50 % <= 20 ms, 90 % <= ")
    assert shown[-2].endswith("; the latest 370 d")
    assert shown[-1] == "2 after 1h, 1 after 1d, 1 after 7d, 1 after 30d"
    reported = json.loads(run("status", "--lateness", "clicks", "--since", "7d", "--json").stdout)
    assert (reported["events"], reported["greatest_ms"]) == (10, 2 * HOUR_MS)
    assert sum(bucket["events"] for bucket in reported["buckets"]) == 10


def test_release_tells_what_entered_and_what_waits(project: Project) -> None:
    write(project, NOW_MS - DAY_MS, NOW_MS - HOUR_MS, NOW_MS + DAY_MS)
    assert read_arrow(project.lake, "events_clicks").num_rows == 0
    output = run("maintain", "--only", "release", "clicks").stdout.splitlines()
    assert output[0] == "1 events released to events_clicks"
    assert output[1].startswith("1 still held, the first until ")
    assert read_arrow(project.lake, "events_clicks").column("id").to_pylist() == [0]
    reported = json.loads(run("maintain", "--only", "release", "clicks", "--json").stdout)
    assert (reported["events"], reported["waiting"]) == (0, 1)


def test_while_a_job_writes_the_source_nothing_is_released(project: Project) -> None:
    with lease.acquire(project.lake, "rejected_clicks", ProcessHolder.of(os.getppid()), "ingest"):
        done = CliRunner().invoke(cli, ["maintain", "--only", "release", "clicks"])
    assert done.exit_code == 1
    assert "table 'rejected_clicks' is owned by process" in done.output


def test_an_ingest_releases_what_is_due(tmp_path: Path, project: Project) -> None:
    pytest.importorskip("duckdb")
    write(project, NOW_MS - DAY_MS, NOW_MS - HOUR_MS)
    (tmp_path / "a.csv").write_text(f"id,at_ms\n7,{NOW_MS - HOUR_MS}\n")
    done = run("ingest", "files", "clicks", "a.csv", "--engine", "local")
    assert "1 held events released" in done.stdout
    assert read_arrow(project.lake, "events_clicks").num_rows == 2


def test_a_released_event_that_was_ingested_meanwhile_is_a_duplicate(tmp_path: Path) -> None:
    project = make_project(
        tmp_path,
        DEFINITIONS.replace('event_time="at_ms"', 'event_time="at_ms", event_id="id", '
                         'dedup_horizon="30d"'),
    )  # fmt: skip
    write(project, NOW_MS - DAY_MS, NOW_MS - HOUR_MS)
    write(project, NOW_MS, NOW_MS - HOUR_MS)
    output = run("maintain", "--only", "release", "clicks").stdout
    assert output == "0 events released to events_clicks\n1 were duplicates of ingested ids\n"
