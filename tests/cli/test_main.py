"""The command line as a whole: its help, its laziness, its exit codes."""

from __future__ import annotations

import json
import keyword
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

import paimon_features.cli
from paimon_features import __version__
from paimon_features.cli import COMMANDS, cli, load_command
from paimon_features.core.errors import (
    ConfigurationError,
    DefinitionError,
    JobError,
    PaimonFeaturesError,
    RequestError,
    SetupError,
    UnknownNameError,
    VerificationError,
)


def module_of(command: str) -> str:
    name = command.replace("-", "_")
    return f"{name}_" if keyword.iskeyword(name) else name


NAMES = [name for section in COMMANDS.values() for name in section]


def test_help_lists_every_command_and_imports_none_of_them() -> None:
    script = (
        "import sys\n"
        "from paimon_features.cli import main\n"
        "try:\n"
        "    main(['--help'])\n"
        "finally:\n"
        "    ours = [m for m in sys.modules if m.startswith('paimon_features.cli.')]\n"
        "    ours.remove('paimon_features.cli._shared_options')\n"
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
    command = load_command(name)
    assert command.name == name
    if not isinstance(command, click.Group):
        assert f"paimon-features {name}" in answer.output.split("Options:")[0].split("\n", 1)[1]


def test_no_summary_in_a_help_is_cut() -> None:
    def help_of(*names: str) -> str:
        return CliRunner().invoke(cli, [*names, "--help"], terminal_width=80).output

    lines = [line.split(maxsplit=1) for line in help_of().splitlines()]
    summaries = [list(item) for section in COMMANDS.values() for item in section.items()]
    assert [each for each in summaries if each not in lines] == [], "wrapped, or cut"
    groups = [name for name in NAMES if isinstance(load_command(name), click.Group)]
    assert "models" in groups
    for name in groups:
        # click ends a summary that is cut with three dots
        listed = help_of(name).partition("\nCommands:\n")[2].splitlines()
        assert listed
        assert [line for line in listed if line.endswith("...")] == [], name


def test_every_command_has_its_file_and_every_file_its_command() -> None:
    folder = Path(paimon_features.cli.__file__).parent
    files = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    commands = {module_of(name) for name in NAMES}
    groups = [load_command(name) for name in NAMES]
    # a subcommand large enough for a file of its own: <group>_<subcommand>.py
    nested = {
        f"{group.name}_{name}"
        for group in groups
        if isinstance(group, click.Group)
        for name, command in group.commands.items()
        if command.callback is not None
        and command.callback.__module__.endswith(f".{group.name}_{name}")
    }
    assert files == commands | nested


@pytest.mark.parametrize("name", NAMES)
def test_a_command_is_defined_in_its_own_file(name: str) -> None:
    callback = load_command(name).callback
    assert callback is not None
    assert callback.__module__ == f"paimon_features.cli.{module_of(name)}"


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

    monkeypatch.setattr("paimon_features.cli.load_command", lambda name: failing)
    answer = CliRunner().invoke(cli, ["check"])
    assert answer.exit_code == code
    assert answer.stderr == "error: the thing, got and expected\n  while doing something\n"
    assert answer.stdout == ""


def test_an_error_that_is_not_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def failing() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("paimon_features.cli.load_command", lambda name: failing)
    assert isinstance(CliRunner().invoke(cli, ["check"]).exception, ZeroDivisionError)


def test_ctrl_c_is_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def working() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("paimon_features.cli.load_command", lambda name: working)
    answer = CliRunner().invoke(cli, ["check"])
    assert answer.exit_code == 130
    assert answer.stderr == "interrupted\n"


def test_the_shell_completes_commands_options_and_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(cli, ["init"]).exit_code == 0
    # nothing is run for names: this file would not run
    with (tmp_path / "features.py").open("a") as file:
        file.write("\nraise ValueError\n")

    def completed(*words: str, begun: str = "") -> list[str]:
        found = ShellComplete(cli, {}, "paimon-features", "_").get_completions(list(words), begun)
        return [item.value for item in found]

    assert completed(begun="des") == ["describe"]
    assert completed("describe", begun="cu") == ["customer", "customer_spend"]
    assert completed("ingest", "files") == ["retail"]
    assert completed("lookup", begun="ch") == ["churn_v1"]
    assert "--entity" in completed("lookup", begun="--e")


def test_completion_is_installed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for _ in range(2):
        assert CliRunner().invoke(cli, ["--install-completion", "bash"]).exit_code == 0
    assert (tmp_path / ".bashrc").read_text().count("bash_source") == 1
    assert (
        "_paimon_features_completion"
        in CliRunner().invoke(cli, ["--show-completion", "bash"]).stdout
    )


TOPIC = "installation"


@pytest.mark.parametrize(
    "words",
    [["--json", "check", TOPIC], ["check", "--json", TOPIC], ["-q", "check", TOPIC, "--json"]],
)
def test_shared_options_stand_before_or_after_a_command(words: list[str]) -> None:
    document = json.loads(CliRunner().invoke(cli, words).stdout)
    assert {"healthy", "checks"} == set(document)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["ui", "--json"], "--json"),
        (["--json", "ui"], "--json"),
        (["jars", "--project", "x"], "--project"),
    ],
)
def test_a_command_refuses_a_shared_option_without_use(words: list[str], option: str) -> None:
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 2
    assert f"No such option '{option}'" in result.output
