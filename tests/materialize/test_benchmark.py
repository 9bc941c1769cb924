"""The benchmark runs; its figures are for docs/performance.md."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


@pytest.mark.redis
def test_the_benchmark_of_the_materializer_runs() -> None:
    path = Path(__file__).parents[2] / "benchmarks" / "materialize.py"
    spec = importlib.util.spec_from_file_location("benchmark_materialize", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    figures = module.run(small=True)
    assert figures["rebuilt_tiles"] == 40_000
    assert all(value > 0 for value in figures.values())
