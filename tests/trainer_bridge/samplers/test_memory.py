"""At most 16 bytes per row at any time, what was given included."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.long_cases import quick_cases
from trainer_bridge.samplers import (
    AdvancedSampler,
    BalancedBatchSampler,
    BinnedDifficultySampler,
    CurriculumSampler,
    DifficultyWeightedSampler,
    HardExampleMiningSampler,
    PoissonSampler,
    StratifiedSampler,
    WeightedRandomSampler,
)

ROWS = 1 << 22
CONSTANT = 24 << 20  # the pieces that are worked on at a time

SAMPLERS: dict[str, tuple[float, Callable[[Any], AdvancedSampler]]] = {
    "weighted": (16, lambda x: WeightedRandomSampler(x, 1_000)),
    "without replacement": (16, lambda x: WeightedRandomSampler(x, 1_000, replacement=False)),
    "poisson": (12, lambda x: PoissonSampler(x, 1_000)),
    "stratified": (13, lambda x: StratifiedSampler((8 * x).astype(np.int64))),
    "balanced": (13, lambda x: BalancedBatchSampler((8 * x).astype(np.int64), 100)),
    "hard": (16, lambda x: HardExampleMiningSampler(1_000, x)),
    "curriculum": (16, lambda x: CurriculumSampler(x, {0: 0.2, 500: 0.5}, 1_000)),
    "difficulty": (16, lambda x: DifficultyWeightedSampler(x, 1_000)),
    "binned": (9.2, lambda x: BinnedDifficultySampler(x, 1_000)),
}


@pytest.mark.parametrize(("limit", "make"), SAMPLERS.values(), ids=SAMPLERS)
def test_rows_take_16_bytes_at_most(limit: float, make: Callable[[Any], AdvancedSampler]) -> None:
    tracemalloc.start()
    given = np.random.default_rng(0).random(ROWS)
    sampler = make(given)
    sampler.draw(0, np.arange(min(sampler.epoch_size(0), 1_000)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    labels = 8 * ROWS if limit == 13 else 0  # made above from the numbers, which stay
    assert peak - labels <= limit * ROWS + CONSTANT


@pytest.mark.parametrize("replacement", quick_cases([True, False], True))
def test_more_than_2_to_the_24_weights_work_in_16_bytes_each(replacement: bool) -> None:
    rows = 2**24 + 5
    tracemalloc.start()
    weights = np.ones(rows)
    weights[-1] = rows  # half of the total, beyond the resolution of float32 and torch.multinomial
    sampler = WeightedRandomSampler(weights, 2_000, replacement, seed=1)
    drawn = np.fromiter(sampler, dtype=np.int64)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= 16 * rows + (64 << 20)
    last = np.count_nonzero(drawn == rows - 1)
    if replacement:
        assert abs(last - 1_000) < 5 * np.sqrt(500)
    else:
        assert last == 1
        assert len(set(drawn.tolist())) == 2_000
    others = drawn[drawn < rows - 1]
    assert abs(others.mean() / rows - 0.5) < 5 / np.sqrt(12 * len(others))
