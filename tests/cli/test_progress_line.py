"""Progress on a terminal is one line; in a log it is a line now and then."""

from __future__ import annotations

import sys

import pytest

from paimon_features.cli._progress_line import ProgressLine
from paimon_features.ingestion.progress import IngestProgress


def report(line: ProgressLine, *seconds: float) -> None:
    with line:
        for elapsed_s in seconds:
            line(IngestProgress(elapsed_s, 12_345, 678.0))


def test_a_log_gets_a_line_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    report(ProgressLine(silent=False), 1, 9, 10, 11, 19, 25)
    assert capsys.readouterr().err.splitlines() == [
        "    10 s        12,345 rows read        678/s",
        "    25 s        12,345 rows read        678/s",
    ]


def test_a_terminal_gets_one_line_that_is_ended_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    report(ProgressLine(silent=False), 1, 2)
    shown = capsys.readouterr().err
    assert shown.count("\r") == 2
    assert shown.count("\n") == 1
    assert shown.endswith("/s\n")


def test_silence_is_kept_and_nothing_is_ended_that_was_not_begun(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    report(ProgressLine(silent=True), 20)
    report(ProgressLine(silent=False))
    assert capsys.readouterr().err == ""
