"""The benchmark runs, and its contenders write the same tiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import backfill as benchmark
from paimon_features.core.configuration.project_config import FlinkConfig
from paimon_features.definitions import Definitions
from paimon_features.lake import Lake
from paimon_features.project.planning.plan import apply_plan
from paimon_features.tiles.jobs.target import TileTarget


def test_a_local_backfill_writes_what_duckdb_writes_by_hand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = Lake.open(tmp_path / "lake", "bench")
    apply_plan(lake, Definitions.of([benchmark.VIEW]), now_ms=0)
    benchmark.make_events(lake, 20_000, 500)
    view = benchmark.VIEW.compiled
    target = TileTarget("bench", lake, view, 1, tmp_path / "state", FlinkConfig(1, 1_000))
    contenders = {"local": benchmark.local, "duckdb": benchmark.by_hand}
    benchmark.run(target, 20_000, 1, contenders)
    # raises where the two differ
    assert 10_000 < benchmark.check(target, 20_000) < 20_000
    assert "times as long" in capsys.readouterr().out
