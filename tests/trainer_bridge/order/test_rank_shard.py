"""Sharding of batches over ranks, compared with slices of a list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.errors import ConfigurationError
from tests.reference.order import reference_batches
from trainer_bridge.order.rank_shard import Last, RankShard

LASTS = st.sampled_from(["drop", "pad", "short"])


@given(
    rows=st.integers(1, 60),
    world=st.integers(1, 9),
    extra=st.integers(0, 12),
    last=LASTS,
    position=st.integers(0, 60),
)
def test_ranks_cut_the_reference_batches_and_have_equally_many(
    rows: int, world: int, extra: int, last: Last, position: int
) -> None:
    size = world + extra
    counts = set()
    for rank in range(world):
        shard = RankShard(rows, size, rank, world, last)
        starts = [position + k * size for k in range(shard.num_batches(position))]
        found = [(shard.positions(start) % rows).tolist() for start in starts]
        order = list(range(rows))
        assert found == list(reference_batches(order, size, world, rank, position, last))
        assert all(len(batch) >= 1 for batch in found)
        counts.add(len(starts))
    assert len(counts) == 1


@given(rows=st.integers(1, 60), world=st.integers(1, 9), extra=st.integers(0, 12), last=LASTS)
def test_padding_is_counted_so_that_every_row_counts_once(
    rows: int, world: int, extra: int, last: Last
) -> None:
    real = []
    for rank in range(world):
        shard = RankShard(rows, world + extra, rank, world, last)
        for k in range(shard.num_batches(0)):
            start = k * shard.global_batch_size
            positions = shard.positions(start).tolist()
            real += positions[: len(positions) - shard.num_padding(start)]
    kept = rows // (world + extra) * (world + extra) if last == "drop" else rows
    assert sorted(real) == list(range(kept))


@given(
    world=st.integers(1, 12), per_rank=st.integers(1, 5), v=st.integers(1, 24), at=st.integers(0, 9)
)
def test_a_rank_reads_only_the_streams_it_names(world: int, per_rank: int, v: int, at: int) -> None:
    size = world * per_rank
    named = []
    for rank in range(world):
        shard = RankShard(1_000, size, rank, world)
        streams = shard.streams(at, v)
        seen = {int(p) % v for k in range(30) for p in shard.positions(at + k * size)}
        assert seen <= (set(range(v)) if streams is None else set(streams.tolist()))
        named.append(range(v) if streams is None else streams.tolist())
    if v % world == 0:
        assert sorted(s for streams in named for s in streams) == list(range(v))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 3, "world_size": 3}, "expected 0 <= rank < world_size"),
        ({"world_size": 9}, "use at least 9"),
        ({"last": "keep"}, "expected 'drop', 'pad' or 'short'"),
    ],
)
def test_what_cannot_be_sharded_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        RankShard(10, 8, **arguments)  # type: ignore[arg-type]
