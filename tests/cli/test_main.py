"""The command line as a whole: its help, its laziness, its exit codes."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from paimon_features import __version__
from paimon_features.cli import COMMANDS, LazyCommand, cli
from paimon_features.errors import (
    ConfigurationError,
    DefinitionError,
    JobError,
    PaimonFeaturesError,
    RequestError,
    SetupError,
    UnknownNameError,
    VerificationError,
)

NAMES = [name for section in COMMANDS.values() for name in section]
LAZY = {name: command for section in COMMANDS.values() for name, command in section.items()}


def test_help_lists_every_command_and_imports_none_of_them() -> None:
    script = (
        "import sys\n"
        "from paimon_features.cli import main\n"
        "try:\n"
        "    main(['--help'])\n"
        "finally:\n"
        "    ours = [m for m in sys.modules if m.startswith('paimon_features.cli.')]\n"
        "    heavy = {'pyarrow', 'pypaimon', 'pyflink', 'redis', 'torch'} & sys.modules.keys()\n"
        "    print(ours, sorted(heavy))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in NAMES:
        assert f"\n  {name} " in done.stdout
    assert done.stdout.endswith("\n[] []\n")


@pytest.mark.parametrize("name", NAMES)
def test_every_command_can_be_imported_and_its_help_teaches(name: str) -> None:
    answer = CliRunner().invoke(cli, [name, "--help"])
    assert answer.exit_code == 0, answer.output
    command = LAZY[name].load()
    assert command.name == name
    if not isinstance(command, click.Group):
        assert f"paimon-features {name}" in answer.output.split("Options:")[0].split("\n", 1)[1]


def test_an_unknown_command_is_wrong_use() -> None:
    answer = CliRunner().invoke(cli, ["serv"])
    assert answer.exit_code == 2
    assert "No such command 'serv'" in answer.output


def test_the_version_is_that_of_the_package() -> None:
    assert CliRunner().invoke(cli, ["--version"]).output.split()[-1] == __version__


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError, 2),
        (DefinitionError, 2),
        (RequestError, 2),
        (UnknownNameError, 2),
        (SetupError, 1),
        (JobError, 1),
        (VerificationError, 1),
    ],
)
def test_our_errors_are_a_line_with_notes_and_an_exit_code(
    error: type[PaimonFeaturesError], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command()
    def failing() -> None:
        raised = error("the thing, got and expected")
        raised.add_note("while doing something")
        raise raised

    monkeypatch.setattr(LazyCommand, "load", lambda self: failing)
    answer = CliRunner().invoke(cli, ["doctor"])
    assert answer.exit_code == code
    assert answer.stderr == "error: the thing, got and expected\n  while doing something\n"
    assert answer.stdout == ""


def test_an_error_that_is_not_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def failing() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(LazyCommand, "load", lambda self: failing)
    assert isinstance(CliRunner().invoke(cli, ["doctor"]).exception, ZeroDivisionError)
