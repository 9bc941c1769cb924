"""The benchmark runs, and its contenders agree; figures are for docs/internals/performance.md."""

from __future__ import annotations

import pytest


def test_our_join_equals_both_duckdb_queries(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks import point_in_time as module

    events = module.read_events(module.LOG)[:60_000]
    # `run` raises where an answer differs from ours
    module.run(events, count=3_000, rounds=1, windows=5)
    printed = capsys.readouterr().out
    assert printed.count("range join") == printed.count("ASOF joins") == 2


@pytest.mark.long
def test_memory_is_measured_in_a_process_of_its_own(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import bounded

    command = "bounded --rows 3000 --events 4000 --customers 50 --memory-mb 0.2"
    monkeypatch.setattr("sys.argv", command.split())
    bounded.main()
    printed = capfd.readouterr().out
    assert "3,000 rows in" in printed
    assert "in   1 chunks" not in printed
