"""A reader that follows a table: against the reference, at every resume point, on every world."""

from __future__ import annotations

import gc
import itertools
import json
import os
import threading
import time
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
from paimon_features.core.types.schema import Int64, String
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.consumers import consumers, delete_consumer
from paimon_features.lake.metadata.snapshots import snapshot
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import append_arrow
from tests.reference.order import reference_stream
from tests.trainer_bridge.leaks import kept_each_time, own_threads
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.streams.following_reader import FollowingReader, Lag
from trainer_bridge.testing.sample_tables import make_samples, sample_rows

SIZES = (9, 3, 17, 30, 1, 26)
OPTIONS: dict[str, Any] = {"columns": ["x"], "seed": 3, "poll_interval_s": 0.01}
Delivered = list[tuple[int, list[int]]]


def taken(reader: FollowingReader) -> Delivered:
    return [(batch.epoch, batch["x"].tolist()) for batch in reader]


def expected(size: int, world: int, rank: int, first: int = 1) -> Delivered:
    """What the naive functions say about the commits from ``first`` on; each is one block."""
    ends = [0, *itertools.accumulate(SIZES)]
    commits = {number: [SIZES[number - 1]] for number in range(first, len(SIZES) + 1)}
    streams = dict.fromkeys(commits, 1)
    return [
        (snapshot, [ends[snapshot - 1] + row for row in rows])
        for snapshot, rows in reference_stream(commits, streams, 3, size, world, rank)
    ]


def test_commits_come_in_their_order_and_shuffled_within_for_every_world(lake: Lake) -> None:
    table = make_samples(lake, SIZES)
    for world in (1, 2, 3, 4):
        counts, seen = set(), []
        for rank in range(world):
            with FollowingReader(
                lake,
                table,
                start=1,
                global_batch_size=8,
                rank=rank,
                world_size=world,
                until_snapshot=len(SIZES),
                threads=rank % 3,
                **OPTIONS,
            ) as reader:
                found = []
                for batch in reader:
                    found.append((batch.epoch, batch["x"].tolist()))
                    seen += batch["x"][: len(batch) - batch.num_padding].tolist()
            assert found == expected(8, world, rank)
            counts.add(len(found))
        assert len(counts) == 1
        assert sorted(seen) == list(range(sum(SIZES)))


@pytest.mark.parametrize("world", [1, 2, 3])
def test_stopped_before_any_batch_and_resumed_on_any_world_it_yields_the_rest(
    lake: Lake, world: int
) -> None:
    table = make_samples(lake, SIZES)
    options = {**OPTIONS, "global_batch_size": 6, "until_snapshot": len(SIZES), "start": 1}
    with FollowingReader(lake, table, world_size=world, **options) as first:
        states = [first.state_dict()]
        for _ in first:
            states.append(first.state_dict())
    for other in (1, 2):
        whole = expected(6, other, other - 1)
        with FollowingReader(
            lake, table, rank=other - 1, world_size=other, **{**options, "seed": 9, "start": "new"}
        ) as second:
            for consumed, state in enumerate(states):
                second.load_state_dict(json.loads(json.dumps(state)))
                assert second.state_dict() == state
                assert taken(second) == whole[consumed:]


def test_the_complete_table_comes_first_and_then_what_is_committed_meanwhile(lake: Lake) -> None:
    #  commits    1    2  |          3    4
    #  reader     [ whole @2       ][ 3 ][ 4 ]
    table = make_samples(lake, [20, 5])
    with FollowingReader(lake, table, batch_size=10, until_snapshot=4, **OPTIONS) as reader:
        found: list[tuple[int, int]] = []
        values: list[int] = []
        for batch in reader:
            found.append((batch.epoch, len(batch)))
            values += batch["x"].tolist()
            if len(found) in (1, 3):
                append_arrow(lake, table, sample_rows(25 if len(found) == 1 else 32, 7))
    assert found == [(2, 10), (2, 10), (2, 5), (3, 7), (4, 7)]
    assert sorted(values) == list(range(39))
    with FollowingReader(lake, table, batch_size=10, start="new", **OPTIONS) as reader:
        assert reader.snapshot_id == 5
        append_arrow(lake, table, sample_rows(39, 4))
        assert sorted(next(iter(reader))["x"].tolist()) == [39, 40, 41, 42]


def test_a_table_without_a_commit_is_waited_for(lake: Lake) -> None:
    lake.create(TableSpec("samples", {"x": Int64}))
    with FollowingReader(lake, "samples", batch_size=4, consumer="c", **OPTIONS) as reader:
        assert reader.lag() == Lag(0, 0, 0)
        late = threading.Timer(0.2, append_arrow, (lake, "samples", pa.table({"x": np.arange(3)})))
        late.start()
        assert sorted(next(iter(reader))["x"].tolist()) == [0, 1, 2]
        late.join()


def test_the_loop_ends_when_stopped_or_when_nothing_is_committed(lake: Lake) -> None:
    table = make_samples(lake, [20, 20])
    reader = FollowingReader(lake, table, start=1, batch_size=10, idle_timeout_s=0.1, **OPTIONS)
    started = time.monotonic()
    assert [epoch for epoch, _ in taken(reader)] == [1, 1, 2, 2]
    assert time.monotonic() - started >= 0.1
    # the next iteration continues from there
    append_arrow(lake, table, sample_rows(40, 5))
    assert [epoch for epoch, _ in taken(reader)] == [3]
    patient = FollowingReader(lake, table, start=2, batch_size=10, **OPTIONS)
    epochs = []
    for batch in patient:
        epochs.append(batch.epoch)
        if epochs == [2, 2, 3]:  # it waits for a commit when it is stopped
            threading.Timer(0.3, patient.stop).start()
    assert epochs == [2, 2, 3]
    agreed = FollowingReader(lake, table, start=1, batch_size=10, **OPTIONS)
    agreed.stop(after_snapshot=2)
    assert [epoch for epoch, _ in taken(agreed)] == [1, 1, 2, 2]
    inside = FollowingReader(lake, table, start=1, batch_size=10, **OPTIONS)
    for number, _ in enumerate(inside):
        if number == 1:
            inside.stop()
    assert inside.state_dict()["snapshot_id"] == 2


def test_a_consumer_protects_what_was_not_read_and_stays_after_closing(lake: Lake) -> None:
    table = make_samples(lake, [10, 10, 10, 10])
    options = {**OPTIONS, "batch_size": 10, "until_snapshot": 4}
    with FollowingReader(lake, table, start=2, consumer="run-1", **options) as reader:
        assert consumers(lake, table) == {"run-1": 2}
        held = [consumers(lake, table)["run-1"] for _ in reader]
    # a commit is let go when the one after it has been handed out
    assert held == [2, 3, 4]
    assert consumers(lake, table) == {"run-1": 4}
    with FollowingReader(
        lake, table, start=1, consumer="run-2", auto_release=False, **options
    ) as reader:
        batches = iter(reader)
        next(batches)
        state = reader.state_dict()
        list(batches)
        assert consumers(lake, table)["run-2"] == 1
        reader.release(state)
        assert consumers(lake, table)["run-2"] == 2
        reader.forget()
        assert "run-2" not in consumers(lake, table)
    with FollowingReader(lake, table, start=1, consumer="run-3", rank=1, world_size=2, **options):
        assert "run-3" not in consumers(lake, table)
    with FollowingReader(lake, table, start=1, consumer="run-4", **options) as reader:
        delete_consumer(lake, table, "run-4")
        with pytest.raises(TableError, match="unknown consumer 'run-4'"):
            list(reader)


def test_a_reader_reports_how_far_it_is_behind(lake: Lake) -> None:
    table = make_samples(lake, [10, 20, 30])
    now_ms = snapshot(lake, table, 2).time_ms + 5_000
    with FollowingReader(
        lake, table, start=2, batch_size=8, clock=lambda: now_ms, until_snapshot=3, **OPTIONS
    ) as reader:
        lag = reader.lag()
        assert (lag.snapshots, lag.rows) == (2, 50)
        assert lag.age_ms == 5_000
        next(iter(reader))
        assert (reader.lag().snapshots, reader.lag().rows) == (2, 42)
        list(reader)
        assert reader.lag() == Lag(0, 0, 0)
    with FollowingReader(lake, table, batch_size=8, **OPTIONS) as reader:
        assert reader.lag().rows == 60
    os.unlink(f"{lake.path(table)}/snapshot/snapshot-1")  # the commit before it has expired
    with FollowingReader(lake, table, start=2, batch_size=8, **OPTIONS) as reader:
        assert reader.lag().rows == 50
    os.unlink(f"{lake.path(table)}/snapshot/snapshot-2")
    os.unlink(f"{lake.path(table)}/snapshot/snapshot-3")


def test_a_stream_without_a_consumer_holds_nothing_and_knows_its_columns(lake: Lake) -> None:
    table = make_samples(lake, [10])
    with FollowingReader(lake, table, start=1, batch_size=4, until_snapshot=1, **OPTIONS) as reader:
        assert reader.column_dtypes() == {"x": np.dtype(np.int64)}
        assert [spec.dtype for spec in reader.column_specs().values()] == [np.dtype(np.int64)]
        batches = iter(reader)
        next(batches)
        reader.release(reader.state_dict())
        reader.forget()
        assert consumers(lake, table) == {}
        assert len(list(batches)) == 2


def test_a_table_that_was_created_again_or_lost_its_commits_is_refused(lake: Lake) -> None:
    table = make_samples(lake, [10, 10, 10])
    options = {**OPTIONS, "batch_size": 5, "until_snapshot": 3}
    reader = FollowingReader(lake, table, start=1, **options)
    states = []
    for _ in reader:
        states.append(reader.state_dict())
    os.unlink(f"{lake.path(table)}/snapshot/snapshot-1")
    with pytest.raises(SnapshotExpiredError, match="no snapshot 1; it has 2 to 3"):
        reader.load_state_dict(states[0])
    with pytest.raises(SnapshotExpiredError, match="no snapshot 9"):
        FollowingReader(lake, table, start=9, **options)
    lake.drop(table)
    make_samples(lake, [10, 10, 10])
    for state in states[2:]:
        with pytest.raises(RequestError, match="rolled back or created again"):
            reader.load_state_dict(state)
    # a state of a release that kept no mark of the table's history: the time of the commit tells
    with pytest.raises(RequestError, match="snapshot 3 was committed at .* start again: start="):
        reader.load_state_dict({**states[-1], "history": None})
    with pytest.raises(RequestError, match="of table 'other' does not fit"):
        reader.load_state_dict({**states[0], "table": "other"})
    with SnapshotReader(lake, table, columns=["x"], batch_size=5) as other:
        with pytest.raises(RequestError, match="missing or unknown fields"):
            reader.load_state_dict(other.state_dict())
        with pytest.raises(RequestError, match="missing or unknown fields"):
            other.load_state_dict(states[0])


def test_a_table_created_again_is_refused_although_the_number_read_last_has_expired(
    lake: Lake,
) -> None:
    table = make_samples(lake, [10, 10])
    options = {**OPTIONS, "batch_size": 10, "until_snapshot": 2}
    with FollowingReader(lake, table, start=1, **options) as reader:
        assert len(taken(reader)) == 2
        state = reader.state_dict()
        lake.drop(table)
        make_samples(lake, [10, 10, 10, 10])
        for expired in (1, 2):
            os.unlink(f"{lake.path(table)}/snapshot/snapshot-{expired}")
        with pytest.raises(RequestError, match="up to 2 were read.* created again since"):
            reader.load_state_dict(state)
        earlier = {name: value for name, value in state.items() if name != "history"}
        reader.load_state_dict(earlier)


def test_commits_that_replace_rows_are_refused_and_those_that_drop_some_have_no_batches(
    lake: Lake,
) -> None:
    lake.create(TableSpec("daily", {"x": Int64, "day": Int64}, partition_by=("day",)))
    for day in (1, 2):
        append_arrow(lake, "daily", pa.table({"x": [day, day], "day": [day, day]}))
    builder = lake.table("daily").new_batch_write_builder()
    commit = builder.new_commit()
    commit.truncate_partitions([{"day": 1}])
    commit.close()
    append_arrow(lake, "daily", pa.table({"x": [3], "day": [3]}))
    with FollowingReader(
        lake, "daily", start=1, batch_size=4, until_snapshot=4, **OPTIONS
    ) as reader:
        assert [epoch for epoch, _ in taken(reader)] == [1, 2, 4]
    builder = lake.table("daily").new_batch_write_builder().overwrite()
    write, commit = builder.new_write(), builder.new_commit()
    write.write_arrow(pa.table({"x": [9], "day": [3]}))
    commit.commit(write.prepare_commit())
    write.close()
    commit.close()
    with (
        FollowingReader(lake, "daily", start=4, batch_size=4, **OPTIONS) as reader,
        pytest.raises(TableError, match=r"snapshot 5 \(OVERWRITE\) replaces rows"),
    ):
        list(reader)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"start": 0}, "expected 'whole', 'new' or a snapshot id"),
        ({"start": "latest"}, "expected 'whole', 'new' or a snapshot id"),
        ({"drop_last": True}, "drop_last= is for SnapshotReader"),
        ({"idle_timeout_s": 1.0, "world_size": 2}, "each rank would end by its own clock"),
        ({"poll_interval_s": 0}, "expected more than 0"),
    ],
)
def test_arguments_that_cannot_mean_anything_are_refused(
    lake: Lake, arguments: dict[str, Any], message: str
) -> None:
    table = make_samples(lake, [3])
    with pytest.raises(ConfigurationError, match=message):
        FollowingReader(lake, table, **{"columns": ["x"], "batch_size": 2, **arguments})


def test_tables_whose_commits_do_not_simply_add_rows_are_refused(lake: Lake) -> None:
    lake.create(TableSpec("keyed", {"x": Int64}, primary_key=("x",), options={"bucket": "1"}))
    with pytest.raises(TableError, match=r"has the primary key \(x\).*Follow an append table"):
        FollowingReader(lake, "keyed", batch_size=1)
    options = {"deletion-vectors.enabled": "true"}
    lake.create(TableSpec("deleting", {"x": Int64}, options=options))
    with pytest.raises(TableError, match="deletion-vectors.enabled=true, so that commits also"):
        FollowingReader(lake, "deleting", batch_size=1)
    lake.create(TableSpec("plain", {"x": Int64}))
    with (
        FollowingReader(lake, "plain", batch_size=1) as reader,
        pytest.raises(ConfigurationError, match="num_workers=2"),
    ):
        reader.iterate(0, 2)


def test_breaking_off_and_closing_leave_no_thread_and_no_file(lake: Lake) -> None:
    table = make_samples(lake, SIZES)
    threads = own_threads()

    def following() -> FollowingReader:
        return FollowingReader(lake, table, start=1, batch_size=4, threads=3, **OPTIONS)

    def break_off_and_close() -> None:
        reader = following()
        for _ in range(3):
            for batch in reader:
                del batch
                break
            gc.collect()
            assert own_threads() <= threads
        reader.close()
        reader.close()

    assert kept_each_time(break_off_and_close) <= 0
    # a loop that runs ends when the reader goes elsewhere, and says so
    reader = following()
    state = reader.state_dict()
    running = iter(reader)
    next(running)
    reader.load_state_dict(state)
    with pytest.raises(RequestError, match="moved by load_state_dict"):
        next(running)
    assert own_threads() <= threads


@pytest.mark.torch
def test_a_stream_goes_through_the_torch_adapter_and_a_data_loader(lake: Lake) -> None:
    from torch.utils.data import DataLoader

    from trainer_bridge.adapters.torch import loader

    table = make_samples(lake, SIZES)
    options: dict[str, Any]
    options = {**OPTIONS, "start": 1, "global_batch_size": 8, "until_snapshot": len(SIZES)}
    threads = own_threads()
    wanted = [values for _, values in expected(8, 1, 0)]
    with FollowingReader(lake, table, **options) as reader:
        batches = loader(reader)
        first = next(iter(batches))["x"].tolist()
        state = batches.state_dict()
        rest = [batch["x"].tolist() for batch in DataLoader(batches, batch_size=None)]
        assert [first, *rest] == wanted
        batches.load_state_dict(state)
        assert [batch["x"].tolist() for batch in batches] == wanted[1:]
        with pytest.raises(ConfigurationError, match="no rows by index"):
            batches[0]
        for options in ({"rank": 0, "world_size": 1}, {"restart": True}, {"pin_memory": True}):
            with pytest.raises(ConfigurationError, match="where its FollowingReader is made"):
                loader(reader, **options)
        batches.close()
        assert own_threads() <= threads


def make_cities(lake: Lake) -> None:
    lake.create(TableSpec("cities", {"x": Int64, "city": String}))
    for part in (["oslo", "rome"], ["bern", "rome"], ["rome", "rome"]):
        append_arrow(lake, "cities", pa.table({"x": np.arange(2), "city": part}))


@pytest.mark.parametrize("start", [1, "whole"])
def test_where_leaves_rows_out_of_every_commit_and_is_part_of_the_state(
    lake: Lake, tmp_path: Path, start: Any
) -> None:
    make_cities(lake)
    options: dict[str, Any] = {"start": start, "batch_size": 1, "shuffle": False, "columns": ["x"]}
    options |= {"where": "city = 'rome'", "cache": tmp_path / "masks"}
    append_arrow(lake, "cities", pa.table({"x": [7], "city": ["bern"]}))  # no row of it is left
    append_arrow(lake, "cities", pa.table({"x": [8], "city": ["rome"]}))
    with FollowingReader(lake, "cities", until_snapshot=5, **options) as reader:
        batches = iter(reader)
        seen = [next(batches)["x"].tolist() for _ in range(4)]
        state = reader.state_dict()
        assert [*seen, *(batch["x"].tolist() for batch in batches)] == [[1], [1], [0], [1], [8]]
    assert (tmp_path / "masks").is_dir() == (start == "whole")
    with FollowingReader(lake, "cities", until_snapshot=5, **options) as reader:
        reader.load_state_dict(state)
        assert [batch["x"].tolist() for batch in reader] == [[8]]
    with (
        FollowingReader(lake, "cities", columns=["x"], batch_size=1) as reader,
        pytest.raises(RequestError, match="a state of the rows where city = 'rome' does not fit"),
    ):
        reader.load_state_dict(state)


def test_declared_codes_are_the_same_in_every_commit(lake: Lake) -> None:
    make_cities(lake)
    codes = {"city": ["bern", "oslo", "rome"]}
    with FollowingReader(
        lake, "cities", start=1, batch_size=2, until_snapshot=3, shuffle=False, codes=codes
    ) as reader:
        assert [batch["city"].tolist() for batch in reader] == [[1, 2], [0, 2], [2, 2]]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"tag": "no-such-tag"}, ConfigurationError, "tag= is for SnapshotReader"),
        ({"as_of_ms": 1}, ConfigurationError, "as_of_ms= is for SnapshotReader"),
        ({"snapshot_id": 1}, ConfigurationError, "snapshot_id= is for SnapshotReader"),
        ({"epoch": 1}, ConfigurationError, "epoch= is for SnapshotReader"),
        ({"drop_last": True}, ConfigurationError, "drop_last= is for SnapshotReader"),
        ({"on_bad_file": "skip"}, ConfigurationError, "on_bad_file= is for SnapshotReader"),
        ({"prepare": None}, ConfigurationError, "prepare= is for SnapshotReader"),
        ({"codes": ["city"]}, ConfigurationError, "declare them for all commits"),
        ({"shufle": True}, TypeError, "unexpected keyword argument 'shufle'"),
        ({"columns": ["z"]}, UnknownNameError, "'z'"),
        ({"where": "z = 1"}, RequestError, "z"),
        ({"fill": {"z": 0}}, ConfigurationError, "'z'"),
        ({"threads": -1}, ConfigurationError, "threads=-1"),
        ({"byte_budget": 0}, ConfigurationError, "byte_budget=0"),
        ({"output": "pandas"}, ConfigurationError, "output='pandas'"),
        ({"block_rows": 0}, ConfigurationError, "block_rows=0"),
        ({"batch_size": 0}, ConfigurationError, "0 rows"),
        ({"columns": ["city"]}, RequestError, "'city'"),
    ],
)
def test_an_option_that_would_be_ignored_or_fail_later_is_refused_at_once(
    lake: Lake, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    make_cities(lake)
    with pytest.raises(error, match=words):
        FollowingReader(lake, "cities", **{"batch_size": 2, "columns": ["x"], **options})


@pytest.mark.torch
def test_a_loader_waits_for_the_first_commit_of_a_table(lake: Lake) -> None:
    from trainer_bridge.adapters.torch import loader

    lake.create(TableSpec("empty", {"x": Int64}))
    with FollowingReader(lake, "empty", batch_size=2, until_snapshot=1, poll_interval_s=0.01) as r:
        assert list(r.column_dtypes()) == ["x"]
        tensors = loader(r)
        writer = threading.Timer(
            0.1, append_arrow, (lake, "empty", pa.table({"x": pa.array([1, 2])}))
        )
        writer.start()
        try:
            assert [sorted(batch["x"].tolist()) for batch in tensors] == [[1, 2]]
        finally:
            writer.join()
