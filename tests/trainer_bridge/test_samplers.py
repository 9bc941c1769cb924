"""Samplers: frequencies as probabilities say, unbiased weights, reproducible and resumable."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.errors import ConfigurationError, RequestError
from paimon_features.tables.catalog import Lake
from trainer_bridge.reader import SnapshotReader
from trainer_bridge.samplers import (
    AdvancedSampler,
    DifficultyWeightedSampler,
    WeightedRandomSampler,
)
from trainer_bridge.testing import make_samples, x_by_row_number

WEIGHTS = np.array([0.0, 5.0, 1.0, 0.25, 3.0, 0.0, 2.0, 8.0])
Make = Callable[..., AdvancedSampler]


def with_replacement(**options: Any) -> AdvancedSampler:
    return WeightedRandomSampler(WEIGHTS, 50, **options)


def without_replacement(**options: Any) -> AdvancedSampler:
    return WeightedRandomSampler(np.arange(1, 31), 20, replacement=False, **options)


def by_difficulty(**options: Any) -> AdvancedSampler:
    return DifficultyWeightedSampler(WEIGHTS, 50, score_snapshot_id=4, **options)


ALL = pytest.mark.parametrize("make", [with_replacement, without_replacement, by_difficulty])


def assert_frequencies(counts: np.ndarray[Any, Any], probabilities: np.ndarray[Any, Any]) -> None:
    assert not counts[probabilities == 0].any()
    possible = probabilities > 0
    expected = counts.sum() * probabilities[possible]
    chi_square = ((counts[possible] - expected) ** 2 / expected).sum()
    free = possible.sum() - 1
    # of a chi-square: mean ``free``, standard deviation sqrt(2 free)
    assert abs(chi_square - free) < 5 * np.sqrt(2 * free)


# --- laws of every sampler ---


@ALL
def test_an_epoch_is_the_same_every_time_and_another_one_is_not(make: Make) -> None:
    sampler = make(seed=3)
    epochs = [list(sampler) for _ in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    again = make(seed=3)
    again.set_epoch(1)
    assert list(again) == epochs[1]
    assert list(make(seed=4)) != epochs[0]


@ALL
@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_ranks_share_the_draws_of_one_process_in_turn(make: Make, world: int) -> None:
    whole = list(make(seed=5))
    ranks = [make(seed=5, rank=rank, world_size=world) for rank in range(world)]
    shares = [list(sampler) for sampler in ranks]
    assert [len(share) for share in shares] == [sampler.rank_len for sampler in ranks]
    assert {len(sampler) for sampler in ranks} == {len(whole)}
    turns = itertools.zip_longest(*shares)
    assert [index for turn in turns for index in turn if index is not None] == whole


@ALL
def test_stopped_anywhere_and_resumed_the_rest_is_the_same(make: Make) -> None:
    whole = list(make(seed=5, rank=1, world_size=3))
    for consumed in range(len(whole)):
        first = make(seed=5, rank=1, world_size=3)
        assert list(itertools.islice(first, consumed)) == whole[:consumed]
        second = make(seed=5, rank=1, world_size=3)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert list(second) == whole[consumed:]


@ALL
def test_a_state_is_resumed_by_another_world_size(make: Make) -> None:
    whole = list(make(seed=5))
    for rank in range(4):
        first = make(seed=5, rank=rank, world_size=4)
        list(itertools.islice(first, 3))
        state = first.state_dict()
    rest = []
    for rank in range(3):
        sampler = make(seed=5, rank=rank, world_size=3)
        sampler.load_state_dict(state)
        rest.append(list(sampler))
    turns = itertools.zip_longest(*rest)
    assert [index for turn in turns for index in turn if index is not None] == whole[12:]


@ALL
def test_the_state_after_the_last_draw_is_the_start_of_the_next_epoch(make: Make) -> None:
    sampler = make(seed=5)
    for _ in sampler:
        state = sampler.state_dict()
    assert (state["epoch"], state["position"]) == (1, 0)
    assert sampler.state_dict() == state


@ALL
def test_the_state_of_another_seed_is_refused(make: Make) -> None:
    with pytest.raises(RequestError, match="does not fit this sampler"):
        make(seed=1).load_state_dict(make(seed=2).state_dict())


@pytest.mark.parametrize("other", [[2.0, 1.0, 3.0], [1.0, 2.0, 3.5]])
def test_the_state_of_other_or_reordered_weights_is_refused(other: list[float]) -> None:
    for make in (
        lambda weights: WeightedRandomSampler(weights, 3),
        lambda weights: WeightedRandomSampler(weights, 3, replacement=False),
        DifficultyWeightedSampler,
    ):
        state = make([1.0, 2.0, 3.0]).state_dict()
        make([1.0, 2.0, 3.0]).load_state_dict(state)
        with pytest.raises(RequestError, match="does not fit this sampler"):
            make(other).load_state_dict(state)


# --- weighted ---


def test_draws_with_replacement_come_in_proportion_to_the_weights() -> None:
    sampler = WeightedRandomSampler(WEIGHTS, 200_000, seed=1)
    counts = np.bincount(list(sampler), minlength=len(WEIGHTS))
    assert_frequencies(counts, WEIGHTS / WEIGHTS.sum())


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
    weights, epochs = [4.0, 1.0, 2.0, 0.5, 1.5], 5_000
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
    assert_frequencies(first, chances / 3)


@given(
    st.lists(st.one_of(st.just(0.0), st.floats(1e-300, 1e300)), min_size=1, max_size=30).filter(any)
)
def test_extreme_weights_neither_break_nor_let_a_zero_through(weights: list[float]) -> None:
    positive = {index for index, weight in enumerate(weights) if weight > 0}
    assert set(WeightedRandomSampler(weights, 20)) <= positive
    everything = WeightedRandomSampler(weights, len(positive), replacement=False)
    assert set(everything) == positive


@pytest.mark.parametrize("replacement", [True, False])
def test_more_than_2_to_the_24_weights_work_in_16_bytes_each(replacement: bool) -> None:
    rows = 2**24 + 5
    tracemalloc.start()
    weights = np.ones(rows)
    weights[-1] = rows  # half of the whole, beyond what float32 and torch.multinomial can tell
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


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, -1.0], "number 1 is -1.0"),
        ([1.0, float("nan")], "number 1 is nan"),
        ([float("inf")], "number 0 is inf"),
        ([0.0, 0.0], "add up to 0.0"),
        ([], "expected one number per row"),
        (["a"], "expected numbers"),
        (pa.array([1.0, None]), "1 of 2 are null"),
        (pa.chunked_array([[1.0], [None]]), "1 of 2 are null"),
    ],
)
def test_weights_that_are_none_are_refused(weights: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        WeightedRandomSampler(weights, 1)


def test_weights_may_be_arrow_lists_or_integers() -> None:
    draws = {
        tuple(WeightedRandomSampler(weights, 10))
        for weights in ([1, 2, 3], np.array([1, 2, 3]), pa.array([1, 2, 3]), pa.array([1.0, 2, 3]))
    }
    assert len(draws) == 1


def test_more_samples_than_weights_above_zero_are_refused_without_replacement() -> None:
    with pytest.raises(ConfigurationError, match="only 2 weights are above 0"):
        WeightedRandomSampler([1, 0, 1], 3, replacement=False)


# --- by difficulty ---


@pytest.mark.parametrize("exponent", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
def test_hard_samples_come_as_often_as_their_probability(exponent: float, share: float) -> None:
    sampler = DifficultyWeightedSampler(
        WEIGHTS, 200_000, exponent=exponent, uniform_share=share, eps=0.1, seed=8
    )
    merit = (WEIGHTS + 0.1) ** exponent
    wanted = (1 - share) * merit / merit.sum() + share / len(WEIGHTS)
    assert np.allclose(sampler.probabilities(np.arange(8)), wanted, rtol=1e-12)
    assert_frequencies(np.bincount(list(sampler), minlength=8), wanted)


def test_the_weighted_mean_loss_is_the_full_mean_within_4_sigma() -> None:
    # Horvitz and Thompson: the mean of l_i / (N P_i) over draws estimates that of l
    generator = np.random.default_rng(0)
    scores = generator.gamma(0.5, 2.0, 1_000)
    losses = scores + generator.normal(0, 0.5, 1_000)
    sampler = DifficultyWeightedSampler(scores, 1_000, seed=9)
    means = []
    for epoch in range(200):
        drawn = sampler.draw(epoch, np.arange(1_000))
        means.append(np.mean(sampler.loss_weights(drawn) * losses[drawn]))
    sigma = np.std(means, ddof=1) / np.sqrt(len(means))
    assert abs(np.mean(means) - losses.mean()) < 4 * sigma
    biased = DifficultyWeightedSampler(scores, 1_000, seed=9, beta=0.0)
    drawn = biased.draw(0, np.arange(1_000))
    assert (biased.loss_weights(drawn) == 1).all()
    assert np.mean(losses[drawn]) > losses.mean() + 4 * sigma


def test_normalised_weights_are_at_most_one() -> None:
    sampler = DifficultyWeightedSampler(
        WEIGHTS, eps=0.0, uniform_share=0.2, beta=0.5, normalise=True
    )
    weights = sampler.loss_weights(np.arange(8))
    assert weights.max() == pytest.approx(1.0)
    plain = DifficultyWeightedSampler(WEIGHTS, eps=0.0, uniform_share=0.2, beta=0.5)
    assert np.allclose(plain.loss_weights(np.arange(8)) * 0.2**0.5, weights)


def test_where_nothing_is_hard_all_rows_are_alike() -> None:
    sampler = DifficultyWeightedSampler(np.zeros(5), 100_000, eps=0.0)
    assert (sampler.probabilities(np.arange(5)) == 0.2).all()
    assert_frequencies(np.bincount(list(sampler), minlength=5), np.full(5, 0.2))


def test_millions_of_scores_take_16_bytes_each() -> None:
    tracemalloc.start()
    scores = np.random.default_rng(0).random(4 << 20)
    sampler = DifficultyWeightedSampler(scores, 1_000)
    list(sampler)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= 16 * len(scores) + (8 << 20)


@pytest.mark.parametrize(
    "options", [{"uniform_share": 0.01}, {"uniform_share": 1.5}, {"beta": -1}, {"eps": np.inf}]
)
def test_arguments_out_of_bounds_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        DifficultyWeightedSampler(WEIGHTS, **options)  # type: ignore[arg-type]


# --- with the reader ---


@pytest.mark.parametrize("world", [1, 2, 5])
@pytest.mark.parametrize("threads", [0, 2])
def test_a_reader_gives_the_rows_that_the_sampler_draws(
    lake: Lake, world: int, threads: int
) -> None:
    table = make_samples(lake, (9, 3, 17, 30, 1, 26))
    x = np.array(x_by_row_number(lake, table))
    scores = np.arange(86) % 7
    sampler = DifficultyWeightedSampler(scores, 100, score_snapshot_id=3, seed=2)
    whole = list(sampler)
    seen: dict[int, list[int]] = {}
    for rank in range(world):
        options: dict[str, Any] = {
            "columns": ["x"],
            "global_batch_size": 20,
            "rank": rank,
            "world_size": world,
            "threads": threads,
            "block_rows": 8,
            "byte_budget": 3_000,
        }
        with SnapshotReader(lake, table, **options) as plain:
            reader = plain.with_sampler(sampler)
            states, batches = [reader.state_dict()], []
            for batch in reader:
                states.append(reader.state_dict())
                batches.append(batch)
        for batch in batches:
            wanted = whole[batch.position + rank : batch.position + 20 : world]
            assert batch.row_numbers.tolist() == wanted
            assert batch["x"].tolist() == x[wanted].tolist()
            assert np.allclose(batch["sample_weight"], sampler.loss_weights(np.array(wanted)))
            assert batch["sample_weight"].dtype == np.float32
            seen.setdefault(batch.position, []).extend(wanted)
        for consumed, state in enumerate(states[:-1]):
            again = plain.with_sampler(sampler)
            again.load_state_dict(json.loads(json.dumps(state)))
            rest = [batch["x"].tolist() for batch in again]
            assert rest == [batch["x"].tolist() for batch in batches[consumed:]]
        assert (states[-1]["epoch"], states[-1]["position"]) == (1, 0)
    assert sorted(sum(seen.values(), [])) == sorted(whole)  # noqa: RUF017 - a few short lists


def test_a_reader_refuses_a_sampler_of_another_table_and_a_state_of_other_scores(
    lake: Lake,
) -> None:
    table = make_samples(lake, (9, 3))
    reader = SnapshotReader(lake, table, columns=["x"], batch_size=4)
    with pytest.raises(ConfigurationError, match="draws from 8 rows, table 'samples' has 12"):
        reader.with_sampler(DifficultyWeightedSampler(WEIGHTS))
    scores = np.arange(12)
    old = reader.with_sampler(DifficultyWeightedSampler(scores, score_snapshot_id=1))
    new = reader.with_sampler(DifficultyWeightedSampler(scores, score_snapshot_id=2))
    with pytest.raises(RequestError, match="'score_snapshot_id': 1.*'score_snapshot_id': 2"):
        new.load_state_dict(old.state_dict())
