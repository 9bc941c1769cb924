"""The reader against the reference order: every world, thread count and resume point."""

from __future__ import annotations

import gc
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import (
    ConfigurationError,
    RequestError,
    SnapshotExpiredError,
    TableError,
    UnknownNameError,
)
from paimon_features.core.types.schema import Int64, Timestamp
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.consumers import consumers
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import append_arrow
from tests.data_files import replace_file
from tests.reference.order import reference_batches, reference_order
from tests.trainer_bridge.leaks import kept_each_time, own_threads
from trainer_bridge.batches.forms import Batch
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.samplers import WeightedRandomSampler
from trainer_bridge.testing.sample_tables import make_samples, sample_rows, x_by_row_number

WORLDS = (1, 2, 3, 4, 5, 6, 8, 12, 64)
SIZES = (9, 3, 17, 30, 1, 26, 8, 13)
OPTIONS: dict[str, Any] = {"columns": ["x"], "seed": 3, "block_rows": 16, "canonical_streams": 12}


def values(batches: Iterable[Batch]) -> list[list[int]]:
    return [batch["x"].tolist() for batch in batches]


def flat(batches: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(batches))


def expected(
    lake: Lake, table: str, epoch: int, size: int, world: int, rank: int, at: int, last: str
) -> list[list[int]]:
    """What the reference functions return, with the reader's blocks and streams."""
    x = x_by_row_number(lake, table)
    with SnapshotReader(lake, table, batch_size=1, **OPTIONS) as reader:
        state, blocks = reader.state_dict(), [block.rows for block in reader.layout.blocks]
    order = reference_order(blocks, state["streams"], state["seed"], epoch)
    found = reference_batches(order, size, world, rank, at, last)
    return [[x[row] for row in batch] for batch in found]


@pytest.mark.parametrize("last", ["drop", "pad", "short"])
def test_every_world_and_thread_count_yields_the_reference_batches(lake: Lake, last: str) -> None:
    table = make_samples(lake, SIZES)
    for world in WORLDS:
        size = max(24, world)
        for rank in {0, world // 2, world - 1}:
            wanted = expected(lake, table, 0, size, world, rank, 0, last)
            for threads in range(5 if world == 3 else 3):
                with SnapshotReader(
                    lake,
                    table,
                    global_batch_size=size,
                    rank=rank,
                    world_size=world,
                    threads=threads,
                    # a large budget takes the table in one chunk, a small one in many
                    byte_budget=(1 << 30, 2_500)[(threads + world) % 2],
                    drop_last=last == "drop",
                    pad_last=last == "pad",
                    **OPTIONS,
                ) as reader:
                    assert len(reader) == len(wanted)
                    assert values(reader) == wanted
                    assert reader.epoch == 1


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("threads", [0, 2])
def test_a_reader_stopped_before_any_batch_yields_the_rest(
    lake: Lake, world: int, threads: int
) -> None:
    table = make_samples(lake, SIZES)
    options = {**OPTIONS, "global_batch_size": 12, "world_size": world, "threads": threads}
    options["byte_budget"] = 2_500 if threads else 1 << 30
    rank = world - 1
    whole = expected(lake, table, 0, 12, world, rank, 0, "short")
    following = expected(lake, table, 1, 12, world, rank, 0, "short")
    with SnapshotReader(lake, table, rank=rank, **options) as first:
        states = [first.state_dict()]
        for _ in first:
            states.append(first.state_dict())
    with SnapshotReader(lake, table, rank=rank, **{**options, "seed": 99}) as second:
        for consumed, state in enumerate(states):
            second.load_state_dict(json.loads(json.dumps(state)))
            # the state after the last batch is the start of the next epoch
            wanted = whole[consumed:] if consumed < len(whole) else following
            assert values(second) == wanted
            # a second resume is right as well
            second.load_state_dict(state)
            assert values(itertools.islice(second, 2)) == wanted[:2]
            if consumed + 2 < len(states):
                assert second.state_dict() == states[consumed + 2]


def test_worlds_of_4_then_3_then_5_ranks_read_one_epoch_together(lake: Lake) -> None:
    #  position   0 ......... 36 ......... 72 ......... 107
    #  world size [    4     )[     3     )[     5     )
    table = make_samples(lake, SIZES)
    seen: list[int] = []
    state: dict[str, Any] | None = None
    for world in (4, 3, 5):
        states = []
        for rank in range(world):
            with SnapshotReader(
                lake, table, global_batch_size=12, rank=rank, world_size=world, **OPTIONS
            ) as reader:
                if state is not None:
                    reader.load_state_dict(state)
                steps = reader.remaining() if world == 5 else 3
                for batch in itertools.islice(reader, steps):
                    seen += batch["x"][: len(batch) - batch.num_padding].tolist()
                states.append(reader.state_dict())
        assert all(other == states[0] for other in states)
        state = states[0]
    assert sorted(seen) == list(range(sum(SIZES)))
    assert state is not None
    assert (state["epoch"], state["position"]) == (1, 0)


def test_a_resume_with_another_batch_size_continues_in_the_same_order(lake: Lake) -> None:
    table = make_samples(lake, SIZES)
    with SnapshotReader(lake, table, batch_size=10, **OPTIONS) as reader:
        head = values(itertools.islice(reader, 3))
        state = reader.state_dict()
    with SnapshotReader(lake, table, batch_size=7, **OPTIONS) as reader:
        reader.load_state_dict(state)
        rest = values(reader)
    whole = flat(expected(lake, table, 0, 10, 1, 0, 0, "short"))
    assert flat(head) + flat(rest) == whole
    assert {len(batch) for batch in rest[:-1]} == {7}


def test_worlds_that_divide_the_streams_read_each_block_once(lake: Lake) -> None:
    table = make_samples(lake, [16] * 12)
    for world, reads in ((1, 12), (2, 12), (3, 12), (4, 12), (6, 12), (12, 12), (5, 60), (8, 24)):
        decoded, file_bytes = 0, 0
        for rank in range(world):
            with SnapshotReader(
                lake, table, global_batch_size=world * 2, rank=rank, world_size=world, **OPTIONS
            ) as reader:
                whole = reader.describe()["reads_each_block_once"]
                for _ in reader:
                    pass
                decoded += reader.stats.blocks_decoded
                file_bytes += reader.stats.file_bytes
        assert decoded == reads
        assert whole == (decoded == 12)
        sizes = sum(block.size for block in reader.layout.blocks)
        assert file_bytes == sizes * reads / 12


def test_resuming_does_not_read_what_was_consumed(lake: Lake) -> None:
    table = make_samples(lake, [16] * 12)
    options = {**OPTIONS, "canonical_streams": 2}
    with SnapshotReader(lake, table, batch_size=8, **options) as reader:
        state = reader.state_after(len(reader) - 1)
        reader.load_state_dict(state)
        assert len(values(reader)) == 1
        assert reader.stats.blocks_decoded == 2


def test_leaving_a_loop_ends_the_threads_and_the_next_one_yields_the_rest(lake: Lake) -> None:
    table = make_samples(lake, SIZES)
    before = own_threads()
    with SnapshotReader(lake, table, batch_size=5, threads=3, **OPTIONS) as reader:
        seen = []
        for batch in reader:
            seen.append(batch["x"].tolist())
            if len(seen) == 3:
                break
        del batch
        gc.collect()
        assert own_threads() <= before
        seen += values(reader)
    assert seen == expected(lake, table, 0, 5, 1, 0, 0, "short")
    assert own_threads() <= before


def test_an_error_while_reading_reaches_the_loop_and_names_the_file(lake: Lake) -> None:
    table = make_samples(lake, SIZES)
    before = own_threads()
    reader = SnapshotReader(lake, table, batch_size=5, **OPTIONS)
    path = Path(reader.layout.blocks[3].spans[0].path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(TableError, match=rf"'samples', snapshot 8, block 3, file .*{path.name}"):
        list(reader)
    path.unlink()
    with pytest.raises(SnapshotExpiredError, match="hold it by consumer="):
        list(reader)
    path.write_bytes(content)
    assert values(reader) == expected(lake, table, 0, 5, 1, 0, 0, "short")
    assert own_threads() <= before


def test_a_state_of_something_else_is_refused(lake: Lake) -> None:
    table = make_samples(lake, SIZES)
    reader = SnapshotReader(lake, table, batch_size=5, **OPTIONS)
    state = reader.state_dict()
    for change, message in (
        ({"table": "other"}, "a state of table 'other'"),
        ({"version": 3}, "version 3; this release reads version 2$"),
        # of a release that numbered the rows by the names of files
        ({"version": 1, "epoch": 4}, "version 1; .* order of commits.* start its epoch .*epoch=4"),
        ({"files": "ab", "rows": 7}, r"has other files .*\(107 rows, then 7\)"),
        ({"sampler": {"seed": 1}}, "was taken with the sampler"),
        ({"colour": 1}, "unknown fields: colour"),
        # a place that is never reached was waited for for ever
        ({"position": -1}, "position=-1; expected an integer of at least 0"),
        ({"position": 107}, "at position 107 of 107 rows"),
        ({"position": "5"}, "position='5'; expected an integer"),
        ({"epoch": 0.5}, "epoch=0.5; expected an integer"),
        ({"seed": None}, "seed=None; expected an integer"),
        ({"streams": 0}, "streams=0; expected an integer of at least 1"),
        ({"streams": 108}, "107 rows in 108 streams"),
        ({"rows": 108}, r"has other files .*\(107 rows, then 108\)"),
    ):
        with pytest.raises(RequestError, match=message):
            reader.load_state_dict({**state, **change})
    with pytest.raises(SnapshotExpiredError):
        reader.load_state_dict({**state, "snapshot_id": 77})
    # what was refused has changed nothing
    assert reader.state_dict() == state
    assert values(reader) == expected(lake, table, 0, 5, 1, 0, 0, "short")


def test_a_state_of_a_table_that_was_created_again_with_as_many_rows_is_refused(lake: Lake) -> None:
    options = {**OPTIONS, "batch_size": 5}
    state = SnapshotReader(lake, make_samples(lake, SIZES), **options).state_dict()
    lake.drop("samples")
    reader = SnapshotReader(lake, make_samples(lake, SIZES), **options)
    assert (reader.snapshot_id, reader.num_rows) == (state["snapshot_id"], state["rows"])
    with pytest.raises(RequestError, match="has other files than when the state was taken"):
        reader.load_state_dict(state)


def test_the_snapshot_stays_pinned_while_the_table_grows(lake: Lake) -> None:
    table = make_samples(lake, [20, 20])
    with SnapshotReader(lake, table, batch_size=8, **OPTIONS) as reader:
        append_arrow(lake, table, sample_rows(40, 30))
        state = reader.state_dict()
        assert sorted(flat(values(reader))) == list(range(40))
    with SnapshotReader(lake, table, batch_size=8, **OPTIONS) as newer:
        assert newer.num_rows == 70
        newer.load_state_dict(state)
        assert (newer.num_rows, newer.snapshot_id) == (40, 2)
        assert sorted(flat(values(newer))) == list(range(40))


def test_a_consumer_protects_the_snapshot_until_the_reader_is_closed(lake: Lake) -> None:
    table = make_samples(lake, [20, 20])
    with SnapshotReader(lake, table, batch_size=8, consumer="run-1", **OPTIONS):
        assert consumers(lake, table) == {"run-1": 2}
    assert consumers(lake, table) == {}


def test_a_sampled_reader_leaves_the_hold_to_the_reader_that_it_was_made_of(lake: Lake) -> None:
    table = make_samples(lake, [20, 20])
    with SnapshotReader(lake, table, batch_size=8, consumer="run-1", **OPTIONS) as reader:
        with reader.with_sampler(WeightedRandomSampler(np.ones(40), 16)) as sampled:
            assert len(values(sampled)) == 2
        assert consumers(lake, table) == {"run-1": 2}
    assert consumers(lake, table) == {}


def test_set_epoch_starts_another_epoch_and_leaves_the_same_one_alone(lake: Lake) -> None:
    table = make_samples(lake, SIZES)
    reader = SnapshotReader(lake, table, batch_size=20, **OPTIONS)
    epochs = []
    for epoch in range(3):
        reader.set_epoch(epoch)
        epochs.append(values(reader))
    assert epochs == [expected(lake, table, e, 20, 1, 0, 0, "short") for e in range(3)]
    next(iter(reader))
    reader.set_epoch(3)
    assert reader.remaining() == len(reader) - 1
    reader.set_epoch(1)
    assert values(reader) == epochs[1]


def test_large_files_are_read_by_row_group(lake: Lake) -> None:
    lake.create(TableSpec("samples", {"x": Int64}))
    append_arrow(lake, "samples", pa.table({"x": np.arange(1_000)}))
    with SnapshotReader(lake, "samples", batch_size=100, block_rows=64) as reader:
        path = reader.layout.blocks[0].spans[0].path
    # pypaimon writes row groups of a million rows: cut the file as another writer would
    replace_file(path, row_group_size=40)
    with SnapshotReader(lake, "samples", batch_size=100, block_rows=100, seed=1) as reader:
        assert [block.rows for block in reader.layout.blocks] == [80] * 12 + [40]
        assert len(reader.layout.blocks[0].spans) == 1
        assert sorted(flat(values(reader))) == list(range(1_000))
        assert reader.stats.blocks_decoded == 13


def test_memory_stays_within_the_budget(lake: Lake) -> None:
    lake.create(TableSpec("samples", {"x": Int64}))
    for start in range(0, 64_000, 4_000):
        append_arrow(lake, "samples", pa.table({"x": np.arange(start, start + 4_000)}))
    # a table of 512 kB, 4 streams of 32 kB open, as much again for those to come
    budget = 300_000
    with SnapshotReader(
        lake,
        "samples",
        batch_size=500,
        canonical_streams=4,
        block_rows=4_000,
        byte_budget=budget,
        threads=4,
    ) as reader:
        assert sorted(flat(values(reader))) == list(range(64_000))
        assert reader.stats.blocks_decoded == 16
        assert 0 < reader.stats.peak_bytes <= budget
    with pytest.raises(ConfigurationError, match="4 blocks have to be open at once"):
        SnapshotReader(
            lake,
            "samples",
            batch_size=500,
            canonical_streams=4,
            block_rows=4_000,
            byte_budget=100_000,
        )


def test_batches_may_be_changed_in_place_without_harm_to_later_epochs(lake: Lake) -> None:
    table = make_samples(lake, SIZES)
    for shuffle in (False, True):
        with SnapshotReader(
            lake, table, columns=["x"], batch_size=9, shuffle=shuffle, pad_last=True, epoch=4
        ) as reader:
            for _ in range(2):
                seen = []
                for batch in reader:
                    seen += batch["x"].tolist()
                    batch["x"][:] = -1
                assert min(seen) == 0
                assert sorted(set(seen)) == list(range(sum(SIZES)))


def test_unshuffled_batches_are_views_of_the_decoded_block(lake: Lake) -> None:
    table = make_samples(lake, [64])
    with SnapshotReader(lake, table, columns=["x", "y"], batch_size=16, shuffle=False) as reader:
        bases = {id(batch.blocks["int64"].base) for batch in list(reader)}
    assert len(bases) == 1


def test_an_arrow_reader_passes_every_type_in_the_same_order(lake: Lake) -> None:
    table = make_samples(lake, SIZES)
    options = {**OPTIONS, "columns": None, "batch_size": 10}
    wanted = flat(expected(lake, table, 0, 10, 1, 0, 0, "short"))
    for shuffle in (True, False):
        with SnapshotReader(lake, table, output="arrow", shuffle=shuffle, **options) as reader:
            batches = [batch.arrow for batch in reader]
        whole = pa.concat_tables(batches)
        x = whole.column("x").to_pylist()
        assert x == (wanted if shuffle else x_by_row_number(lake, table))
        assert whole.column("name").to_pylist() == [f"row {n}" for n in x]
        assert whole.column("flag").to_pylist() == [n % 2 == 0 for n in x]
    with SnapshotReader(lake, table, output="arrow", **options) as reader:
        batch = next(iter(reader))
    with pytest.raises(RequestError, match=r"write batch.arrow\['x'\], or read with outpu"):
        batch["x"]


def test_a_null_is_refused_unless_declared(lake: Lake) -> None:
    lake.create(TableSpec("samples", {"x": Int64, "t": Timestamp}))
    append_arrow(lake, "samples", pa.table({"x": [1, None, 3], "t": [None, -1, 5]}))
    options: dict[str, Any] = {"batch_size": 3, "shuffle": False}
    with pytest.raises(RequestError, match=r"column 'x' has a null.*fill=\{'x': <number>\}"):
        list(SnapshotReader(lake, "samples", columns=["x"], **options))
    (filled,) = SnapshotReader(lake, "samples", columns=["x"], fill={"x": -7}, **options)
    assert filled["x"].tolist() == [1, -7, 3]
    (masked,) = SnapshotReader(lake, "samples", masks=["x", "t"], fill={"t": 9}, **options)
    assert masked["x"].tolist() == [1, 0, 3]
    assert masked["x_present"].tolist() == [True, False, True]
    assert masked["t"].tolist() == [9, -1, 5]
    with pytest.raises(ConfigurationError, match="cannot represent that"):
        SnapshotReader(lake, "samples", fill={"x": 0.5}, **options)
    with pytest.raises(ConfigurationError, match="unknown column 'z'"):
        SnapshotReader(lake, "samples", fill={"z": 0}, **options)


def test_strings_are_refused_with_a_remedy(lake: Lake) -> None:
    table = make_samples(lake, [3])
    with pytest.raises(RequestError, match=r"'name' is string.*encode it as numbers.*columns="):
        SnapshotReader(lake, table, batch_size=2)


def test_floats_can_be_cast_and_columns_of_one_dtype_share_a_block(lake: Lake) -> None:
    table = make_samples(lake, [30])
    columns = ["y", "flag", "x"]
    with SnapshotReader(
        lake, table, columns=columns, batch_size=8, float_dtype="float32"
    ) as reader:
        for batch in reader:
            assert list(batch.columns) == columns
            assert {name: block.shape for name, block in batch.blocks.items()} == {
                name: (len(batch), 1) for name in ("float32", "bool", "int64")
            }
            assert (batch["y"] == batch["x"] / 2).all()
            assert (batch["flag"] == (batch["x"] % 2 == 0)).all()
            assert all(block.flags.c_contiguous for block in batch.blocks.values())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ConfigurationError, "give batch_size"),
        ({"batch_size": 0}, ConfigurationError, "expected at least 1"),
        ({"batch_size": 2, "global_batch_size": 5}, ConfigurationError, "give one of them"),
        ({"batch_size": 500, "drop_last": True}, ConfigurationError, "leave them all out"),
        ({"batch_size": 2, "drop_last": True, "pad_last": True}, ConfigurationError, "exclude"),
        ({"batch_size": 2, "columns": ["z"]}, UnknownNameError, "unknown column.*'z'"),
        ({"batch_size": 2, "output": "rows"}, ConfigurationError, "'numpy' or 'arrow'"),
        ({"batch_size": 2, "threads": -1}, ConfigurationError, "expected 0 or more"),
        ({"batch_size": 2, "threads": "many"}, ConfigurationError, "or .auto."),
        ({"batch_size": 2, "snapshot_id": 9}, SnapshotExpiredError, "9"),
        ({"batch_size": 2.5}, ConfigurationError, "batch_size=2.5: expected an integer"),
        ({"batch_size": 2, "seed": "a"}, ConfigurationError, "seed='a': expected an integer"),
        ({"batch_size": 2, "epoch": -1}, ConfigurationError, "epoch=-1: expected 0 or more"),
        ({"batch_size": 2, "world_size": 3}, ConfigurationError, "rows of rank 0; give both"),
        ({"batch_size": 2, "columns": "x"}, ConfigurationError, "a list of at least one name"),
        ({"batch_size": 2, "columns": []}, ConfigurationError, "a list of at least one name"),
        ({"batch_size": 2, "columns": ["x", "x"]}, ConfigurationError, "'x' is requested twice"),
    ],
)
def test_arguments_that_cannot_mean_anything_are_refused(
    lake: Lake,
    arguments: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    table = make_samples(lake, [30])
    with pytest.raises(error, match=message):
        SnapshotReader(lake, table, **{"columns": ["x"], **arguments})


def test_a_table_without_rows_is_refused(lake: Lake) -> None:
    lake.create(TableSpec("empty", {"x": Int64}))
    with pytest.raises(TableError, match="has no rows yet"):
        SnapshotReader(lake, "empty", batch_size=1)
    with pytest.raises(TableError, match="'empty' had no commit yet at 5 ms"):
        SnapshotReader(lake, "empty", batch_size=1, as_of_ms=5)


def test_no_file_stays_open(lake: Lake) -> None:
    table = make_samples(lake, SIZES)

    def read() -> None:
        with SnapshotReader(lake, table, batch_size=5, threads=4, **OPTIONS) as reader:
            assert len(values(reader)) == 22

    assert kept_each_time(read) <= 0


def test_columns_are_read_by_row_number(lake: Lake) -> None:
    table = make_samples(lake, SIZES)
    with SnapshotReader(lake, table, batch_size=5, **OPTIONS) as reader:
        found = reader.read_columns(["name", "x"])
    assert found.column("x").to_pylist() == x_by_row_number(lake, table)
    assert found.column("name").to_pylist() == [f"row {n}" for n in found.column("x").to_pylist()]
