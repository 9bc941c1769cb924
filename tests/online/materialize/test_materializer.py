"""The materializer is exact and idempotent, alone, in shards, and next to others."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from paimon_features.core.errors import ConfigurationError, GenerationError, StoreNotReadyError
from paimon_features.core.process.waiting import wait_until
from paimon_features.core.windows import HOUR_MS
from paimon_features.definitions.aggregates import Sum
from paimon_features.lake.metadata.consumers import consumers
from paimon_features.online.materialize import MaterializeProgress, Materializer, apply
from paimon_features.online.store import MemoryStore, OnlineStore
from paimon_features.online.store.markers import Marker
from paimon_features.online.store.store import Write, WriteGuard
from tests.clicks import ClickStream, clicks_view, wrong_answers
from tests.patient_stores import patient_store
from tests.stored import Stored
from tests.tile_lake import TileLake
from tests.waiting import LONG_S

VIEW = clicks_view()


def test_an_empty_table_is_an_empty_view(
    lake: TileLake, stream: ClickStream, store: OnlineStore
) -> None:
    result = lake.materializer(store).run_once()
    assert result.caught_up
    assert result.applied_snapshot == 0
    assert wrong_answers(VIEW, store, []) == []
    stream.commit()
    assert lake.materializer(store).run_once().applied_snapshot == 1
    assert wrong_answers(VIEW, store, stream.events) == []


def test_applying_a_snapshot_again_changes_nothing(
    lake: TileLake, stream: ClickStream, store: OnlineStore, stored: Stored
) -> None:
    materializer = lake.materializer(store)
    materializer.run_once()
    stream.commit()
    materializer.run_once()
    before_markers, before = stored.markers(), stored.records()
    stream.commit()
    stream.commit()
    materializer.run_once()
    after = stored.records()
    # as after a crash: records are written, but markers are not
    stored.put(before_markers)
    assert materializer.run_once().records == 0
    assert stored.records() == after != before
    assert wrong_answers(VIEW, store, stream.events) == []


@pytest.mark.parametrize(
    ("store", "lifetime"),
    [
        ("memory", True),
        pytest.param("redis", False, marks=pytest.mark.redis),
        pytest.param("memory", False, marks=pytest.mark.long),
        pytest.param("redis", True, marks=[pytest.mark.redis, pytest.mark.long]),
    ],
    indirect=["store"],
)
def test_a_long_stream_is_exact_after_every_pass(
    tmp_path: Path, store: OnlineStore, stored: Stored, lifetime: bool
) -> None:
    view = clicks_view(lifetime)
    lake = TileLake(tmp_path / "other", view, buckets=3)
    stream = ClickStream(lake, 1)
    materializer = lake.materializer(store, max_rows=25)
    for _ in range(15):
        for _ in range(stream.rng.randrange(3)):
            stream.commit(stream.rng.choice((1, 10, 60)), stream.rng.choice((1, 60, 3000)))
        materializer.run_once()
        assert wrong_answers(view, store, stream.events) == []
    assert len(stored.epochs()) == 1
    assert stored.state().building is None


def test_markers_note_whether_their_materializer_follows(
    lake: TileLake, stream: ClickStream, store: OnlineStore, stored: Stored
) -> None:
    def followed() -> set[bool]:
        return {Marker.from_bytes(raw).followed for raw in stored.markers().values()}

    stream.commit()
    lake.materializer(store).run_once()
    assert followed() == {False}
    stop = threading.Event()
    # what was confirmed a moment ago is written again if it is followed from now on
    lake.materializer(store).follow(1, stop, on_pass=lambda done: stop.set())
    assert followed() == {True}
    stream.commit()
    lake.materializer(store).run_once()
    assert followed() == {False}


def test_a_rebuild_equals_the_result_of_following(
    lake: TileLake, stream: ClickStream, store: OnlineStore
) -> None:
    built = MemoryStore()
    materializer = lake.materializer(store)
    for _ in range(6):
        stream.commit(minutes=2000)
        materializer.run_once()
    lake.materializer(built, max_rows=7).run_once()
    assert wrong_answers(VIEW, store, stream.events) == []
    assert wrong_answers(VIEW, built, stream.events) == []


def test_a_commit_starts_a_pass_before_the_next_poll(lake: TileLake, stream: ClickStream) -> None:
    store, stop = MemoryStore(), threading.Event()
    applied: queue.Queue[int] = queue.Queue()

    def passed(result: MaterializeProgress) -> None:
        if result.caught_up:
            applied.put(result.applied_snapshot)

    an_hour_ms = 3_600_000
    stream.commit()
    follower = threading.Thread(
        target=lambda: lake.materializer(store).follow(an_hour_ms, stop, on_pass=passed)
    )
    follower.start()
    try:
        for commits in (1, 2, 3):
            while applied.get(timeout=60) < commits:
                pass
            stream.commit()
    finally:
        stop.set()
        follower.join()


# -- next to another one -------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.redis
def test_materializers_forced_onto_the_same_buckets_are_exact(
    lake: TileLake, stream: ClickStream, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "BATCH_RECORDS", 3)
    stores = [patient_store(redis_url) for _ in range(3)]
    stored = Stored(stores[0], VIEW.name)
    lake.materializer(stores[0]).run_once()
    stop, failures = threading.Event(), []

    def follow(store: OnlineStore, max_rows: int) -> None:
        try:
            lake.materializer(store, max_rows=max_rows).follow(1, stop)
        except BaseException as error:
            failures.append(error)

    # different cuts: one of them is often in the middle of the other's range
    threads = [threading.Thread(target=follow, args=(s, 40 * 5**i)) for i, s in enumerate(stores)]
    for thread in threads:
        thread.start()
    for _ in range(25):
        newest = stream.commit(60, minutes=1)
    wait_until(lambda: set(stored.applied()) == {newest}, LONG_S)
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert set(stored.applied()) == {newest}
    assert wrong_answers(VIEW, stores[0], stream.events) == []
    for store in stores:
        store.close()


def expire_leases(store: OnlineStore) -> None:
    """As if the lifetime of all leases had passed."""
    store.delete([key for page in store.scan(b"") for key in page if b"#lease" in key])


def test_a_second_materializer_waits_for_the_lease_and_takes_it_over(
    lake: TileLake, stream: ClickStream, store: OnlineStore
) -> None:
    stream.commit()
    first = lake.materializer(store, lease_ttl_ms=60_000)
    second = lake.materializer(store, lease_ttl_ms=60_000)
    assert first.run_once().caught_up
    stream.commit()
    waiting = second.run_once()
    assert not waiting.caught_up
    assert len(waiting.held) == 1
    assert waiting.records == 0
    expire_leases(store)
    assert second.run_once().caught_up
    second.close()
    assert first.run_once().caught_up  # a released lease does not have to expire
    assert wrong_answers(VIEW, store, stream.events) == []


class PausedStore(MemoryStore):
    """Calls ``pause`` once, before or after the call with number ``at`` (twice for each call)."""

    def __init__(self) -> None:
        super().__init__()
        self.at, self.calls = 0, 0
        self.pause: Callable[[], None] = lambda: None

    def _step(self) -> None:
        self.calls += 1
        if self.calls == self.at:
            self.pause()

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._step()
        found = super().get_many(keys)
        self._step()
        return found

    def compare_and_set_many(
        self, writes: Sequence[Write], run: str | None = None, guard: WriteGuard | None = None
    ) -> list[bool]:
        self._step()
        done = super().compare_and_set_many(writes, run, guard)
        self._step()
        return done


@pytest.mark.parametrize("then", ["follow", "rebuild"])
def test_a_materializer_that_was_paused_at_any_step_writes_nothing_wrong(
    lake: TileLake, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    #  first   reads a record -------- its lease expires -------------------- writes the record
    #  second                           owns the bucket, applies more, or rebuilds
    monkeypatch.setattr(apply, "BATCH_RECORDS", 2)
    stream = ClickStream(lake)
    reached, at = True, 1
    while reached:
        store = PausedStore()
        first = lake.materializer(store, lease_ttl_ms=60_000)
        second = lake.materializer(store, lease_ttl_ms=60_000)
        first.run_once()
        stream.commit(6)

        def take_over(store: MemoryStore = store, second: Materializer = second) -> None:
            expire_leases(store)
            stream.commit(6)
            second.run_once() if then == "follow" else second.rebuild()

        store.at, store.calls, store.pause = at, 0, take_over
        first.run_once()
        reached = store.calls >= at
        store.at = 0
        for _ in range(2):
            second.run_once()
            assert wrong_answers(VIEW, store, stream.events) == [], at
            first.close()
        at += 7  # the steps of a call are alternately before and after it
    assert at > 15


# -- rebuilds and shards -------------------------------------------------------------------


def test_readers_keep_the_old_epoch_until_the_new_one_is_complete(
    lake: TileLake, stream: ClickStream, store: OnlineStore, stored: Stored
) -> None:
    stream.commit(200)
    lake.materializer(store).run_once()
    seen: list[tuple[str | None, list[str]]] = []

    def look(progress: MaterializeProgress) -> None:
        if progress.rebuilding is not None:
            now_ms = stream.now_ms
            seen.append((stored.state().epoch, wrong_answers(VIEW, store, stream.events, now_ms)))

    old = stored.state().epoch
    lake.materializer(store, progress=look, max_rows=20).rebuild()
    assert len(seen) > 5
    assert seen == [(old, [])] * len(seen)
    assert stored.state().epoch != old
    assert stored.epochs() == {stored.state().epoch}
    assert wrong_answers(VIEW, store, stream.events) == []


def test_shards_build_together_and_follow_their_own_buckets(
    tmp_path: Path, store: OnlineStore, stored: Stored
) -> None:
    lake = TileLake(tmp_path / "five", VIEW, buckets=5)
    stream = ClickStream(lake)
    stream.commit(100)
    shards = [lake.materializer(store, shard=(i, 3)) for i in range(3)]
    first = shards[0].run_once()
    assert not first.caught_up
    assert "other shards" in (first.rebuilding or "")
    with pytest.raises(StoreNotReadyError):
        wrong_answers(VIEW, store, stream.events)
    shards[1].run_once()
    assert shards[2].run_once().caught_up
    assert shards[0].run_once().caught_up
    assert wrong_answers(VIEW, store, stream.events) == []
    stream.commit(100)
    for shard in shards:
        assert shard.run_once().caught_up
    assert wrong_answers(VIEW, store, stream.events) == []
    for shard in shards:
        shard.request_rebuild()
    for shard in shards + shards:
        shard.run_once()
    assert stored.state().building is None
    assert wrong_answers(VIEW, store, stream.events) == []


def test_another_number_of_shards_takes_over_the_consumers(
    lake: TileLake, stream: ClickStream
) -> None:
    #  one shard      holds 1
    #  three shards   hold 1 .. 2; no shard would release the first consumer
    store = MemoryStore()
    stream.commit()
    lake.materializer(store).run_once()
    assert list(consumers(lake.lake, lake.record.table)) == ["materialize-shop-clicks-0-of-1"]
    stream.commit()
    for i in range(3):
        lake.materializer(store, shard=(i, 3)).run_once()
    held = consumers(lake.lake, lake.record.table)
    assert sorted(held) == ["materialize-shop-clicks-0-of-3", "materialize-shop-clicks-1-of-3"]
    assert set(held.values()) == {2}  # two buckets: the third shard has none
    assert wrong_answers(VIEW, store, stream.events) == []


def test_an_invalid_shard_is_rejected(lake: TileLake) -> None:
    with pytest.raises(ConfigurationError, match="2/2"):
        lake.materializer(MemoryStore(), shard=(2, 2))


def test_another_definition_of_the_tiles_is_rejected(lake: TileLake) -> None:
    lake.record = replace(lake.record, fingerprint="other")
    with pytest.raises(GenerationError, match="differs from generation 1"):
        lake.materializer(MemoryStore()).run_once()


def test_the_last_started_of_two_window_definitions_is_served(
    lake: TileLake, stream: ClickStream, store: OnlineStore, stored: Stored
) -> None:
    #  equal tiles, different records: each would rebuild its own again and again
    stream.commit()
    old = lake.materializer(store)
    old.run_once()
    lake.view = wider = clicks_view(extra=[Sum("n", windows=["5d"])])
    assert wider.compiled.fingerprint == VIEW.compiled.fingerprint
    new = lake.materializer(store)
    assert new.run_once().caught_up
    served = stored.state().epoch
    with pytest.raises(GenerationError, match="another materializer .* another definition"):
        old.run_once()
    stream.commit()
    assert new.run_once().caught_up
    assert stored.state().epoch == served
    assert wrong_answers(wider, store, stream.events) == []


def test_a_materializer_reports_its_progress(lake: TileLake, stream: ClickStream) -> None:
    seen: list[MaterializeProgress] = []
    stream.commit(100)
    stream.commit(100)
    materializer: Materializer = lake.materializer(MemoryStore(), progress=seen.append)
    materializer.run_once()
    assert seen[0].rebuilding is not None
    assert seen[-1].caught_up
    assert seen[-1].tiles > 100
    assert seen[-1].tiles_per_s > 0
    seen.clear()
    materializer.run_once()
    assert seen == []
    stream.commit(10, minutes=int(HOUR_MS // 60_000))
    materializer.run_once()
    assert [(p.applied_snapshot, p.lag_snapshots) for p in seen][-1] == (3, 0)
