"""``training-set``, as a user runs it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result

from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.lake import append_arrow, read_arrow, snapshot
from paimon_features.project import Project
from paimon_features.testing.reference.tiler import event_rows, tile_table
from tests.commands import invoke
from tests.shop_projects import make_project

DEFINITIONS = """
import paimon_features as pf

visits = pf.EventSource("visits", event_time="t",
    schema={"customer_id": pf.Int64, "t": pf.Int64, "spent": pf.Float64})
customer = pf.FeatureView("customer", source=visits,
    entity=pf.Entity("customer", keys={"customer_id": pf.Int64}),
    features=[pf.Sum("spent", windows=["1d", "7d"], scale=2), pf.Count(windows=["7d"])])
service = pf.FeatureService("churn_v1", [customer])
"""
NOW = 15_000 * DAY_MS + 9 * HOUR_MS

run = partial(invoke, "training-set")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    project = make_project(Path(), DEFINITIONS)
    commit(project, [(1, NOW - 1, 1.25), (1, NOW - DAY_MS, 2.5), (2, NOW, 7.0)])
    Path("rows.csv").write_text(
        "customer_id,event_time_ms,bought\n"
        + "".join(f"{c},{NOW},{c % 2}\n" for c in (1, 2, 3))
        + f"1,{NOW + 40 * DAY_MS},1\n"
    )
    return project


def commit(project: Project, visits: list[tuple[int, int, float]]) -> None:
    """Events, and the tiles that the job would make of them."""
    columns = dict(zip(("customer_id", "t", "spent"), zip(*visits, strict=True), strict=True))
    events = pa.table({name: list(values) for name, values in columns.items()})
    days = (events["t"].to_numpy() // DAY_MS).astype(np.int32)
    append_arrow(project.lake, "events_visits", events.append_column("event_day", pa.array(days)))
    view = project.definitions.view("customer")
    append_arrow(project.lake, view.compiled.table(1), tile_table(view, event_rows(events)))


def build(*arguments: str) -> Result:
    return run("churn", "--service", "churn_v1", "--rows", "rows.csv", *arguments)


def test_rows_of_a_csv_file_get_their_features_and_what_is_unknown_is_counted(
    project: Project,
) -> None:
    done = build("--label", "bought")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        "training_churn: 4 rows, 3 features",
        "  3 rows have no feature value: a null key, or an entity unknown at that time",
        "  from tiles_customer_g1, snapshot 1",
        "  from events_visits, snapshot 1",
    ]
    table = read_arrow(project.lake, "training_churn")
    assert table["sum_spent_1d"].to_pylist() == [3.75, None, None, None]
    assert table["bought"].to_pylist() == [1, 0, 1, 1]


def test_parquet_rows_with_times_give_the_same_and_json_says_what_was_made(
    project: Project,
) -> None:
    rows = pa.table({"customer_id": [1], "event_time_ms": pa.array([NOW], pa.timestamp("ms"))})
    pq.write_table(rows, "rows.parquet")
    done = run("p", "--service", "customer:count_7d", "--rows", "rows.parquet", "--json")
    document = json.loads(done.stdout)
    assert document["features"] == ["count_7d"]
    assert (document["rows"], document["rows_without_features"]) == (1, 0)
    commit = snapshot(project.lake, "events_visits", 1).commit
    assert document["sources"][1] == {"table": "events_visits", "snapshot_id": 1, "commit": commit}
    assert read_arrow(project.lake, "training_p")["count_7d"].to_pylist() == [2]


def test_the_same_again_is_harmless_and_another_one_needs_replace(project: Project) -> None:
    assert build().exit_code == build().exit_code == 0
    commit(project, [(3, NOW - 5, 1.0)])
    done = build()
    assert done.exit_code == 1
    assert "contains another training set (different: sources)" in done.output
    assert build("--replace").exit_code == 0
    assert read_arrow(project.lake, "training_churn")["count_7d"].to_pylist()[2] == 1


def test_as_of_takes_a_time_and_refuses_what_looks_like_a_year_or_seconds(
    project: Project,
) -> None:
    done = build("--as-of", "2001-01-01")
    assert "from events_visits, no snapshot yet" in done.output
    for text in ("2011", "1323434999", "noon"):
        done = build("--as-of", text)
        assert done.exit_code == 2
        assert f"time '{text}': expected UTC milliseconds" in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "features.py"], "entity rows features.py: "),
        (["--service", "churn_v2"], "unknown service 'churn_v2'; available: churn_v1"),
        (["--label", "sold"], "label: unknown column 'sold'"),
        (["--rows", "nowhere.csv"], "'nowhere.csv': no such file"),
    ],
)
def test_wrong_use_exits_2_and_says_what_is_wrong(
    project: Project, arguments: list[str], message: str
) -> None:
    done = build(*arguments)
    assert done.exit_code == 2
    assert message in done.output
    assert not project.lake.exists("training_churn")
