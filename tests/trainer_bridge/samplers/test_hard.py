"""Hard example mining: a share from the hardest rows, the rest from the others."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.errors import ConfigurationError, RequestError
from paimon_features.oracle import samplers as naive
from trainer_bridge.samplers import HardExampleMiningSampler
from trainer_bridge.samplers.groups import split_by_score
from trainer_bridge.testing.sampler_contract import SamplerContract

# ties at the border of the hardest 12
SCORES = [float(n % 7) for n in range(40)]


class TestHardExamples(SamplerContract):
    def make(self, seed: int = 5, rank: int = 0, world_size: int = 1) -> HardExampleMiningSampler:
        return HardExampleMiningSampler(
            24, SCORES, seed=seed, rank=rank, world_size=world_size, score_snapshot_id=3
        )

    def reference(self, seed: int, epoch: int) -> list[int]:
        return naive.hard(SCORES, 24, 0.3, seed, epoch)

    def expected(self) -> Any:
        # which of the tied rows are hard depends on the seed: as the sampler has it
        hardest = self.make()._groups.rows[28:]
        expected = np.full(40, 17 / 28)
        expected[hardest] = 7 / 12
        assert sorted(SCORES[row] for row in hardest) == sorted(SCORES)[28:]
        return expected


class TestWithoutScores(SamplerContract):
    def make(self, seed: int = 5, rank: int = 0, world_size: int = 1) -> HardExampleMiningSampler:
        return HardExampleMiningSampler(
            24, num_rows=40, seed=seed, rank=rank, world_size=world_size
        )

    def reference(self, seed: int, epoch: int) -> list[int]:
        return naive.hard([0.0] * 40, 24, 0.0, seed, epoch)

    def expected(self) -> Any:
        return np.full(40, 24 / 40)


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("num_samples", [1, 5, 50, 100])
def test_the_stated_number_comes_from_the_hardest_and_no_row_twice(
    ratio: float, num_samples: int
) -> None:
    scores = np.random.default_rng(0).normal(size=100)  # negative ones, too
    hardest = set(np.argsort(scores)[100 - round(ratio * 100) :].tolist())
    sampler = HardExampleMiningSampler(num_samples, scores, hard_ratio=ratio)
    for _ in range(3):
        drawn = list(sampler)
        assert len(set(drawn)) == num_samples
        assert len(hardest & set(drawn)) == round(ratio * num_samples)


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=60),
    st.lists(st.floats(0, 1), min_size=0, max_size=4),
    st.integers(0, 2**64 - 1),
)
def test_rows_are_split_as_by_sorting_them_all(
    scores: list[int], shares: list[float], key: int
) -> None:
    cuts = [0, *sorted(int(share * len(scores)) for share in shares), len(scores)]
    groups = split_by_score(np.array(scores), np.diff(cuts).tolist(), key)
    ranked = naive._ranked(scores, key)
    wanted = [sorted(ranked[low:high]) for low, high in itertools.pairwise(cuts)]
    got = [
        groups.rows[low:high].tolist() for low, high in itertools.pairwise(groups.starts.tolist())
    ]
    assert got == wanted


def test_which_of_equally_hard_rows_are_the_hardest_is_chance() -> None:
    sampler = HardExampleMiningSampler(100, np.ones(1_000), hard_ratio=0.3)
    hardest = sampler._groups.rows[700:]
    assert abs(hardest.mean() - 500) < 5 * 1_000 / np.sqrt(12 * 300)


def test_a_function_may_take_many_indices_or_one() -> None:
    losses = [float(n % 7) for n in range(40)]
    calls: list[Any] = []

    def vectorised(indices: Any) -> Any:
        calls.append(indices)
        return np.array(losses)[indices]

    by_array = HardExampleMiningSampler(40, difficulty_fn=vectorised)
    assert len(calls) == 1
    assert calls[0].dtype == np.int64
    one_by_one = HardExampleMiningSampler(40, difficulty_fn=lambda index: losses[index])
    constant = HardExampleMiningSampler(40, difficulty_fn=lambda index: 1.0)
    assert list(by_array) == list(one_by_one) == list(HardExampleMiningSampler(40, losses))
    assert sorted(constant) == list(range(40))
    with pytest.raises(ZeroDivisionError):
        HardExampleMiningSampler(4, difficulty_fn=lambda index: 1 / 0)
    with pytest.raises(ConfigurationError, match="difficulty_fn: number 0 is nan"):
        HardExampleMiningSampler(4, difficulty_fn=lambda index: float("nan"))


def test_new_scores_take_effect_at_the_start_of_an_epoch() -> None:
    old, new = np.arange(40.0), -np.arange(40.0)
    sampler = HardExampleMiningSampler(10, old, seed=1)
    whole = list(HardExampleMiningSampler(10, old, seed=1))
    drawn = list(itertools.islice(sampler, 4))
    scores = new.copy()
    sampler.update_difficulty_scores(scores, score_snapshot_id=8)
    scores[:] = 0  # the caller's array is its own again
    assert sampler.state_dict()["identity"]["score_snapshot_id"] is None
    assert drawn + list(sampler) == whole
    assert sampler.state_dict()["identity"]["score_snapshot_id"] == 8
    fresh = HardExampleMiningSampler(10, new, seed=1, score_snapshot_id=8)
    fresh.load_state_dict(sampler.state_dict())
    assert list(sampler) == list(fresh)
    # at the start of an epoch: at once
    sampler.update_difficulty_scores(old)
    other = HardExampleMiningSampler(10, old, seed=1)
    other.set_epoch(2)
    assert list(sampler) == list(other)


def test_a_state_taken_after_the_last_draw_is_of_the_new_scores() -> None:
    sampler = HardExampleMiningSampler(10, np.arange(40.0))
    iterator = iter(sampler)
    for _ in range(10):
        next(iterator)
    sampler.update_difficulty_scores(-np.arange(40.0), score_snapshot_id=8)
    state = sampler.state_dict()
    assert (state["epoch"], state["identity"]["score_snapshot_id"]) == (1, 8)
    assert list(iterator) == []
    assert sampler.epoch == 1


def test_a_function_is_called_again_for_new_scores() -> None:
    losses = np.arange(40.0)
    sampler = HardExampleMiningSampler(10, difficulty_fn=lambda i: losses[i], num_rows=40)
    losses = -losses
    sampler.update_difficulty_scores()
    assert list(sampler) == list(HardExampleMiningSampler(10, losses))


def test_arguments_that_do_not_fit_together_are_refused() -> None:
    for message, options in {
        "at most one of difficulty_scores": {
            "difficulty_scores": SCORES,
            "difficulty_fn": lambda i: i,
        },
        "hard_ratio=1.5": {"hard_ratio": 1.5},
        "there are only 40 rows": {"num_samples": 41, "difficulty_scores": SCORES},
        "num_rows=7, but there are 40": {"difficulty_scores": SCORES, "num_rows": 7},
        "1 of 2 are null": {"difficulty_scores": [None, 1.0]},
    }.items():
        with pytest.raises(ConfigurationError, match=message):
            HardExampleMiningSampler(**{"num_samples": 2, **options})  # type: ignore[arg-type]
    sampler = HardExampleMiningSampler(24, SCORES)
    with pytest.raises(ConfigurationError, match="needs difficulty_fn"):
        sampler.update_difficulty_scores()
    with pytest.raises(ConfigurationError, match="2 scores for 40 rows"):
        sampler.update_difficulty_scores([1.0, 2.0])
    with pytest.raises(RequestError, match="does not fit"):
        sampler.load_state_dict(HardExampleMiningSampler(24, SCORES[::-1]).state_dict())
