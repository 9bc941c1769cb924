"""What threads print: not into the output of another test, and not lost while it is read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.modules import TESTS, found_in_tests

SERVERS = TESTS / "http_servers.py"
USES_A_SERVER = re.compile(r"from http\.server import .*HTTPServer|http\.server\.\w*HTTPServer")


def emptied_in_loops(source: str) -> Iterator[int]:
    """The lines of loops that empty a captured output, which another thread may be writing."""
    if "readouterr" not in source:  # most files; parsing takes seconds
        return
    for loop in ast.walk(ast.parse(source)):
        if isinstance(loop, ast.While) and any(
            isinstance(node, ast.Attribute) and node.attr == "readouterr" for node in ast.walk(loop)
        ):
            yield loop.lineno


def test_loops_that_empty_an_output_are_found() -> None:
    assert list(emptied_in_loops("\nwhile not shown:\n    shown = capsys.readouterr().err")) == [2]
    assert list(emptied_in_loops("for text in texts:\n    assert capsys.readouterr().err")) == []


def test_no_test_empties_an_output_while_it_waits_for_it() -> None:
    assert found_in_tests(emptied_in_loops) == set()


def test_servers_of_tests_report_no_client_that_is_gone() -> None:
    own = (SERVERS, Path(__file__))
    found = [
        str(path.relative_to(TESTS))
        for path in sorted(TESTS.rglob("*.py"))
        if path not in own and USES_A_SERVER.search(path.read_text())
    ]
    assert found == [], f"use {SERVERS.name}"
