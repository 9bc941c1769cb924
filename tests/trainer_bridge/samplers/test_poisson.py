"""Poisson sampling: each row by its own hash, so that nobody else matters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import ConfigurationError, RequestError
from paimon_features.core.types.array_types import Ints
from tests.reference import samplers as naive
from trainer_bridge.order.key_hashes import key_hashes
from trainer_bridge.samplers import AdvancedSampler, PoissonSampler
from trainer_bridge.testing.sampler_contract import SamplerContract

WEIGHTS = np.array([4.0, 5.0, 1.0, 0.25, 3.0, 0.5, 2.0, 60.0, 1.0, 1.0, 2.0, 3.0])


def chances(weights: Any, num_samples: int) -> Any:
    """By bisection: the scale at which they add up."""
    low, high = 0.0, 1e9
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(weights * middle, 1).sum() < num_samples else (
            low, middle)  # fmt: skip
    return np.minimum(weights * high, 1)


class TestPoisson(SamplerContract):
    even = True

    def make(self, seed: int = 5, rank: int = 0, world_size: int = 1) -> PoissonSampler:
        return PoissonSampler(WEIGHTS, 7, seed=seed, rank=rank, world_size=world_size)

    def reference(self, seed: int, epoch: int) -> list[int]:
        return naive.poisson(chances(WEIGHTS, 7).tolist(), seed, epoch)

    def expected(self) -> Any:
        return chances(WEIGHTS, 7)

    def favoured(self) -> Any:
        return [7], [3], 8.0


class TestPoissonByKey(SamplerContract):
    even = True

    keys = np.array([int(k) for k in np.random.default_rng(0).integers(0, 2**60, 12)])

    def make(self, seed: int = 5, rank: int = 0, world_size: int = 1) -> PoissonSampler:
        return PoissonSampler(
            WEIGHTS, scale=0.2, keys=self.keys, seed=seed, rank=rank, world_size=world_size
        )

    def reference(self, seed: int, epoch: int) -> list[int]:
        hashes = [int(h) for h in key_hashes([pa.array(self.keys)])]
        return naive.poisson(np.minimum(WEIGHTS * 0.2, 1).tolist(), seed, epoch, hashes)

    def expected(self) -> Any:
        return np.minimum(WEIGHTS * 0.2, 1)

    def favoured(self) -> Any:
        return [0], [2], 4.0  # by their weights


def test_loss_weights_are_one_over_the_chance_and_make_sums_unbiased() -> None:
    sampler = PoissonSampler(WEIGHTS, scale=0.2)
    rows = np.arange(12)
    assert np.allclose(sampler.loss_weights(rows), 1 / np.minimum(0.2 * WEIGHTS, 1))
    losses = np.random.default_rng(0).gamma(2.0, 1.0, 12)
    sums = []
    for epoch in range(1_000):
        drawn = sampler.draw(epoch, np.arange(sampler.epoch_size(epoch)))
        sums.append((sampler.loss_weights(drawn) * losses[drawn]).sum())
    assert abs(np.mean(sums) - losses.sum()) < 4 * np.std(sums) / np.sqrt(1_000)
    normalised = PoissonSampler(WEIGHTS, scale=0.2, normalise=True)
    share = sampler.expected_size / 12
    assert np.allclose(normalised.loss_weights(rows), share * sampler.loss_weights(rows))


def test_the_chances_add_up_to_the_number_requested() -> None:
    dice = np.random.default_rng(0)
    for num_samples in (1, 10, 400, 499, 500):
        weights = dice.pareto(0.5, 500) + 1e-9
        sampler = PoissonSampler(weights, num_samples)
        assert sampler.expected_size == pytest.approx(num_samples, rel=1e-9)
        assert np.allclose(sampler.probabilities(np.arange(500)), chances(weights, num_samples))


def test_the_length_is_that_of_the_present_epoch() -> None:
    sampler = PoissonSampler(np.ones(1_000), 100, seed=1)
    lengths = []
    for _ in range(200):
        lengths.append(len(sampler))
        assert len(list(sampler)) == lengths[-1]
    assert abs(np.mean(lengths) - 100) < 4 * np.sqrt(90 / 200)
    assert 0.7 < np.var(lengths) / 90 < 1.4


def test_a_row_that_is_added_changes_nothing_about_the_others() -> None:
    keys = [f"sample {n}" for n in range(200)]
    before = PoissonSampler(np.ones(200), scale=0.3, keys=keys)
    order = np.random.default_rng(0).permutation(200)
    after = PoissonSampler(
        np.ones(201), scale=0.3, keys=[keys[n] for n in order] + ["one more"], rank=0
    )
    for epoch in range(5):
        old = {keys[row] for row in before.draw(epoch, np.arange(before.epoch_size(epoch)))}
        new = after.draw(epoch, np.arange(after.epoch_size(epoch)))
        assert {keys[order[row]] for row in new if row < 200} == old
        rows = np.flatnonzero(after.includes(epoch, np.arange(201)))
        assert rows.tolist() == sorted(new.tolist())


@pytest.mark.parametrize("world", [2, 3, 5])
def test_ranks_get_equally_many_rows_by_starting_over(world: int) -> None:
    whole = list(PoissonSampler(np.ones(300), 40))
    ranks = [list(PoissonSampler(np.ones(300), 40, rank=r, world_size=world)) for r in range(world)]
    assert {len(share) for share in ranks} == {-(-len(whole) // world)}
    dealt = [ranks[i % world][i // world] for i in range(len(ranks[0]) * world)]
    assert dealt == (whole * 2)[: len(dealt)]


def test_an_epoch_may_have_no_rows_at_all() -> None:
    sampler = PoissonSampler(np.ones(10), scale=0.01, seed=2)
    lengths = [len(list(sampler)) for _ in range(100)]
    assert 0 in lengths
    assert sampler.epoch == 100
    assert sum(lengths) > 0


class OneByOne(AdvancedSampler):
    """A sampler as users write one."""

    def draw(self, epoch: int, positions: Ints) -> Ints:
        return positions

    def identity(self) -> dict[str, Any]:
        return {}


def test_what_is_never_drawn_cannot_be_weighed_back() -> None:
    some = PoissonSampler([1.0, 0.0, 2.0], scale=0.4)
    with pytest.raises(RequestError, match="rows of weight 0 are never drawn, which no weights"):
        some.unbiased_weights(0, np.arange(3))
    one_by_one = OneByOne(3, 3)
    assert list(one_by_one) == [0, 1, 2]
    with pytest.raises(RequestError, match="OneByOne has no weights that make the mean unbiased"):
        one_by_one.unbiased_weights(0, np.arange(3))


def test_arguments_that_do_not_fit_together_are_refused() -> None:
    for message, options in {
        "exactly one of num_samples": {},
        "only 2 weights are positive": {"num_samples": 3},
        "num_samples=0": {"num_samples": 0},
        "scale=-1": {"scale": -1.0},
        "2 keys for 3 weights": {"scale": 1.0, "keys": [1, 2]},
        "keys: 1 of 3 are null": {"scale": 1.0, "keys": ["a", None, "b"]},
    }.items():
        with pytest.raises(ConfigurationError, match=message):
            PoissonSampler([1.0, 0.0, 2.0], **options)
