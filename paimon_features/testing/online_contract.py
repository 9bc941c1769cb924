"""What every online store has to do: subclass the contract and give it a store.

The same random operations run on the store and on a dictionary, and both have to agree after
each of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from paimon_features.errors import OnlineStoreError
from paimon_features.online.store import Lease, OnlineStore, Write

KEYS = [b"pf:{a:v:e:0}:%d" % i for i in range(6)]
VALUES = [b"", b"h", b"head-1|x", b"head-1|y", b"head-2|" + b"z" * 5000, bytes(range(256))]


class OnlineStoreContract:
    """Tests that a store passes. The fixture ``store`` gives an empty one."""

    @pytest.fixture
    def store(self) -> OnlineStore:
        """An empty store; the subclass provides it."""
        raise NotImplementedError

    @pytest.fixture
    def sleep_ms(self) -> Callable[[int], None]:
        """Lets time pass for the store; the subclass provides it."""
        raise NotImplementedError

    @pytest.mark.parametrize("seed", range(20))
    def test_random_operations_agree_with_a_dictionary(self, store: OnlineStore, seed: int) -> None:
        rng = random.Random(seed)
        model: dict[bytes, bytes] = {}
        for _ in range(60):
            operation = rng.randrange(4)
            if operation <= 1:
                writes = [_random_write(rng, model) for _ in range(rng.choice((0, 1, 2, 5)))]
                assert store.compare_and_set_many(writes) == [_write(model, w) for w in writes]
            elif operation == 2:
                gone = rng.sample(KEYS, 2)
                store.delete(gone)
                for key in gone:
                    model.pop(key, None)
            else:
                prefix = rng.choice((b"", b"pf:{a:v:e:0}", KEYS[0], b"pf:{a:v:e:*", b"pf:[a"))
                found = {key for page in store.scan(prefix) for key in page}
                assert found == {key for key in model if key.startswith(prefix)}
            asked = [rng.choice(KEYS) for _ in range(8)]
            assert store.get_many(asked) == [model.get(key) for key in asked]
            assert store.run_and_values(KEYS)[1] == [model.get(key) for key in KEYS]

    def test_many_writes_at_once_keep_their_order(self, store: OnlineStore) -> None:
        keys = [b"pf:{a:v:e:1}:%d" % i for i in range(1000)]
        store.compare_and_set_many([Write(key, None, b"old") for key in keys[::3]])
        done = store.compare_and_set_many([Write(key, None, key * 50) for key in keys])
        assert done == [i % 3 != 0 for i in range(1000)]
        assert store.get_many(keys[1::3]) == [key * 50 for key in keys[1::3]]

    def test_nothing_asked_is_nothing_answered(self, store: OnlineStore) -> None:
        assert store.get_many([]) == []
        assert store.compare_and_set_many([]) == []
        store.delete([])

    def test_writes_of_one_call_expire_each_at_its_own_time(
        self, store: OnlineStore, sleep_ms: Callable[[int], None]
    ) -> None:
        expiries = (None, 60, 60, 60_000, None, 60)
        keys = [b"pf:{a:v:e:1}:%d" % i for i in range(len(expiries))]
        writes = [Write(key, None, b"v", ms) for key, ms in zip(keys, expiries, strict=True)]
        assert store.compare_and_set_many(writes) == [True] * len(keys)
        sleep_ms(120)
        assert store.get_many(keys) == [None if ms == 60 else b"v" for ms in expiries]

    def test_a_write_expires_and_a_later_one_without_expiry_stays(
        self, store: OnlineStore, sleep_ms: Callable[[int], None]
    ) -> None:
        store.compare_and_set_many(
            [Write(KEYS[0], None, b"a", 100), Write(KEYS[1], None, b"a", 100)]
        )
        assert store.compare_and_set_many([Write(KEYS[1], b"a", b"b")]) == [True]
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

    def test_a_lease_has_one_owner_and_a_growing_fence(
        self, store: OnlineStore, sleep_ms: Callable[[int], None]
    ) -> None:
        key = b"pf:{a:v:e:0}#lease"
        first = store.acquire_lease(key, "one", 100)
        assert first.mine
        assert store.acquire_lease(key, "two", 100) == Lease("one", first.fence, False)
        assert store.acquire_lease(key, "one", 100) == first
        sleep_ms(250)
        second = store.acquire_lease(key, "two", 10_000)
        assert second.mine
        assert second.fence > first.fence
        store.release_lease(key, "one")
        assert not store.acquire_lease(key, "one", 100).mine
        store.release_lease(key, "two")
        third = store.acquire_lease(key, "one", 100)
        assert third.mine
        assert third.fence > second.fence

    def test_it_says_that_it_is_well(self, store: OnlineStore) -> None:
        store.check()
        assert isinstance(store, OnlineStore)


def _random_write(rng: random.Random, model: dict[bytes, bytes]) -> Write:
    key = rng.choice(KEYS)
    there: Any = model.get(key)
    expected = rng.choice((None, there, there[:6] if there else None, b"head-1", b"other"))
    # an empty expectation fits any value, which no record's header is
    return Write(key, expected or None, rng.choice(VALUES[1:]), rng.choice((None, 60_000)))


def _write(model: dict[bytes, bytes], write: Write) -> bool:
    found = model.get(write.key)
    fits = (
        found is None
        if write.expected is None
        else (found is not None and found.startswith(write.expected))
    )
    if fits:
        model[write.key] = write.value
    return fits
