"""Samplers with random arguments draw what their naive twins draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paimon_features.testing.sizes import seeds
from tests.reference import samplers as naive
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
from trainer_bridge.testing.sampler_contract import flat

Dice = np.random.Generator
Pair = tuple[AdvancedSampler, Any]


def numbers(dice: Dice) -> Any:
    """Scores of all sizes, many of them equal or 0."""
    found = dice.choice(dice.gamma(0.3, 3.0, 8), dice.integers(1, 300))
    found[dice.random(len(found)) < 0.2] = 0.0
    found[dice.integers(len(found))] = 1.5
    return found


def labels(dice: Dice) -> list[str]:
    shares = dice.dirichlet(np.full(dice.integers(1, 9), 0.5))
    return [f"class {c}" for c in dice.choice(len(shares), dice.integers(1, 120), p=shares)]


def weighted(dice: Dice, seed: int) -> Pair:
    x, n = numbers(dice), int(dice.integers(1, 60))
    sampler = WeightedRandomSampler(x, n, seed=seed)
    return sampler, lambda epoch: naive.weighted(x.tolist(), n, seed, epoch)


def without(dice: Dice, seed: int) -> Pair:
    x = numbers(dice)
    n = int(dice.integers(1, np.count_nonzero(x) + 1))
    sampler = WeightedRandomSampler(x, n, False, seed=seed)
    return sampler, lambda epoch: naive.weighted_without_replacement(x.tolist(), n, seed, epoch)


def difficulty(dice: Dice, seed: int) -> Pair:
    x, share, a = numbers(dice), float(dice.uniform(0.05, 1)), float(dice.uniform(0, 2))
    binned = bool(dice.integers(2))
    kind = BinnedDifficultySampler if binned else DifficultyWeightedSampler
    sampler = kind(x, 40, uniform_share=share, exponent=a, eps=0.0, seed=seed)
    scores = [naive.rounded_score(s) if binned else s for s in x.tolist()]
    merits = [float(np.float64(s) ** a) for s in scores]
    return sampler, lambda epoch: naive.importance(merits, 40, share, seed, epoch)


def poisson(dice: Dice, seed: int) -> Pair:
    x, scale = numbers(dice), float(dice.gamma(1.0, 0.5))
    sampler = PoissonSampler(x, scale=scale, seed=seed)
    chances = np.minimum(x * scale, 1).tolist()
    return sampler, lambda epoch: naive.poisson(chances, seed, epoch)


def stratified(dice: Dice, seed: int) -> Pair:
    x = labels(dice)
    sizes = [x.count(label) for label in sorted(set(x))]
    each = int(dice.integers(1, 20))
    sampler, counts = [
        (StratifiedSampler(x, seed=seed), sizes),
        (StratifiedSampler(x, each, seed=seed), [each] * len(sizes)),
        (StratifiedSampler(x, proportional=False, seed=seed), [min(sizes)] * len(sizes)),
    ][int(dice.integers(3))]
    return sampler, lambda epoch: naive.stratified(x, counts, seed, epoch)


def balanced(dice: Dice, seed: int) -> Pair:
    x, size, many = labels(dice), int(dice.integers(1, 20)), int(dice.integers(1, 10))
    sampler = BalancedBatchSampler(x, size, num_batches=many, seed=seed)
    return sampler, lambda epoch: flat(naive.balanced(x, size, many, seed, epoch))


def hard(dice: Dice, seed: int) -> Pair:
    x, ratio = numbers(dice), float(dice.random())
    n = int(dice.integers(1, 3 * len(x) + 1))
    sampler = HardExampleMiningSampler(n, x, hard_ratio=ratio, seed=seed)
    return sampler, lambda epoch: naive.hard(x.tolist(), n, ratio, seed, epoch)


def curriculum(dice: Dice, seed: int) -> Pair:
    x, n = numbers(dice), int(dice.integers(1, 80))
    sizes = np.sort(dice.integers(1, len(x) + 1, dice.integers(1, 5)))
    steps = np.append(0, np.sort(dice.choice(np.arange(1, 200), len(sizes) - 1, replace=False)))
    pace = dict(zip(steps.tolist(), sizes.tolist(), strict=True))
    shares = {step: size / len(x) for step, size in pace.items()}
    sampler = CurriculumSampler(x, shares, n, seed=seed)
    return sampler, lambda epoch: naive.curriculum(x.tolist(), pace, n, seed, epoch)


MAKERS = [weighted, without, difficulty, poisson, stratified, balanced, hard, curriculum]


@pytest.mark.parametrize("seed", seeds(25))
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_draws_are_those_of_the_naive_twin(make: Any, seed: int) -> None:
    sampler, reference = make(np.random.default_rng(seed), seed)
    for epoch in (0, 1, 5):
        drawn = sampler.draw(epoch, np.arange(sampler.epoch_size(epoch)))
        assert drawn.tolist() == reference(epoch)
