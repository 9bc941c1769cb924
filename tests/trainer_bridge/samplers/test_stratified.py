"""Stratified sampling: every class in its share of every window, or as many of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paimon_features.core.errors import ConfigurationError
from paimon_features.testing.sizes import every_seed
from tests.reference import samplers as naive
from trainer_bridge.samplers import StratifiedSampler
from trainer_bridge.samplers.stratified import Interleave
from trainer_bridge.testing.sampler_contract import SamplerContract

LABELS = ["b", "a", "c", "a", "a", "b", "a", "b", "a", "a"] * 5


class TestProportional(SamplerContract):
    def make(self, seed: int = 5, rank: int = 0, world_size: int = 1) -> StratifiedSampler:
        return StratifiedSampler(LABELS, seed=seed, rank=rank, world_size=world_size)

    def reference(self, seed: int, epoch: int) -> list[int]:
        return naive.stratified(LABELS, [30, 15, 5], seed, epoch)

    def expected(self) -> Any:
        return np.ones(50)

    def favoured(self) -> Any:
        return None


class TestSoManyOfEach(SamplerContract):
    # more than class c has, fewer than a and b have
    def make(self, seed: int = 5, rank: int = 0, world_size: int = 1) -> StratifiedSampler:
        return StratifiedSampler(LABELS, 12, seed=seed, rank=rank, world_size=world_size)

    def reference(self, seed: int, epoch: int) -> list[int]:
        return naive.stratified(LABELS, [12, 12, 12], seed, epoch)

    def expected(self) -> Any:
        return np.array([{"a": 12 / 30, "b": 12 / 15, "c": 12 / 5}[label] for label in LABELS])

    def favoured(self) -> Any:
        rare, common = (np.flatnonzero(np.array(LABELS) == label) for label in "ca")
        return rare, common, 30 / 5


class TestAsManyAsTheSmallest(SamplerContract):
    def make(self, seed: int = 5, rank: int = 0, world_size: int = 1) -> StratifiedSampler:
        return StratifiedSampler(
            LABELS, proportional=False, seed=seed, rank=rank, world_size=world_size
        )

    def reference(self, seed: int, epoch: int) -> list[int]:
        return naive.stratified(LABELS, [5, 5, 5], seed, epoch)

    def expected(self) -> Any:
        return np.array([{"a": 5 / 30, "b": 5 / 15, "c": 1.0}[label] for label in LABELS])

    def favoured(self) -> Any:
        rare, common = (np.flatnonzero(np.array(LABELS) == label) for label in "ca")
        return rare, common, 30 / 5


def deviations(classes: Any, counts: Any) -> tuple[float, float]:
    """Greatest distance of a class from its share: from the start on, and in any window."""
    size = len(classes)
    own = np.cumsum(np.eye(len(counts))[classes], axis=0)
    off = np.vstack([np.zeros(len(counts)), own - np.outer(np.arange(1, size + 1), counts) / size])
    return float(abs(off).max()), float((off.max(axis=0) - off.min(axis=0)).max())


@every_seed(20)
def test_in_any_window_of_the_order_each_class_has_its_share(seed: int) -> None:
    dice = np.random.default_rng(seed)
    for many in (2, 3, 10, 50):
        counts = dice.multinomial(1_500, dice.dirichlet(np.full(many, dice.choice([0.3, 1, 10]))))
        counts = counts[counts > 0]
        size = counts.sum()
        classes, numbers = Interleave(counts).locate(np.arange(size), seed)
        items = sorted(zip(classes.tolist(), numbers.tolist(), strict=True))
        assert items == [(c, i) for c, n in enumerate(counts) for i in range(n)]
        start, window = deviations(classes, counts)
        assert start < (1 if len(counts) == 2 else 2)
        assert window < (2 if len(counts) == 2 else 4)


def test_a_class_of_one_in_ten_thousand_comes_once_in_each_ten_thousand() -> None:
    labels = np.zeros(200_000, dtype=np.int8)
    labels[:20] = 1  # all of them at the beginning of the table
    order = labels[StratifiedSampler(labels, seed=1).draw(0, np.arange(200_000))]
    assert (order.reshape(20, 10_000).sum(axis=1) == 1).all()


def test_no_rank_gets_one_class_alone() -> None:
    labels = np.arange(20_000) % 2
    for world in (2, 4, 8):
        for rank in range(world):
            drawn = labels[list(StratifiedSampler(labels, seed=1, rank=rank, world_size=world))]
            assert abs(drawn.mean() - 0.5) < 5 / np.sqrt(4 * len(drawn))


def test_a_class_that_is_short_gives_each_row_before_it_repeats_one() -> None:
    labels = np.array([0] * 1_000 + [1] * 7)
    drawn = StratifiedSampler(labels, num_samples_per_class=50).draw(3, np.arange(100))
    rare = np.bincount(drawn[drawn >= 1_000] - 1_000)
    assert sorted(rare.tolist()) == [7, 7, 7, 7, 7, 7, 8]
    common = drawn[drawn < 1_000]
    assert len(set(common.tolist())) == 50


def test_a_state_of_other_arguments_is_refused() -> None:
    from paimon_features.core.errors import RequestError

    state = StratifiedSampler(LABELS).state_dict()
    for other in (
        StratifiedSampler(LABELS, 5),
        StratifiedSampler(LABELS, proportional=False),
        StratifiedSampler(LABELS[::-1]),
    ):
        with pytest.raises(RequestError, match="does not fit"):
            other.load_state_dict(state)


def test_less_than_one_of_each_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="num_samples_per_class=0"):
        StratifiedSampler(LABELS, 0)


def test_more_draws_than_can_be_spread_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="2147483650 draws of 2 classes: at most 21474"):
        StratifiedSampler([0, 1], (1 << 30) + 1)
