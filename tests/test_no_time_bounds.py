"""No test asserts that something took less than a time: a loaded machine would fail it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
CLOCKS = ("monotonic", "perf_counter", "process_time")


def _is_elapsed(node: ast.expr) -> bool:
    """A difference that reads a clock: ``time.monotonic() - started``."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)):
        return False
    return any(isinstance(n, ast.Attribute) and n.attr in CLOCKS for n in ast.walk(node.left))


def upper_bounds(source: str) -> Iterator[int]:
    """The lines of assertions with an upper bound of a measured time."""
    for statement in ast.walk(ast.parse(source)):
        if not isinstance(statement, ast.Assert):
            continue
        for node in ast.walk(statement.test):
            if isinstance(node, ast.Compare):
                operands = [node.left, *node.comparators]
                for index, operator in enumerate(node.ops):
                    small = isinstance(operator, ast.Lt | ast.LtE)
                    bounded = operands[index if small else index + 1]
                    if isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE) and _is_elapsed(
                        bounded
                    ):
                        yield statement.lineno


def test_upper_bounds_are_found() -> None:
    assert list(upper_bounds("assert time.monotonic() - started < 5")) == [1]
    assert list(upper_bounds("\nassert 5 >= time.monotonic() - started")) == [2]
    assert list(upper_bounds("assert 1 <= time.monotonic() - started")) == []


def test_no_test_has_an_upper_bound_of_a_measured_time() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        for line in upper_bounds(path.read_text())
    ]
    assert found == []
