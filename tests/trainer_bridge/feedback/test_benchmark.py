"""The benchmark of feedback runs, and every event that it counts is in the table."""

from __future__ import annotations

import pytest

from benchmarks.feedback import BATCH, measure_queue, run


def test_all_that_the_benchmark_writes_is_committed() -> None:
    # `run` raises where the table holds other rows
    turns = run(events=4 * BATCH, repeats=1)
    assert set(turns) > {"int64", "append"}
    assert all(turn.wall > 0 for side in turns.values() for turn in side)


@pytest.mark.long
@pytest.mark.redis
def test_all_that_ranks_hand_over_by_a_stream_is_committed_by_the_drain() -> None:
    # it raises where the drain or the table has other rows
    turn = measure_queue(events=8 * BATCH, ranks=2)
    assert min(turn.wall, turn.cpu, turn.drain, turn.write_us) > 0
