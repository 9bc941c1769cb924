"""Files of users run from their source: an edit is seen whatever it leaves of size and time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paimon_features.core.errors import ConfigurationError
from paimon_features.core.process.python_file import run_python_file
from paimon_features.definitions.loader import load_definitions
from paimon_features.iteration.program_file import load_program
from paimon_features.serving.http.definitions.definition_source import forget_modules_of_folder

DEFINITIONS = """
import paimon_features as pf
shop = pf.EventSource("{name}", schema={{"user_id": pf.Int64, "t": pf.Int64}}, event_time="t")
"""


@pytest.fixture(autouse=True)
def bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Python cache bytecode, as it does by default."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)


def write(path: Path, text: str) -> None:
    """Write a file whose time never changes, as two edits within a second."""
    path.write_text(text)
    os.utime(path, (1_700_000_000, 1_700_000_000))


def source_name(path: Path) -> str:
    (name,) = load_definitions(path).sources
    return name


READERS: dict[str, tuple[str, Callable[[Path], str]]] = {
    "definitions": (DEFINITIONS, source_name),
    "program": (
        "def build(job): return '{name}'\n",
        lambda path: str(load_program(f"{path}:build")(None)),
    ),
    "file": ("name = '{name}'\n", lambda path: str(run_python_file(path, "some_file").name)),
}


@pytest.mark.parametrize("kind", READERS)
def test_an_edit_of_equal_size_within_a_second_is_seen(tmp_path: Path, kind: str) -> None:
    text, read = READERS[kind]
    path = tmp_path / "features.py"
    for name in ("one", "two"):
        write(path, text.format(name=name))
        assert read(path) == name


def test_so_is_an_edit_of_a_module_next_to_the_definitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module of the first reading is unloaded, as on every reload of a server."""
    path, module = tmp_path / "features.py", tmp_path / "of_this_test_only.py"
    write(path, DEFINITIONS.replace('"{name}"', "NAME").replace("{{", "{").replace("}}", "}"))
    path.write_text("from of_this_test_only import NAME\n" + path.read_text())
    for name in ("one", "two"):
        write(module, f"NAME = '{name}'\n")
        forget_modules_of_folder(tmp_path)
        assert source_name(path) == name
    forget_modules_of_folder(tmp_path)


@pytest.mark.parametrize(
    ("text", "kind"),
    [("def build(job):\n  x = (\n", "SyntaxError"), ("\nimport of_no_package\n", "ModuleNotFound"),
     ("\n1 / 0\n", "ZeroDivisionError"), ("\n\0", "SyntaxError")],
)  # fmt: skip
def test_a_program_that_does_not_run_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, kind: str
) -> None:
    path = tmp_path / "broken_program.py"
    path.write_text(text)
    for program in (str(path), f"{path}:other"):
        with pytest.raises(ConfigurationError, match=f"does not run: {kind}"):
            load_program(program)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=f"does not run: {kind}"):
        load_program("broken_program:build")


def test_a_file_that_fails_leaves_no_module(tmp_path: Path) -> None:
    path = tmp_path / "failing_file.py"
    path.write_text("raise KeyError('x')\n")
    with pytest.raises(KeyError):
        run_python_file(path, "failing_file", importable=True)
    assert "failing_file" not in sys.modules
