"""Progress on a terminal is one line; in a log it is a line now and then."""

from __future__ import annotations

import io
import json
import sys
import time

import pytest

from paimon_features.cli._progress import Progress
from paimon_features.cli._progress_line import ProgressLine
from paimon_features.core.process import verbosity
from paimon_features.ingest.ingest_progress import IngestProgress


def report(line: ProgressLine, *seconds: float) -> None:
    with line:
        for elapsed_s in seconds:
            line(IngestProgress(elapsed_s, 12_345, 678.0))


def test_a_log_gets_a_line_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    report(ProgressLine(silent=False), 1, 9, 10, 11, 19, 25)
    assert capsys.readouterr().err.splitlines() == [
        "    10 s  reading        12,345 rows read        678/s",
        "    25 s  reading        12,345 rows read        678/s",
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


def test_with_json_a_log_gets_events(capsys: pytest.CaptureFixture[str]) -> None:
    report(ProgressLine(silent=True, events=True), 1, 10, 11)
    (line,) = capsys.readouterr().err.splitlines()
    event = json.loads(line)
    assert (event["event"], event["phase"], event["rows_read"]) == ("progress", "reading", 12_345)


def test_a_job_without_rows_is_starting_and_one_with_a_total_has_time_left() -> None:
    assert "starting" in str(IngestProgress(5.0, 0, 0.0))
    assert "50%, 10 s left" in str(IngestProgress(10.0, 500, 50.0, rows=1_000))


def test_steps_show_phase_share_rate_and_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("paimon_features.cli._progress.time.monotonic", lambda: clock[0])
    for as_json in (False, True):
        clock[0] = 0.0
        with Progress("reading rows", as_json, unit="rows", ticks=False) as progress:
            for second in range(1, 31):
                clock[0] = float(second)
                progress.update(second * 10, 1_000)
        shown = capsys.readouterr().err.splitlines()
        if as_json:
            events = [json.loads(line) for line in shown]
            assert [e["elapsed_s"] for e in events] == [2, 12, 22]
            assert events[-1]["remaining_s"] == 78
            assert events[-1]["percent"] == 22
        else:
            assert len(shown) == 3
            assert shown[0] == "    10 s  reading rows:  10.0 %, 100 of 1,000 rows  10/s  90 s left"


def test_a_wait_without_reports_is_shown_too(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("paimon_features.cli._progress.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("paimon_features.cli._progress.TICK_S", 0.01)
    # capsys reads and empties in two steps: what another thread writes between them is lost
    shown = io.StringIO()
    monkeypatch.setattr("sys.stderr", shown)
    with Progress("waiting for a lease") as progress:
        clock[0] = 11.0
        while not shown.getvalue().endswith("\n"):
            time.sleep(0.001)
        progress.message("it is ours")
    assert shown.getvalue() == "    11 s  waiting for a lease\nit is ours\n"


def test_quiet_shows_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    verbosity.set_verbosity(True, 0)
    try:
        report(ProgressLine(silent=False), 20)
    finally:
        verbosity.set_verbosity(False, 0)
    assert capsys.readouterr().err == ""
