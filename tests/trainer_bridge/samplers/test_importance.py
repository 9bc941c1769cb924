"""Importance sampling by difficulty, with scores as they are or in 1 byte each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paimon_features.core.errors import ConfigurationError
from tests.reference import samplers as naive
from trainer_bridge.samplers import (
    BinnedDifficultySampler,
    DifficultyWeightedSampler,
    bin_scores,
    score_bins,
)
from trainer_bridge.samplers.importance import ImportanceSampler
from trainer_bridge.testing.sampler_contract import SamplerContract

SCORES = np.array([0.0, 5.0, 1.0, 0.25, 3.0, 0.0, 2.0, 8.0])
MANY = np.random.default_rng(3).gamma(0.3, 3.0, 300)


def chances(scores: Any, share: float = 0.1, exponent: float = 1.0, eps: float = 1e-6) -> Any:
    merit = (np.asarray(scores) + eps) ** exponent
    return (1 - share) * merit / merit.sum() + share / len(merit)


class TestByDifficulty(SamplerContract):
    independent = True

    def make(self, seed: int = 5, rank: int = 0, world_size: int = 1) -> DifficultyWeightedSampler:
        return DifficultyWeightedSampler(
            SCORES, 50, score_snapshot_id=4, seed=seed, rank=rank, world_size=world_size
        )

    def reference(self, seed: int, epoch: int) -> list[int]:
        return naive.importance((SCORES + 1e-6).tolist(), 50, 0.1, seed, epoch)

    def expected(self) -> Any:
        return 50 * chances(SCORES)

    def favoured(self) -> Any:
        return [7], [2], 5.0  # scores of 8 and 1, less a share drawn uniformly


class TestByBinnedDifficulty(SamplerContract):
    independent = True
    # more than two blocks of 128 rows
    rounded = np.array([naive.rounded_score(score) for score in MANY.tolist()])

    def make(self, seed: int = 5, rank: int = 0, world_size: int = 1) -> BinnedDifficultySampler:
        return BinnedDifficultySampler(MANY, 60, seed=seed, rank=rank, world_size=world_size)

    def reference(self, seed: int, epoch: int) -> list[int]:
        return naive.importance((self.rounded + 1e-6).tolist(), 60, 0.1, seed, epoch)

    def expected(self) -> Any:
        return 60 * chances(self.rounded)

    def favoured(self) -> Any:
        ranked = np.argsort(MANY)
        return ranked[-30:], ranked[:150], 5.0


@pytest.mark.parametrize("exponent", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
def test_probabilities_are_those_of_the_formula(exponent: float, share: float) -> None:
    options: dict[str, Any] = {"exponent": exponent, "uniform_share": share, "eps": 0.1}
    sampler = DifficultyWeightedSampler(SCORES, **options)
    wanted = chances(SCORES, share, exponent, 0.1)
    assert np.allclose(sampler.probabilities(np.arange(8)), wanted, rtol=1e-12)
    binned = BinnedDifficultySampler(SCORES, **options)
    wanted = chances([naive.rounded_score(s) for s in SCORES.tolist()], share, exponent, 0.1)
    assert np.allclose(binned.probabilities(np.arange(8)), wanted, rtol=1e-12)


def test_without_loss_weights_the_mix_is_harder() -> None:
    generator = np.random.default_rng(0)
    scores = generator.gamma(0.5, 2.0, 1_000)
    biased = DifficultyWeightedSampler(scores, 1_000, seed=9, beta=0.0)
    drawn = biased.draw(0, np.arange(1_000))
    assert (biased.loss_weights(drawn) == 1).all()
    assert np.mean(scores[drawn]) > 2 * scores.mean()


@pytest.mark.parametrize("kind", [DifficultyWeightedSampler, BinnedDifficultySampler])
class TestBothKinds:
    def test_normalised_weights_are_at_most_one(self, kind: type[Any]) -> None:
        options: dict[str, Any] = {"eps": 0.0, "uniform_share": 0.2, "beta": 0.5}
        normalised = kind(SCORES, normalise=True, **options).loss_weights(np.arange(8))
        assert normalised.max() == pytest.approx(1.0)
        plain = kind(SCORES, **options).loss_weights(np.arange(8))
        assert np.allclose(plain * 0.2**0.5, normalised)

    def test_at_beta_1_loss_weights_are_the_unbiased_ones(self, kind: type[Any]) -> None:
        sampler: ImportanceSampler = kind(SCORES)
        rows = np.arange(8)
        assert np.allclose(sampler.loss_weights(rows), sampler.unbiased_weights(0, rows))

    def test_where_nothing_is_hard_all_rows_are_alike(self, kind: type[Any]) -> None:
        sampler = kind(np.zeros(5), 100_000, eps=0.0)
        assert (sampler.probabilities(np.arange(5)) == 0.2).all()
        counts = np.bincount(list(sampler), minlength=5)
        assert (abs(counts - 20_000) < 5 * np.sqrt(16_000)).all()

    def test_a_row_without_merit_comes_by_the_uniform_share_alone(self, kind: type[Any]) -> None:
        scores = np.zeros(300)
        scores[[3, 200]] = 1.0
        sampler = kind(scores, 100_000, eps=0.0, uniform_share=0.05)
        counts = np.bincount(list(sampler), minlength=300)
        hard = counts[[3, 200]].sum()
        assert abs(hard - 100_000 * (0.95 + 0.05 * 2 / 300)) < 5 * np.sqrt(5_000)
        assert (np.delete(counts, [3, 200]) > 0).sum() > 290

    @pytest.mark.parametrize(
        "options", [{"uniform_share": 0.01}, {"uniform_share": 1.5}, {"beta": -1}, {"eps": np.inf}]
    )
    def test_arguments_out_of_bounds_are_refused(
        self, kind: type[Any], options: dict[str, float]
    ) -> None:
        with pytest.raises(ConfigurationError, match=next(iter(options))):
            kind(SCORES, **options)


def test_bins_are_eighths_of_a_doubling() -> None:
    scores = np.exp2(np.random.default_rng(1).uniform(-20, 11.8, 10_000))
    rounded = bin_scores()[score_bins(scores)]
    assert (abs(rounded / scores - 1) < 0.0445).all()
    assert np.allclose(rounded, [naive.rounded_score(score) for score in scores.tolist()])
    edges = [0.0, 1e-300, 2.0**-21, 2.0**-20, 1.0, 2.0**11.75, 1e300]
    assert score_bins(edges).tolist() == [0, 0, 0, 1, 161, 255, 255]
    # a border belongs to the bin above it
    assert score_bins([np.nextafter(1.0, 0), 1.0]).tolist() == [160, 161]


def test_bins_made_part_by_part_are_used_as_they_are() -> None:
    bins = np.concatenate([score_bins(part) for part in np.array_split(MANY, 7)])
    parts, whole = BinnedDifficultySampler(bins), BinnedDifficultySampler(MANY)
    assert list(parts) == list(whole)
    assert parts.identity() == whole.identity()
