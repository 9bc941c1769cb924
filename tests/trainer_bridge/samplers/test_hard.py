"""Hard example mining: the hardest rows in every epoch, the rest from the others."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.errors import ConfigurationError, RequestError
from tests.reference import samplers as naive
from trainer_bridge.samplers import HardExampleMiningSampler
from trainer_bridge.samplers.groups import split_by_score
from trainer_bridge.testing.sampler_contract import SamplerContract

# five rows of 6 and five of 5: ties at the border of the hardest 7
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
        hardest = self.make()._groups.rows[33:]
        expected = np.full(40, 17 / 33)
        expected[hardest] = 1
        assert sorted(SCORES[row] for row in hardest) == sorted(SCORES)[33:]
        return expected

    def favoured(self) -> Any:
        # scores of 6: all of them are among the 7 hardest
        hard, easy = (np.flatnonzero(np.array(SCORES) == score) for score in (6, 0))
        return hard, easy, 33 / 17


class TestWithoutScores(SamplerContract):
    def make(self, seed: int = 5, rank: int = 0, world_size: int = 1) -> HardExampleMiningSampler:
        return HardExampleMiningSampler(
            24, num_rows=40, seed=seed, rank=rank, world_size=world_size
        )

    def reference(self, seed: int, epoch: int) -> list[int]:
        return naive.hard([0.0] * 40, 24, 0.0, seed, epoch)

    def expected(self) -> Any:
        return np.full(40, 24 / 40)

    def favoured(self) -> Any:
        return None


class TestMoreSamplesThanRows(SamplerContract):
    def make(self, seed: int = 5, rank: int = 0, world_size: int = 1) -> HardExampleMiningSampler:
        return HardExampleMiningSampler(
            50, SCORES[:20], hard_ratio=0.5, seed=seed, rank=rank, world_size=world_size
        )

    def reference(self, seed: int, epoch: int) -> list[int]:
        return naive.hard(SCORES[:20], 50, 0.5, seed, epoch)

    def expected(self) -> Any:
        expected = np.full(20, 2 + 5 / 15)
        expected[self.make()._groups.rows[15:]] = 3
        return expected

    def favoured(self) -> Any:
        return [6, 13], [0, 7, 14], 3 / (2 + 5 / 15)


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("num_samples", [1, 5, 50, 100, 101, 250])
def test_every_epoch_has_the_hardest_rows_and_none_before_all_have_been_drawn(
    ratio: float, num_samples: int
) -> None:
    scores = np.random.default_rng(0).normal(size=100)  # negative ones, too
    passes, remainder = divmod(num_samples, 100)
    hardest = np.argsort(scores)[100 - round(ratio * remainder) :]
    sampler = HardExampleMiningSampler(num_samples, scores, hard_ratio=ratio)
    for _ in range(3):
        drawn = list(sampler)
        counts = np.bincount(drawn, minlength=100)
        assert counts.sum() == num_samples
        assert set(counts.tolist()) <= {passes, passes + 1}
        assert (counts[hardest] == passes + 1).all()
        for number in range(passes):
            assert len(set(drawn[number * 100 : (number + 1) * 100])) == 100


@pytest.mark.parametrize("ratio", [0.04, 0.1, 0.3, 0.5, 0.9])
def test_hard_rows_come_more_often_whatever_the_ratio(ratio: float) -> None:
    rows, take, epochs = 1_000, 200, 100
    scores = np.full(rows, 0.1)
    scores[:8] = 5.0
    sampler = HardExampleMiningSampler(take, scores, hard_ratio=ratio, seed=1)
    counts = np.zeros(rows)
    for _ in range(epochs):
        counts[list(sampler)] += 1
    hard, easy = counts[:8] / epochs, counts[8:].mean() / epochs
    assert (hard == 1).all()
    assert easy == pytest.approx((take - 8) / (rows - 8))


def test_a_model_learns_a_rare_hard_case_sooner() -> None:
    # 1 of 100 rows contradicts the others: a model of two weights, by gradient steps
    generator = np.random.default_rng(2)
    rows, rate = 2_000, 0.05
    rare = np.arange(rows) % 100 == 0
    x = np.column_stack([np.ones(rows), rare])
    y = np.where(rare, 1.0, 0.0)

    def loss_of_rare_rows(drawn_by: Any) -> float:
        weights = np.zeros(2)
        for epoch in range(5):
            for batch in np.array_split(np.array(drawn_by(weights, epoch)), 20):
                chance = 1 / (1 + np.exp(-x[batch] @ weights))
                weights -= rate * x[batch].T @ (chance - y[batch]) / len(batch) * 10
        return float(np.log1p(np.exp(-x[rare] @ weights)).mean())

    mining = HardExampleMiningSampler(400, np.zeros(rows), hard_ratio=0.3, seed=1)

    def mined(weights: Any, epoch: int) -> list[int]:
        logits = x @ weights
        mining.update_difficulty_scores(np.logaddexp(0, np.where(y > 0, -logits, logits)))
        return list(mining)

    uniform = loss_of_rare_rows(
        lambda weights, epoch: generator.choice(rows, 400, replace=False).tolist()
    )
    assert loss_of_rare_rows(mined) < 0.7 * uniform


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
    sampler = HardExampleMiningSampler(999, np.ones(1_000), hard_ratio=0.3)
    hardest = sampler._groups.rows[700:]
    assert len(hardest) == 300
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
        "num_rows=7, but there are 40": {"difficulty_scores": SCORES, "num_rows": 7},
        "1 of 2 are null": {"difficulty_scores": [None, 1.0]},
    }.items():
        with pytest.raises(ConfigurationError, match=message):
            HardExampleMiningSampler(**{"num_samples": 2, **options})  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="only the 24 hardest rows are drawn"):
        HardExampleMiningSampler(24, SCORES, hard_ratio=1).unbiased_weights(0, np.arange(3))
    sampler = HardExampleMiningSampler(24, SCORES)
    with pytest.raises(ConfigurationError, match="needs difficulty_fn"):
        sampler.update_difficulty_scores()
    with pytest.raises(ConfigurationError, match="2 scores for 40 rows"):
        sampler.update_difficulty_scores([1.0, 2.0])
    with pytest.raises(RequestError, match="does not fit"):
        sampler.load_state_dict(HardExampleMiningSampler(24, SCORES[::-1]).state_dict())
