"""Curriculum: easy rows first, harder ones at declared steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paimon_features.core.errors import ConfigurationError, RequestError
from tests.reference import samplers as naive
from trainer_bridge.samplers import CurriculumSampler, sqrt_pace
from trainer_bridge.testing.sampler_contract import SamplerContract

SCORES = [float(n * 7 % 20 // 2) for n in range(20)]  # pairs of equal ones


class TestCurriculum(SamplerContract):
    unbiased = False
    epochs = 1  # later ones have all rows, see below

    def make(self, seed: int = 5, rank: int = 0, world_size: int = 1) -> CurriculumSampler:
        pace = {0: 0.25, 7: 0.5, 30: 0.75, 60: 1.0}
        return CurriculumSampler(SCORES, pace, 24, seed=seed, rank=rank, world_size=world_size)

    def reference(self, seed: int, epoch: int) -> list[int]:
        return naive.curriculum(SCORES, {0: 5, 7: 10, 30: 15, 60: 20}, 24, seed, epoch)

    def expected(self) -> Any:
        rank = np.empty(20)
        rank[naive._ranked(SCORES, naive._key(5, 0xC44))] = np.arange(20)
        return np.where(rank < 5, 7 / 5, 0) + np.where(rank < 10, 17 / 10, 0)

    def favoured(self) -> Any:
        easy, hard = (np.flatnonzero(part) for part in (np.array(SCORES) < 2, np.array(SCORES) > 6))
        return easy, hard, 2.0


class TestCurriculumThatIsThrough(SamplerContract):
    def make(self, seed: int = 5, rank: int = 0, world_size: int = 1) -> CurriculumSampler:
        return CurriculumSampler(SCORES, {0: 1.0}, 24, seed=seed, rank=rank, world_size=world_size)

    def reference(self, seed: int, epoch: int) -> list[int]:
        return naive.curriculum(SCORES, {0: 20}, 24, seed, epoch)

    def expected(self) -> Any:
        return np.full(20, 24 / 20)

    def favoured(self) -> Any:
        return None


def test_rows_come_by_the_share_that_is_declared_and_none_is_favoured() -> None:
    scores = np.random.default_rng(0).permutation(1_000)
    sampler = CurriculumSampler(scores, {0: 0.1, 500: 0.3, 1_400: 1.0}, num_samples=2_400)
    drawn = scores[list(sampler)]
    first, second, third = drawn[:500], drawn[500:1_400], drawn[1_400:]
    assert np.bincount(first).tolist() == [5] * 100
    assert np.bincount(second).tolist() == [3] * 300
    assert np.bincount(third).tolist() == [1] * 1_000
    # within a stage, easy and hard ones come in no order
    assert abs(np.corrcoef(np.arange(1_000), third)[0, 1]) < 0.15


def test_the_pace_goes_on_over_epochs() -> None:
    scores = np.arange(100)
    sampler = CurriculumSampler(scores, {0: 0.1, 150: 0.5, 250: 1.0}, num_samples=100)
    hardest = [max(sampler) for _ in range(4)]
    assert hardest[0] == 9
    assert 9 < hardest[1] < 50
    assert hardest[2] >= 50
    with pytest.raises(RequestError, match="excludes hard rows \\(share 0.5\\)"):
        sampler.unbiased_weights(2, np.arange(3))
    assert (sampler.unbiased_weights(3, np.arange(3)) == 1).all()


def test_a_square_root_pace_begins_fast() -> None:
    pace = sqrt_pace(1_000, initial=0.1, stages=5)
    shares = list(pace.values())
    assert list(pace) == [0, 200, 400, 600, 800, 1_000]
    assert (shares[0], shares[-1]) == (0.1, 1.0)
    assert (np.diff(np.diff(shares)) < 0).all()
    CurriculumSampler(np.arange(50), pace)
    with pytest.raises(ConfigurationError, match="sqrt_pace"):
        sqrt_pace(3, initial=0.0)


@pytest.mark.parametrize(
    "pace", [{}, {5: 1.0}, {0: 0.0}, {0: 0.5, 10: 0.4}, {0: 0.5, 10: 1.1}, {0: 0.1, 9: 0.2, 3: 0.3}]
)
def test_a_pace_that_falls_or_does_not_begin_is_refused(pace: dict[int, float]) -> None:
    with pytest.raises(ConfigurationError, match="pace"):
        CurriculumSampler(np.arange(10), pace)
