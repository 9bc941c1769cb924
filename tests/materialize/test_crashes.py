"""Whatever dies, the store or a materializer, the records are exact in the end."""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from paimon_features.errors import OnlineStoreError, StoreNotReadyError
from paimon_features.materialize import apply
from paimon_features.online import MemoryStore, OnlineStore, Write, open_store
from paimon_features.setup.redis_server import RedisServer
from paimon_features.setup.resp import connect
from paimon_features.testing.clicks import ClickStream, clicks_view, wrong_answers
from paimon_features.testing.follow_forever import follow_forever
from paimon_features.testing.stored import Stored
from paimon_features.testing.tile_lake import TileLake

VIEW = clicks_view()


def test_a_rebuild_that_died_is_not_continued_but_done_again(
    lake: TileLake, stream: ClickStream
) -> None:
    class DyingStore(MemoryStore):
        calls_left = 10**9

        def compare_and_set_many(
            self, writes: Sequence[Write], run: str | None = None
        ) -> list[bool]:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise OnlineStoreError("gone")
            return super().compare_and_set_many(writes, run)

    stream.commit(200)
    for calls in range(1, 14):
        store = DyingStore()
        stored = Stored(store, VIEW.name)
        store.calls_left = calls
        with pytest.raises(OnlineStoreError, match="gone"):
            lake.materializer(store, max_rows=20).run_once()
        store.calls_left = 10**9
        assert lake.materializer(store).run_once().caught_up
        assert stored.epochs() == {stored.state().epoch}
        assert wrong_answers(VIEW, store, stream.events, stream.now_ms) == []


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
def test_a_server_restarted_in_mid_run_is_exact_in_the_end(
    lake: TileLake, stream: ClickStream, monkeypatch: pytest.MonkeyPatch, flush: bool
) -> None:
    monkeypatch.setattr(apply, "BATCH_RECORDS", 5)
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
def test_a_server_flushed_in_mid_run_is_exact_in_the_end(
    lake: TileLake,
    stream: ClickStream,
    redis_url: str,
    redis_store: OnlineStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    #  FLUSHALL is no restart: the run stays the same, so only what is gone can tell
    monkeypatch.setattr(apply, "BATCH_RECORDS", 5)

    def flush() -> None:
        with connect(redis_url) as connection:
            connection.request("FLUSHALL")

    for at in range(1, 14):
        stream.commit(100)
        worker = lake.materializer(Interrupted(redis_store, at, flush))
        while True:
            try:
                if worker.run_once().caught_up:
                    break
            except OnlineStoreError:
                continue
        # one more: what was flushed after the last look is noticed by the next one
        assert worker.run_once().caught_up
        assert wrong_answers(VIEW, redis_store, stream.events, stream.now_ms) == []


def test_a_store_that_comes_back_with_an_older_state_is_exact_in_the_end(
    lake: TileLake, stream: ClickStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    #  dump of the server    v                        comes back
    #  records          |----|--a--b--|               |----|     a, b lost
    #  marker           |----|--------|  must not be moved on by what was applied before
    monkeypatch.setattr(apply, "BATCH_RECORDS", 5)
    store = MemoryStore()
    stream.commit(100)
    lake.materializer(store).run_once()
    for at in range(1, 9):
        stream.commit(100)
        keys = [key for page in store.scan(b"pf:") for key in page]
        saved = dict(zip(keys, store.get_many(keys), strict=True))

        def crash(saved: dict[bytes, bytes | None] = saved) -> None:
            store.restart(keep=False)
            for key, value in saved.items():
                assert value is not None
                store.compare_and_set_many([Write(key, None, value)])

        with pytest.raises(OnlineStoreError, match="restarted"):
            lake.materializer(Interrupted(store, at, crash)).run_once()
        assert lake.materializer(store).run_once().caught_up
        assert wrong_answers(VIEW, store, stream.events, stream.now_ms) == []


class BackInTime:
    """A store whose n-th deletion is done after the server has come back with what it held."""

    def __init__(self, store: MemoryStore, at: int) -> None:
        self._store, self._at = store, at
        keys = [key for page in store.scan(b"pf:") for key in page]
        self._saved = dict(zip(keys, store.get_many(keys), strict=True))

    def delete(self, keys: Sequence[bytes]) -> None:
        self._count()
        self._store.delete(keys)

    def delete_orphans(self, orphans: Mapping[bytes, Sequence[bytes]]) -> None:
        self._count()
        self._store.delete_orphans(orphans)

    def _count(self) -> None:
        self._at -= 1
        if self._at == 0:
            self._store.restart(keep=False)
            for key, value in self._saved.items():
                assert value is not None
                self._store.compare_and_set_many([Write(key, None, value)])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_a_sweep_takes_no_record_of_an_epoch_that_came_back(
    lake: TileLake, stream: ClickStream
) -> None:
    #  the old epoch    read ------------- swept, and the deletion is sent again
    #  the server            | dump     v              | the dump is back: it is read again
    store = MemoryStore()
    stream.commit(200)
    lake.materializer(store).run_once()
    events = list(stream.events)
    refused = 0
    for at in (1, 2):
        stream.commit(20)
        lake.materializer(BackInTime(store, at)).rebuild()
        try:
            assert wrong_answers(VIEW, store, events, stream.now_ms) == []
        except StoreNotReadyError:
            refused += 1  # the markers went: nothing is read, and the view is built anew
        assert lake.materializer(store).run_once().caught_up
        assert wrong_answers(VIEW, store, stream.events, stream.now_ms) == []
        events = list(stream.events)
    assert refused == 1


@pytest.mark.parametrize("what", ["state", "marker", "everything"])
def test_what_the_store_lost_is_built_anew(
    lake: TileLake, stream: ClickStream, store: OnlineStore, stored: Stored, what: str
) -> None:
    stream.commit(100)
    materializer = lake.materializer(store)
    materializer.run_once()
    before = stored.state().epoch
    if what != "marker":
        stored.lose_state()
    if what == "marker":
        store.delete(list(stored.markers())[:1])
    elif what == "everything":
        store.delete(list(stored.everything()))
    materializer.run_once()
    assert stored.state().epoch != before
    assert stored.epochs() == {stored.state().epoch}
    assert wrong_answers(VIEW, store, stream.events) == []


@pytest.mark.redis
def test_following_waits_for_a_server_that_is_away(lake: TileLake, stream: ClickStream) -> None:
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
        assert f":{port}" in str(troubles[0])
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
def test_a_materializer_killed_at_ten_random_moments_is_exact(
    lake: TileLake, stream: ClickStream, redis_url: str, redis_store: OnlineStore
) -> None:
    # processes are forked from one that has imported everything, and die by SIGKILL
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([follow_forever.__module__])
    stored = Stored(redis_store, VIEW.name)
    rng = random.Random(0)
    stream.commit(200)
    unfinished = 0
    for _ in range(10):
        ready = processes.Event()
        worker = processes.Process(
            target=follow_forever, args=(lake.lake.warehouse, redis_url, ready), daemon=True
        )
        worker.start()
        try:
            assert ready.wait(60)
            until = time.monotonic() + rng.uniform(0, 0.8)
            while time.monotonic() < until:
                newest = stream.commit(80, minutes=rng.choice((1, 1, 600)))
        finally:
            worker.kill()
            worker.join()
            worker.close()
        unfinished += set(stored.applied()) != {newest}
    assert unfinished > 3  # else the moments were no test
    last = lake.materializer(redis_store)
    assert last.run_once().caught_up
    assert stored.epochs() == {stored.state().epoch}
    assert wrong_answers(VIEW, redis_store, stream.events) == []
