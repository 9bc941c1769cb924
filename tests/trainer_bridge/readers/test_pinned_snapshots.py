"""Every way to read a table at a snapshot: the same rows again, or an error, never others."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from paimon_features.core.errors import RequestError, SnapshotExpiredError
from paimon_features.core.times.clock import now_ms
from paimon_features.lake import Lake, append_arrow
from paimon_features.lake.metadata.rollback import roll_back_table
from paimon_features.lake.metadata.snapshots import SnapshotRef, latest_snapshot, snapshot_ids
from paimon_features.offline.inputs.row_source import row_source
from paimon_features.testing.sizes import every_seed
from trainer_bridge.dataframe import Dataset
from trainer_bridge.preprocess import PreprocessPipeline
from trainer_bridge.readers.scanning import TableScan
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.testing.sample_tables import make_samples, sample_rows

TABLE = "samples"
Read = Callable[..., list[int]]


def by_reader(lake: Lake, **pin: Any) -> list[int]:
    with SnapshotReader(lake, TABLE, columns=["x"], batch_size=4, shuffle=False, **pin) as reader:
        return [x for batch in reader for x in batch["x"].tolist()]


def by_scan(lake: Lake, **pin: Any) -> list[int]:
    parts = TableScan.pin(lake, TABLE, **pin).tables(["x"])
    return [x for part in parts for x in part["x"].to_pylist()]


def by_dataset(lake: Lake, **pin: Any) -> list[int]:
    batches = Dataset.from_table(lake, TABLE, ["x"], **pin).batch(4)
    return [int(x) for batch in batches for x in batch["x"]]


def by_pipeline(lake: Lake, snapshot_id: SnapshotRef) -> list[int]:
    pipeline = PreprocessPipeline(lake, TABLE, snapshot_id=snapshot_id).select("x").batch(4)
    with pipeline.open() as batches:
        return [x for batch in batches for x in batch["x"].tolist()]


def by_name(lake: Lake, snapshot_id: SnapshotRef) -> list[int]:
    rows = row_source(f"{TABLE}@{snapshot_id}", lake).chunks().take(1 << 20)
    found: list[int] = rows["x"].to_pylist()
    return found


def reads_of(pin: Mapping[str, Any]) -> tuple[Read, ...]:
    numbered = (by_pipeline, by_name) if "snapshot_id" in pin else ()
    return (by_reader, by_scan, by_dataset, *numbered)


def tick() -> int:
    """A time at which nothing was committed, later than every commit."""
    time = start = now_ms()
    while time <= start:
        time = now_ms()
    return time


class Table:
    """A table with a random history, and what was read of it: (pins, state, rows)."""

    def __init__(self, lake: Lake, rng: random.Random) -> None:
        self.lake, self.rng, self.next = lake, rng, 0
        self.reads: list[tuple[list[Mapping[str, Any]], dict[str, Any], list[int]]] = []
        self.create()

    def create(self) -> None:
        tick()
        make_samples(self.lake, [])
        self.append()

    def append(self) -> None:
        tick()
        count = self.rng.randrange(1, 6)
        append_arrow(self.lake, TABLE, sample_rows(self.next, count))
        self.next += count

    def recreate(self) -> None:
        tick()
        self.lake.drop(TABLE)
        self.create()

    def roll_back(self) -> None:
        tick()
        ids = snapshot_ids(self.lake, TABLE)
        if len(ids) > 1:
            roll_back_table(self.lake, TABLE, self.rng.choice(ids[:-1]))
            self.append()

    def expire(self) -> None:
        ids = snapshot_ids(self.lake, TABLE)
        if len(ids) > 1:
            os.unlink(f"{self.lake.path(TABLE)}/snapshot/snapshot-{ids[0]}")

    def remember(self) -> None:
        time, newest = tick(), latest_snapshot(self.lake, TABLE)
        assert newest is not None
        with SnapshotReader(self.lake, TABLE, columns=["x"], batch_size=1) as reader:
            state = reader.state_dict()
        pins = [{"snapshot_id": newest.id}, {"snapshot_id": newest.ref}, {"as_of_ms": time}]
        self.reads.append((pins, state, sorted(by_reader(self.lake))))

    def replay(self, pin: Mapping[str, Any], state: dict[str, Any], rows: list[int]) -> int:
        """Read with one pin and the state; the number of reads that were possible."""
        same = 0
        for read in reads_of(pin):
            try:
                found = read(self.lake, **pin)
            except SnapshotExpiredError:
                continue
            assert sorted(found) == rows, f"{read.__name__} {pin}: {found}, then {rows}"
            same += 1
        with SnapshotReader(self.lake, TABLE, columns=["x"], batch_size=1) as reader:
            try:
                reader.load_state_dict(state)
            except (SnapshotExpiredError, RequestError):
                return same
            assert sorted(x for batch in reader for x in batch["x"].tolist()) == rows
        return same + 1


@pytest.mark.long
@every_seed(3)
def test_a_pin_reads_the_same_rows_again_or_is_an_error(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = random.Random(seed)
    table = Table(Lake.open(tmp_path_factory.mktemp("lake"), "features"), rng)
    table.remember()
    same = 0
    for _ in range(10):
        rng.choice([table.append, table.append, table.recreate, table.roll_back, table.expire])()
        table.remember()
        for pins, state, rows in rng.sample(table.reads, min(3, len(table.reads))):
            same += table.replay(rng.choice(pins), state, rows)
    assert same
