"""The benchmark runs, and its contenders read the same; its figures are for docs/performance.md."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # pypaimon's own torch data set warns
def test_all_readers_of_the_benchmark_read_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[2] / "benchmarks" / "loader.py"
    spec = importlib.util.spec_from_file_location("benchmark_loader", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # `run` raises where a reader has other rows
    module.run(rows=20_000, columns=3, files=4, repeats=1, slow_rows=100)
    assert "torch adapter, shuffled" in capsys.readouterr().out
