"""Mixtures of readers: the reference order, the shares, every resume point, no block twice."""

from __future__ import annotations

import itertools
import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.errors import ConfigurationError, RequestError
from paimon_features.core.types.schema import Float64, Int64
from paimon_features.lake.catalog import Lake
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import append_arrow
from tests.long_cases import quick_cases
from tests.reference.order import (
    reference_batches,
    reference_mix,
    reference_order,
)
from trainer_bridge.order.source_interleave import SourceInterleave, shares_of
from trainer_bridge.readers.mixed_reader import MixedReader, mix
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.samplers import (
    BalancedBatchSampler,
    DifficultyWeightedSampler,
    PoissonSampler,
)

OPTIONS: dict[str, Any] = {"columns": ["x"], "block_rows": 8, "canonical_streams": 12}


def make(lake: Lake, name: str, first: int, sizes: list[int]) -> str:
    """A table with a file for each of the sizes, whose x counts from ``first`` on."""
    lake.create(TableSpec(name, {"x": Int64, "y": Float64}))
    for size in sizes:
        x = np.arange(first, first + size)
        append_arrow(lake, name, pa.table({"x": x, "y": x / 2}))
        first += size
    return name


@pytest.fixture
def tables(lake: Lake) -> tuple[str, str]:
    return make(lake, "old", 0, [8] * 12), make(lake, "new", 1_000, [8, 7, 8, 5])


def mixed(lake: Lake, tables: tuple[str, str], **options: Any) -> MixedReader:
    weights = options.pop("weights", [3, 1])
    rows = options.pop("rows_per_epoch", None)
    options = {**OPTIONS, "global_batch_size": 12, "threads": 0, **options}
    old = SnapshotReader(lake, tables[0], seed=1, **options)
    return mix([old, SnapshotReader(lake, tables[1], seed=2, **options)], weights, rows)


def expected(reader: MixedReader, epoch: int) -> list[int]:
    """The values of x in one epoch of the whole world, by the naive functions."""
    identity = reader.state_dict()["mixture"]
    x = reader.read_columns(["x"]).column("x").to_pylist()
    orders: dict[tuple[int, int], list[int]] = {}
    found = []
    count = (epoch + 1) * identity["rows"]
    for source, position in reference_mix(identity["shares"], identity["classes"], count):
        state = reader.state_dict()["sources"][source]
        blocks = [b.rows for b in reader.layout.parts[source].blocks]  # type: ignore[attr-defined]
        turn, within = divmod(position, state["rows"])
        if (source, turn) not in orders:
            orders[source, turn] = reference_order(blocks, state["streams"], state["seed"], turn)
        first = 0 if source == 0 else sum(b.rows for b in reader.layout.parts[0].blocks)  # type: ignore[attr-defined]
        found.append(x[first + orders[source, turn][within]])
    return found[-identity["rows"] :]


def values(batches: Any) -> list[list[int]]:
    return [batch["x"].tolist() for batch in batches]


@given(
    weights=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    classes=st.integers(1, 12),
    start=st.integers(0, 200),
)
def test_the_interleave_is_the_reference(weights: list[int], classes: int, start: int) -> None:
    shares = shares_of(weights)
    source, position = SourceInterleave(shares, classes).split(np.arange(start, 300))
    wanted = reference_mix(shares, classes, 300)[start:]
    assert list(zip(source.tolist(), position.tolist(), strict=True)) == wanted


@given(weights=st.lists(st.integers(1, 9), min_size=1, max_size=4), classes=st.integers(1, 12))
def test_a_round_takes_each_source_position_once_and_keeps_classes(
    weights: list[int], classes: int
) -> None:
    interleave = SourceInterleave(shares_of(weights), classes)
    rows = interleave.round_rows
    positions = np.arange(3 * rows)
    source, own = interleave.split(positions)
    assert (own % classes == positions % classes).all()
    for number, share in enumerate(interleave.shares):
        for turn in range(3):
            part = source[turn * rows : (turn + 1) * rows] == number
            taken = own[turn * rows : (turn + 1) * rows][part]
            each = share * classes
            assert sorted(taken.tolist()) == list(range(turn * each, (turn + 1) * each))


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_every_batch_of_every_rank_has_about_the_shares(world: int) -> None:
    interleave = SourceInterleave(shares_of([0.7, 0.2, 0.1]), classes=960)
    source, _ = interleave.split(np.arange(960 * 40))
    batch = 240
    # axes: (batch, row of the rank)
    for rank in range(world):
        own = source.reshape(-1, batch)[:, rank::world]
        for number, share in enumerate((0.7, 0.2, 0.1)):
            counts = (own == number).sum(axis=1)
            # by chance it would be up to 20 of 240 rows, or 10 of a rank's 30
            assert np.abs(counts - share * own.shape[1]).max() <= 6


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ([1, 1, 1], (1, 1, 1)),
        ([0.5, 0.25, 0.25], (2, 1, 1)),
        ([1e-3, 1], (1, 999)),
        ([np.pi, 1], (759, 241)),
    ],
)
def test_weights_become_integer_shares(weights: list[float], shares: tuple[int, ...]) -> None:
    assert shares_of(weights) == shares


@pytest.mark.parametrize("weights", [[1, 0], [1, -1], [1, float("nan")], [1, 1e-9]])
def test_weights_that_are_no_shares_are_refused(weights: list[float]) -> None:
    with pytest.raises(ConfigurationError, match="weights="):
        shares_of(weights)


@pytest.mark.parametrize("world", quick_cases([1, 2, 3, 4, 5, 12], 1, 5))
def test_every_world_and_thread_count_yields_the_reference_batches(
    lake: Lake, tables: tuple[str, str], world: int
) -> None:
    for threads in range(3):
        ranks = [
            mixed(lake, tables, rank=rank, world_size=world, threads=threads)
            for rank in range(world)
        ]
        for epoch in range(2):
            order = expected(ranks[0], epoch)
            for rank, reader in enumerate(ranks):
                wanted = list(reference_batches(order, 12, world, rank, 0, "short"))
                assert len(reader) == len(wanted)
                assert values(reader) == wanted


def test_each_reader_is_read_once_through_before_it_begins_again(
    lake: Lake, tables: tuple[str, str]
) -> None:
    #  mixture, 96 rows      [ epoch 0                 )[ epoch 1                 )[ epoch 2
    #  old, 3 of 4, 96 rows  [ 0 .. 71                 )[ 72 .. 95, 0 .. 47 again )[ 48 ..
    #  new, 1 of 4, 28 rows  [ 0 .. 23                 )[ 24 .. 27, 0 .. 19 again )[ 20 ..
    reader = mixed(lake, tables)
    seen: Counter[int] = Counter()
    for epoch in range(12):
        rows = list(itertools.chain.from_iterable(values(reader)))
        assert len(rows) == reader.describe()["rows_per_epoch"] == 96
        assert epoch or len(set(rows)) == 96
        seen.update(rows)
    for source in (range(96), range(1_000, 1_028)):
        counts = {seen[x] for x in source}
        assert max(counts) - min(counts) <= 1


def test_a_mixture_stopped_before_any_batch_yields_the_rest(
    lake: Lake, tables: tuple[str, str]
) -> None:
    first = mixed(lake, tables, threads=2, rank=1, world_size=2)
    states, whole = [first.state_dict()], []
    for _ in range(2):
        for batch in first:
            whole.append(batch["x"].tolist())
            states.append(first.state_dict())
    count = len(first)
    other = mixed(lake, tables, rank=1, world_size=2)
    for consumed, state in enumerate(states[:-1]):
        other.load_state_dict(json.loads(json.dumps(state)))
        epoch_end = count if consumed < count else 2 * count
        assert values(other) == whole[consumed:epoch_end]
    assert states[count]["epoch"] == 1
    assert len(json.dumps(states[0])) < 1_000
    # a state further on is the one that is taken there
    assert first.state_after(2, states[0]) == states[2]
    assert first.state_after(99, states[1]) == states[count]


def test_worlds_of_4_then_3_then_5_ranks_read_one_epoch_together(
    lake: Lake, tables: tuple[str, str]
) -> None:
    seen: list[int] = []
    state: dict[str, Any] | None = None
    for world in (4, 3, 5):
        states = []
        for rank in range(world):
            with mixed(lake, tables, rank=rank, world_size=world, rows_per_epoch=120) as reader:
                if state is not None:
                    reader.load_state_dict(state)
                steps = reader.remaining() if world == 5 else 3
                for batch in itertools.islice(reader, steps):
                    seen += batch["x"].tolist()
                states.append(reader.state_dict())
        assert all(other == states[0] for other in states)
        state = states[0]
    with mixed(lake, tables, rows_per_epoch=120) as reader:
        assert sorted(seen) == sorted(expected(reader, 0))


def test_worlds_that_divide_the_classes_decode_each_block_once(lake: Lake) -> None:
    tables = make(lake, "old", 0, [8] * 36), make(lake, "new", 1_000, [8] * 12)
    for world, reads in ((1, 48), (2, 48), (3, 48), (4, 48), (6, 48), (12, 48), (5, 240)):
        ranks = (
            [mixed(lake, tables, rank=rank, world_size=world) for rank in range(world)]
            if (12 % world == 0)
            else [
                mixed(lake, tables, rank=rank, world_size=world, global_batch_size=15)
                for rank in range(world)
            ]
        )
        assert sum(len(list(reader)) for reader in ranks) == world * len(ranks[0])
        assert sum(reader.stats.blocks_decoded for reader in ranks) == reads


def test_hard_examples_and_fresh_data_carry_loss_weights(
    lake: Lake, tables: tuple[str, str]
) -> None:
    options: dict[str, Any] = {**OPTIONS, "batch_size": 16, "seed": 3}
    old = SnapshotReader(lake, tables[0], **options)
    hard = old.with_sampler(DifficultyWeightedSampler(np.arange(96), seed=5))
    fresh = SnapshotReader(lake, tables[1], **options)
    x = old.read_columns(["x"]).column("x").to_numpy()
    with mix([hard, fresh], [1, 1]) as reader:
        for batch in itertools.islice(reader, 3):
            source, rows = reader.source_of(batch.row_numbers)
            assert (batch["sample_weight"][source == 1] == 1).all()
            drawn = rows[source == 0]
            assert (batch["x"][source == 0] == x[drawn]).all()
            weights = hard.sampler.loss_weights(drawn)  # type: ignore[union-attr]
            assert np.allclose(batch["sample_weight"][source == 0], weights)
            assert 6 <= (source == 0).sum() <= 10
        state = reader.state_dict()
    easy = old.with_sampler(DifficultyWeightedSampler(np.arange(96)[::-1], seed=5))
    with mix([easy, fresh], [1, 1]) as reader, pytest.raises(RequestError, match="sampler"):
        reader.load_state_dict(state)


def test_a_state_pins_the_snapshots_it_was_taken_at(lake: Lake, tables: tuple[str, str]) -> None:
    with mixed(lake, tables) as reader:
        head, state = values(itertools.islice(reader, 2)), reader.state_dict()
        rest = values(reader)
    append_arrow(lake, "new", pa.table({"x": np.arange(2_000, 2_040), "y": np.zeros(40)}))
    with mixed(lake, tables) as reader:
        assert values(itertools.islice(reader, 2)) != head
        reader.load_state_dict(state)
        assert values(reader) == rest


def test_a_copy_in_another_process_continues_from_the_same_position(
    lake: Lake, tables: tuple[str, str]
) -> None:
    with mixed(lake, tables) as reader:
        next(iter(reader))
        other = pickle.loads(pickle.dumps(reader))
        assert values(other) == values(reader)


def test_a_state_of_another_mixture_is_refused(lake: Lake, tables: tuple[str, str]) -> None:
    reader = mixed(lake, tables)
    state = reader.state_dict()
    with pytest.raises(RequestError, match="make it with the same weights"):
        mixed(lake, tables, weights=[1, 1]).load_state_dict(state)
    with pytest.raises(RequestError, match="not a state of a mixture"):
        reader.load_state_dict(state["sources"][0])
    with pytest.raises(RequestError, match="a state of 1 readers; this mixture has 2"):
        reader.load_state_dict({**state, "sources": state["sources"][:1]})
    for position in (-1, 0.5, 10**9):
        with pytest.raises(RequestError, match="position"):
            reader.load_state_dict({**state, "position": position})
    with pytest.raises(RequestError, match="a state of table 'new'"):
        reader.load_state_dict({**state, "sources": state["sources"][::-1]})
    assert reader.state_dict() == state
    assert values(reader)[0] == expected(reader, 0)[:12]


def test_readers_that_do_not_go_together_are_refused(
    lake: Lake, tables: tuple[str, str], tmp_path: Path
) -> None:
    old = SnapshotReader(lake, tables[0], batch_size=4, columns=["x", "y"])
    for options, message in (
        ({"columns": ["x"]}, "differ in column 'y'"),
        ({"columns": ["y", "x"]}, "in different order"),
        ({"columns": ["x", "y"], "fill": {"x": 1}}, "differ in column 'x'"),
        ({"columns": ["x", "y"], "output": "arrow"}, "differ in column 'x'"),
    ):
        other = SnapshotReader(lake, tables[1], batch_size=4, **options)
        with pytest.raises(ConfigurationError, match=message):
            mix([old, other], [1, 1])
    with pytest.raises(ConfigurationError, match="at least two readers"):
        mix([old], [1])
    with pytest.raises(ConfigurationError, match="1 weights"):
        mix([old, old], [1])
    with pytest.raises(ConfigurationError, match="rows_per_epoch=0"):
        mix([old, old], [1, 1], rows_per_epoch=0)
    both = mix([old, old], [1, 1])
    with pytest.raises(ConfigurationError, match="mix all their readers in one"):
        mix([old, both], [1, 1])
    with pytest.raises(ConfigurationError, match="by its readers"):
        both.with_sampler(DifficultyWeightedSampler(np.ones(both.num_rows)))


def test_samplers_whose_draws_cannot_be_mixed_are_refused(
    lake: Lake, tables: tuple[str, str]
) -> None:
    old, new = (SnapshotReader(lake, name, batch_size=4, columns=["x"]) for name in tables)
    ones = np.ones(new.num_rows)
    for sampler, message in (
        (PoissonSampler(ones, 8), "another number of rows in each epoch.*by WeightedRandomSampler"),
        (BalancedBatchSampler(ones, 2), "a BalancedBatchSampler makes complete batches"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            mix([old, new.with_sampler(sampler)], [1, 1])


def test_a_rank_of_a_mixture_reads_its_share_and_shows_where_rows_come_from(
    lake: Lake, tables: tuple[str, str]
) -> None:
    whole = mixed(lake, tables)
    shares = [whole.with_rank(rank, 2) for rank in range(2)]
    wanted, *dealt = (values(reader) for reader in (whole, *shares))
    assert [sorted(a + b) for a, b in zip(*dealt, strict=True)] == [sorted(b) for b in wanted]
    options: dict[str, Any] = {**OPTIONS, "global_batch_size": 12}
    old = SnapshotReader(lake, tables[0], **options)
    some = mix([old, SnapshotReader(lake, tables[1], where="y < 510", **options)], [1, 1])
    html = some._repr_html_()
    for text in (
        "SnapshotReader of old + new",
        "old: 12, new: 4",
        "new: y &lt; ",
        "0 of 1",
        "int64",
    ):
        assert text in html
    assert "old: y" not in html
    assert "SnapshotReader of old" in old._repr_html_()
    assert "&lt;" not in old._repr_html_()


def test_arrow_readers_are_mixed_as_well(lake: Lake, tables: tuple[str, str]) -> None:
    numbers = mixed(lake, tables)
    arrow = mixed(lake, tables, output="arrow")
    found = [batch.arrow.column("x").to_pylist() for batch in arrow if batch.arrow is not None]
    assert found == values(numbers)
    shares = arrow.describe()["shares"]
    assert shares == [0.75, 0.25]
