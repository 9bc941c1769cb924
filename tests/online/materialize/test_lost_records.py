"""Records that the online store has lost are distinguished from new entities."""

from __future__ import annotations

import contextlib
import random
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paimon_features.core.errors import OnlineStoreError
from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.definitions import FeatureRef
from paimon_features.online.materialize import MaterializeProgress, apply
from paimon_features.online.materialize.known import KnownEntities, SeenEntities
from paimon_features.online.materialize.monitor import Monitor
from paimon_features.online.store import MemoryStore, OnlineStore, Write
from paimon_features.online.store.store import WriteGuard
from paimon_features.serving.reading.fetcher import FeatureFetcher
from paimon_features.testing.reference.features import answer
from paimon_features.testing.servers.redis_server import RedisServer
from paimon_features.testing.sizes import every_seed
from tests.clicks import START_MS, USERS, ClickStream, clicks_view, wrong_answers
from tests.patient_stores import patient_store
from tests.servers.online_servers import send_command, wait_for
from tests.stored import Stored
from tests.tile_lake import PROJECT, TileLake

VIEW = clicks_view()


def test_a_lost_record_is_not_a_new_one(
    lake: TileLake, stream: ClickStream, store: OnlineStore, stored: Stored
) -> None:
    stream.commit(400)
    worker = lake.materializer(store)
    worker.run_once()
    before = stored.state().epoch
    store.delete(list(stored.records())[::3])
    stream.commit(100)
    worker.run_once()
    assert wrong_answers(VIEW, store, stream.events) == []
    assert stored.state().epoch != before
    assert stored.epochs() == {stored.state().epoch}


def test_a_materializer_that_was_just_started_knows_too(
    lake: TileLake, stream: ClickStream, store: OnlineStore, stored: Stored
) -> None:
    stream.commit(400)
    lake.materializer(store).run_once()
    store.delete(list(stored.records())[:1])
    stream.commit(200)
    lake.materializer(store).run_once()
    assert wrong_answers(VIEW, store, stream.events) == []


def test_new_entities_need_no_rebuild(lake: TileLake, store: OnlineStore, stored: Stored) -> None:
    reasons: list[str] = []

    def note(progress: MaterializeProgress) -> None:
        if progress.rebuilding is not None:
            reasons.append(progress.rebuilding)

    events = []
    lake.materializer(store).run_once()
    worker = lake.materializer(store, progress=note)
    for user in range(USERS):  # a new entity in each pass, and rows of those before
        new = [
            {"user": each, "t": START_MS + user * HOUR_MS, "n": 1, "word": None}
            for each in range(0, user + 1, 3 if user % 3 else 1)
        ]
        events += new
        lake.commit(new)
        worker.run_once()
    assert wrong_answers(VIEW, store, events) == []
    assert reasons == []


def test_an_entity_that_returns_after_its_record_expired_needs_no_rebuild(
    tmp_path: Path,
) -> None:
    view = clicks_view(lifetime=False)
    lake = TileLake(tmp_path / "lake", view)
    at_ms = START_MS

    def now_ms() -> int:
        return at_ms

    store = MemoryStore(now_ms)
    stored = Stored(store, view.name)
    worker = lake.materializer(store, clock=now_ms)
    events = []

    def commit(users: Sequence[int]) -> None:
        new = [{"user": user, "t": at_ms, "n": 1, "word": "a"} for user in users]
        events.extend(new)
        lake.commit(new)
        worker.run_once()

    commit(range(4))
    epoch = stored.state().epoch
    at_ms += 20 * DAY_MS
    commit([0, 1])
    at_ms += 20 * DAY_MS  # 2 and 3 have expired
    assert len(stored.records()) == 2
    commit([0, 2])
    assert stored.state().epoch == epoch
    assert wrong_answers(view, store, events, at_ms, now_ms) == []
    store.delete(list(stored.records()))
    commit([1])
    assert stored.state().epoch != epoch
    assert wrong_answers(view, store, events, at_ms, now_ms) == []


def test_evicted_keys_are_rebuilt_without_new_events(lake: TileLake, stream: ClickStream) -> None:
    store = MemoryStore()
    stored = Stored(store, VIEW.name)
    stream.commit(200)
    monitor = Monitor([VIEW.name])
    worker = lake.materializer(store, progress=monitor.working)
    worker.run_once()
    for _ in range(2):
        before = stored.state()
        assert worker.run_once().records == 0
        store.evict(list(stored.records())[:3])
        worker.run_once()
        after = stored.state()
        assert after.epoch != before.epoch
        assert sum(after.evicted.values()) == sum(before.evicted.values()) + 3
        assert wrong_answers(VIEW, store, stream.events) == []
    assert b'_losses_total{view="clicks"} 2.0' in monitor.metrics()
    store.restart(keep=True)  # another run, which has evicted nothing
    worker.run_once()
    assert stored.state() == after


class LateStore(MemoryStore):
    """A store that executes the n-th write of records long after its caller gave up."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at
        self.late: list[Callable[[], object]] = []

    def compare_and_set_many(
        self, writes: Sequence[Write], run: str | None = None, guard: WriteGuard | None = None
    ) -> list[bool]:
        write = super().compare_and_set_many
        if writes and b"}:" in writes[0].key:
            self._at -= 1
            if self._at == 0:
                self.late.append(lambda: write(writes, run, guard))
                raise OnlineStoreError("the write timed out")
        return write(writes, run, guard)


def test_a_late_write_creates_no_record_of_a_part(
    lake: TileLake, stream: ClickStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    #  the first writer   new record --------- too late ------------------------ is executed
    #  the next pass                   writes it  and more rows     it is lost
    monkeypatch.setattr(apply, "BATCH_RECORDS", 5)
    for at in (2, 9, 16):
        store = LateStore(at)
        stored = Stored(store, VIEW.name)
        for count in (30, 30, 100):
            caught_up = False
            while not caught_up:
                with contextlib.suppress(OnlineStoreError):
                    caught_up = lake.materializer(store).run_once().caught_up
            stream.commit(count)
        lake.materializer(store).run_once()
        assert store.late
        lost = list(stored.records())
        store.delete(lost)
        for write in store.late:
            write()
        assert stored.records() == {}
        stream.commit(100)
        lake.materializer(store).run_once()
        assert wrong_answers(VIEW, store, stream.events, stream.now_ms) == []


@pytest.mark.redis
def test_a_server_that_starts_to_evict_is_reported_and_its_losses_are_rebuilt(
    lake: TileLake, stream: ClickStream
) -> None:
    troubles, passes = list[str](), list[MaterializeProgress]()
    stop = threading.Event()
    with RedisServer() as server:
        store = patient_store(server.url)
        stream.commit(400)
        lake.materializer(store).run_once()
        worker = lake.materializer(store)

        def failed(error: OnlineStoreError) -> None:
            troubles.append(str(error))

        thread = threading.Thread(target=lambda: worker.follow(1, stop, failed, passes.append))
        thread.start()
        try:
            send_command(server.port, "CONFIG", "SET", "maxmemory-policy", "allkeys-random")
            wait_for(lambda: bool(troubles), "the policy is reported")
            assert "has maxmemory-policy 'allkeys-random'" in troubles[0]
            used = re.search(r"used_memory:([0-9]+)", send_command(server.port, "INFO", "memory"))
            assert used is not None
            most = int(used[1]) - 10_000
            send_command(server.port, "CONFIG", "SET", "maxmemory", str(most))
            wait_for(lambda: store.evictions()[0].evicted > 0, "keys are evicted")
            stream.commit(50)
            send_command(server.port, "CONFIG", "SET", "maxmemory", "0")
            send_command(server.port, "CONFIG", "SET", "maxmemory-policy", "noeviction")
            count = len(passes)
            wait_for(
                lambda: any(p.caught_up and p.latest_snapshot == 2 for p in passes[count:]),
                "it is applied",
            )
            assert wrong_answers(VIEW, store, stream.events) == []
        finally:
            stop.set()
            thread.join()
            store.close()


@every_seed(20)
def test_known_entities_agree_with_a_dictionary(seed: int) -> None:
    rng = random.Random(seed)
    known, model = KnownEntities(), dict[bytes, int]()
    names = [b"%d" % i for i in range(rng.choice((1, 30, 300)))]
    needed_from_ms = 0
    for _ in range(30):
        some = rng.sample(names, rng.randrange(len(names) + 1))
        times = [rng.randrange(1_000) for _ in some]
        needed_from_ms += rng.choice((0, 0, 10))
        known.learn(SeenEntities.of(some, np.array(times, np.int64)), needed_from_ms)
        for name, time in zip(some, times, strict=True):
            model[name] = max(time, model.get(name, 0))
        found = known.newest_ms(names).tolist()
        for name, newest in zip(names, found, strict=True):
            if model.get(name, -1) >= needed_from_ms:
                assert newest == model[name]
            else:
                assert newest < needed_from_ms
    assert len(known) <= 2 * len(names)


class LosingStore:
    """A store that loses random keys before some of its calls, and is read in between.

    Every value that is read must be that of all commits up to one that may be applied by now, or
    MISSING, or an error.
    """

    def __init__(self, stream: ClickStream, rng: random.Random) -> None:
        self.store = MemoryStore()
        self.losses = self.read = 0
        self.often = 0.0
        self._stream, self._rng = stream, rng
        self._fetcher = FeatureFetcher(PROJECT, [VIEW.compiled], self.store)
        self._refs = [FeatureRef(VIEW.name, f.name) for f in VIEW.compiled.features]

    def lose(self) -> None:
        """Lose some keys: few records, many, or metadata too."""
        keys = [key for page in self.store.scan(b"") for key in page]
        records = [key for key in keys if b"}:" in key]
        some = self._rng.choice((records, records, records, keys))
        gone = self._rng.sample(some, min(len(some), self._rng.choice((1, 1, 5, len(some)))))
        self.store.delete(gone)
        self.losses += 1

    def probe(self, commits: Sequence[int]) -> None:
        """Read some users; ``commits`` are the numbers of events of what may be applied."""
        users = self._rng.sample(range(USERS), 4)
        events = self._stream.events
        q = max(event["t"] for event in events) + 1
        try:
            got = self._fetcher.get(self._refs, {"user": users}, q)
        except OnlineStoreError:
            return
        for user, row, statuses in zip(
            users, got.to_pylist(), got.statuses.to_pylist(), strict=True
        ):
            if set(statuses.values()) == {"MISSING"}:
                continue
            expected = [
                answer(VIEW, [e for e in events[:count] if e["user"] == user], q, online=True)
                for count in commits
            ]
            values = {name: row[name] for name in expected[0].values}
            assert values in [one.values for one in expected], (user, values, statuses)
            self.read += 1

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        if not callable(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            if self._rng.random() < self.often:
                self.lose()
                self.probe(self.commits)
            result = found(*args, **options)
            if self._rng.random() < self.often:
                self.probe(self.commits)
            return result

        return call

    commits: Sequence[int] = ()


@pytest.mark.long
@every_seed(2)
def test_no_loss_of_keys_at_any_time_results_in_a_wrong_value(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    lake = TileLake(tmp_path / f"lake-{seed}", VIEW)
    stream = ClickStream(lake, seed)
    store = LosingStore(stream, rng)
    batch = apply.BATCH_RECORDS
    apply.BATCH_RECORDS = 5
    try:
        _lose_and_follow(lake, stream, store, rng)
    finally:
        apply.BATCH_RECORDS = batch


def _lose_and_follow(
    lake: TileLake, stream: ClickStream, store: LosingStore, rng: random.Random
) -> None:
    stream.commit(200)
    worker = lake.materializer(store, max_rows=30)
    worker.run_once()
    for _ in range(8):
        before = len(stream.events)
        for _ in range(rng.choice((1, 2))):
            stream.commit(rng.choice((5, 40)), minutes=rng.choice((1, 600)))
        store.commits, store.often = range(before, len(stream.events) + 1), rng.choice((0.02, 0.1))
        for _ in range(3):
            with contextlib.suppress(OnlineStoreError):
                worker.run_once()
        if rng.random() < 0.3:
            worker = lake.materializer(store, max_rows=rng.choice((30, 1_000)))
        store.often = 0.0
        for _ in range(4):
            with contextlib.suppress(OnlineStoreError):
                if worker.run_once().caught_up:
                    break
        else:
            raise AssertionError("the materializer does not catch up")
        store.probe([len(stream.events)])
        store.lose()
        store.probe([len(stream.events)])
    for user in range(USERS):  # with new events of every entity, each loss is found
        new = {"user": user, "t": stream.now_ms, "n": 1, "word": None}
        stream.events.append(new)
    lake.commit(stream.events[-USERS:])
    worker.run_once()
    assert wrong_answers(VIEW, store.store, stream.events) == []
    assert store.losses > 8
    assert store.read > 20
