"""``make fuzz``: random tests only, bounded, and reported so that they can be repeated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paimon_features.testing.sizes import SEED, many, seeds

ROOT = Path(__file__).parents[1]


def fuzz(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "tools/fuzz.py", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env=os.environ | {"FUZZ_SEED": "7", "FUZZ_EXAMPLES": "2", **settings},
        capture_output=True,
        text=True,
    )


def test_only_random_tests_run_and_the_seed_is_printed() -> None:
    done = fuzz("tests/core/windows/test_window.py")
    assert done.returncode == 0, done.stdout
    assert "fuzz: round 1, seed 7, 2 cases for 100 in the suite" in done.stdout
    assert "1 passed, " in done.stdout
    assert "deselected" in done.stdout
    assert "fuzz: nothing found in 1 rounds" in done.stdout


def test_no_test_starts_after_the_time_limit() -> None:
    done = fuzz("tests/core/windows/test_window.py", FUZZ_MINUTES="0")
    assert done.returncode == 0, done.stdout
    assert "1 skipped, " in done.stdout


def test_a_failure_ends_it_with_the_command_that_repeats_it() -> None:
    done = fuzz("tests/no_such_file.py")
    assert done.returncode != 0
    again = 'fuzz: again with FUZZ_SEED=7 FUZZ_EXAMPLES=2 ARGS="-q -p no:cacheprovider tests/no_'
    assert again in done.stdout


def test_a_seed_reproduces_its_cases_and_another_seed_differs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(SEED, raising=False)
    assert [*seeds(8)] == [*range(many(8))]
    monkeypatch.setenv(SEED, "7")
    first = seeds(8)
    assert seeds(8) == first
    monkeypatch.setenv(SEED, "8")
    assert not {*seeds(8)} & {*first}
