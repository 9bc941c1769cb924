"""``tools/ci.py``: the parts of a run, what it says at the end, and when it has failed."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def tool(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses look for their module
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


CI = tool("ci")


def run(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    makefile: str,
    *parts: str,
    limit_s: float = 600,
    budget_s: float = 500,
) -> int:
    (folder / "Makefile").write_text(makefile)
    monkeypatch.setattr(CI, "ROOT", folder)
    now = time.time()
    code: int = CI.Run(now + budget_s, now + limit_s).run(parts)
    return code


def test_every_part_is_a_target_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in (*CI.PARTS, *(f"{part}-tools" for part in CI.WITH_TOOLS)):
        assert f"\n{target}:" in makefile


def test_the_run_ends_with_times_skips_and_the_number_of_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    makefile = """
test:
	@echo "SKIPPED [3] tests/a.py:12: needs a GPU"
	@echo "SKIPPED [2] tests/b.py:7: VARIABLE (make feast-test)"
	@echo "SKIPPED [4] tests/c.py:7: VARIABLE (make chaos)"
	@echo "== 10 passed, 9 skipped in 1.20s =="
lint:
	@echo "pyright: skipped: there is no npx"
feast-test-tools:
	@true
feast-test:
	@echo "5 passed, 1 warning in 61.20s (0:01:01)"
mutants:
	@echo "$(ARGS)"
	@echo "3 of 44 faults caught, 41 not run: out of time"
"""
    parts = ["test", "lint", "feast-test", "mutants"]
    assert run(tmp_path, monkeypatch, makefile, *parts) == 0
    output = capfd.readouterr().out
    assert "\n--minutes 12\n" in output
    *_, summary = output.partition("\nparts\n")
    assert "test             0.0 min  passed  10 passed, 9 skipped\n" in summary
    assert "     3 needs a GPU\n" in summary
    assert "     4 VARIABLE (make chaos)\n" in summary
    assert "feast-test)" not in summary
    assert "     1 pyright: skipped: there is no npx\n" in summary
    assert "     1 3 of 44 faults caught, 41 not run: out of time\n" in summary
    assert summary.endswith("\n15 passed, 0 failed, 9 skipped\n")


def test_the_first_part_that_fails_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    makefile = """
test:
	@echo "== 1 failed, 10 passed in 1.20s =="
	@exit 3
lint:
	@echo "never"
"""
    assert run(tmp_path, monkeypatch, makefile, "test", "lint") == 1
    output = capfd.readouterr().out
    assert "FAILED: exit 2  1 failed, 10 passed\n" in output
    assert "never" not in output
    assert output.endswith("\n10 passed, 1 failed, 0 skipped\n")


def test_a_part_whose_program_cannot_be_had_is_named_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    makefile = """
manifests-tools:
	@echo "Go is not installed" >&2
	@exit 1
manifests:
	@echo "never"
docs:
	@echo "documented"
"""
    assert run(tmp_path, monkeypatch, makefile, "manifests", "docs") == 0
    output = capfd.readouterr().out
    assert "documented" in output
    assert "never" not in output
    assert output.count("not run: manifests: Go is not installed\n") == 2


def test_a_part_that_runs_beyond_the_limit_is_killed_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    makefile = "test:\n\t@echo begun\n\t@sleep 600\n"
    assert run(tmp_path, monkeypatch, makefile, "test", limit_s=1) == 1
    assert "FAILED: killed after" in capfd.readouterr().out


def test_a_process_that_a_part_leaves_behind_does_not_hold_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(CI, "PIPE_S", 0.2)
    makefile = "test:\n\t@sleep 600 & echo pid $$!\n"
    assert run(tmp_path, monkeypatch, makefile, "test") == 0
    pid = int(re.findall(r"(?m)^pid (\d+)$", capfd.readouterr().out)[0])
    os.kill(pid, signal.SIGTERM)


def test_long_tests_are_told_when_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    makefile = 'test test-long:\n\t@echo "$@ $(PAIMON_FEATURES_FUZZ_UNTIL)."\n'
    assert run(tmp_path, monkeypatch, makefile, "test", "test-long") == 0
    output = capfd.readouterr().out
    assert "\ntest .\n" in output
    assert "\ntest-long 1" in output


def test_every_fault_of_the_mutation_checks_stands_in_its_file() -> None:
    mutants = tool("mutants")
    assert mutants.misplaced() == []
    for test in {test for mutant in mutants.MUTANTS for test in mutant.tests.split()}:
        assert (ROOT / test).exists()
