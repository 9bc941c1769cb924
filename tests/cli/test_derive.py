"""``derive``, as a user runs it: the table of a derived view, and its files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paimon_features.core.errors import OwnershipError, TableError
from paimon_features.core.windows import DAY_MS, HOUR_MS, MINUTE_MS
from paimon_features.definitions import Definitions
from paimon_features.lake import append_arrow, latest_snapshot, read_arrow
from paimon_features.lake.ownership.lease import ProcessHolder, acquire
from paimon_features.project import Project
from paimon_features.project.planning.drop import plan_drop
from paimon_features.testing.reference.tiler import event_rows, tile_table
from tests.commands import invoke as run

DEFINITIONS = """
import paimon_features as pf

visits = pf.EventSource("visits", event_time="t",
    schema={"customer_id": pf.Int64, "t": pf.Int64, "spent": pf.Float64})
customer = pf.FeatureView("customer", source=visits,
    entity=pf.Entity("customer", keys={"customer_id": pf.Int64}),
    features=[pf.Sum("spent", windows=["1d", "7d"], scale=2), pf.Count(windows=["7d"]),
              pf.TimeSinceFirst(windows=["7d"])])
daily = pf.TumblingView("daily", customer, "1d", features=[pf.Sum("spent", scale=2), pf.Count()],
    owner="growth")
sessions = pf.SessionView("sessions", customer, "30min", features=[pf.Sum("spent", scale=2)])
"""
DAY0 = 15_000
START = DAY0 * DAY_MS


@pytest.fixture
def project(project: Project) -> Project:
    commit(
        project,
        [
            (1, START, 1.25),
            (1, START + 5, 2.5),
            (2, START + DAY_MS - 1, 7.0),
            (1, START + DAY_MS, 1.0),
        ],
    )
    return project


def commit(project: Project, visits: list[tuple[int, int, float]]) -> None:
    """The tiles that the job would make of these events."""
    columns = dict(zip(("customer_id", "t", "spent"), zip(*visits, strict=True), strict=True))
    events = pa.table({name: list(values) for name, values in columns.items()})
    view = project.definitions.view("customer")
    append_arrow(project.lake, view.compiled.table(1), tile_table(view, event_rows(events)))


def rows(project: Project, table: str = "features_daily") -> list[tuple[object, ...]]:
    found = read_arrow(project.lake, table).drop_columns(["start_day"]).to_pylist()
    return sorted(tuple(row.values()) for row in found)


def test_closed_windows_are_written_and_later_ones_follow(project: Project) -> None:
    done = run("derive", "daily")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        "features_daily: 2 rows; 1 days written, 0 emptied",
        "  from tiles_customer_g1, snapshot 1",
    ]
    first = [
        (1, START, START + DAY_MS, 3.75, 2),
        (2, START, START + DAY_MS, 7.0, 1),
    ]
    assert rows(project) == first
    commit(project, [(1, START + 3 * DAY_MS, 0.0)])
    reported = json.loads(run("derive", "daily", "--json").stdout)
    assert (reported["rows"], reported["days_written"], reported["snapshot_id"]) == (3, 1, 2)
    assert rows(project) == sorted([*first, (1, START + DAY_MS, START + 2 * DAY_MS, 1.0, 1)])


def test_a_refresh_that_finds_nothing_new_commits_nothing(project: Project) -> None:
    project.derived.refresh("daily", include_open=True)
    before = latest_snapshot(project.lake, "features_daily")
    again = project.derived.refresh("daily", include_open=True)
    assert (again.rows, again.days_written, again.days_emptied) == (3, 0, 0)
    assert latest_snapshot(project.lake, "features_daily") == before


def test_open_windows_are_written_when_requested_and_go_without(project: Project) -> None:
    run("derive", "daily", "--open")
    assert len(rows(project)) == 3
    assert "0 days written, 1 emptied" in run("derive", "daily").output
    assert len(rows(project)) == 2


def test_late_events_change_the_days_that_they_fall_on(project: Project) -> None:
    commit(project, [(1, START + 9 * DAY_MS, 0.0)])
    project.derived.refresh("daily")
    commit(project, [(2, START + 7, 1.0)])
    done = project.derived.refresh("daily")
    assert (done.rows, done.days_written) == (3, 1)
    assert rows(project)[2] == (2, START, START + DAY_MS, 8.0, 2)


def test_sessions_that_a_late_event_joins_leave_no_row_behind(project: Project) -> None:
    # midnight lies between the two sessions that become one
    commit(project, [(9, START + 9 * DAY_MS, 0.0), (2, START + DAY_MS + 50 * MINUTE_MS, 1.0)])
    project.derived.refresh("sessions")
    found = {(row[0], row[1]) for row in rows(project, "features_sessions")}
    late = START + DAY_MS + 50 * MINUTE_MS
    assert found == {(1, START), (1, START + DAY_MS), (2, START + DAY_MS - 1), (2, late)}
    commit(project, [(2, START + DAY_MS + 25 * MINUTE_MS, 1.0)])
    project.derived.refresh("sessions")
    mine = [row for row in rows(project, "features_sessions") if row[0] == 2]
    assert mine == [(2, START + DAY_MS - 1, late + 30 * MINUTE_MS, 3, 9.0)]


def test_a_range_is_widened_to_days_and_leaves_the_others_alone(project: Project) -> None:
    commit(project, [(1, START + 9 * DAY_MS, 0.0)])
    project.derived.refresh("daily")
    commit(project, [(2, START + 7, 1.0), (2, START + DAY_MS + 7, 1.0)])
    noon = START + DAY_MS + 12 * HOUR_MS
    done = project.derived.refresh("daily", from_ms=noon, to_ms=noon + 1)
    assert (done.rows, done.days_written) == (2, 1)
    assert (2, START, START + DAY_MS, 7.0, 1) in rows(project)
    date = str(np.datetime64(DAY0 + 1, "D"))
    assert run("derive", "daily", "--from", date).exit_code == 0
    done = run("derive", "daily", "--from", date, "--to", date)
    assert done.exit_code == 2
    assert "expected a time between them" in done.output


def test_a_parquet_file_has_the_same_rows_and_is_the_same_each_time(project: Project) -> None:
    done = run("derive", "sessions", "--open", "--output", "out.parquet")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0] == "out.parquet: 3 rows, 1 features"
    before = Path("out.parquet").read_bytes()
    table = pq.read_table("out.parquet")
    assert table.column_names == [
        "customer_id", "session_start_ms", "session_end_ms", "session_events", "sum_spent"
    ]  # fmt: skip
    assert table.equals(project.derived.rows("sessions", include_open=True))
    commit(project, [(1, START + 9 * DAY_MS, 0.0)])
    pinned = ["--open", "--output", "out.parquet", "--as-of", "tiles_customer_g1@1"]
    assert run("derive", "sessions", *pinned).exit_code == 0
    assert Path("out.parquet").read_bytes() == before
    assert run("derive", "sessions", "--as-of", "tiles_customer_g1@1").exit_code == 2


def test_rows_can_be_the_entity_rows_of_a_training_set(project: Project) -> None:
    daily = project.derived.rows("daily")
    rows = daily.append_column("event_time_ms", daily["window_end_ms"])
    found = project.get_historical_features("customer", rows)
    assert found["sum_spent_1d"].to_pylist() == daily["sum_spent"].to_pylist()


def test_a_table_of_another_definition_is_replaced_only_when_requested(project: Project) -> None:
    run("derive", "daily")
    changed = DEFINITIONS.replace('customer, "1d"', 'customer, "12h"')
    Path("features.py").write_text(changed)
    done = run("derive", "daily")
    assert done.exit_code == 1
    assert "contains rows of another definition of 'daily'" in done.output
    assert run("derive", "daily", "--replace").exit_code == 0
    assert {row[2] - row[1] for row in rows(project)} == {DAY_MS // 2}  # type: ignore[operator]
    with pytest.raises(TableError, match="another definition"):
        project.derived.refresh("daily")


def test_a_table_has_one_owner(project: Project) -> None:
    other = ProcessHolder("elsewhere", 1, 1)
    with acquire(project.lake, "features_daily", other), pytest.raises(OwnershipError):
        project.derived.refresh("daily")


def test_derived_views_are_planned_described_drawn_and_dropped(project: Project) -> None:
    Path("features.py").write_text(DEFINITIONS.replace('"30min"', '"1h"'))
    planned = run("plan").output
    assert "~ derived view sessions\n    session_gap: '30min' -> '1h'\n" in planned
    assert "is computed by 'paimon-features derive sessions': no backfill" in planned
    Path("features.py").write_text(DEFINITIONS)
    run("derive", "daily")
    reported = run("describe", "daily").output
    for text in ("view   customer", "sum_spent: float64", "2 rows", "growth", "size   1d"):
        assert text in reported
    assert (
        "├─ derived view daily  (customer, 2 features)"
        in run("describe", "--graph", "customer").output
    )
    without = "\n".join(DEFINITIONS.splitlines()[:5])
    Path("features.py").write_text(without)
    refused = run("drop", "feature-view", "customer", "--yes")
    assert refused.exit_code == 2
    assert "daily, sessions is computed from" in refused.output
    for name in ("daily", "sessions"):
        assert run("drop", "derived-view", name, "--yes").exit_code == 0
    assert not project.lake.exists("features_daily")
    assert plan_drop(project.lake, Definitions(), "feature_view", "customer").tables


def test_a_name_that_is_not_defined_is_refused_with_those_that_are(project: Project) -> None:
    done = run("derive", "dayly")
    assert done.exit_code == 2
    assert "unknown derived view 'dayly'; available: daily, sessions" in done.output
