"""The benchmark runs, its baseline returns our values; for docs/internals/performance.md."""

from __future__ import annotations

import pytest


@pytest.mark.redis
def test_the_benchmark_of_the_serving_engine_runs() -> None:
    from benchmarks import serving_core  # it imports the Redis client

    figures = serving_core.run(serving_core.SMALL)
    assert figures["record_cells"] >= 50
    assert all(value > 0 for value in figures.values())
