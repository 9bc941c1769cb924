"""The contract of samplers: a subclass makes a sampler and names its reference implementation."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from paimon_features.core.errors import RequestError
from paimon_features.core.types.array_types import Array
from trainer_bridge.samplers.base import AdvancedSampler

RANK, WORLD = 1, 3


class SamplerContract:
    """Laws of samplers; pytest collects the subclasses, which are small (below 100 draws).

    Override :meth:`make`, :meth:`reference`, :meth:`expected` and :meth:`favoured`; ``epochs`` is
    how many epochs the statistics take, ``independent`` whether draws are independent of one
    another, ``unbiased`` whether weights can correct for the sampling, ``even`` whether ranks yield
    exactly equally many.
    """

    epochs = 300
    independent = False
    unbiased = True
    even = False

    def make(self, seed: int = 5, rank: int = 0, world_size: int = 1) -> AdvancedSampler:
        """Return the sampler under test."""
        raise NotImplementedError

    def reference(self, seed: int, epoch: int) -> list[Any]:
        """Return what a complete epoch of ``make(seed)`` yields, by plain loops."""
        raise NotImplementedError

    def expected(self) -> Array:
        """Return how often each row comes in an epoch, on average over seeds or epochs."""
        raise NotImplementedError

    def favoured(self) -> tuple[Sequence[int], Sequence[int], float] | None:
        """Return what the sampler is for: rows, other rows, and how many times as often the former
        come.

        Written from the purpose, not from the formula of :meth:`expected`. None for a sampler that
        is to draw all rows equally often, which is then checked.
        """
        raise NotImplementedError

    # --- reproducible ---

    def test_an_epoch_is_the_same_every_time_and_another_one_is_not(self) -> None:
        sampler = self.make()
        epochs = [list(sampler) for _ in range(3)]
        assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
        again = self.make()
        again.set_epoch(1)
        assert list(again) == epochs[1]
        assert list(self.make(seed=6)) != epochs[0]

    @pytest.mark.parametrize("seed", [0, 1, 2, 3])
    def test_what_comes_is_what_the_naive_twin_says(self, seed: int) -> None:
        sampler = self.make(seed=seed)
        for epoch in range(5):
            assert list(sampler) == self.reference(seed, epoch)

    def test_a_draw_depends_on_its_position_alone(self) -> None:
        sampler = self.make()
        size = sampler.epoch_size(3)
        whole = sampler.draw(3, np.arange(size))
        some = np.random.default_rng(0).permutation(size)[: size // 2]
        assert sampler.draw(3, some).tolist() == whole[some].tolist()
        assert flat(self.reference(5, 3)) == whole.tolist()

    # --- distributed ---

    @pytest.mark.parametrize("world", [1, 2, 3, 7])
    def test_ranks_share_the_draws_of_one_process_in_turn(self, world: int) -> None:
        whole = list(self.make())
        ranks = [self.make(rank=rank, world_size=world) for rank in range(world)]
        lengths = [sampler.rank_len for sampler in ranks]
        assert {len(sampler) for sampler in ranks} == {len(whole)}
        shares = [list(sampler) for sampler in ranks]
        assert [len(share) for share in shares] == lengths
        assert max(lengths) - min(lengths) <= (0 if self.even else 1)
        dealt = in_turn(shares)
        assert dealt[: len(whole)] == whole
        assert len(dealt) == sum(lengths)

    # --- resumable ---

    def test_stopped_anywhere_and_resumed_the_rest_is_the_same(self) -> None:
        whole = list(self.make(rank=RANK, world_size=WORLD))
        for consumed in range(len(whole)):
            first = self.make(rank=RANK, world_size=WORLD)
            assert list(itertools.islice(first, consumed)) == whole[:consumed]
            second = self.make(rank=RANK, world_size=WORLD)
            second.load_state_dict(json.loads(json.dumps(first.state_dict())))
            assert list(second) == whole[consumed:]

    @pytest.mark.parametrize("world", [1, 2, 5])
    def test_a_state_is_resumed_by_another_world_size(self, world: int) -> None:
        whole = list(self.make())
        for consumed in range(len(whole) // WORLD):
            states = []
            for rank in range(WORLD):
                first = self.make(rank=rank, world_size=WORLD)
                list(itertools.islice(first, consumed))
                states.append(first.state_dict())
            assert states == states[:1] * WORLD
            rest = []
            for rank in range(world):
                sampler = self.make(rank=rank, world_size=world)
                sampler.load_state_dict(states[0])
                rest.append(list(sampler))
            left = whole[consumed * WORLD :]
            assert in_turn(rest)[: len(left)] == left
            lengths = [len(share) for share in rest]
            assert max(lengths) - min(lengths) <= (0 if self.even else 1)

    def test_the_state_after_the_last_draw_is_the_start_of_the_next_epoch(self) -> None:
        sampler = self.make()
        for _ in sampler:
            state = sampler.state_dict()
        assert (state["epoch"], state["position"]) == (1, 0)
        assert sampler.state_dict() == state
        resumed = self.make()
        resumed.load_state_dict(state)
        assert list(resumed) == list(sampler) == self.reference(5, 1)

    def test_the_seed_is_that_of_the_state(self) -> None:
        first = self.make(seed=2)
        list(itertools.islice(first, 1))
        resumed = self.make(seed=1)
        list(itertools.islice(resumed, 2))  # what is kept of its own seed
        resumed.load_state_dict(first.state_dict())
        assert resumed.identity() == first.identity()
        assert list(resumed) == list(first)
        assert list(resumed) == list(first)
        other = {**first.state_dict(), "identity": {**first.identity(), "rows": -1}}
        with pytest.raises(RequestError, match="does not fit this sampler"):
            resumed.load_state_dict(other)

    # --- statistics ---

    def test_rows_come_as_often_as_they_should(self) -> None:
        expected = self.epochs * self.expected()
        counts = np.zeros(len(expected))
        for drawn in self._drawn():
            counts += np.bincount(drawn, minlength=len(counts))
        assert not counts[expected == 0].any()
        possible = expected > 0
        chi_square = ((counts[possible] - expected[possible]) ** 2 / expected[possible]).sum()
        free = possible.sum() - 1
        # of a chi-square: mean ``free``, standard deviation sqrt(2 free); draws that shun what
        # came before vary less
        assert chi_square < free + 5 * np.sqrt(2 * free)
        if self.independent:
            assert chi_square > free - 5 * np.sqrt(2 * free)

    def test_the_rows_that_it_is_to_favour_come_more_often(self) -> None:
        counts = np.zeros(self.make().num_rows)
        for drawn in self._drawn():
            counts += np.bincount(drawn, minlength=len(counts))
        favoured = self.favoured()
        if favoured is None:
            assert counts.min() > 0.7 * counts.max()
            return
        more, less, times = favoured
        assert times > 1
        assert counts[list(more)].mean() > 0.9 * times * counts[list(less)].mean()

    def test_weighted_losses_have_the_mean_of_all_rows_within_4_sigma(self) -> None:
        sampler = self.make()
        losses = np.random.default_rng(0).gamma(2.0, 1.0, sampler.num_rows)
        if not self.unbiased:
            with pytest.raises(RequestError, match="no weights can correct"):
                sampler.unbiased_weights(0, np.arange(1))
            return
        means = []
        for epoch, drawn in enumerate(self._drawn()):
            weights = sampler.unbiased_weights(epoch, drawn)
            means.append((weights * losses[drawn]).sum() / sampler.num_samples)
        sigma = np.std(means, ddof=1) / np.sqrt(len(means))
        assert abs(np.mean(means) - losses.mean()) < 4 * sigma + 1e-12

    def _drawn(self) -> list[Array]:
        """Return the draws of all epochs, made once for both tests."""
        if type(self) not in _drawn:
            sampler = self.make()
            sizes = [sampler.epoch_size(epoch) for epoch in range(self.epochs)]
            _drawn[type(self)] = [
                sampler.draw(epoch, np.arange(size)) for epoch, size in enumerate(sizes)
            ]
        return _drawn[type(self)]


_drawn: dict[type, list[Array]] = {}


def flat(items: Sequence[Any]) -> list[int]:
    """Return the indices in a row, whether the sampler yields them or batches of them."""
    return [row for item in items for row in (item if isinstance(item, list) else [item])]


def in_turn(shares: Sequence[Sequence[Any]]) -> list[Any]:
    """Return what ranks yield, as one of them after the other yields it."""
    turns = itertools.zip_longest(*shares)
    return [item for turn in turns for item in turn if item is not None]
