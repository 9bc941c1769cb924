"""Plans as files: applied as they were reviewed, or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from paimon_features.core.documents.published_document import document_digest
from paimon_features.core.errors import ConfigurationError, PlanMovedError
from paimon_features.core.times.clock import now_ms
from paimon_features.lake import EventWriter
from paimon_features.lake.side_folder import registry
from paimon_features.project import Project
from paimon_features.project.planning.reviewed import MAX_BYTES, ReviewedPlan
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
    return tmp_path


def plan(*arguments: str, code: int = 0) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run("plan", "--json", *arguments, code=code).stdout)
    return document


def test_the_keys_of_a_plan_are_stable(folder: Path) -> None:
    document = plan()
    assert list(document) == [
        "format", "project", "database", "digest", "is_empty", "effects", "changes", "state",
    ]  # fmt: skip
    assert document["format"] == 1
    assert document["effects"] == ["create"]
    (view,) = [change for change in document["changes"] if change["kind"] == "feature_view"]
    assert list(view) == ["kind", "name", "action", "effects", "generation", "details"]
    assert (view["name"], view["action"], view["generation"]) == ("spend", "create", 1)
    assert document["digest"] == document_digest(document["state"]) == plan()["digest"]


def test_a_reviewed_plan_is_applied_and_a_repeat_is_refused(folder: Path) -> None:
    run("plan", "--out", "plan.json")
    run("apply", "--plan", "plan.json")
    assert plan()["is_empty"]
    # it is applied already: the state is another one
    with pytest.raises(PlanMovedError, match="feature_view spend was applied or dropped since"):
        Project.open(".").apply(ReviewedPlan.read(Path("plan.json")))


@pytest.mark.parametrize("moved", ["definitions", "applied", "project"])
def test_a_plan_is_refused_where_the_state_moved_and_nothing_is_changed(
    folder: Path, moved: str
) -> None:
    run("plan", "--out", "plan.json")
    expected = {
        "definitions": "feature_view spend is defined otherwise than in the plan",
        "applied": "source clicks was applied or dropped since",
        "project": "its project is 'shop', and this is 'shop2'",
    }[moved]
    if moved == "applied":
        (folder / "features.py").write_text(FEATURES.split("user =")[0])
        run("apply")
        (folder / "features.py").write_text(FEATURES)
    elif moved == "project":
        (folder / "paimon-features.toml").write_text('[project]\nname = "shop2"\n')
    else:
        (folder / "features.py").write_text(FEATURES.replace('"1d"', '"2d"'))
    done = run("apply", "--plan", "plan.json", code=1)
    assert expected in done.output.replace("\n", " ")
    assert "Nothing was changed; make a new plan" in done.output
    assert ("feature_view", "spend") not in registry.applied(Project.open(".").lake)


def test_fail_on_names_what_needs_approval(folder: Path) -> None:
    assert "--fail-on any: user, clicks, spend" in run("plan", "--fail-on", "any", code=3).stderr
    plan("--fail-on", "backfill", "--fail-on", "drop")  # there are no events yet
    run("apply")
    run("plan", "--fail-on", "any")
    project = Project.open(".")
    writer = EventWriter.of(project.lake, project.definitions.source("clicks"), now_ms)
    writer.write(pa.table({"id": [1], "at_ms": [1_323_434_999_000]}))
    (folder / "features.py").write_text(FEATURES.replace("entity=user,", 'entity=user, tile="1h",'))
    done = run("plan", "--fail-on", "drop", "--fail-on", "backfill", code=3)
    assert "--fail-on backfill: spend" in done.stderr
    (folder / "features.py").write_text(FEATURES.split("spend =")[0])
    run("plan", "--fail-on", "backfill")
    assert "--fail-on drop: spend" in run("plan", "--fail-on", "drop", code=3).stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Expecting value"),
        (b"[]", "expected a JSON object"),
        (b"{}", "format"),
        (b"[" * 100_000, "plan"),
        (b" " * (MAX_BYTES + 1), "more than"),
        (b'{"format": 2, "project": "", "database": "", "digest": "", "state": {}}', "reads 1"),
        (b'{"format": 1, "project": "", "database": "", "digest": "x", "state": {"definitions": {},'
         b' "applied": {}, "generations": {}}}', "the file was changed"),
    ],
)  # fmt: skip
def test_what_is_no_plan_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(ConfigurationError, match=message):
        ReviewedPlan.read(tmp_path / "plan.json")
