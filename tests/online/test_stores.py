"""The memory store and Redis keep the contract of an online store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from paimon_features.errors import ConfigurationError, OnlineStoreError
from paimon_features.online import MemoryStore, OnlineStore, Write, open_store
from paimon_features.setup.redis_server import RedisServer
from paimon_features.setup.resp import connect
from paimon_features.testing.online_contract import OnlineStoreContract


class FakeClock:
    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


class TestMemoryStore(OnlineStoreContract):
    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def store(self, clock: FakeClock) -> OnlineStore:  # type: ignore[override]
        return MemoryStore(clock)

    @pytest.fixture
    def sleep_ms(self, clock: FakeClock) -> Callable[[int], None]:  # type: ignore[override]
        def sleep(ms: int) -> None:
            clock.now_ms += ms

        return sleep

    def test_a_restart_begins_another_run(self) -> None:
        store = MemoryStore()
        run, _ = store.run_and_values([b"k"])
        store.compare_and_set_many([Write(b"k", None, b"v")])
        store.restart(keep=True)
        with pytest.raises(OnlineStoreError, match="restarted"):
            store.compare_and_set_many([Write(b"k", b"v", b"w")], run)
        assert store.get_many([b"k"]) == [b"v"]
        store.restart(keep=False)
        assert store.get_many([b"k"]) == [None]


@pytest.mark.redis
class TestRedisStore(OnlineStoreContract):
    @pytest.fixture
    def store(self, redis_url: str) -> Iterator[OnlineStore]:  # type: ignore[override]
        store = open_store(redis_url)
        yield store
        store.close()

    @pytest.fixture
    def sleep_ms(self) -> Callable[[int], None]:
        return lambda ms: time.sleep(ms / 1000)


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.mark.redis
class TestRedisServers:
    def test_scripts_and_connections_survive_a_restart(self, own_server: RedisServer) -> None:
        store = open_store(own_server.url)
        run, _ = store.run_and_values([b"k"])
        store.compare_and_set_many([Write(b"k", None, b"v")])
        own_server.restart(flush=False)
        assert store.get_many([b"k"]) == [b"v"]
        assert store.compare_and_set_many([Write(b"k", b"v", b"w")]) == [True]
        assert store.run_and_values([b"k"])[0] != run
        with pytest.raises(OnlineStoreError, match="restarted"):
            store.compare_and_set_many([Write(b"k", b"w", b"x")], run)
        store.close()

    def test_a_server_that_is_gone_is_an_error_and_back_again_is_not(
        self, own_server: RedisServer
    ) -> None:
        store = open_store(own_server.url)
        store.check()
        port = own_server.port
        own_server.stop()
        with pytest.raises(OnlineStoreError, match=str(port)):
            store.get_many([b"k"])
        with pytest.raises(OnlineStoreError, match="Connection"):
            store.check()
        with RedisServer(port=port):
            assert store.get_many([b"k"]) == [None]
        store.close()

    def test_a_server_that_evicts_keys_is_refused(self, own_server: RedisServer) -> None:
        with connect(own_server.url) as connection:
            connection.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        with pytest.raises(OnlineStoreError, match="noeviction"):
            open_store(own_server.url).check()

    def test_a_full_server_is_an_error_that_says_so(self, own_server: RedisServer) -> None:
        with connect(own_server.url) as connection:
            connection.ask("CONFIG", "SET", "maxmemory", "1mb")
        store = open_store(own_server.url)
        writes = [Write(b"%d" % i, None, b"x" * 10_000) for i in range(1000)]
        with pytest.raises(OnlineStoreError, match="is full"):
            store.compare_and_set_many(writes)
        store.close()

    def test_many_large_writes_are_sent_in_pieces(self, own_server: RedisServer) -> None:
        store = open_store(own_server.url)
        writes = [Write(b"%d" % i, None, bytes([i]) * 300_000) for i in range(30)]
        assert all(store.compare_and_set_many(writes))
        assert store.get_many([w.key for w in writes]) == [w.value for w in writes]
        store.close()


def test_another_kind_of_address_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="redis://"):
        open_store("http://localhost:6379")
    with pytest.raises(ConfigurationError, match="redis://"):
        open_store("memory")
