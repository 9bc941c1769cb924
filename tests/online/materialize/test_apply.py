"""Writes of one bucket beside those of another process: each row is added once, or none is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest

from paimon_features.online.materialize.apply import BucketWriter, MarkerMoved
from paimon_features.online.materialize.record_fold import merge, tile_delta
from paimon_features.online.store import MemoryStore, Write
from paimon_features.online.store.codec import RecordLayout
from paimon_features.online.store.keys import ViewKeys
from paimon_features.online.store.markers import Marker
from paimon_features.online.store.store import WriteGuard
from paimon_features.testing.reference.tiler import tile_table
from tests.clicks import START_MS, clicks_view

VIEW = clicks_view()
LAYOUT = RecordLayout(VIEW.compiled)
KEYS = ViewKeys("shop", VIEW.name).bucket("1a2b3c4d", 0)
MARKER = Marker(3, 0, 0, START_MS, 0, 0)
HIGH_MS = START_MS + 100


class DisturbedStore(MemoryStore):
    """A store in which something happens right before the first write of records."""

    def __init__(self, disturb: Callable[[MemoryStore], None]) -> None:
        super().__init__()
        self._disturb: Callable[[MemoryStore], None] | None = disturb

    def compare_and_set_many(
        self, writes: Sequence[Write], run: str | None = None, guard: WriteGuard | None = None
    ) -> list[bool]:
        disturb, self._disturb = self._disturb, None
        if disturb is not None:
            disturb(self)
        return super().compare_and_set_many(writes, run, guard)


def rows(users: Sequence[int], at: int) -> pa.Table:
    events = [{"user": u, "t": START_MS + at, "n": 10**at, "word": "w"} for u in users]
    return tile_table(VIEW, events)


COMMITS = [(at, rows(range(4), at)) for at in (4, 5, 6)]


def records(commits: Sequence[tuple[int, pa.Table]]) -> dict[bytes, bytes]:
    """The records that contain these commits."""
    new = tile_delta(LAYOUT, commits)
    snapshot = max(at for at, _ in commits)
    old: list[bytes | None] = [None] * len(new.entities)
    made = merge(LAYOUT, old, new, bucket=0, incarnation=0, snapshot=snapshot, high_ms=HIGH_MS)
    found = zip(new.entities, made, strict=True)
    return {KEYS.record_stem + entity: record for entity, record in found if record is not None}


def apply(store: MemoryStore) -> int:
    """The pass from snapshot 3 to 6."""
    MemoryStore.compare_and_set_many(store, [Write(KEYS.marker, None, MARKER.to_bytes())])
    run, _ = store.run_and_values([])
    writer = BucketWriter(
        store, LAYOUT, KEYS, bucket=0, incarnation=0, marker=MARKER, run=run, alive=lambda: None
    )
    return writer.apply(tile_delta(LAYOUT, COMMITS), 6, HIGH_MS, lambda _: None)


def test_records_that_another_process_advanced_get_the_rows_they_lack() -> None:
    #  this process    reads nothing ----------------------- 4, 5, 6
    #  another one                    writes 4 and 5 of some
    ahead = dict(list(records(COMMITS[:2]).items())[::2])

    def write_some(store: MemoryStore) -> None:
        writes = [Write(key, None, record) for key, record in ahead.items()]
        assert all(MemoryStore.compare_and_set_many(store, writes))

    store = DisturbedStore(write_some)
    expected = records(COMMITS)
    assert apply(store) == len(expected) == 4
    found = dict(zip(expected, store.get_many(list(expected)), strict=True))
    assert found == expected


@pytest.mark.parametrize("lost", [False, True], ids=["moved", "lost"])
def test_nothing_is_written_once_the_marker_has_moved_or_is_lost(lost: bool) -> None:
    def disturb(store: MemoryStore) -> None:
        store.delete([KEYS.marker])
        if not lost:
            moved = Marker(4, 0, 0, START_MS, 0, 0)
            MemoryStore.compare_and_set_many(store, [Write(KEYS.marker, None, moved.to_bytes())])

    store = DisturbedStore(disturb)
    with pytest.raises(MarkerMoved):
        apply(store)
    assert store.get_many(list(records(COMMITS))) == [None] * 4
