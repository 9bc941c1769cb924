"""After crashes of the store or a materializer, the records are exact again."""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from paimon_features.core.errors import OnlineStoreError, StoreNotReadyError
from paimon_features.online.materialize import Materializer, apply
from paimon_features.online.store import MemoryStore, OnlineStore, Write
from paimon_features.online.store.store import WriteGuard
from paimon_features.testing.servers.redis_server import RedisServer
from paimon_features.testing.servers.resp import connect
from tests.clicks import ClickStream, clicks_view, wrong_answers
from tests.long_cases import quick_cases
from tests.online.materialize.follow_forever import follow_forever
from tests.patient_stores import patient_store
from tests.stored import Stored
from tests.tile_lake import TileLake
from tests.waiting import LONG_S

VIEW = clicks_view()


def test_an_interrupted_rebuild_is_restarted(lake: TileLake, stream: ClickStream) -> None:
    class DyingStore(MemoryStore):
        calls_left = 10**9

        def compare_and_set_many(
            self, writes: Sequence[Write], run: str | None = None, guard: WriteGuard | None = None
        ) -> list[bool]:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise OnlineStoreError("gone")
            return super().compare_and_set_many(writes, run, guard)

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
    """A proxy of a store that calls a function before the n-th write."""

    def __init__(self, store: OnlineStore, at: int, event: Callable[[], None]) -> None:
        self._store, self._at, self._event = store, at, event

    def compare_and_set_many(
        self, writes: Sequence[Write], run: str | None = None, guard: WriteGuard | None = None
    ) -> list[bool]:
        self._at -= 1
        if self._at == 0:
            self._event()
        return self._store.compare_and_set_many(writes, run, guard)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def catch_up(worker: Materializer) -> None:
    """Run until all snapshots are applied, whatever fails on the way."""
    while True:
        with suppress(OnlineStoreError):
            if worker.run_once().caught_up:
                return


@pytest.mark.redis
@pytest.mark.parametrize("flush", quick_cases([True, False], True))
def test_records_are_exact_after_a_server_restart(
    lake: TileLake, stream: ClickStream, monkeypatch: pytest.MonkeyPatch, flush: bool
) -> None:
    monkeypatch.setattr(apply, "BATCH_RECORDS", 5)
    with RedisServer() as server:
        store = patient_store(server.url)
        for at in (1, 2, 4, 7, 9, 12):
            stream.commit(100)
            if at == 7:
                stream.commit(10)
            interrupted = Interrupted(store, at, lambda: server.restart(flush=flush))
            worker = lake.materializer(interrupted)
            catch_up(worker)
            assert wrong_answers(VIEW, store, stream.events) == []
        store.close()


@pytest.mark.redis
def test_records_are_exact_after_a_flush(
    lake: TileLake,
    stream: ClickStream,
    redis_url: str,
    redis_store: OnlineStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    #  FLUSHALL is no restart: the run id is unchanged, only the missing keys reveal it
    monkeypatch.setattr(apply, "BATCH_RECORDS", 5)

    def flush() -> None:
        with connect(redis_url, LONG_S) as connection:
            connection.request("FLUSHALL")

    for at in range(1, 14):
        stream.commit(100)
        worker = lake.materializer(Interrupted(redis_store, at, flush))
        catch_up(worker)
        # once more: a flush after the last check is detected by the next one
        assert worker.run_once().caught_up
        assert wrong_answers(VIEW, redis_store, stream.events, stream.now_ms) == []


@pytest.mark.long
def test_records_are_exact_after_a_restore_of_an_older_state(
    lake: TileLake, stream: ClickStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    #  dump of the server    v                        comes back
    #  records          |----|--a--b--|               |----|     a, b lost
    #  marker           |----|--------|  must not be advanced for earlier writes
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
    """A store whose n-th deletion is executed after the server was restored from its dump."""

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


def test_a_sweep_removes_no_record_of_a_restored_epoch(lake: TileLake, stream: ClickStream) -> None:
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
            refused += 1  # the markers are lost: nothing is read, and the view is rebuilt
        assert lake.materializer(store).run_once().caught_up
        assert wrong_answers(VIEW, store, stream.events, stream.now_ms) == []
        events = list(stream.events)
    assert refused == 1


@pytest.mark.parametrize("what", ["state", "marker", "everything"])
def test_lost_records_are_rebuilt(
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
def test_following_waits_for_an_unavailable_server(lake: TileLake, stream: ClickStream) -> None:
    stream.commit()
    troubles: list[OnlineStoreError] = []
    stop = threading.Event()
    with RedisServer() as server:
        store = patient_store(server.url)
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
            deadline = time.monotonic() + 120
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


@pytest.mark.long
@pytest.mark.redis
def test_records_are_exact_after_ten_kills_at_random_moments(
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
    assert unfinished > 3  # otherwise the moments tested nothing
    last = lake.materializer(redis_store)
    assert last.run_once().caught_up
    assert stored.epochs() == {stored.state().epoch}
    assert wrong_answers(VIEW, redis_store, stream.events) == []
