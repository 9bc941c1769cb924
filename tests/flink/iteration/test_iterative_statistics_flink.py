"""The examples of examples/iterative as jobs of Flink: what they give in one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyflink")

import cloudpickle

from paimon_features.iteration import ReferenceExecutor
from paimon_features.iteration.flink import IterationJob, IterationSettings
from tests.iteration.example_modules import example

pytestmark = pytest.mark.flink


@pytest.mark.long
def test_als_and_difficulty_on_flink_equal_a_run_in_one_process(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    with example("als", "difficulty", "common") as modules:
        # Flink's workers do not have these modules
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        als, difficulty, _ = modules
        settings = IterationSettings(
            mode="thread", wire="memory", checkpoint_interval_ms=100, stuck_s=60
        )
        job = IterationJob(settings=settings, state_dir=tmp_path)

        customer, product = np.nonzero(random.random((40, 30)) < 0.2)
        times = random.integers(1, 5, len(customer)).astype(np.float64)
        problem = als.Problem.of(customer, product, times, rank=4, blocks=3)
        program = als.build(problem, rounds=5)
        vectors, losses = job.run(program)
        expected, wanted = ReferenceExecutor().run(program)
        np.testing.assert_allclose(als.joined(vectors), als.joined(expected), rtol=1e-9)
        np.testing.assert_allclose(losses, wanted, rtol=1e-12)

        x = np.hstack([random.normal(size=(200, 3)), np.ones((200, 1))])
        y = (x[:, 0] + random.normal(size=200) > 0).astype(np.float64)
        program = difficulty.build(x, y, size=60)
        (model,), progress, found = job.run(program)
        (same,), reported, _ = ReferenceExecutor().run(program)
        np.testing.assert_allclose(model, same, rtol=1e-12)
        assert progress == reported
        # each loss of each round was committed once
        seen = sorted((each.round, each.block) for each in found)
        assert seen == [(r, b) for r in range(len(reported)) for b in range(4)]
