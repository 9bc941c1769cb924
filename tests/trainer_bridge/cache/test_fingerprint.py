"""A function is known by what it does; a change that matters changes its fingerprint."""

from __future__ import annotations

import functools
import itertools
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import ConfigurationError
from trainer_bridge.cache import fingerprint

SCALE = 2.0
TABLE = np.arange(4)


def helper(x: Any) -> Any:
    return x * SCALE


def using_helper(rows: Any) -> Any:
    return {"x": helper(rows["x"])}


def using_table(rows: Any) -> Any:
    return {"x": TABLE[rows["x"]]}


class Scaler:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, rows: Any) -> Any:
        return {"x": rows["x"] * self.factor}


def with_property(number: int) -> Any:
    class Steps:
        def __call__(self, rows: Any) -> Any:
            return self.factor

        @property
        def factor(self) -> int:
            return number

    return Steps()


def test_equal_functions_have_equal_fingerprints() -> None:
    one, other = (lambda rows: {"x": rows["x"] + 1}), (lambda rows: {"x": rows["x"] + 1})
    assert fingerprint(one) == fingerprint(other)
    assert fingerprint(Scaler(2)) == fingerprint(Scaler(2))
    assert re.fullmatch("[0-9a-f]{16}", fingerprint(one))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda r: r["x"] + 1, lambda r: r["x"] + 2),
        (lambda r: r["x"] + 1, lambda r: r["x"] - 1),
        (lambda r: r["x"], lambda r: r["y"]),
        (lambda r: "a", lambda r: "b"),
        (lambda r, k=1: r["x"] * k, lambda r, k=2: r["x"] * k),
        (lambda r, *, k=1: r["x"] * k, lambda r, *, k=2: r["x"] * k),
        (lambda r: [x + 1 for x in r], lambda r: [x + 2 for x in r]),
        (lambda r: np.log(r["x"]), lambda r: np.exp(r["x"])),
        (Scaler(2), Scaler(3)),
        (Scaler(2).__call__, Scaler(3).__call__),
        (functools.partial(helper, x=1), functools.partial(helper, x=2)),
        (functools.partial(helper, x=np.ones(2)), functools.partial(helper, x=np.ones(3))),
        (functools.partial(helper, x={"a"}), functools.partial(helper, x={"b"})),
        (functools.partial(helper, x=[1, [2]]), functools.partial(helper, x=[1, [3]])),
        (functools.partial(helper, x=pa.array([1])), functools.partial(helper, x=pa.array([2]))),
        (lambda r, p=re.compile("a"): p, lambda r, p=re.compile("b"): p),
        (functools.partial(helper, x=np.dtype("i4")), functools.partial(helper, x=np.dtype("i8"))),
        (with_property(1), with_property(2)),
        (np.log, np.exp),
    ],
)  # fmt: skip
def test_a_change_that_matters_changes_it(one: Any, other: Any) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_functions_and_globals_that_it_uses_are_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(using_helper), fingerprint(using_table)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert fingerprint(using_helper) != before[0]
    assert fingerprint(using_table) == before[1]
    monkeypatch.setitem(globals(), "TABLE", np.arange(5))
    assert fingerprint(using_table) != before[1]


def test_a_module_of_the_users_own_is_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_steps_for_test.py").write_text("def f(x):\n    return x\n")
    import own_steps_for_test as steps  # type: ignore[import-not-found]

    def function(rows: Any) -> Any:
        return steps.f(rows["x"])

    before = fingerprint(function)
    (tmp_path / "own_steps_for_test.py").write_text("def f(x):\n    return x + 1\n")
    assert fingerprint(function) != before


def test_a_function_may_use_what_is_not_there_yet_and_modules_of_python_itself() -> None:
    def uses_later() -> Any:
        return later

    before = fingerprint(uses_later)
    assert before == fingerprint(uses_later)
    later = 1
    assert uses_later() == 1
    assert fingerprint(uses_later) != before
    assert fingerprint(lambda: time) != fingerprint(lambda: itertools)


def test_functions_that_call_themselves_end() -> None:
    def even(n: int) -> bool:
        return n == 0 or odd(n - 1)

    def odd(n: int) -> bool:
        return n != 0 and even(n - 1)

    assert fingerprint(even) == fingerprint(even)
    assert fingerprint(even) != fingerprint(odd)


def test_a_declared_version_stands_for_the_code() -> None:
    lock = threading.Lock()

    def guarded(rows: Any) -> Any:
        with lock:
            return rows

    with pytest.raises(ConfigurationError, match="'guarded' refers to a lock.*version='...'"):
        fingerprint(guarded)
    assert fingerprint(guarded, "1") != fingerprint(guarded, "2")
    assert fingerprint(guarded, "1") != fingerprint(using_helper, "1")


def test_it_is_the_same_in_every_process() -> None:
    script = (
        "from trainer_bridge.cache import fingerprint\n"
        "import numpy as np\n"
        "words = {'a', 'b', 'c', 'd'}\n"
        "def f(rows): return {'x': np.isin(rows['x'], list(words)) and 'e' in words}\n"
        "print(fingerprint(f))\n"
    )
    root = str(Path(__file__).parents[3])
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONPATH": root, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
