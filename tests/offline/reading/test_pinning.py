"""Pinned snapshots: what is committed later is not seen, and missing data is reported."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pyarrow as pa
import pytest

from paimon_features.core.errors import RequestError, SnapshotExpiredError
from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.offline.reading.pinning import Pin
from paimon_features.offline.training_set import build_training_set, pins_of
from tests.offline.lake_of_views import LakeOfViews
from tests.offline.test_store import SPEND, WORDS, clicks

ROWS = pa.table({"user": [1, 2, 1], "event_time_ms": [60_001, 0, 2 * HOUR_MS]})


@pytest.fixture
def lake(tmp_path: Path) -> LakeOfViews:
    lake = LakeOfViews(tmp_path, SPEND, WORDS)
    lake.commit(clicks((1, 0, 1.25, "a"), (1, 60_000, None, "b"), (2, -5, 3.0, "a")))
    return lake


def pins(lake: LakeOfViews, number: int) -> dict[str, int | None]:
    return {"tiles_spend_g1": number, "events_clicks": number}


def test_named_snapshots_are_read_exactly(lake: LakeOfViews) -> None:
    refs = lake.refs("spend")
    before = lake.store.get_historical_features(refs, ROWS)
    lake.commit(clicks((1, 1, 5.0, "late"), (1, 60_000, 7.0, "late")))  # late: tiles and heads
    assert lake.store.get_historical_features(refs, ROWS, as_of=pins(lake, 1)) == before
    now = lake.store.get_historical_features(refs, ROWS)
    assert now != before
    assert lake.store.get_historical_features(refs, ROWS, as_of=pins(lake, 2)) == now
    nothing: dict[str, int | None] = {"tiles_spend_g1": None, "events_clicks": None}
    empty = lake.store.get_historical_features(refs, ROWS, as_of=nothing)
    assert empty["count_7d"].null_count == 3


def test_a_backfill_of_tiles_does_not_leak_into_the_past(lake: LakeOfViews) -> None:
    #  commits   tiles 1   as_of   tiles 2: a backfill of events that were there all the time
    refs = lake.refs("spend")
    time.sleep(0.02)
    as_of = time.time_ns() // 1_000_000
    time.sleep(0.02)
    before = lake.store.get_historical_features(refs, ROWS, as_of=as_of)
    lake.commit_tiles(clicks((1, -DAY_MS, 40.0, "a"), (2, -DAY_MS, 40.0, "a")))
    assert lake.store.get_historical_features(refs, ROWS, as_of=as_of) == before
    assert lake.store.get_historical_features(refs, ROWS) != before


def test_the_pins_of_a_read_read_the_same_again_in_memory_and_in_parts(lake: LakeOfViews) -> None:
    rng = random.Random(1)
    rows = pa.table(
        {
            "user": [rng.randrange(4) for _ in range(500)],
            "word": [rng.choice("abc") for _ in range(500)],
            "event_time_ms": [rng.randrange(9 * DAY_MS) for _ in range(500)],
        }
    )
    pinned = lake.store.pin(lake.refs())
    before = pinned.read(rows)
    for _ in range(3):
        lake.commit(clicks(*((rng.randrange(4), rng.randrange(DAY_MS), 1.0, "a") for _ in "abc")))
    for memory_mb in (None, 0.01):
        again = lake.store.get_historical_features(
            lake.refs(), rows, as_of=pinned.pins, memory_mb=memory_mb
        )
        assert again.equals(before)


def test_a_training_set_is_read_again_exactly_although_its_snapshots_have_expired(
    lake: LakeOfViews,
) -> None:
    refs = lake.refs("spend")
    build_training_set(lake.store, "churn", refs, ROWS)
    before = lake.store.get_historical_features(refs, ROWS)
    lake.commit(clicks((1, 1, 5.0, "late")))
    for table in ("tiles_spend_g1", "events_clicks"):
        expire(lake, table, 1)
    pinned = pins_of(lake.lake, "churn")
    assert [pin.snapshot_id for pin in pinned] == [1, 1]
    assert lake.store.get_historical_features(refs, ROWS, as_of=pinned) == before


def expire(lake: LakeOfViews, table: str, number: int) -> None:
    """Expiry takes the snapshot's file; what a tag holds stays."""
    Path(lake.lake.path(table), "snapshot", f"snapshot-{number}").unlink()


def test_an_expired_snapshot_is_named_with_those_that_are_there(lake: LakeOfViews) -> None:
    lake.commit(clicks((1, 1, 5.0, "late")))
    expire(lake, "events_clicks", 1)
    with pytest.raises(SnapshotExpiredError, match="'events_clicks' has no snapshot 1; it has 2"):
        lake.store.get_historical_features(lake.refs("spend"), ROWS, as_of=pins(lake, 1))


def test_a_number_of_another_commit_is_distinguished(lake: LakeOfViews) -> None:
    old = (Pin("tiles_spend_g1", 1, commit="5b1c22d09a7e4f10"), Pin("events_clicks", 1))
    with pytest.raises(SnapshotExpiredError, match="'tiles_spend_g1': snapshot 1@5b1c22d0.* but"):
        lake.store.get_historical_features(lake.refs("spend"), ROWS, as_of=old)


def test_tables_that_are_missing_or_not_read_are_named(lake: LakeOfViews) -> None:
    with pytest.raises(RequestError, match="also needs one of 'events_clicks'; name it"):
        lake.store.pin(lake.refs("spend"), as_of={"tiles_spend_g1": 1})
    more = {**pins(lake, 1), "tiles_words_g1": 1}
    with pytest.raises(RequestError, match="'tiles_words_g1', which this read does not need"):
        lake.store.pin(lake.refs("spend"), as_of=more)
