"""Verify over every kind of windows, and over a view that only the lake can answer."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from paimon_features.cli import cli
from paimon_features.core.types.schema import arrow_schema
from paimon_features.core.windows import DAY_MS, HOUR_MS, MINUTE_MS
from paimon_features.lake import append_arrow, latest_snapshot
from paimon_features.lake.side_folder import generations
from paimon_features.project import Project
from paimon_features.project.verification.parity import verify
from paimon_features.testing.reference.tiler import tile_table

pytestmark = pytest.mark.redis

DEFINITIONS = """
import paimon_features as pf

clicks = pf.EventSource("clicks", schema={"user": pf.Int64, "t": pf.Int64}, event_time="t")
user = pf.Entity("user", keys={"user": pf.Int64})
of = {"source": clicks, "entity": user, "time_zone": "Asia/Kathmandu"}
features = [pf.Count(windows=["1h", "1d", "today"]), pf.Count(windows=["1d"], offset="7min")]
sawtooth = pf.FeatureView("sawtooth", features=features, **of)
hop = pf.FeatureView("hop", features=features, kind="hop", **of)
exact = pf.FeatureView("exact", features=features, kind="exact", **of)
single = pf.FeatureView("single", features=features, kind="exact", tile="1ms", **of)
"""
HIGH = 1_700_000_000_000


@pytest.fixture
def high_ms() -> int:
    """The time of the newest event."""
    return HIGH


@pytest.fixture
def project(online_url: str, project: Project, high_ms: int) -> Project:
    rng = random.Random(3)
    steps = (1, MINUTE_MS, 5 * MINUTE_MS, HOUR_MS, DAY_MS)
    events: list[dict[str, Any]] = [
        {"user": rng.randrange(5), "t": high_ms - rng.randrange(40) * rng.choice(steps)}
        for _ in range(60)
    ]
    source = project.definitions.sources["clicks"]
    table = pa.Table.from_pylist(events, schema=arrow_schema(source.schema))
    days = pa.array([event["t"] // DAY_MS for event in events], pa.int32())
    append_arrow(project.lake, source.table, table.append_column("event_day", days))
    for view in project.definitions.views.values():
        record = generations.load(project.lake, view.name)[0]
        append_arrow(project.lake, record.table, tile_table(view, events))
    return project


@pytest.mark.parametrize("high_ms", [-5 * DAY_MS, 0])
def test_events_before_1970_are_compared_as_any_others(project: Project) -> None:
    CliRunner().invoke(cli, ["materialize", "sawtooth"], catch_exceptions=False)
    report = verify(project, "sawtooth", sample=5, times=4, settle_s=0)
    assert report.ok, report.differences
    assert report.compared > 0


def test_all_kinds_agree_and_the_lake_alone_is_compared_where_there_is_no_more(
    project: Project,
) -> None:
    done = CliRunner().invoke(cli, ["materialize"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "skipped, exact windows are read from the lake: exact" in done.output
    compared = {}
    for name in project.definitions.views:
        reported: list[str] = []
        report = verify(project, name, sample=5, times=12, settle_s=0, on_message=reported.append)
        assert reported == [f"{name}: {report.compared:,} values, 0 differences"]
        assert report.ok, report.differences
        compared[name] = report.compared
    # 5 users, 12 times, 4 features; online and tiles, or tiles alone
    assert compared == {"sawtooth": 480, "hop": 480, "exact": 240, "single": 480}


def test_materializing_a_view_that_only_the_lake_can_answer_is_refused(project: Project) -> None:
    done = CliRunner().invoke(cli, ["materialize", "exact"])
    assert done.exit_code != 0
    assert "exact windows over tiles of 300000 ms" in done.output


def test_events_that_are_all_too_new_are_no_agreement_and_no_difference(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = latest_snapshot(project.lake, "events_clicks")
    assert newest is not None
    monkeypatch.setattr(
        "paimon_features.project.verification.parity.now_ms", lambda: newest.time_ms
    )
    CliRunner().invoke(cli, ["materialize", "sawtooth"], catch_exceptions=False)
    done = CliRunner().invoke(cli, ["verify", "sawtooth"], catch_exceptions=False)
    assert done.exit_code == 1
    assert "nothing could be compared" in done.output
    assert "repeat it when they have settled" in done.output
