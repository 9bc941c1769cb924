"""``training-set --output``, as a user runs it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paimon_features.core.windows import HOUR_MS
from paimon_features.project import Project
from tests.cli.test_training_set import NOW, commit
from tests.cli.test_training_set import project as project
from tests.commands import invoke

__all__ = ["project"]

run = partial(invoke, "training-set", "--rows", "rows.csv", "--output", "out.parquet")


def test_rows_of_a_csv_file_come_with_their_features_as_parquet(project: Project) -> None:
    done = run("--service", "churn_v1", "--statuses")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        "out.parquet: 4 rows, 3 features",
        "  from tiles_customer_g1, snapshot 1",
        "  from events_visits, snapshot 1",
    ]
    table = pq.read_table("out.parquet")
    assert table["bought"].to_pylist() == [1, 0, 1, 1]
    assert table["sum_spent_1d"].to_pylist() == [3.75, None, None, None]
    assert table["count_7d__status"].to_pylist() == ["PRESENT", *["MISSING"] * 3]
    assert not list(Path().glob(".*.tmp"))


def test_the_same_command_writes_the_same_bytes_whatever_the_memory(project: Project) -> None:
    customers = [1, 2, 3, 4] * 1000
    times = [NOW + i * HOUR_MS for i in range(4000)]
    pq.write_table(pa.table({"customer_id": customers, "event_time_ms": times}), "many.parquet")
    found = set()
    for memory_mb in ("1024", "1024", "0.05"):
        done = run("--service", "churn_v1", "--rows", "many.parquet", "--memory-mb", memory_mb)
        assert done.exit_code == 0, done.output
        found.add(Path("out.parquet").read_bytes())
    assert len(found) == 1


def test_json_names_the_sources_and_as_of_takes_their_snapshots(project: Project) -> None:
    reported = json.loads(
        run("--service", "customer:count_7d,customer:sum_spent_1d", "--json").stdout
    )
    assert reported["features"] == ["count_7d", "sum_spent_1d"]
    before = pq.read_table("out.parquet")
    commit(project, [(1, NOW - 2, 100.0)])
    pins = [f"--as-of={s['table']}@{s['snapshot_id']}" for s in reported["sources"]]
    assert run("--service", "customer:count_7d,customer:sum_spent_1d", *pins).exit_code == 0
    assert pq.read_table("out.parquet").equals(before)
    assert run("--service", "customer:count_7d,customer:sum_spent_1d").exit_code == 0
    assert not pq.read_table("out.parquet").equals(before)


def test_as_of_takes_what_a_training_set_saw(project: Project) -> None:
    rows = pa.table({"customer_id": [1], "event_time_ms": [NOW]})
    project.build_training_set("churn", "churn_v1", rows)
    commit(project, [(1, NOW - 2, 100.0)])
    assert run("--service", "churn_v1", "--as-of", "training_churn").exit_code == 0
    assert pq.read_table("out.parquet")["sum_spent_1d"].to_pylist()[0] == 3.75
    done = run("--service", "churn_v1", "--as-of", "training_chrun")
    assert done.exit_code == 2
    assert "unknown training set 'chrun'; available: churn" in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--service", "churn_v2"], "unknown service 'churn_v2'"),
        (["--service", "churn_v1", "--rows", "nowhere.parquet"], "no such file"),
        (["--service", "churn_v1", "--rows", "nowhere"], "unknown table 'nowhere'"),
        (["--service", "churn_v1", "--output", "no/where.parquet"], "no such folder: no"),
        (["--service", "churn_v1", "--as-of", "x@1"], "also needs one of 'tiles_customer_g1'"),
        (["--service", "churn_v1", "--as-of", "x@"], "expected one time, or table@snapshot"),
        (["--service", "churn_v1", "--memory-mb", "0"], "expected more than 0"),
    ],
)
def test_wrong_use_exits_2_and_leaves_no_file(
    project: Project, arguments: list[str], message: str
) -> None:
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    assert message in done.output
    assert not Path("out.parquet").exists()
