"""Projects of tests, and their commands as a user types them."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from paimon_features.cli import cli
from paimon_features.project import Project

SHOP = '[project]\nname = "shop"\n'


def make_project(folder: Path, features: str, config: str = SHOP) -> Project:
    """A project with these definitions, applied."""
    (folder / "features.py").write_text(features)
    (folder / "paimon-features.toml").write_text(config)
    project = Project.open(folder)
    project.apply()
    return project


def run(*arguments: str, code: int = 0) -> Result:
    """The result of a command that has to end with this exit code."""
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == code, done.output
    return done
