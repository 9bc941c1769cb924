"""The programs that Flink runs: their files, and no conflict with a project's package ``jobs``."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from paimon_features.cli.ingest import ingest
from paimon_features.cli.jobs_iterate import iterate
from paimon_features.cli.maintain import maintain
from paimon_features.cli.submit import submit
from paimon_features.core.errors import UnknownNameError
from paimon_features.project.programs import PROGRAMS, program

ROOT = Path(__file__).parents[2]

# what starts no job has no counterpart in the program: --mark-ingested writes the file ledger,
# --only release and --only rollup run in the process of the command
ONLY_OF_THE_COMMAND = {
    "--json", "--stop", "--status", "--watch", "--mark-ingested", "--engine", "--input",
    "--help", "--only",
}  # fmt: skip
ONLY_OF_THE_PROGRAM = {"--view", "--source", "--backfill", "--help"}


def parser_of(name: str) -> Any:
    return runpy.run_path(str(program(name)))["parser"]()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_imports_without_flink_and_explains_its_arguments(name: str) -> None:
    if name == "iterate":
        pytest.importorskip("pyflink", reason="pip install 'paimon-features[flink]'")
    text = parser_of(name).format_help()
    assert f"usage: {name}.py" in text
    assert "--project" in text


@pytest.mark.parametrize(
    ("name", "command"),
    [("tiles", submit), ("ingest", ingest), ("maintain", maintain), ("iterate", iterate)],
)
def test_a_program_has_the_options_of_its_command(name: str, command: click.Command) -> None:
    if name == "iterate":
        pytest.importorskip("pyflink", reason="pip install 'paimon-features[flink]'")
    commands = command.commands.values() if isinstance(command, click.Group) else [command]
    params = [param for one in commands for param in one.params]
    of_command = {o for p in params if isinstance(p, click.Option) for o in p.opts}
    of_program = {o for action in parser_of(name)._actions for o in action.option_strings}
    of_program.discard("-h")
    of_command.add("--project")  # an option of the whole command line
    if name == "ingest":  # arguments of the commands
        of_command |= {"--topic", "--from-table"}
    if name == "maintain":
        of_command.discard("--cluster")
    assert of_program - ONLY_OF_THE_PROGRAM == of_command - ONLY_OF_THE_COMMAND


def test_an_unknown_program_is_named() -> None:
    with pytest.raises(UnknownNameError, match="unknown program 'tile'; available: .*tiles"):
        program("tile")


@pytest.mark.long
def test_a_project_may_have_a_package_called_jobs(tmp_path: Path) -> None:
    """In the working directory, next to the console script's, and on PYTHONPATH."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "__init__.py").write_text("MINE = True\n")
    (tmp_path / "jobs" / "tiles.py").write_text("MINE = True\n")
    (tmp_path / "paimon-features.toml").write_text('[project]\nname = "shop"\n')
    (tmp_path / "features.py").write_text(
        "import jobs.tiles\nimport paimon_features as pf\nassert jobs.tiles.MINE\n"
        'clicks = pf.EventSource("clicks", schema={"at_ms": pf.Int64}, event_time="at_ms")\n'
    )
    checkout = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    script = "import sys; from paimon_features.cli import main; main(sys.argv[1:])"
    for start in (["-m", "paimon_features"], ["-c", script]):
        for command in (["jobs"], ["submit", "--help"]):
            done = subprocess.run(
                [sys.executable, *start, *command],
                cwd=tmp_path,
                env=checkout,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr
    place = "from paimon_features.project.programs import program; print(program('tiles'))"
    found = subprocess.run(
        [sys.executable, "-c", place], cwd=tmp_path, env=checkout, capture_output=True, text=True
    )
    assert found.stdout.strip() == str(program("tiles")), found.stderr
