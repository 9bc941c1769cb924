"""The materializer is exact, whatever happens to it, to the store, or to the table."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paimon_features.errors import (
    ConfigurationError,
    GenerationError,
    OnlineStoreError,
    StoreNotReadyError,
    TableError,
)
from paimon_features.materialize import Materializer, Progress, apply
from paimon_features.online import MemoryStore, OnlineStore, ViewState, Write, open_store
from paimon_features.online.keys import ViewKeys
from paimon_features.setup.redis_server import RedisServer
from paimon_features.tables.consumers import consumers, delete_consumer
from paimon_features.tables.deltas import live_files, read_delta
from paimon_features.tables.rollback import rollback
from paimon_features.tables.snapshots import latest_snapshot
from paimon_features.testing.clicks import (
    START_MS,
    clicks_view,
    random_clicks,
    wrong_answers,
)
from paimon_features.testing.tile_lake import PROJECT, TileLake
from paimon_features.testing.tiler import tile_table
from paimon_features.windows import DAY_MS, HOUR_MS

VIEW = clicks_view()
CONSUMER = "materialize-shop-clicks-0-of-1"
WORKER = Path(__file__).with_name("follow_forever.py")


@pytest.fixture
def lake(tmp_path: Path) -> TileLake:
    return TileLake(tmp_path / "lake", VIEW)


@pytest.fixture
def redis_store(redis_url: str) -> Iterator[OnlineStore]:
    store = open_store(redis_url)
    yield store
    store.close()


class Stream:
    """Clicks that go on, and all of them so far."""

    def __init__(self, lake: TileLake, seed: int = 0) -> None:
        self.lake = lake
        self.rng = random.Random(seed)
        self.now_ms = START_MS
        self.events: list[Any] = []

    def commit(self, count: int = 30, minutes: int = 10) -> int:
        self.now_ms += minutes * 60_000
        new = random_clicks(self.rng, self.now_ms, count)
        self.events += new
        return self.lake.commit(new)


def dump(store: OnlineStore) -> dict[bytes, bytes]:
    keys = [key for page in store.scan(b"pf:") for key in page]
    return {k: v for k, v in zip(keys, store.get_many(keys), strict=True) if v is not None}


def records(store: OnlineStore) -> dict[bytes, bytes]:
    return {key: value for key, value in dump(store).items() if b"}:" in key}


def epochs(store: OnlineStore) -> set[str]:
    keys = ViewKeys(PROJECT, VIEW.name)
    return {keys.epoch_of(k) for k in dump(store) if k.startswith(keys.all_epochs)}


def state(store: OnlineStore) -> ViewState:
    raw = store.get_many([ViewKeys(PROJECT, VIEW.name).state])[0]
    assert raw is not None
    return ViewState.from_bytes(raw)


def markers(store: OnlineStore) -> dict[bytes, bytes]:
    return {key: value for key, value in dump(store).items() if key.endswith(b"#marker")}


def set_back(store: OnlineStore, old: dict[bytes, bytes]) -> None:
    store.delete(list(old))
    for key, value in old.items():
        assert store.compare_and_set_many([Write(key, None, value)]) == [True]


# -- once, twice, by two -------------------------------------------------------------------


def test_an_empty_table_is_an_empty_view(lake: TileLake) -> None:
    store = MemoryStore()
    result = lake.materializer(store).run_once()
    assert result.caught_up
    assert result.applied_snapshot == 0
    assert wrong_answers(VIEW, store, []) == []
    stream = Stream(lake)
    stream.commit()
    assert lake.materializer(store).run_once().applied_snapshot == 1
    assert wrong_answers(VIEW, store, stream.events) == []


def test_applying_a_snapshot_again_changes_nothing(
    lake: TileLake, redis_store: OnlineStore
) -> None:
    stream = Stream(lake)
    materializer = lake.materializer(redis_store)
    materializer.run_once()
    stream.commit()
    materializer.run_once()
    before_marker, before = markers(redis_store), records(redis_store)
    stream.commit()
    stream.commit()
    materializer.run_once()
    after = records(redis_store)
    # as after a crash: records are written, the markers say otherwise
    set_back(redis_store, before_marker)
    assert materializer.run_once().records == 0
    assert records(redis_store) == after != before
    assert wrong_answers(VIEW, redis_store, stream.events) == []


@pytest.mark.parametrize("lifetime", [True, False])
def test_a_long_stream_is_exact_after_every_pass(tmp_path: Path, lifetime: bool) -> None:
    view = clicks_view(lifetime)
    lake, store = TileLake(tmp_path, view, buckets=3), MemoryStore()
    stream = Stream(lake, 1)
    materializer = lake.materializer(store, max_rows=25)
    for _ in range(15):
        for _ in range(stream.rng.randrange(3)):
            stream.commit(stream.rng.choice((1, 10, 60)), stream.rng.choice((1, 60, 3000)))
        materializer.run_once()
        assert wrong_answers(view, store, stream.events) == []
    assert len(epochs(store)) == 1
    assert state(store).building is None


def test_a_rebuild_equals_what_following_made(lake: TileLake) -> None:
    followed, built = MemoryStore(), MemoryStore()
    stream = Stream(lake, 2)
    materializer = lake.materializer(followed)
    for _ in range(6):
        stream.commit(minutes=2000)
        materializer.run_once()
    lake.materializer(built, max_rows=7).run_once()
    assert wrong_answers(VIEW, followed, stream.events) == []
    assert wrong_answers(VIEW, built, stream.events) == []


def test_two_materializers_on_the_same_buckets_are_exact(
    lake: TileLake, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "BATCH_RECORDS", 3)
    stores = [open_store(redis_url) for _ in range(3)]
    stream = Stream(lake, 3)
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
        stream.commit(60, minutes=1)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not _applied(stores[0], lake):
        time.sleep(0.02)
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert _applied(stores[0], lake)
    assert wrong_answers(VIEW, stores[0], stream.events) == []
    for store in stores:
        store.close()


def _applied(store: OnlineStore, lake: TileLake) -> bool:
    from paimon_features.online import Marker

    newest = latest_snapshot(lake.lake, lake.record.table)
    assert newest is not None
    found = [Marker.from_bytes(value) for value in markers(store).values()]
    return all(marker.applied_snapshot == newest.id for marker in found)


def test_a_second_materializer_waits_for_the_lease_and_takes_it_over(lake: TileLake) -> None:
    clock = [1_000]
    store = MemoryStore(lambda: clock[0])
    stream = Stream(lake)
    stream.commit()
    first = lake.materializer(store, lease_ttl_ms=1_000)
    second = lake.materializer(store, lease_ttl_ms=1_000)
    assert first.run_once().caught_up
    stream.commit()
    waiting = second.run_once()
    assert not waiting.caught_up
    assert len(waiting.held) == 1
    assert waiting.records == 0
    clock[0] += 1_001  # the first one is dead
    assert second.run_once().caught_up
    second.close()
    assert first.run_once().caught_up  # what is given back need not run out
    assert wrong_answers(VIEW, store, stream.events) == []


# -- the table changes its course ----------------------------------------------------------


def test_one_key_in_several_files_of_a_snapshot_counts_once_per_row(lake: TileLake) -> None:
    store = MemoryStore()
    materializer = lake.materializer(store)
    materializer.run_once()
    rng = random.Random(4)
    groups = [random_clicks(rng, START_MS + 50 * DAY_MS, 80) for _ in range(3)]
    table = lake.lake.table(lake.record.table)
    writers = [table.new_stream_write_builder()._with_commit_user("u").new_write() for _ in groups]
    messages = []
    for writer, events in zip(writers, groups, strict=True):
        writer.write_arrow(tile_table(VIEW, events).cast(lake.lake.schema(lake.record.table)))
        messages += writer.prepare_commit(1)
    table.new_stream_write_builder()._with_commit_user("u").new_commit().commit(messages, 1)
    for writer in writers:
        writer.close()
    delta = read_delta(lake.lake, lake.record.table, 1)
    assert max(len(files) for files in delta.by_bucket().values()) >= 3
    result = materializer.run_once()
    assert result.applied_snapshot == 1
    assert epochs(store) == {state(store).epoch}
    assert wrong_answers(VIEW, store, [e for events in groups for e in events]) == []


def test_a_rolled_back_table_is_built_anew(lake: TileLake) -> None:
    store = MemoryStore()
    stream = Stream(lake)
    materializer = lake.materializer(store)
    stream.commit()
    materializer.run_once()
    first, kept = state(store).epoch, list(stream.events)
    stream.commit()
    materializer.run_once()
    from paimon_features.tables import generations

    generations.save(lake.lake, lake.record)
    lake.record = rollback(lake.lake, lake.record, 1, release=(CONSUMER,))
    stream.events = kept
    assert materializer.run_once().caught_up
    assert state(store).epoch != first
    assert wrong_answers(VIEW, store, stream.events) == []
    stream.commit()
    assert materializer.run_once().applied_snapshot == 2
    assert wrong_answers(VIEW, store, stream.events) == []


@pytest.mark.parametrize("commits_after", [0, 1, 2])
def test_a_rollback_that_nobody_told_of_is_noticed(lake: TileLake, commits_after: int) -> None:
    # snapshot numbers are given out again; the applied one is another one by then, or gone
    store = MemoryStore()
    stream = Stream(lake)
    materializer = lake.materializer(store)
    stream.commit()
    kept = list(stream.events)
    stream.commit()
    materializer.run_once()
    before = state(store).epoch
    lake.lake.table(lake.record.table).rollback_to(1)
    stream.events = kept
    for _ in range(commits_after):
        stream.commit()
    assert materializer.run_once().caught_up
    assert state(store).epoch != before
    assert wrong_answers(VIEW, store, stream.events) == []


def test_an_expired_snapshot_is_no_gap_but_a_rebuild(lake: TileLake) -> None:
    store = MemoryStore()
    stream = Stream(lake)
    materializer = lake.materializer(store)
    stream.commit()
    materializer.run_once()
    before = state(store).epoch
    for _ in range(4):
        stream.commit()
    folder = Path(lake.lake.path(lake.record.table)) / "snapshot"
    for expired in (1, 2, 3):
        (folder / f"snapshot-{expired}").unlink()
    (folder / "EARLIEST").write_text("4")
    assert materializer.run_once().applied_snapshot == 5
    assert state(store).epoch != before
    assert wrong_answers(VIEW, store, stream.events) == []


def test_a_consumer_holds_the_applied_snapshot_and_comes_back_when_deleted(lake: TileLake) -> None:
    store = MemoryStore()
    stream = Stream(lake)
    materializer = lake.materializer(store)
    for number in (1, 2, 3):
        stream.commit()
        materializer.run_once()
        assert consumers(lake.lake, lake.record.table) == {CONSUMER: number}
    delete_consumer(lake.lake, lake.record.table, CONSUMER)
    stream.commit()
    materializer.run_once()
    assert consumers(lake.lake, lake.record.table) == {CONSUMER: 4}


@pytest.mark.parametrize(("days_ago", "rebuilt"), [(70, False), (20, True)])
def test_an_expired_partition_is_skipped_only_beyond_every_window(
    tmp_path: Path, days_ago: int, rebuilt: bool
) -> None:
    view = clicks_view(lifetime=False)
    lake, store = TileLake(tmp_path, view), MemoryStore()
    old = {"user": 1, "t": START_MS - days_ago * DAY_MS, "n": 5, "word": "old"}
    new = [{"user": u, "t": START_MS, "n": 7, "word": None} for u in range(20)]
    lake.commit([old])
    lake.commit(new)
    materializer = lake.materializer(store)
    materializer.run_once()
    before = state(store).epoch
    commit = lake.lake.table(lake.record.table).new_batch_write_builder().new_commit()
    commit.truncate_partitions([{"tile_day": old["t"] // DAY_MS}])
    newest = latest_snapshot(lake.lake, lake.record.table)
    assert newest is not None
    assert (newest.id, newest.kind) == (3, "OVERWRITE")
    assert materializer.run_once().applied_snapshot == 3
    assert (state(store).epoch != before) == rebuilt
    assert wrong_answers(view, store, new if rebuilt else [old, *new], START_MS + 1) == []


def test_an_expired_partition_is_never_skipped_under_a_lifetime(lake: TileLake) -> None:
    store = MemoryStore()
    lake.commit([{"user": 1, "t": START_MS - 500 * DAY_MS, "n": 5, "word": "old"}])
    new = [{"user": 1, "t": START_MS, "n": 7, "word": None}]
    lake.commit(new)
    materializer = lake.materializer(store)
    materializer.run_once()
    commit = lake.lake.table(lake.record.table).new_batch_write_builder().new_commit()
    commit.truncate_partitions([{"tile_day": (START_MS - 500 * DAY_MS) // DAY_MS}])
    materializer.run_once()
    assert wrong_answers(VIEW, store, new, START_MS + 1) == []


def test_a_retraction_in_a_delta_stops_with_an_error(lake: TileLake) -> None:
    store = MemoryStore()
    stream = Stream(lake)
    materializer = lake.materializer(store)
    stream.commit()
    materializer.run_once()
    before = records(store)
    stream.commit()
    for file in live_files(lake.lake, lake.record.table, 2):
        rows = pq.read_table(file.path)
        place = rows.schema.get_field_index("_VALUE_KIND")
        deleted = pa.array([3] * rows.num_rows, rows.schema.field(place).type)
        pq.write_table(rows.set_column(place, rows.schema.field(place), deleted), file.path)
    with pytest.raises(TableError, match="DELETE"):
        materializer.run_once()
    assert records(store) == before


def test_a_new_generation_is_built_and_switched_to(lake: TileLake) -> None:
    store = MemoryStore()
    stream = Stream(lake)
    stream.commit()
    lake.materializer(store).run_once()
    before = state(store)
    lake.new_generation(buckets=5)
    events, stream.events = stream.events, []
    lake.commit(events)
    lake.materializer(store).run_once()
    after = state(store)
    assert after.content is not None
    assert (after.content.generation, after.content.buckets) == (2, 5)
    assert after.epoch != before.epoch
    assert epochs(store) == {after.epoch}
    assert wrong_answers(VIEW, store, events) == []


def test_another_definition_of_the_tiles_is_refused(lake: TileLake) -> None:
    lake.record = replace(lake.record, fingerprint="other")
    with pytest.raises(GenerationError, match="defined for other tiles"):
        lake.materializer(MemoryStore()).run_once()


def test_a_shard_that_cannot_be_is_refused(lake: TileLake) -> None:
    with pytest.raises(ConfigurationError, match="2/2"):
        lake.materializer(MemoryStore(), shard=(2, 2))


# -- rebuilds and shards -------------------------------------------------------------------


def test_readers_keep_the_old_epoch_until_the_new_one_is_complete(lake: TileLake) -> None:
    store = MemoryStore()
    stream = Stream(lake)
    stream.commit(200)
    lake.materializer(store).run_once()
    seen: list[tuple[str | None, list[str]]] = []

    def look(progress: Progress) -> None:
        if progress.rebuilding is not None:
            seen.append((state(store).epoch, wrong_answers(VIEW, store, stream.events)))

    old = state(store).epoch
    lake.materializer(store, progress=look, max_rows=20).rebuild()
    assert len(seen) > 5
    assert seen == [(old, [])] * len(seen)
    assert state(store).epoch != old
    assert epochs(store) == {state(store).epoch}
    assert wrong_answers(VIEW, store, stream.events) == []


def test_shards_build_together_and_follow_their_own_buckets(tmp_path: Path) -> None:
    lake, store = TileLake(tmp_path, VIEW, buckets=5), MemoryStore()
    stream = Stream(lake)
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
    assert state(store).building is None
    assert wrong_answers(VIEW, store, stream.events) == []
    assert sorted(consumers(lake.lake, lake.record.table)) == [
        f"materialize-shop-clicks-{i}-of-3" for i in range(3)
    ]


def test_a_rebuild_that_died_is_not_continued_but_done_again(lake: TileLake) -> None:
    class DyingStore(MemoryStore):
        calls_left = 10**9

        def compare_and_set_many(
            self, writes: Sequence[Write], run: str | None = None
        ) -> list[bool]:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise OnlineStoreError("gone")
            return super().compare_and_set_many(writes, run)

    stream = Stream(lake)
    stream.commit(200)
    for calls in range(1, 14):
        store = DyingStore()
        store.calls_left = calls
        with pytest.raises(OnlineStoreError, match="gone"):
            lake.materializer(store, max_rows=20).run_once()
        store.calls_left = 10**9
        assert lake.materializer(store).run_once().caught_up
        assert epochs(store) == {state(store).epoch}
        assert wrong_answers(VIEW, store, stream.events) == []


# -- the store fails -----------------------------------------------------------------------


class Interrupted:
    """A store in front of another one that lets something happen before the n-th write."""

    def __init__(self, store: OnlineStore, at: int, event: Callable[[], None]) -> None:
        self._store, self._at, self._event = store, at, event

    def compare_and_set_many(self, writes: Sequence[Write], run: str | None = None) -> list[bool]:
        self._at -= 1
        if self._at == 0:
            self._event()
        return self._store.compare_and_set_many(writes, run)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.redis
@pytest.mark.parametrize("flush", [True, False])
def test_a_store_restarted_in_mid_run_is_exact_in_the_end(
    lake: TileLake, monkeypatch: pytest.MonkeyPatch, flush: bool
) -> None:
    monkeypatch.setattr(apply, "BATCH_RECORDS", 5)
    stream = Stream(lake)
    with RedisServer() as server:
        store = open_store(server.url)
        for at in (1, 2, 4, 7, 9, 12):
            stream.commit(100)
            if at == 7:
                stream.commit(10)
            interrupted = Interrupted(store, at, lambda: server.restart(flush=flush))
            worker = lake.materializer(interrupted)
            while True:
                try:
                    if worker.run_once().caught_up:
                        break
                except OnlineStoreError:
                    continue
            assert wrong_answers(VIEW, store, stream.events) == []
        store.close()


@pytest.mark.redis
def test_a_store_that_comes_back_with_an_older_state_is_exact_in_the_end(
    lake: TileLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    #  dump of the server    v                        comes back
    #  records          |----|--a--b--|               |----|     a, b lost
    #  marker           |----|--------|  must not be moved on by what was applied before
    monkeypatch.setattr(apply, "BATCH_RECORDS", 5)
    stream = Stream(lake)
    store = MemoryStore()
    stream.commit(100)
    lake.materializer(store).run_once()
    for at in range(1, 9):
        stream.commit(100)
        saved = dump(store)

        def crash(saved: dict[bytes, bytes] = saved) -> None:
            store.restart(keep=False)
            for key, value in saved.items():
                store.compare_and_set_many([Write(key, None, value)])

        with pytest.raises(OnlineStoreError, match="restarted"):
            lake.materializer(Interrupted(store, at, crash)).run_once()
        assert lake.materializer(store).run_once().caught_up
        assert wrong_answers(VIEW, store, stream.events) == []


@pytest.mark.parametrize("what", ["state", "marker", "everything"])
def test_what_the_store_lost_is_built_anew(lake: TileLake, what: str) -> None:
    store = MemoryStore()
    stream = Stream(lake)
    stream.commit(100)
    materializer = lake.materializer(store)
    materializer.run_once()
    before = state(store).epoch
    if what == "state":
        store.delete([ViewKeys(PROJECT, VIEW.name).state])
    elif what == "marker":
        store.delete(list(markers(store))[:1])
    else:
        store.restart(keep=False)
    materializer.run_once()
    assert state(store).epoch != before
    assert epochs(store) == {state(store).epoch}
    assert wrong_answers(VIEW, store, stream.events) == []


@pytest.mark.redis
def test_following_waits_for_a_store_that_is_away(lake: TileLake) -> None:
    stream = Stream(lake)
    stream.commit()
    troubles: list[OnlineStoreError] = []
    stop = threading.Event()
    with RedisServer() as server:
        store = open_store(server.url)
        lake.materializer(store).run_once()
        port = server.port
        server.stop()
        thread = threading.Thread(
            target=lambda: lake.materializer(store).follow(5, stop, troubles.append)
        )
        thread.start()
        while not troubles:
            time.sleep(0.01)
        stream.commit()
        with RedisServer(port=port):
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                try:
                    if wrong_answers(VIEW, store, stream.events) == []:
                        break
                except OnlineStoreError:
                    time.sleep(0.02)
            assert wrong_answers(VIEW, store, stream.events) == []
            stop.set()
            thread.join()
        store.close()


@pytest.mark.redis
@pytest.mark.parametrize("seed", [0])
def test_a_materializer_killed_at_ten_random_moments_is_exact(
    lake: TileLake, redis_url: str, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    stream = Stream(lake, seed)
    store = open_store(redis_url)
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, str(WORKER), str(tmp_path / "lake"), redis_url]
    stream.commit(200)
    for _ in range(10):
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=tmp_path)
        assert worker.stdout is not None
        try:
            assert worker.stdout.readline() == b"ready\n"
            until = time.monotonic() + rng.uniform(0, 0.8)
            while time.monotonic() < until:
                stream.commit(80, minutes=rng.choice((1, 1, 600)))
        finally:
            worker.send_signal(signal.SIGKILL)
            worker.wait()
            worker.stdout.close()
    last = lake.materializer(store)
    assert last.run_once().caught_up
    assert wrong_answers(VIEW, store, stream.events) == []
    assert epochs(store) == {state(store).epoch}
    store.close()


def test_a_materializer_says_how_far_it_is(lake: TileLake) -> None:
    seen: list[Progress] = []
    stream = Stream(lake)
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
