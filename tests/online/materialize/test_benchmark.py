"""The benchmark runs; its figures are for docs/internals/performance.md."""

from __future__ import annotations

import pytest


@pytest.mark.long
@pytest.mark.redis
def test_the_benchmark_of_the_materializer_runs() -> None:
    from benchmarks import materialize  # it imports the Redis client

    figures = materialize.run(materialize.SMALL)
    assert figures["rebuild_tiles"] == materialize.SMALL.base
    assert figures["follow_late_tiles_per_commit"] == materialize.SMALL.commit
    assert all(value > 0 for value in figures.values())
