"""The benchmark of feedback runs, and every event that it counts is in the table."""

from __future__ import annotations

from benchmarks.feedback import BATCH, run


def test_all_that_the_benchmark_writes_is_committed() -> None:
    # `run` raises where the table holds other rows
    turns = run(events=4 * BATCH, repeats=1)
    assert set(turns) > {"int64", "append"}
    assert all(turn.wall > 0 for side in turns.values() for turn in side)
