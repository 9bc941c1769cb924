"""Reads that do not fit into memory give the same bytes as those that do."""

from __future__ import annotations

import gc
import os
import random
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.types.schema import Float64, Int64, String, arrow_schema
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import Entity, EventSource, FeatureView
from paimon_features.definitions.aggregates import Count, DecayedSum, Last, Max, Mean, Sum
from paimon_features.offline.reading import partitioned_join as partitioned
from paimon_features.offline.reading import view_join, view_scan
from paimon_features.offline.reading.partitioned_join import PartitionedView
from paimon_features.offline.reading.spill import SpillFile
from paimon_features.testing.generators import random_events
from paimon_features.testing.sizes import seeds
from tests import generators
from tests.long_cases import quick_cases
from tests.offline.lake_of_views import LakeOfViews

TINY = 0.01
"""Megabytes: some ten rows at a time."""
SOURCE = EventSource(
    "clicks", schema={"user": Int64, "t": Int64, "x": Float64, "word": String}, event_time="t"
)
BY_USER = FeatureView(
    "by_user",
    source=SOURCE,
    entity=Entity("user", keys={"user": Int64}),
    features=[
        Sum("x", windows=["1h", "7d"], name="floats"),
        DecayedSum("x", half_life="1d", windows=["7d"]),
        Last("word", windows=["1d"]),
        Max("x"),
    ],
    ttl="3d",
)
BY_WORD = FeatureView(
    "by_word",
    source=SOURCE,
    entity=Entity("pair", keys={"word": String, "user": Int64}),
    features=[Count(windows=["1d", "7d"]), Mean("x", windows=["7d"])],
    tile="1d",
)


def events(rng: random.Random, count: int) -> pa.Table:
    rows = {
        "user": [rng.choice([None, *range(40)]) for _ in range(count)],
        "t": [rng.randrange(9 * DAY_MS) for _ in range(count)],
        "x": [rng.choice([None, rng.gauss(0, 1e6)]) for _ in range(count)],
        "word": [
            rng.choice([None, "a", "b", "a long word, longer than seven"]) for _ in range(count)
        ],
    }
    return pa.table(rows, schema=arrow_schema(SOURCE.schema))


def entity_rows(rng: random.Random, count: int, users: int = 45) -> pa.Table:
    return pa.table(
        {
            "n": pa.array(range(count)),
            "user": pa.array([rng.choice([None, *range(users)]) for _ in range(count)], pa.int64()),
            "word": [rng.choice([None, "a", "b", "c"]) for _ in range(count)],
            "event_time_ms": [rng.randrange(-DAY_MS, 10 * DAY_MS) for _ in range(count)],
            "kind": pa.array([rng.choice("xyz") for _ in range(count)]).dictionary_encode(),
        }
    )


@pytest.fixture
def lake(tmp_path: Path) -> LakeOfViews:
    lake = LakeOfViews(tmp_path, BY_USER, BY_WORD)
    rng = random.Random(3)
    for _ in range(3):
        lake.commit(events(rng, 300))
    return lake


@pytest.mark.long
def test_a_tiny_memory_gives_the_same_bytes(
    lake: LakeOfViews, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[int] = []
    join = PartitionedView._join

    def counted(self: PartitionedView, *args: object) -> None:
        parts.append(1)
        join(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(PartitionedView, "_join", counted)
    rows = entity_rows(random.Random(1), 3_000)
    whole = lake.store.get_historical_features(lake.refs(), rows, statuses=True)
    assert not parts
    for memory_mb in (TINY, 0.1, 1):
        got = lake.store.get_historical_features(
            lake.refs(), rows, statuses=True, memory_mb=memory_mb
        )
        assert got.equals(whole)
        assert parts
    assert len(parts) > 100


@pytest.mark.parametrize("seed", seeds(8))
def test_random_definitions_give_the_same_bytes_in_parts(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    view = generators.random_view(rng)
    lake = LakeOfViews(tmp_path, view)
    raw = random_events(rng, view, 80)
    lake.commit(raw[:50])
    lake.commit(raw[50:])
    keys, as_of_ms = generators.random_rows(rng, view, raw, 300)
    rows = keys.append_column("event_time_ms", pa.array(as_of_ms, pa.int64()))
    whole = lake.store.get_historical_features(lake.refs(), rows, statuses=True)
    parts = lake.store.get_historical_features(lake.refs(), rows, statuses=True, memory_mb=TINY)
    assert parts.equals(whole)


@pytest.mark.parametrize("margin", quick_cases([1.0, 0.0], 0.0))
def test_of_large_tables_only_the_requested_entities_are_held(
    lake: LakeOfViews, monkeypatch: pytest.MonkeyPatch, margin: float
) -> None:
    """Two of forty users fit into less than all of them; a wrong estimate (0.0) is noticed."""
    parted: list[bool] = []
    run = PartitionedView._run

    def noted(self: PartitionedView, *args: object) -> None:
        parted.append(True)
        run(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(PartitionedView, "_run", noted)
    monkeypatch.setattr(view_join, "_SHARE_MARGIN", margin)
    monkeypatch.setattr(view_scan, "SMALL_FILE_ROWS", 5)
    refs = lake.refs("by_user")
    for users in ([3, 17], range(40)):
        rows = pa.table({"user": users, "event_time_ms": [9 * DAY_MS] * len(users)})
        whole = lake.store.get_historical_features(refs, rows)
        assert not parted
        some = lake.store.get_historical_features(refs, rows, memory_mb=0.06)
        assert some.equals(whole)
        assert bool(parted) == (len(users) == 40)
        parted.clear()


def test_one_entity_with_all_rows_is_joined_in_passes(lake: LakeOfViews) -> None:
    rows = pa.table(
        {
            "user": np.full(2_000, 7),
            "event_time_ms": np.random.default_rng(0).integers(0, 9 * DAY_MS, 2_000),
        }
    )
    refs = lake.refs("by_user")
    whole = lake.store.get_historical_features(refs, rows)
    assert lake.store.get_historical_features(refs, rows, memory_mb=TINY).equals(whole)
    assert whole["max_x"].null_count < 2_000


@pytest.mark.long
def test_a_stream_that_can_be_read_once_gives_the_same(lake: LakeOfViews) -> None:
    rows = entity_rows(random.Random(2), 1_000)
    whole = lake.store.get_historical_features(lake.refs(), rows)
    for memory_mb in (TINY, None):
        reader = pa.RecordBatchReader.from_batches(rows.schema, iter(rows.to_batches(77)))
        stream = lake.store.stream_historical_features(lake.refs(), reader, memory_mb=memory_mb)
        assert isinstance(stream, pa.RecordBatchReader)
        assert stream.schema == whole.schema
        assert stream.read_all().equals(whole)


@pytest.mark.long
def test_what_is_put_aside_has_no_name_and_is_gone_with_the_stream(
    lake: LakeOfViews, tmp_path: Path
) -> None:
    folder = tmp_path / "aside"
    folder.mkdir()
    spills: list[SpillFile] = []
    make = SpillFile.__init__

    def noted(self: SpillFile, folder: str | None = None) -> None:
        make(self, folder)
        spills.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpillFile, "__init__", noted)
        stream = lake.store.stream_historical_features(
            lake.refs(),
            entity_rows(random.Random(2), 500),
            memory_mb=TINY,
            spill_folder=str(folder),
        )
    assert spills
    assert not os.listdir(folder)
    assert sum(1 for _ in stream) > 1
    assert all(spill._file.closed for spill in spills)


@pytest.mark.long
def test_a_stream_that_is_dropped_halfway_is_let_go(lake: LakeOfViews) -> None:
    rows = entity_rows(random.Random(2), 500)
    stream = lake.store.stream_historical_features(lake.refs(), rows, memory_mb=TINY)
    stream.read_next_batch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del stream
        gc.collect()


@pytest.mark.long
def test_an_interrupt_leaves_nothing_open(
    lake: LakeOfViews, monkeypatch: pytest.MonkeyPatch
) -> None:
    spills: list[SpillFile] = []
    make = SpillFile.__init__

    def noted(self: SpillFile, folder: str | None = None) -> None:
        make(self, folder)
        spills.append(self)

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SpillFile, "__init__", noted)
    rows = entity_rows(random.Random(2), 500)
    with pytest.raises(KeyboardInterrupt):
        lake.store.get_historical_features(lake.refs(), rows, memory_mb=TINY, progress=interrupt)
    assert spills
    assert all(spill._file.closed for spill in spills)


@pytest.mark.long
def test_progress_counts_answers_and_rows_put_out(lake: LakeOfViews) -> None:
    seen: list[tuple[int, int]] = []
    lake.store.get_historical_features(
        lake.refs(),
        entity_rows(random.Random(2), 500),
        memory_mb=TINY,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == sorted(seen)
    assert seen[-1] == (1500, 1500)  # two views, and once out


def test_events_and_tiles_that_nobody_requested_are_not_spilled(
    lake: LakeOfViews, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[int] = []
    add = partitioned.SpilledPartitions.add

    def counted(
        self: partitioned.SpilledPartitions, table: pa.Table, partitions: np.ndarray
    ) -> None:
        added.append(table.num_rows)
        add(self, table, partitions)

    monkeypatch.setattr(partitioned.SpilledPartitions, "add", counted)
    rows = pa.table({"user": [3] * 400, "event_time_ms": [5 * DAY_MS + 1] * 400})
    lake.store.get_historical_features(lake.refs("by_user"), rows, memory_mb=TINY)
    assert sum(added) < 200  # of about 1,800 tiles and events, those of one user


def test_a_wrong_row_far_down_is_named_by_its_number(lake: LakeOfViews) -> None:
    rows = entity_rows(random.Random(2), 500)
    times = rows["event_time_ms"].to_pylist()
    times[444] = None
    rows = rows.set_column(3, "event_time_ms", pa.array(times, pa.int64()))
    with pytest.raises(ValueError, match="first in row 444"):
        lake.store.get_historical_features(lake.refs(), rows, memory_mb=TINY)
