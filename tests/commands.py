"""Commands as a user types them, in the process of the test."""

from __future__ import annotations

from click.testing import CliRunner, Result

from paimon_features.cli import cli


def invoke(*arguments: str, typed: str | None = None) -> Result:
    """Return the result of a command, whatever its exit code is; what it raises is raised."""
    return CliRunner().invoke(cli, arguments, input=typed, catch_exceptions=False)


def run(*arguments: str, code: int = 0) -> Result:
    """Return the result of a command that has to end with this exit code."""
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == code, done.output
    return done
