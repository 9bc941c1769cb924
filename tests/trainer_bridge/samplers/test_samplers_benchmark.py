"""The benchmark runs with every contender; its figures are for docs/internals/performance.md."""

from __future__ import annotations

import pytest


@pytest.mark.torch
def test_every_contender_of_the_benchmark_draws() -> None:
    from benchmarks import samplers as module

    for name in [*module.OURS, *module.OTHERS]:
        assert module.one(name, 50_000, 2_000)["draws_per_s"] > 0
    too_many = module.one("numpy choice, without", 100, 101)
    assert "larger sample" in too_many["error"]
