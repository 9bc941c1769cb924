"""A missing engine skips its tests in a plain run, and fails a run that requires it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paimon_features.core.installation.jars import missing_jars

ROOT = Path(__file__).parents[1]


@pytest.mark.flink
def test_where_flink_tests_run_the_jars_are_there() -> None:
    assert missing_jars() == []


def run_that_test(cache: Path, required: str) -> subprocess.CompletedProcess[str]:
    title = test_where_flink_tests_run_the_jars_are_there.__name__
    target = f"{Path(__file__).relative_to(ROOT)}::{title}"
    environment = os.environ | {
        "PAIMON_FEATURES_CACHE": str(cache),
        "PAIMON_FEATURES_REQUIRE": required,
    }
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", target],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )


def test_a_test_whose_engine_is_missing_is_skipped_with_what_is_missing(tmp_path: Path) -> None:
    done = run_that_test(tmp_path, required="")
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout
    assert "needs flink, which lacks" in done.stdout


def test_a_run_that_requires_a_missing_engine_fails_at_once(tmp_path: Path) -> None:
    done = run_that_test(tmp_path, required="flink")
    assert done.returncode != 0
    assert "flink is required here, but it lacks" in done.stderr


def test_a_required_engine_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    done = run_that_test(tmp_path, required="flunk")
    assert done.returncode != 0
    assert "it takes: flink, kafka, redis, tensorflow, torch" in done.stderr
