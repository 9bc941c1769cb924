"""Weighted sampling: in proportion with replacement, by least keys without it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.errors import ConfigurationError, RequestError
from paimon_features.testing.sizes import every_seed
from tests.reference import samplers as naive
from trainer_bridge.samplers import WeightedRandomSampler, WeightedReservoir
from trainer_bridge.testing.sampler_contract import SamplerContract

WEIGHTS = np.array([4.0, 5.0, 1.0, 0.25, 3.0, 0.5, 2.0, 8.0])
RISING = np.arange(1.0, 31.0)


class TestWithReplacement(SamplerContract):
    independent = True

    def make(self, seed: int = 5, rank: int = 0, world_size: int = 1) -> WeightedRandomSampler:
        return WeightedRandomSampler(WEIGHTS, 50, seed=seed, rank=rank, world_size=world_size)

    def reference(self, seed: int, epoch: int) -> list[int]:
        return naive.weighted(WEIGHTS.tolist(), 50, seed, epoch)

    def expected(self) -> Any:
        return 50 * WEIGHTS / WEIGHTS.sum()

    def favoured(self) -> Any:
        return [7], [3], 8 / 0.25  # by their weights


class TestWithoutReplacement(SamplerContract):
    def make(self, seed: int = 5, rank: int = 0, world_size: int = 1) -> WeightedRandomSampler:
        return WeightedRandomSampler(
            RISING, 20, replacement=False, seed=seed, rank=rank, world_size=world_size
        )

    def reference(self, seed: int, epoch: int) -> list[int]:
        return naive.weighted_without_replacement(RISING.tolist(), 20, seed, epoch)

    def expected(self) -> Any:
        chances = [
            naive.chances_without_replacement(RISING.tolist(), 20, 99, epoch)
            for epoch in range(500)
        ]
        return np.mean(chances, axis=0)

    def favoured(self) -> Any:
        return range(20, 30), range(10), 2.0


def inclusion(weights: list[float], size: int) -> np.ndarray[Any, Any]:
    """The chance of each index to be among ``size`` draws without replacement: all orders."""
    chances = np.zeros(len(weights))
    for order in itertools.permutations(range(len(weights)), size):
        left, chance = sum(weights), 1.0
        for index in order:
            chance *= weights[index] / left
            left -= weights[index]
        chances[list(order)] += chance
    return chances


def test_draws_without_replacement_include_what_successive_draws_would() -> None:
    weights, epochs = [4.0, 1.0, 2.0, 0.5, 1.5], 1_500
    sampler = WeightedRandomSampler(weights, 3, replacement=False, seed=2)
    counts, first = np.zeros(5), np.zeros(5)
    for epoch in range(epochs):
        drawn = sampler.draw(epoch, np.arange(3))
        assert len(set(drawn.tolist())) == 3
        counts[drawn] += 1
        first[drawn[0]] += 1
    chances = inclusion(weights, 3)
    sigma = np.sqrt(epochs * chances * (1 - chances))
    assert (abs(counts - epochs * chances) < 4.5 * sigma).all()
    # the order within the epoch does not depend on the weights
    assert (abs(first - epochs * chances / 3) < 4.5 * np.sqrt(epochs * chances / 3)).all()


@given(
    st.lists(st.one_of(st.just(0.0), st.floats(1e-300, 1e300)), min_size=1, max_size=30).filter(any)
)
def test_extreme_weights_neither_break_nor_let_a_zero_through(weights: list[float]) -> None:
    positive = {index for index, weight in enumerate(weights) if weight > 0}
    assert set(WeightedRandomSampler(weights, 20)) <= positive
    everything = WeightedRandomSampler(weights, len(positive), replacement=False)
    assert set(everything) == positive


def test_more_samples_than_weights_above_zero_are_refused_without_replacement() -> None:
    with pytest.raises(ConfigurationError, match="only 2 weights are positive"):
        WeightedRandomSampler([1, 0, 1], 3, replacement=False)


@pytest.mark.parametrize("replacement", [True, False])
def test_rows_that_never_come_cannot_be_made_up_for(replacement: bool) -> None:
    sampler = WeightedRandomSampler([1.0, 0.0, 1.0], 2, replacement)
    with pytest.raises(RequestError, match="weight 0 are never drawn"):
        sampler.unbiased_weights(0, np.array([0]))


def test_unbiased_weights_without_replacement_are_those_of_the_twin() -> None:
    sampler = WeightedRandomSampler(RISING, 20, replacement=False, seed=3)
    for epoch in range(5):
        wanted = naive.chances_without_replacement(RISING.tolist(), 20, 3, epoch)
        got = sampler.unbiased_weights(epoch, np.arange(30))
        assert np.allclose(got, 20 / 30 / np.array(wanted), rtol=1e-12)


# --- over several ranks ---


@every_seed(5)
def test_reservoirs_of_any_parts_merge_to_the_sample_of_the_whole(seed: int) -> None:
    dice = np.random.default_rng(seed)
    weights = dice.gamma(0.3, 1.0, 500) * (dice.random(500) > 0.2)
    sampler = WeightedRandomSampler(weights, 60, replacement=False, seed=seed)
    whole = sorted(sampler.draw(7, np.arange(60)).tolist())
    order = dice.permutation(500)
    ranks = []
    for share in np.array_split(order, 4):
        ranks.append(WeightedReservoir(60, seed=seed, epoch=7))
        for part in np.array_split(share, 3):
            ranks[-1].update(part, weights[part])
    merged = ranks[0].merge(ranks[1]).merge(ranks[3].merge(ranks[2]))
    assert merged.rows().tolist() == whole
    assert ranks[2].merge(ranks[0]).rows().tolist() == ranks[0].merge(ranks[2]).rows().tolist()


def test_reservoirs_of_different_samples_do_not_merge() -> None:
    with pytest.raises(RequestError, match="cannot be merged"):
        WeightedReservoir(5, epoch=1).merge(WeightedReservoir(5, epoch=2))
    with pytest.raises(RequestError, match="2 rows with 1 weights"):
        WeightedReservoir(5).update(np.array([0, 1]), [1.0])


def test_a_reservoir_keeps_heavy_rows_more_often() -> None:
    weights, counts = np.where(np.arange(100) < 10, 9.0, 1.0), np.zeros(100)
    for epoch in range(100):
        reservoir = WeightedReservoir(20, seed=1, epoch=epoch)
        reservoir.update(np.arange(100), weights)
        counts[reservoir.rows()] += 1
    assert counts[:10].mean() > 4 * counts[10:].mean()
