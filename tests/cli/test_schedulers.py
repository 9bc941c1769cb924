"""What a scheduler runs can be run again: the steps of the page about schedulers."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from paimon_features.lake import read_arrow
from paimon_features.project import Project
from tests.commands import invoke as run

pytestmark = pytest.mark.redis

PAGE = Path(__file__).parents[2] / "docs/how-to/integrations/schedulers.md"
STEPS = [
    shlex.split(line)[1:]
    for line in re.findall(r"^paimon-features .*$", PAGE.read_text().split("```")[1], re.MULTILINE)
]
EVENTS = """invoice,stock_code,description,quantity,invoice_time_ms,unit_price,customer_id,country
1,a,x,2,1323428400000,1.25,12346,France
2,a,x,1,1323424800000,1.25,12347,France
"""


def content(project: Project) -> dict[str, Any]:
    """All rows of all tables, in an order, without the times of ingestion and application."""
    found = {}
    for name in project.lake.list():
        table: pa.Table = read_arrow(project.lake, name)
        kept = [c for c in table.column_names if c not in ("ingest_time_ms", "applied_at_ms")]
        found[name] = sorted(map(repr, table.select(kept).to_pylist()))
    return found


@pytest.mark.long
def test_every_step_can_be_repeated(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAIMON_FEATURES_ONLINE_URL", redis_url)
    monkeypatch.chdir(tmp_path)
    assert run("init", "shop").exit_code == 0
    monkeypatch.chdir(tmp_path / "shop")
    Path("events.csv").write_text(EVENTS)
    Path("rows.csv").write_text("customer_id,event_time_ms,churned\n12346,1323432000000,1\n")
    assert [step[0] for step in STEPS] == [
        "apply", "ingest", "backfill", "materialize", "training-set", "maintain",
    ]  # fmt: skip
    project = Project.open(".")
    seen = []
    for _ in range(2):
        for step in STEPS:
            done = run(*step)
            assert done.exit_code == 0, (step, done.output)
        online = run(
            "lookup", "churn_v1", "--entity", "customer_id=12346", "--as-of", "1323432000000"
        )
        assert "sum_amount_1d" in online.stdout, online.output
        values = [line for line in online.stdout.splitlines() if "snapshot" not in line]
        seen.append((content(project), values))
    assert seen[0] == seen[1]
    assert len(seen[0][0]["training_churn"]) == 1
    # without --rebuild, tiles that exist are not counted twice
    assert run("backfill", "customer_spend", "--engine", "local").exit_code == 1
    assert content(project) == seen[1][0]


def test_a_freshness_check_fails_for_old_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("init", "shop").exit_code == 0
    monkeypatch.chdir(tmp_path / "shop")
    assert run("apply").exit_code == 0
    [check] = re.findall(r"^paimon-features (sql .*)$", PAGE.read_text(), re.MULTILINE)
    words = shlex.split(check)
    assert run(*words).exit_code == 1  # nothing was ever ingested
    Path("events.csv").write_text(EVENTS)
    assert run("ingest", "files", "retail", "events.csv", "--engine", "local").exit_code == 0
    done = run(*words)
    assert done.exit_code == 0, done.output
