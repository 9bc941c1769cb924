"""``check audit``: who changed what; and databases that belong to a project."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paimon_features.cli import cli
from paimon_features.core.process.identity import VARIABLE, identity_of
from paimon_features.lake import database_owner
from paimon_features.lake.side_folder import audit_log, generations
from paimon_features.project import Project
from tests.commands import run

FEATURES = """
import paimon_features as pf

clicks = pf.EventSource("clicks", schema={"id": pf.Int64, "at_ms": pf.Int64}, event_time="at_ms")
user = pf.Entity("user", keys={"id": pf.Int64})
spend = pf.FeatureView("spend", source=clicks, entity=user, features=[pf.Count(windows=["1d"])])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "paimon-features.toml").write_text('[project]\nname = "shop"\n')
    (tmp_path / "features.py").write_text(FEATURES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "release pipeline")
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def records(*arguments: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(run("check", "audit", "--json", *arguments).stdout)
    return rows


def test_changes_are_recorded_with_who_and_what(folder: Path) -> None:
    assert run("check", "audit").output == "no records\n"
    run("apply")
    run("apply")  # changes nothing, and is not recorded
    (folder / "features.py").write_text(FEATURES.replace("entity=user,", 'entity=user, tile="1h",'))
    run("apply")
    run("apply", "--generation", "spend", "--force")
    run("drop", "feature-view", "spend", "--generation", "1", "--yes")
    rows = records()
    assert [row["kind"] for row in rows] == ["apply", "apply", "switch", "drop"]
    assert {row["user"] for row in rows} == {"release pipeline"}
    assert sorted(rows[0]["details"]["changes"]) == [
        "create entity user", "create feature_view spend", "create source clicks",
    ]  # fmt: skip
    assert len(rows[0]["details"]["digest"]) == 64
    assert rows[2]["details"] == {"from": 1, "to": 2}
    assert rows[3]["details"]["tables"][0] == "tiles_spend_g1"
    shown = run("check", "audit", "--kind", "switch", "--since", "1h").output
    assert "spend  release pipeline@" in shown
    assert shown.rstrip().endswith("from 1, to 2")
    assert records("--since", "2999-01-01") == []
    assert [row["kind"] for row in records("spend", "--kind", "drop")] == ["drop"]


def test_a_change_that_failed_is_recorded_as_such(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("apply")

    def fail(*args: object) -> None:
        raise OSError("redis://u:hunter22@db is gone")

    monkeypatch.setattr(generations, "activate", fail)
    CliRunner().invoke(cli, ["apply", "--generation", "spend", "--force"])
    row = records()[-1]
    assert row["kind"] == "switch"
    assert row["error"] == "OSError: redis://***@db is gone"
    assert "FAILED: OSError" in run("check", "audit").output


def test_a_damaged_record_is_shown_and_hides_no_other(folder: Path) -> None:
    run("apply")
    (path,) = (Project.open(".").lake.side_folder / "audit").glob("*.json")
    assert isinstance(path, Path)
    run("apply", "--generation", "spend", "--force")
    path.write_text(path.read_text().replace("release pipeline", "somebody else"))
    rows = records()
    assert [row["kind"] for row in rows] == [audit_log.DAMAGED, "switch"]
    assert path.name in rows[0]["error"]


def test_the_loss_of_the_audit_log_loses_the_past_and_nothing_else(folder: Path) -> None:
    run("apply")
    for kind in ("audit", "projects"):
        side = Project.open(".").lake.side_folder / kind
        assert isinstance(side, Path)
        shutil.rmtree(side)
    assert records() == []
    assert run("apply").output == "no changes: all definitions are applied\n"
    assert database_owner.owner(Project.open(".").lake) == "shop"


def test_the_use_of_tokens_is_read_from_the_folder_of_the_servers(folder: Path) -> None:
    assert "sets no folder" in run("check", "audit", "--kind", "token_use", code=2).output
    (folder / "paimon-features.toml").write_text(
        '[project]\nname = "shop"\n[serve]\naudit = "audit"\n'
    )
    (folder / "audit").mkdir()
    line = {"time_ms": 5_000, "since_ms": 1_000, "kind": "token_use", "project": "shop",
            "host": "h", "name": "a\x1b[31m", "requests": 2, "rows": 4, "refused": 1}  # fmt: skip
    other = json.dumps({**line, "project": "another"})
    (folder / "audit" / "token-use-0-h-1.jsonl").write_text(
        f"{json.dumps(line)}\n{other}\n{'x' * 9_000}\n[]\n{json.dumps(line)[:40]}"
    )
    (row,) = records("--kind", "token_use")
    assert (row["requests"], row["rows"], row["refused"]) == (2, 4, 1)
    shown = run("check", "audit").output
    assert "requests 2, rows 4, refused 1" in shown
    assert "\x1b" not in shown


def test_two_projects_do_not_share_a_database(folder: Path) -> None:
    run("apply")
    (folder / "paimon-features.toml").write_text('[project]\nname = "fraud"\n')
    for command in ("plan", "apply"):
        done = run(command, code=2)
        assert "belongs to project 'shop', and this is project 'fraud'" in done.output
    # a database of its own, in the same warehouse: the same names do not meet
    (folder / "paimon-features.toml").write_text(
        '[project]\nname = "fraud"\n[lake]\ndatabase = "fraud"\n'
    )
    run("apply")
    assert Project.open(".").lake.exists("tiles_spend_g1")
    assert len(records()) == 1
    # a project that was renamed
    (folder / "paimon-features.toml").write_text('[project]\nname = "market"\n')
    run("apply", "--take-over")
    assert [row["kind"] for row in records()] == ["apply", "take_over"]
    assert records()[-1]["details"] == {"from": "shop"}
    run("plan")


def test_the_commit_is_that_of_the_definitions(tmp_path: Path) -> None:
    git = shutil.which("git")
    if git is None:
        pytest.skip("needs git")
    file = tmp_path / "features.py"
    file.write_text("a = 1\n")
    assert identity_of(file).commit is None
    subprocess.run([git, "-C", str(tmp_path), "init", "-q"], check=True)
    assert identity_of(file).commit is None  # no commit yet
    who = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    subprocess.run([git, "-C", str(tmp_path), "add", "."], check=True)
    subprocess.run([git, *who, "-C", str(tmp_path), "commit", "-qm", "x"], check=True)
    committed = identity_of(file)
    assert committed.commit is not None
    assert len(committed.commit) == 40
    assert not committed.modified
    file.write_text("a = 2\n")
    assert identity_of(file).modified
    other = tmp_path / "other.py"
    other.write_text("")
    assert identity_of(other).modified  # it is not in the commit
