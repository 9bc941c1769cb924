"""Files that a user names for a result are refused in one way, by every writer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import click
import pytest

from paimon_features.cli._options import OutputFile
from paimon_features.core.errors import RequestError
from paimon_features.core.process.output_files import check_output_file, check_output_folder
from paimon_features.offline.feature_file import check_output
from paimon_features.project.monitoring.report_files import write_report
from paimon_features.project.outcomes.comparison_report import write_comparison

ROOT = Path(__file__).parents[1]
NOTHING = cast("Any", None)
"""A result that is not looked at before its file is refused."""
WRITERS: dict[str, Callable[[Path], object]] = {
    "a report.html": lambda path: write_report(NOTHING, path, []),
    "a comparison.html": lambda path: write_comparison(NOTHING, [], path),
    "some features.parquet": check_output,
    "anything": check_output_file,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_in_a_folder_that_does_not_exist_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "none" / name
    with pytest.raises(RequestError) as error:
        WRITERS[name](path)
    assert str(error.value) == f"cannot write {path}: no such folder: {tmp_path / 'none'}"


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_something_else_than_a_file_is_not_replaced(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    path = tmp_path / name
    make(path)
    with pytest.raises(RequestError, match="it exists and is not a file; name another path"):
        WRITERS[name](path)


def test_an_option_refuses_a_missing_folder_in_the_same_words(tmp_path: Path) -> None:
    path = tmp_path / "none" / "x"
    with pytest.raises(RequestError) as error:
        check_output_folder(path)
    with pytest.raises(click.BadParameter) as refused:
        OutputFile().convert(str(path), None, None)
    assert refused.value.message == str(error.value)


def test_the_sentence_about_a_missing_folder_is_in_one_module() -> None:
    found = {
        str(path.relative_to(ROOT))
        for package in ("paimon_features", "trainer_bridge")
        for path in (ROOT / package).rglob("*.py")
        if ": no such folder: {" in path.read_text("utf-8")
    }
    assert found == {"paimon_features/core/process/output_files.py"}
