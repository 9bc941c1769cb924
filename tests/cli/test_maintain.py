"""``maintain``: tables that another process owns are skipped, with an exit code of choice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from paimon_features.cli import cli
from paimon_features.project import Project

OWNER = """\
import sys
from paimon_features.project import Project
from paimon_features.lake.ownership import lease
lake = Project.open(sys.argv[1]).lake
held = [lease.acquire(lake, table, purpose="write it") for table in lake.list()]
print("owned", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def owned(tmp_path: Path) -> Iterator[Path]:
    """A project whose tables another process owns."""
    project = tmp_path / "shop"
    assert CliRunner().invoke(cli, ["init", str(project)]).exit_code == 0
    Project.open(project).apply()
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(project)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "owned\n"
        yield project
        owner.communicate("")


def test_skipped_tables_are_an_error_unless_allowed(owned: Path) -> None:
    command = ["maintain", "events_retail", "--project", str(owned)]
    refused = CliRunner().invoke(cli, command)
    assert (refused.exit_code, "events_retail: skipped: " in refused.stdout) == (1, True)
    allowed = CliRunner().invoke(cli, [*command, "--allow-skipped"])
    assert (allowed.exit_code, allowed.stdout) == (0, refused.stdout)
