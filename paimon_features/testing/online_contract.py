"""The contract of every online store: subclass it and provide a store.

The same random operations run on the store, on a memory store and on a dictionary, which must
agree after each of them. The keys are of several buckets, which are on several nodes of a cluster;
calls that concern one bucket have keys of one.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from paimon_features.core.errors import OnlineStoreError
from paimon_features.online.store.memory_store import MemoryStore
from paimon_features.online.store.store import OnlineStore, StoreLease, Write, WriteGuard
from paimon_features.testing.sizes import seeds

BUCKETS = [[b"pf:{a:v:e:%d}:%d" % (b, i) for i in range(4)] for b in range(4)]
KEYS = BUCKETS[0]
ALL_KEYS = [key for bucket in BUCKETS for key in bucket]
VALUES = [b"", b"h", b"head-1|x", b"head-1|y", b"head-2|" + b"z" * 5000, bytes(range(256))]


class OnlineStoreContract:
    """Tests that every store must pass. The fixture ``store`` returns an empty one."""

    @pytest.fixture
    def store(self) -> OnlineStore:
        """Return an empty store; the subclass provides it."""
        raise NotImplementedError

    @pytest.fixture
    def sleep_ms(self) -> Callable[[int], None]:
        """Advance the time of the store; the subclass provides it."""
        raise NotImplementedError

    @pytest.mark.parametrize("seed", seeds(6))
    def test_random_operations_agree_with_a_memory_store_and_a_dictionary(
        self, store: OnlineStore, seed: int
    ) -> None:
        rng = random.Random(seed)
        model: dict[bytes, bytes] = {}
        twin = MemoryStore()
        for _ in range(60):
            operation = rng.randrange(5)
            if operation <= 1:
                bucket = rng.choice(BUCKETS)
                count = rng.choice((0, 1, 2, 5))
                writes = [_random_write(rng, bucket, model) for _ in range(count)]
                done = [_write(model, write) for write in writes]
                assert store.compare_and_set_many(writes) == done
                assert twin.compare_and_set_many(writes) == done
            elif operation == 2:
                gone = rng.sample(ALL_KEYS, rng.choice((1, 2, 6)))
                store.delete(gone)
                twin.delete(gone)
                for key in gone:
                    model.pop(key, None)
            elif operation == 3:
                some = rng.sample(BUCKETS, rng.choice((0, 1, 3)))
                orphans = {guard: keys[: rng.randrange(4)] for guard, *keys in some}
                for one in (store, twin):
                    one.delete_orphans(orphans)
                for guard, keys in orphans.items():
                    for key in keys if guard not in model else ():
                        model.pop(key, None)
            else:
                prefix = rng.choice((b"", b"pf:{a:v:e:0}", KEYS[0], b"pf:{a:v:e:*", b"pf:[a"))
                expected = {key for key in model if key.startswith(prefix)}
                for one in (store, twin):
                    assert {key for page in one.scan(prefix) for key in page} == expected
            requested = [rng.choice(ALL_KEYS) for _ in range(rng.choice((1, 8, 30)))]
            bucket = rng.choice(BUCKETS)
            for one in (store, twin):
                assert one.get_many(requested) == [model.get(key) for key in requested]
                assert one.run_and_values(bucket)[1] == [model.get(key) for key in bucket]

    def test_many_writes_at_once_keep_their_order(self, store: OnlineStore) -> None:
        keys = [b"pf:{a:v:e:1}:%d" % i for i in range(1000)]
        store.compare_and_set_many([Write(key, None, b"old") for key in keys[::3]])
        done = store.compare_and_set_many([Write(key, None, key * 50) for key in keys])
        assert done == [i % 3 != 0 for i in range(1000)]
        assert store.get_many(keys[1::3]) == [key * 50 for key in keys[1::3]]

    def test_nothing_requested_is_nothing_answered(self, store: OnlineStore) -> None:
        assert store.get_many([]) == []
        assert store.compare_and_set_many([]) == []
        store.delete([])

    def test_writes_of_one_call_expire_each_at_its_own_time(
        self, store: OnlineStore, sleep_ms: Callable[[int], None]
    ) -> None:
        expiries = (None, 60, 60, 600_000, None, 60)
        keys = [b"pf:{a:v:e:1}:%d" % i for i in range(len(expiries))]
        writes = [Write(key, None, b"v", ms) for key, ms in zip(keys, expiries, strict=True)]
        assert store.compare_and_set_many(writes) == [True] * len(keys)
        sleep_ms(120)
        assert store.get_many(keys) == [None if ms == 60 else b"v" for ms in expiries]

    def test_a_write_expires_and_a_later_one_without_expiry_stays(
        self, store: OnlineStore, sleep_ms: Callable[[int], None]
    ) -> None:
        store.compare_and_set_many([Write(KEYS[0], None, b"a", 100)])
        while True:  # on a slow machine it may expire before the write that keeps it
            assert store.compare_and_set_many([Write(KEYS[1], None, b"a", 100)]) == [True]
            if store.compare_and_set_many([Write(KEYS[1], b"a", b"b")]) == [True]:
                break
            assert store.get_many([KEYS[1]]) == [None]
        sleep_ms(250)
        assert store.get_many(KEYS[:2]) == [None, b"b"]
        assert [key for page in store.scan(b"pf:") for key in page] == [KEYS[1]]
        assert store.compare_and_set_many([Write(KEYS[0], None, b"c")]) == [True]

    def test_a_run_is_the_same_until_a_restart_and_guards_writes(self, store: OnlineStore) -> None:
        run, values = store.run_and_values([KEYS[0]])
        assert values == [None]
        assert store.run_and_values([KEYS[0]])[0] == run
        assert store.compare_and_set_many([Write(KEYS[0], None, b"a")], run) == [True]
        with pytest.raises(OnlineStoreError, match="restarted"):
            store.compare_and_set_many([Write(KEYS[0], b"a", b"b")], "another")
        assert store.get_many([KEYS[0]]) == [b"a"]

    def test_a_guard_prevents_all_writes_of_a_call(self, store: OnlineStore) -> None:
        guard, *keys = KEYS
        writes = [Write(key, None, b"a") for key in keys]
        none = [False] * len(keys)
        assert store.compare_and_set_many(writes, None, WriteGuard(guard, b"head")) == none
        store.compare_and_set_many([Write(guard, None, b"header-1")])
        assert store.compare_and_set_many(writes, None, WriteGuard(guard, b"header-2")) == none
        assert store.get_many(keys) == [None] * len(keys)
        run, _ = store.run_and_values([guard])
        done = store.compare_and_set_many(writes, run, WriteGuard(guard, b"head"))
        assert done == [True] * len(keys)
        again = [Write(key, b"a", b"b", 600_000) for key in keys]
        assert store.compare_and_set_many(again, run, WriteGuard(guard, b"header-1")) == done
        assert store.get_many(KEYS) == [b"header-1", *[b"b"] * len(keys)]

    def test_a_lease_has_one_owner_and_a_growing_fence(
        self, store: OnlineStore, sleep_ms: Callable[[int], None]
    ) -> None:
        key = b"pf:{a:v:e:0}#lease"
        first = store.acquire_lease(key, "one", 600_000)
        assert first.mine
        assert store.acquire_lease(key, "two", 100) == StoreLease("one", first.fence, False)
        assert store.acquire_lease(key, "one", 100) == first
        sleep_ms(250)
        second = store.acquire_lease(key, "two", 600_000)
        assert second.mine
        assert second.fence > first.fence
        store.release_lease(key, "one")
        assert not store.acquire_lease(key, "one", 100).mine
        store.release_lease(key, "two")
        third = store.acquire_lease(key, "one", 100)
        assert third.mine
        assert third.fence > second.fence

    def test_a_reading_of_a_bucket_is_of_one_time(self, store: OnlineStore) -> None:
        # a writer advances two keys in order: readers must never see the reverse order
        first, second, stop = KEYS[0], KEYS[1], threading.Event()
        others = [bucket[0] for bucket in BUCKETS[1:]]
        store.compare_and_set_many([Write(key, None, b"%06d" % 0) for key in (first, second)])

        def write() -> None:
            number = 0
            while not stop.is_set():
                old, new = b"%06d" % number, b"%06d" % (number + 1)
                for key in (first, second):
                    assert store.compare_and_set_many([Write(key, old, new)]) == [True]
                number += 1

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            try:
                for _ in range(200):
                    one, two, *_ = store.get_many([first, second, *others])
                    assert one is not None
                    assert two is not None
                    assert int(one) - int(two) in (0, 1)
            finally:
                stop.set()
            writing.result()

    def test_threads_that_count_by_compare_and_set_lose_nothing(self, store: OnlineStore) -> None:
        store.compare_and_set_many([Write(KEYS[0], None, b"%09d" % 0)])

        def count(times: int) -> None:
            for _ in range(times):
                while True:
                    (old,) = store.get_many([KEYS[0]])
                    assert old is not None
                    new = b"%09d" % (int(old) + 1)
                    if store.compare_and_set_many([Write(KEYS[0], old, new)])[0]:
                        break

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(count, 25) for _ in range(4)]:
                done.result()
        assert store.get_many([KEYS[0]]) == [b"%09d" % 100]

    def test_evictions_are_counted_per_run_of_each_server(self, store: OnlineStore) -> None:
        store.compare_and_set_many([Write(KEYS[0], None, b"a")])
        store.delete([KEYS[0]])
        servers = store.evictions()
        assert servers
        assert all(server.is_safe and server.policy == "noeviction" for server in servers)
        assert [server.evicted for server in servers] == [0] * len(servers)
        assert len({server.run for server in servers}) == len(servers)
        assert sorted(store.evictions()) == sorted(servers)

    def test_it_says_that_it_is_well(self, store: OnlineStore) -> None:
        store.check()
        assert isinstance(store, OnlineStore)


def _random_write(
    rng: random.Random, bucket: Sequence[bytes], model: Mapping[bytes, bytes]
) -> Write:
    key = rng.choice(bucket)
    current: Any = model.get(key)
    expected = rng.choice((None, current, current[:6] if current else None, b"head-1", b"other"))
    # an empty expectation would match any value; no record has an empty header
    return Write(key, expected or None, rng.choice(VALUES[1:]), rng.choice((None, 3_600_000)))


def _write(model: dict[bytes, bytes], write: Write) -> bool:
    current = model.get(write.key)
    fits = (
        current is None
        if write.expected is None
        else (current is not None and current.startswith(write.expected))
    )
    if fits:
        model[write.key] = write.value
    return fits
