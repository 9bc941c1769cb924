"""Autotune: what it does about who waits, and that order and budget stay what they are."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.types.schema import Int64
from paimon_features.lake.catalog import Lake
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import append_arrow
from tests.trainer_bridge.leaks import own_threads
from trainer_bridge.readers.autotune import Autotune, Choices, most_threads
from trainer_bridge.readers.read_stats import ReadStats
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.samplers import WeightedRandomSampler
from trainer_bridge.streams.following_reader import FollowingReader
from trainer_bridge.testing.sample_tables import make_samples

SIZES = (9, 3, 17, 30, 1, 26, 8, 13)
LIMITS = Choices(threads=8, chunk_rows=262_144, prefetch=8)


class Pipeline:
    """A made-up machine: decoding scales to some threads, gathering and training have rates."""

    def __init__(self, per_thread: float, scales_to: int, gather: float, train: float) -> None:
        self.per_thread, self.scales_to = per_thread, scales_to
        self.gather, self.train = gather, train
        self.now_s, self.stats = 0.0, ReadStats()

    def step(self, choices: Choices, rows: int = 100_000) -> None:
        decode = rows / (self.per_thread * min(choices.threads, self.scales_to))
        produce = max(decode, rows / self.gather)
        train = rows / self.train
        step_s = max(produce, train)
        self.now_s += step_s
        self.stats.rows_delivered += rows
        self.stats.decode_wait_s += max(decode - rows / self.gather, 0)
        self.stats.wait_s += step_s - train
        self.stats.blocked_s += step_s - produce


def tuned(machine: Pipeline, steps: int = 400) -> Autotune:
    tuner = Autotune(LIMITS, window_s=0.5, clock=lambda: machine.now_s)
    tuner.start(machine.stats)
    choices = tuner.choices
    for _ in range(steps):
        machine.step(choices)
        choices = tuner.observe(machine.stats)
    return tuner


def test_threads_are_added_as_long_as_decoding_bounds_and_they_help() -> None:
    assert tuned(Pipeline(1e6, 8, 9e7, 9e7)).choices.threads == 8
    # beyond four they do not help: the fifth is taken back, and not tried again
    tuner = tuned(Pipeline(1e6, 4, 9e7, 9e7))
    assert tuner.choices.threads == 4
    assert [line.split(" (")[0] for line in tuner.history] == [
        "threads 2 -> 3",
        "threads 3 -> 4",
        "threads 4 -> 5",
        "threads 5 -> 4",
    ]


def test_a_trainer_that_is_not_starved_is_left_alone() -> None:
    tuner = tuned(Pipeline(1e6, 8, 9e6, 5e5))
    assert tuner.choices == Choices()
    assert tuner.history == []


def test_what_gathering_bounds_gets_larger_chunks_and_no_threads() -> None:
    tuner = tuned(Pipeline(1e7, 8, 2e6, 5e7))
    assert tuner.choices == Choices()
    assert [line.split(" (")[0] for line in tuner.history] == [
        "chunk_rows 65536 -> 131072",
        "chunk_rows 131072 -> 65536",
    ]


def test_chunks_begin_small_so_that_the_first_batch_comes_soon() -> None:
    tuner = Autotune(LIMITS)
    tuner.start(ReadStats())
    rows = [tuner.next_chunk_rows() for _ in range(6)]
    assert rows == [8_192, 16_384, 32_768, 65_536, 65_536, 65_536]
    assert most_threads(remote=True) == 4 * most_threads(remote=False) >= 4


@pytest.mark.parametrize("shuffle", [True, False])
def test_tuning_never_changes_the_order(lake: Lake, shuffle: bool) -> None:
    table = make_samples(lake, SIZES)
    options: dict[str, Any] = {"columns": ["x"], "batch_size": 5, "block_rows": 16}
    before = own_threads()
    with SnapshotReader(lake, table, shuffle=shuffle, threads=0, **options) as reader:
        wanted = [batch["x"].tolist() for batch in reader]
    with SnapshotReader(lake, table, shuffle=shuffle, threads="auto", **options) as reader:
        # decides after every chunk, wildly
        tuner = Autotune(LIMITS, window_s=0.0)
        moves = itertools.cycle([Choices(1, 5, 1), Choices(8, 60, 8), Choices(3, 1, 2)])
        reader._resources.tuner = tuner
        tuner._decide = lambda seen: tuner._choose(next(moves), "a test")  # type: ignore[method-assign]
        states = [reader.state_dict()]
        found = []
        for batch in reader:
            found.append(batch["x"].tolist())
            states.append(reader.state_dict())
        assert found == wanted
        for consumed in (0, 1, 7, len(wanted) - 1):
            reader.load_state_dict(states[consumed])
            assert [batch["x"].tolist() for batch in reader] == wanted[consumed:]
        described = reader.describe()["autotune"]
        assert set(described) == {"threads", "chunk_rows", "prefetch", "history"}
        assert described["history"]
    assert own_threads() <= before


def test_the_byte_budget_holds_whatever_is_chosen(lake: Lake) -> None:
    lake.create(TableSpec("samples", {"x": Int64}))
    for start in range(0, 64_000, 4_000):
        append_arrow(lake, "samples", pa.table({"x": np.arange(start, start + 4_000)}))
    budget = 300_000
    options: dict[str, Any] = {"canonical_streams": 4, "block_rows": 4_000, "batch_size": 500}
    with SnapshotReader(lake, "samples", byte_budget=budget, threads="auto", **options) as reader:
        tuner = reader._resources.tuner
        assert tuner is not None
        tuner.choices = Choices(8, 262_144, 8)
        tuner.limits = LIMITS
        seen = [value for batch in reader for value in batch["x"].tolist()]
        assert sorted(seen) == list(range(64_000))
        # the block that a batch needs is decoded and copied, room or not
        needed = 2 * options["block_rows"] * 8
        assert 0 < reader.stats.peak_bytes <= budget + needed


def test_samplers_and_followers_tune_as_well_and_choices_are_logged(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    table = make_samples(lake, SIZES)
    options: dict[str, Any] = {"columns": ["x"], "batch_size": 5, "threads": "auto"}
    with SnapshotReader(lake, table, **options) as reader:
        sampled = reader.with_sampler(WeightedRandomSampler(np.ones(107), 50))
        sampled._resources.tuner._clock = lambda: 0.0  # type: ignore[union-attr]  # no window ends
        assert len(list(sampled)) == 10
        assert sampled.describe()["autotune"]["history"] == []
        assert sampled._resources.tuner is not reader._resources.tuner
    with FollowingReader(
        lake, table, start=1, until_snapshot=8, poll_interval_s=0.01, **options
    ) as follower:
        assert sum(len(batch) for batch in follower) == 107
        assert follower.stats.rows_delivered == 107
        assert follower.stats.blocks_decoded == 8
    with caplog.at_level(logging.INFO, logger="trainer_bridge.readers.autotune"):
        tuned(Pipeline(1e6, 3, 9e7, 9e7), steps=20)
    assert "autotune: threads 2 -> 3" in caplog.text
