"""The promise of the order: one function, whoever reads it and wherever it is resumed.

A small table, every rank of every world size, every number of workers, every resume point, for
plain, weighted and mixed streams. Ranks and workers are simulated: readers in one process, which
``test_torch_ranks`` and ``test_torch_workers`` do with real ones.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paimon_features.lake.catalog import Lake
from tests.reference.order import reference_batches, reference_order
from tests.trainer_bridge.leaks import own_threads
from trainer_bridge.order.global_order import GlobalOrder
from trainer_bridge.order.rank_shard import Last, RankShard
from trainer_bridge.readers.mixed_reader import mix
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.samplers import DifficultyWeightedSampler
from trainer_bridge.testing.sample_tables import make_samples

WORLDS = (1, 2, 3, 4, 5, 6, 8, 12, 64)
SIZES = (9, 3, 17, 30, 1, 26, 8, 13)
BATCH = 24
OPTIONS: dict[str, Any] = {
    "columns": ["x"],
    "seed": 3,
    "block_rows": 16,
    "canonical_streams": 12,
    "threads": 0,
}
Make = Callable[..., SnapshotReader]


def plain(lake: Lake, **options: Any) -> SnapshotReader:
    return SnapshotReader(lake, "samples", **{**OPTIONS, **options})


def weighted(lake: Lake, **options: Any) -> SnapshotReader:
    sampler = DifficultyWeightedSampler(np.arange(sum(SIZES)) % 7, seed=5)
    return plain(lake, **options).with_sampler(sampler)


def mixed(lake: Lake, **options: Any) -> SnapshotReader:
    return mix([weighted(lake, **options), plain(lake, **{**options, "seed": 4})], [1, 3])


STREAMS = [plain, weighted, mixed]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake.open(tmp_path_factory.mktemp("lake") / "warehouse", "features")
    make_samples(lake, SIZES)
    return lake


def rows(reader: SnapshotReader) -> list[list[int]]:
    return [batch.row_numbers.tolist() for batch in reader]


@pytest.mark.parametrize("last", ["short", "drop", "pad"])
def test_the_reference_order_is_every_ranks_order_from_every_position(last: Last) -> None:
    #  axes of what is compared: (rank, resume point, batch, row)
    blocks, streams = [12, 16, 16, 14, 16, 16, 8, 9], 4
    for epoch, world in itertools.product(range(2), WORLDS):
        size = max(BATCH, world)
        reference = reference_order(blocks, streams, 3, epoch)
        order = GlobalOrder(blocks, streams=streams, seed=3, epoch=epoch)
        found = order.rows(np.arange(len(order)))
        for rank in range(world):
            shard = RankShard(len(order), size, rank, world, last)
            whole = list(reference_batches(reference, size, world, rank, 0, last))
            for resumed in range(len(whole) + 1):
                starts = range(resumed * size, shard.num_batches(0) * size, size)
                batches = [found[shard.positions(s) % len(order)].tolist() for s in starts]
                assert batches == whole[resumed:], (world, epoch, rank, resumed)


@pytest.mark.parametrize("make", STREAMS)
@pytest.mark.parametrize(
    "world",
    [n if n in (1, 2, 5, 12) else pytest.param(n, marks=pytest.mark.long) for n in WORLDS],
)
def test_all_ranks_together_read_what_one_reads_and_no_row_twice(
    small: Lake, make: Make, world: int
) -> None:
    size = max(BATCH, world)
    alone = rows(make(small, global_batch_size=size))
    ranks = [
        make(small, global_batch_size=size, rank=rank, world_size=world) for rank in range(world)
    ]
    found = [rows(reader) for reader in ranks]
    assert {len(batches) for batches in found} == {len(alone)}
    for number, whole in enumerate(alone):
        for rank, batches in enumerate(found):
            if len(whole) >= world:
                assert batches[number] == whole[rank::world]
            else:
                # a last batch of fewer rows than ranks is filled up, one row for each
                assert len(batches[number]) == 1
    plan = ranks[0].describe()
    if make is plain and plan["reads_each_block_once"]:
        # a block across the border of two streams is decoded for both
        decoded = sum(reader.stats.blocks_decoded for reader in ranks)
        assert plan["blocks"] <= decoded < plan["blocks"] + plan["streams"]


@pytest.mark.parametrize("make", STREAMS)
@pytest.mark.parametrize("workers", range(1, 5))
def test_workers_take_the_batches_in_turn(small: Lake, make: Make, workers: int) -> None:
    place = {"global_batch_size": BATCH, "rank": 1, "world_size": 2}
    whole = rows(make(small, **place))
    for taken in range(len(whole)):
        # resumed after ``taken`` batches of the loop: worker w had every one from w on
        shares = [
            [
                batch.row_numbers.tolist()
                for batch in make(small, **place).iterate(
                    worker, workers, skip=len(range(worker, taken, workers))
                )
            ]
            for worker in range(workers)
        ]
        turns = itertools.islice(itertools.cycle(range(workers)), taken, None)
        rest = [shares[worker].pop(0) for worker in itertools.islice(turns, len(whole) - taken)]
        assert rest == whole[taken:]
        assert not any(shares)


@pytest.mark.parametrize("make", STREAMS)
def test_every_resume_point_yields_the_rest_on_any_world_size(small: Lake, make: Make) -> None:
    reader = make(small, global_batch_size=BATCH)
    states, whole = [reader.state_dict()], []
    for batch in reader:
        whole.append(batch.row_numbers.tolist())
        states.append(reader.state_dict())
    following = rows(reader)
    for world in (1, 2, 3, 4, 5):
        for rank in {0, world - 1}:
            other = make(small, global_batch_size=BATCH, rank=rank, world_size=world)
            for taken, state in enumerate(states):
                other.load_state_dict(state)
                wanted = whole[taken:] or following
                assert rows(other) == [batch[rank::world] for batch in wanted]


@pytest.mark.long
def test_a_world_that_divides_the_streams_reads_no_block_twice(lake: Lake) -> None:
    make_samples(lake, [16] * 12)
    size = sum(block.size for block in plain(lake, batch_size=8).layout.blocks)
    for make in (plain, lambda lake, **o: mix([plain(lake, **o), plain(lake, **o)], [1, 1])):
        both = 1 if make is plain else 2
        for world in (1, 2, 3, 4, 6, 12):
            each = []
            for rank in range(world):
                with make(lake, global_batch_size=24, rank=rank, world_size=world) as reader:
                    rows(reader)
                    each.append(reader.stats.file_bytes)
            assert sum(each) == size * both
            assert max(each) - min(each) <= 2_000 * both  # files are alike, not equal


def test_a_reader_whose_thread_is_killed_says_so_and_leaves_no_thread(
    small: Lake,
) -> None:
    if sys.gettrace() is not None and sys.version_info < (3, 12):
        pytest.skip("while an exception for a thread is pending, traced threads repeat an opcode")

    class KilledError(Exception):
        pass

    before = own_threads()
    for after in range(1, 4):
        reader = plain(small, batch_size=2, threads=2, byte_budget=5_000)
        batches = iter(reader)
        for _ in range(after):
            next(batches)
        producer = next(t for t in threading.enumerate() if t.name == "snapshot-reader")
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(producer.ident or 0), ctypes.py_object(KilledError)
        )
        with pytest.raises(KilledError):
            list(batches)
        del batches
        gc.collect()
        assert own_threads() <= before
        reader.set_epoch(1)
        assert sorted(itertools.chain.from_iterable(rows(reader))) == list(range(sum(SIZES)))
    assert own_threads() <= before
