"""No test rests on something taking less than a time: a loaded machine would fail it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.modules import found_in_tests

CLOCKS = ("monotonic", "perf_counter", "process_time", "time")
WAITS = ("wait", "join", "wait_for", "wait_until", "await_true", "timeout", "settimeout")
SHORT = re.compile(rf"\b({'|'.join(WAITS)})\(|timeout(_s)?=\d|\) \+ \d")
READS_A_CLOCK = re.compile(rf"\.\s*({'|'.join(CLOCKS)})\b")


def _is_elapsed(node: ast.AST) -> bool:
    """A difference that reads a clock: ``time.monotonic() - started``."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)):
        return False
    return any(isinstance(n, ast.Attribute) and n.attr in CLOCKS for n in ast.walk(node.left))


def _durations(function: ast.AST) -> set[str]:
    """The names of a function's variables that are assigned measured times."""
    return {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and any(map(_is_elapsed, ast.walk(node.value)))
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def upper_bounds(source: str) -> Iterator[int]:
    """The lines of assertions with an upper bound of a measured time."""
    if not READS_A_CLOCK.search(source):  # most files; parsing takes seconds
        return
    tree = ast.parse(source)
    for scope in ast.walk(tree):
        if isinstance(scope, ast.Module | ast.FunctionDef):
            durations = _durations(scope)
            for statement in ast.walk(scope):
                if isinstance(statement, ast.Assert) and _bounds(statement.test, durations):
                    yield statement.lineno


def _bounds(test: ast.expr, durations: set[str]) -> bool:
    """Whether an asserted expression has a measured time as a smaller operand."""
    for node in ast.walk(test):
        if not isinstance(node, ast.Compare):
            continue
        operands = [node.left, *node.comparators]
        for index, operator in enumerate(node.ops):
            if isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
                smaller = operands[index if isinstance(operator, ast.Lt | ast.LtE) else index + 1]
                if any(
                    _is_elapsed(n) or (isinstance(n, ast.Name) and n.id in durations)
                    for n in ast.walk(smaller)
                ):
                    return True
    return False


SHORT_S = range(3, 60)
"""Bounds that a loaded machine exceeds; shorter ones are pauses between two attempts."""


def short_waits(source: str) -> Iterator[int]:
    """The lines that wait for another thread or process, and fail after less than a minute."""
    for node in ast.walk(ast.parse(source)) if SHORT.search(source) else ():
        bounds: list[ast.expr] = []
        if isinstance(node, ast.Call):
            bounds += [k.value for k in node.keywords if k.arg in ("timeout", "timeout_s")]
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func
            if (name.id if isinstance(name, ast.Name) else name) in WAITS:
                bounds += node.args
        elif (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Add)
            and isinstance(node.left, ast.Call)
        ):
            function = node.left.func
            if isinstance(function, ast.Attribute) and function.attr in CLOCKS:
                bounds.append(node.right)
        values = [bound.value for bound in bounds if isinstance(bound, ast.Constant)]
        if any(value in SHORT_S for value in values):
            yield node.lineno


def test_upper_bounds_are_found() -> None:
    assert list(upper_bounds("assert time.monotonic() - started < 5")) == [1]
    assert list(upper_bounds("\nassert 5 >= time.monotonic() - started")) == [2]
    assert list(upper_bounds("took = [clock() - time.monotonic()]\nassert max(took) < 5")) == []
    assert set(upper_bounds("took = time.time() - a\nassert max(took, 1) < 5")) == {2}
    assert list(upper_bounds("assert 1 <= time.monotonic() - started")) == []


def test_short_waits_are_found() -> None:
    source = "done.wait(20)\nrun(x, timeout=5)\nuntil = time.monotonic() + 10\nthread.join(30.0)"
    assert list(short_waits(source)) == [1, 2, 3, 4]
    source = 'wait_for(f, "a", 10)\nasyncio.wait_for(f, 5)\nClient(timeout_s=9)\na.settimeout(20)'
    assert list(short_waits(source)) == [1, 2, 3, 4]
    assert list(short_waits("done.wait(120)\ndone.wait(0.1)\n', '.join(x)\ntime.time() - 5")) == []


def test_no_test_has_an_upper_bound_of_a_measured_time() -> None:
    assert found_in_tests(upper_bounds) == set()


def test_no_test_waits_for_less_than_a_minute_before_it_fails() -> None:
    found = found_in_tests(short_waits)
    # there clients have the patience of real ones
    assert {
        place for place in found if not place.startswith(("flink/loop", "serving/chaos"))
    } == set()
