"""Balanced batches: each class its share of every batch, the remainder in turn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paimon_features.core.errors import ConfigurationError
from tests.reference import samplers as naive
from trainer_bridge.samplers import BalancedBatchSampler
from trainer_bridge.testing.sampler_contract import SamplerContract

LABELS = [0] * 20 + [1] * 7 + [2] * 3


class TestBalanced(SamplerContract):
    even = True

    # 7 batches of 4 rows: two classes have one row, the third one two
    def make(self, seed: int = 5, rank: int = 0, world_size: int = 1) -> BalancedBatchSampler:
        return BalancedBatchSampler(LABELS, 4, seed=seed, rank=rank, world_size=world_size)

    def reference(self, seed: int, epoch: int) -> list[list[int]]:
        return naive.balanced(LABELS, 4, 7, seed, epoch)

    def expected(self) -> Any:
        drawn = [7 + 3, 7 + 2, 7 + 2]
        return np.array([drawn[label] / LABELS.count(label) for label in LABELS])

    def favoured(self) -> Any:
        return range(27, 30), range(20), 20 / 3 / 1.2  # the rare class, the common one


class TestMoreClassesThanRows(SamplerContract):
    even = True

    def make(self, seed: int = 5, rank: int = 0, world_size: int = 1) -> BalancedBatchSampler:
        return BalancedBatchSampler(
            LABELS, 2, num_batches=9, seed=seed, rank=rank, world_size=world_size
        )

    def reference(self, seed: int, epoch: int) -> list[list[int]]:
        return naive.balanced(LABELS, 2, 9, seed, epoch)

    def expected(self) -> Any:
        return np.array([6 / LABELS.count(label) for label in LABELS])

    def favoured(self) -> Any:
        return range(27, 30), range(20), 20 / 3


def test_every_batch_has_each_class_and_the_remainder_goes_round() -> None:
    sampler = BalancedBatchSampler(LABELS, 8, num_batches=30)
    batches = [np.bincount([LABELS[row] for row in batch], minlength=3) for batch in sampler]
    assert {tuple(sorted(batch.tolist())) for batch in batches} == {(2, 3, 3)}
    assert [batch.argmin() for batch in batches[:6]] == [2, 1, 0, 2, 1, 0]
    assert np.sum(batches, axis=0).tolist() == [80, 80, 80]


def test_one_in_ten_thousand_is_half_of_every_batch() -> None:
    labels = np.zeros(1_000_000, dtype=bool)
    labels[np.random.default_rng(0).choice(1_000_000, 100, replace=False)] = True
    sampler = BalancedBatchSampler(labels, 256, num_batches=100)
    drawn = np.array(list(sampler))
    assert (labels[drawn].sum(axis=1) == 128).all()
    rare, counts = np.unique(drawn[labels[drawn]], return_counts=True)
    assert (len(rare), counts.min(), counts.max()) == (100, 128, 128)
    common = drawn[~labels[drawn]]
    assert len(set(common.tolist())) == len(common)


@pytest.mark.parametrize("world", [2, 3, 5])
def test_ranks_get_equally_many_batches_and_the_last_round_goes_on(world: int) -> None:
    ranks = [
        list(BalancedBatchSampler(LABELS, 4, rank=rank, world_size=world)) for rank in range(world)
    ]
    assert len({len(batches) for batches in ranks}) == 1
    longer = naive.balanced(LABELS, 4, len(ranks[0]) * world, 0, 0)
    assert [ranks[i % world][i // world] for i in range(len(longer))] == longer


def test_the_place_of_a_row_in_its_batch_tells_nothing_of_its_class() -> None:
    labels = np.arange(1_000) % 2
    drawn = labels[np.array(list(BalancedBatchSampler(labels, 10, num_batches=4_000)))]
    assert (abs(drawn.mean(axis=0) - 0.5) < 5 / np.sqrt(4 * 4_000)).all()


def test_a_batch_without_rows_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="batch_size=0"):
        BalancedBatchSampler(LABELS, 0)
