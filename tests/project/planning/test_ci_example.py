"""The workflow of examples/ci: its commands run in their order, and its actions are pinned."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from paimon_features.core.times.clock import now_ms
from paimon_features.lake import EventWriter
from paimon_features.lake.side_folder import audit_log
from paimon_features.project import Project

ROOT = Path(__file__).parents[3]
FILE = ROOT / "examples" / "ci" / "features.yml"
WORKFLOW: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
FEATURES = """
import paimon_features as pf

clicks = pf.EventSource("clicks", schema={"id": pf.Int64, "at_ms": pf.Int64}, event_time="at_ms")
user = pf.Entity("user", keys={"id": pf.Int64})
spend = pf.FeatureView("spend", source=clicks, entity=user, features=[pf.Count(windows=["1d"])])
"""


def command(job: str, name: str) -> str:
    """What a step runs."""
    (step,) = [s for s in WORKFLOW["jobs"][job]["steps"] if s.get("name") == name]
    text = step["run"]
    assert isinstance(text, str)
    return text


class Runner:
    """Runs steps as the workflow's runner does: bash -e, with an output file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outputs = folder.parent / "outputs"
        scripts = Path(sys.executable).parent
        self._environment = {
            **os.environ,
            "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "GITHUB_OUTPUT": str(self.outputs),
            "PAIMON_FEATURES_IDENTITY": "octocat (run 7)",
            "COLUMNS": "200",
        }

    def run(self, job: str, name: str) -> subprocess.CompletedProcess[str]:
        """Run a step."""
        text = command(job, name).replace(
            "paimon-features ", f"{sys.executable} -m paimon_features "
        )
        return subprocess.run(
            ["bash", "-e", "-c", text],
            cwd=self.folder, env=self._environment, capture_output=True, text=True,
        )  # fmt: skip

    def output(self) -> str:
        """The last output."""
        return self.outputs.read_text().splitlines()[-1]


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "paimon-features.toml").write_text('[project]\nname = "shop"\n')
    (folder / "features.py").write_text(FEATURES)
    return Runner(folder)


@pytest.mark.long
def test_the_commands_plan_gate_apply_and_refuse_what_moved(runner: Runner) -> None:
    for job, name in (("plan", "plan"), ("plan", "gate"), ("apply", "apply")):
        done = runner.run(job, name)
        assert done.returncode == 0, done.stderr
    assert runner.output() == "needs_approval=false"
    project = Project.open(runner.folder)
    (entry,) = audit_log.entries(project.lake)
    assert (entry.user, entry.details["reviewed"]) == ("octocat (run 7)", True)
    writer = EventWriter.of(project.lake, project.definitions.source("clicks"), now_ms)
    writer.write(pa.table({"id": [1], "at_ms": [1_323_434_999_000]}))
    changed = FEATURES.replace("entity=user,", 'entity=user, tile="1h",')
    (runner.folder / "features.py").write_text(changed)
    assert runner.run("plan", "plan").returncode == 0
    assert runner.run("plan", "gate").returncode == 0
    assert runner.output() == "needs_approval=true"
    # a commit in between: the approved plan is not what would be applied
    (runner.folder / "features.py").write_text(changed.replace('"1d"', '"2d"'))
    refused = runner.run("apply", "apply")
    assert refused.returncode == 1
    assert "is defined otherwise than in the plan" in refused.stderr


def test_every_action_is_pinned_by_its_commit_and_permissions_are_least() -> None:
    uses = re.findall(r"uses: (\S+)@(\S+)( # v[\d.]+)?", FILE.read_text(encoding="utf-8"))
    assert len(uses) >= 5
    for action, pin, release in uses:
        assert re.fullmatch(r"[0-9a-f]{40}", pin), action
        assert release, action
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert WORKFLOW["jobs"]["approve"]["environment"] == "features"
