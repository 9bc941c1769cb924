"""The global order: a permutation, the same as the naive one, computed in little memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.testing.sizes import every_seed
from tests.reference.order import reference_order
from trainer_bridge.order.global_order import GlobalOrder, choose_streams
from trainer_bridge.order.permutation import derive_key, mix64, permute, radices, uniform
from trainer_bridge.order.quality import shuffle_quality

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=12)
SEEDS = st.integers(-(2**63), 2**64)


@given(size=st.integers(1, 500), key=st.integers(0, 2**64 - 1))
def test_permute_is_a_permutation_of_every_size(size: int, key: int) -> None:
    assert sorted(permute(np.arange(size), size, key).tolist()) == list(range(size))


@given(st.integers(1, 2**50))
def test_radices_are_the_least_ones_that_hold_the_size(size: int) -> None:
    a, b = (int(radix[0]) for radix in radices(size))
    assert (a - 1) ** 2 < size <= a * a
    assert a * (b - 1) < size <= a * b


def test_permute_works_on_sizes_that_no_table_could_index() -> None:
    size = 2**61
    found = permute(np.arange(1_000), size, 5)
    assert len(set(found.tolist())) == 1_000
    assert found.min() >= 0
    assert found.max() < size


@pytest.mark.parametrize("size", [2, 3, 5, 8, 12, 97, 1_023, 1_025])
def test_two_items_land_on_each_pair_of_places_equally_often(size: int) -> None:
    keys = mix64(np.arange(1, 40_001))
    bins = min(size, 8)
    width = np.bincount(np.arange(size) * bins // size)
    # index: (bin of the first, bin of the second); the same place cannot be taken twice
    expected = np.outer(width, width) - np.diag(width)
    expected = expected * len(keys) / expected.sum()
    for item, other in ((0, 1), (0, size // 2), (size - 1, 0)):
        first, second = (
            permute(np.full(len(keys), i), size, keys) * bins // size for i in (item, other)
        )
        if item == other:
            continue
        counts = np.zeros((bins, bins))
        np.add.at(counts, (first, second), 1)
        possible = expected > 0
        assert not counts[~possible].any()
        chi_square = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
        free = possible.sum() - 1
        # of a chi-square: mean ``free``, standard deviation sqrt(2 free)
        assert chi_square < free + 5 * np.sqrt(2 * free)


@given(sizes=SIZES, streams=st.integers(1, 20), seed=SEEDS, epoch=st.integers(0, 2**31))
def test_the_order_is_the_reference_order(
    sizes: list[int], streams: int, seed: int, epoch: int
) -> None:
    streams = min(streams, sum(sizes))
    order = GlobalOrder(sizes, streams=streams, seed=seed, epoch=epoch)
    found = order.rows(np.arange(len(order))).tolist()
    assert found == reference_order(sizes, streams, seed, epoch)
    assert sorted(found) == list(range(sum(sizes)))


def test_one_golden_order_is_pinned() -> None:
    # states of older releases must continue with the same rows
    order = GlobalOrder([3, 5, 2, 4], streams=3, seed=7, epoch=2)
    assert order.rows(np.arange(14)).tolist() == GOLDEN


GOLDEN = [10, 9, 7, 12, 5, 2, 13, 4, 0, 11, 3, 1, 8, 6]


def test_epochs_and_seeds_have_other_orders() -> None:
    orders = {
        tuple(GlobalOrder([50, 50], streams=2, seed=s, epoch=e).rows(np.arange(100)).tolist())
        for s in range(4)
        for e in range(4)
    }
    assert len(orders) == 16


def test_without_shuffling_rows_come_in_their_own_order() -> None:
    order = GlobalOrder([4, 6, 3], streams=3, seed=1, epoch=1, shuffle=False)
    assert order.rows(np.arange(13)).tolist() == list(range(13))


@given(sizes=SIZES, streams=st.integers(1, 8), start=st.integers(0, 400), size=st.integers(1, 60))
def test_open_blocks_hold_every_row_of_the_span_and_close_only_when_used_up(
    sizes: list[int], streams: int, start: int, size: int
) -> None:
    total = sum(sizes)
    streams, start = min(streams, total), start % total
    order = GlobalOrder(sizes, streams=streams, seed=3, epoch=0)
    home = np.repeat(np.arange(len(sizes)), sizes)
    stop = min(start + size, total)
    opened = set(order.open_blocks(start, stop).tolist())
    assert {int(home[row]) for row in order.rows(np.arange(start, stop))} <= opened
    #  turns of a stream   [ piece 0 )[ piece 1    )     a piece is closed after its last row,
    #  open at turn 3      ----------xxxxxxxxxxxxxxx     so what is open has rows to come
    for stream in range(streams):
        turns = np.arange(stream, total, streams)
        mine = home[order.rows(turns)]
        alone = order.open_blocks(start, start + 1, np.array([stream]))
        assert len(alone) == 1
        turn = min(start // streams, len(turns) - 1)
        assert alone[0] == mine[turn]


def test_streams_divide_the_limit_and_fit_blocks_and_bytes() -> None:
    assert choose_streams([1], 960, 10**9) == 1
    assert choose_streams([10] * 959, 960, 10**9) == 480
    assert choose_streams([10] * 2_000, 960, 10**9) == 960
    assert choose_streams([10] * 2_000, 8, 10**9) == 8
    assert choose_streams([1_000] * 2_000, 960, 5_000) == 5
    assert choose_streams([1_000] * 2_000, 960, 1) == 1


def test_the_order_of_a_hundred_million_rows_takes_little_memory() -> None:
    tracemalloc.start()
    order = GlobalOrder(np.full(1_526, 65_536), streams=960, seed=1, epoch=0)
    order.rows(np.arange(50_000_000, 50_065_536))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(order) > 10**8
    assert peak < 16 << 20


def test_a_shuffle_keeps_few_neighbours_and_spreads_classes() -> None:
    sizes = [1_000] * 20
    classes = np.arange(20_000) // 2_000  # sorted by class: the worst case
    shuffled = GlobalOrder(sizes, streams=20, seed=1, epoch=0)
    plain = GlobalOrder(sizes, streams=1, seed=1, epoch=0, shuffle=False)
    good, bad = shuffle_quality(shuffled, classes), shuffle_quality(plain, classes)
    assert good["neighbours_kept"] < 0.001
    assert good["class_spread"] < 2
    assert bad["neighbours_kept"] == 1
    assert bad["class_spread"] > 20


def test_uniform_numbers_are_uniform_and_depend_on_the_key() -> None:
    shares = uniform(derive_key(1), np.arange(100_000))
    assert shares.min() >= 0
    assert shares.max() < 1
    counts = np.histogram(shares, 100, (0, 1))[0]
    assert ((counts - 1_000) ** 2 / 1_000).sum() < 99 + 5 * np.sqrt(2 * 99)
    assert not np.isin(uniform(derive_key(2), np.arange(1_000)), shares).any()


@every_seed(8)
def test_the_blocks_that_come_next_are_those_that_a_walk_over_the_positions_meets(
    seed: int,
) -> None:
    dice = np.random.default_rng(seed)
    sizes = dice.integers(1, 12, size=int(dice.integers(1, 14)))
    streams = int(dice.integers(1, len(sizes) + 1))
    order = GlobalOrder(sizes, streams=streams, seed=seed, epoch=1)
    last_rows = np.cumsum(sizes) - 1
    block = np.searchsorted(last_rows, order.rows(np.arange(len(order))))
    own = np.flatnonzero(dice.random(streams) < 0.7)
    own = own if len(own) else np.arange(streams)
    for position in range(len(order)):
        now = position // streams
        walked = []
        for later in range(len(order)):
            stream, slot = later % streams, later // streams
            if stream in own and slot > now and block[later] != block[later - streams]:
                walked.append(int(block[later]))
        assert order.next_blocks(position, len(order), own.astype(np.int64)) == walked
        assert order.next_blocks(position, 2, own.astype(np.int64)) == walked[:2]
