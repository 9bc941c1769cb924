"""Commands as a user types them, in the process of the test."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from paimon_features.cli import cli


def invoke(*arguments: str | Path, project: Path | None = None, typed: str | None = None) -> Result:
    """Return the result of a command, whatever its exit code is; what it raises is raised."""
    words = _words(arguments, project)
    return CliRunner().invoke(cli, words, input=typed, catch_exceptions=False)


def run(*arguments: str | Path, project: Path | None = None, code: int = 0) -> Result:
    """Return the result of a command that has to end with this exit code."""
    result = CliRunner().invoke(cli, _words(arguments, project))
    assert result.exit_code == code, (arguments, result.output, result.exception)
    return result


def _words(arguments: tuple[str | Path, ...], project: Path | None) -> list[str]:
    folder = [] if project is None else ["--project", str(project)]
    return [*map(str, arguments), *folder]
