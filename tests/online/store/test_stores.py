"""The memory store and every kind of server keep the contract of an online store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from paimon_features.core.errors import ConfigurationError, OnlineStoreError
from paimon_features.online.store import MemoryStore, OnlineSettings, OnlineStore, Write, open_store
from paimon_features.online.store.keys import ViewKeys
from paimon_features.online.store.store import Evictions
from paimon_features.project.doctor import check_online_store
from paimon_features.testing.online_contract import OnlineStoreContract
from paimon_features.testing.servers.redis_server import RedisServer
from paimon_features.testing.servers.resp import connect
from tests.patient_stores import PATIENT_ONLINE, patient_store
from tests.servers.online_servers import (
    ClusterServers,
    SentinelServers,
    TlsProxy,
    send_command,
)
from tests.waiting import LONG_S

RIGHTS = (
    "+mget +get +evalsha +eval +set +exists +getrange +incr +del +pexpire +unlink +scan +info +ping"
)
"""What the user of the store needs; docs/how-to/serving/online-store.md names the same."""


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

    def test_a_restart_starts_another_run(self) -> None:
        store = MemoryStore()
        run, _ = store.run_and_values([b"k"])
        store.compare_and_set_many([Write(b"k", None, b"v")])
        store.restart(keep=True)
        with pytest.raises(OnlineStoreError, match="restarted"):
            store.compare_and_set_many([Write(b"k", b"v", b"w")], run)
        assert store.get_many([b"k"]) == [b"v"]
        store.restart(keep=False)
        assert store.get_many([b"k"]) == [None]


class _OnServers(OnlineStoreContract):
    """A store of which time passes by itself."""

    @pytest.fixture
    def sleep_ms(self) -> Callable[[int], None]:
        return lambda ms: time.sleep(ms / 1000)


@pytest.mark.redis
class TestRedisStore(_OnServers):
    @pytest.fixture
    def store(self, redis_url: str) -> Iterator[OnlineStore]:  # type: ignore[override]
        with closing(patient_store(redis_url)) as store:
            yield store


@pytest.mark.redis
class TestClusterStore(_OnServers):
    @pytest.fixture
    def store(self, cluster: ClusterServers) -> Iterator[OnlineStore]:  # type: ignore[override]
        cluster.flush()
        with closing(patient_store(cluster.url)) as store:
            yield store


@pytest.mark.redis
class TestSentinelStore(_OnServers):
    @pytest.fixture
    def store(self, sentinels: SentinelServers) -> Iterator[OnlineStore]:  # type: ignore[override]
        send_command(sentinels.primary_port(), "FLUSHALL")
        with closing(patient_store(sentinels.url)) as store:
            yield store


@pytest.fixture(scope="module")
def on_socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server's Unix socket; its user of few rights has a password."""
    path = tmp_path_factory.mktemp("s") / "a server.sock"
    with RedisServer(options={"unixsocket": str(path)}) as server:
        send_command(
            server.port, "ACL", "SETUSER", "app", "on", ">s3cr:t/@", "~pf:*", "~{*", "+@all"
        )
        yield f"unix://app:s3cr%3At%2F%40@{quote(str(path))}?db=3"


@pytest.mark.redis
class TestSocketStore(_OnServers):
    @pytest.fixture
    def store(self, on_socket: str) -> Iterator[OnlineStore]:  # type: ignore[override]
        with connect(on_socket, LONG_S) as connection:
            connection.request("FLUSHALL")
        with closing(patient_store(on_socket)) as store:
            yield store


@pytest.mark.redis
def test_a_socket_is_checked_and_what_is_wrong_with_it_is_reported(
    on_socket: str, tmp_path: Path
) -> None:
    settings = OnlineSettings.of({"url": on_socket}, environ={})
    assert settings.plain_url == on_socket
    assert check_online_store(settings.plain_url, needed=True).state == "ok"
    for url, reason in (
        (f"unix://{tmp_path}/none.sock", "No such file or directory"),
        (f"unix://{tmp_path}/{'x' * 120}", "path too long"),
        (on_socket.replace("s3cr", "other"), "invalid username-password pair"),
    ):
        with (
            closing(open_store(OnlineSettings.of({"url": url, "retries": 0}, environ={}))) as store,
            pytest.raises(OnlineStoreError, match=f"{settings.where[:7]}.*{reason}") as raised,
        ):
            store.get_many([b"pf:a"])
        assert "other" not in str(raised.value)
        assert check_online_store(url, needed=True).state == "missing"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RedisServer, TlsProxy]]:
    """A server behind TLS that wants a client's certificate, with one user of few rights."""
    folder = tmp_path_factory.mktemp("tls")
    with RedisServer() as server, TlsProxy(folder, server.port, client_certificate=True) as proxy:
        send_command(
            server.port, "ACL", "SETUSER", "app", "on", ">s3cr:t/@", "~pf:*", *RIGHTS.split()
        )
        send_command(server.port, "ACL", "SETUSER", "admin", "on", "nopass", "~*", "+@all")
        send_command(server.port, "ACL", "SETUSER", "default", "off")
        yield server, proxy


def locked_settings(proxy: TlsProxy, **changes: object) -> OnlineSettings:
    certificate, key = proxy.certificate("client")
    values = {
        "url": f"rediss://localhost:{proxy.port}",
        "user": "app",
        "tls_ca": str(proxy.ca),
        "tls_cert": str(certificate),
        "tls_key": str(key),
        **PATIENT_ONLINE,
        **changes,
    }
    given = {name: value for name, value in values.items() if value is not None}
    return OnlineSettings.of(given, environ={"PAIMON_FEATURES_ONLINE_PASSWORD": "s3cr:t/@"})


@pytest.mark.redis
class TestLockedStore(_OnServers):
    @pytest.fixture
    def store(self, locked: tuple[RedisServer, TlsProxy]) -> Iterator[OnlineStore]:  # type: ignore[override]
        server, proxy = locked
        with connect(f"redis://admin:any@127.0.0.1:{server.port}", LONG_S) as connection:
            connection.request("FLUSHALL")
        with closing(open_store(locked_settings(proxy))) as store:
            yield store

    def test_a_server_of_an_unknown_ca_is_not_trusted(
        self, locked: tuple[RedisServer, TlsProxy]
    ) -> None:
        _, proxy = locked
        for changes in ({"tls_ca": None}, {"url": f"rediss://127.0.0.1:{proxy.port}"}):
            store = open_store(locked_settings(proxy, **changes))
            with closing(store), pytest.raises(OnlineStoreError, match="refused by .*tls_ca"):
                store.get_many([b"pf:k"])
        unchecked = locked_settings(proxy, tls_ca=None, tls_verify=False)
        with closing(open_store(unchecked)) as store:
            assert store.get_many([b"pf:k"]) == [None]

    def test_a_wrong_password_is_reported_and_never_shown(
        self, locked: tuple[RedisServer, TlsProxy]
    ) -> None:
        _, proxy = locked
        settings = replace(locked_settings(proxy), password="wr0ng")
        store = open_store(settings)
        with (
            closing(store),
            pytest.raises(OnlineStoreError, match="refused by .*PASSWORD") as raised,
        ):
            store.get_many([b"pf:k"])
        shown = f"{raised.value!r}{raised.value.__cause__!r}{store!r}{settings!r}{settings.where}"
        assert "wr0ng" not in shown

    def test_a_key_without_permission_is_reported(
        self, locked: tuple[RedisServer, TlsProxy]
    ) -> None:
        with closing(open_store(locked_settings(locked[1]))) as store:
            with pytest.raises(OnlineStoreError, match="ACL"):
                store.get_many([b"other"])
            with pytest.raises(OnlineStoreError, match="ACL"):
                store.compare_and_set_many([Write(b"other", None, b"v")])


@pytest.mark.redis
def test_a_reader_that_may_not_read_evictions_knows_none() -> None:
    with RedisServer() as server:
        send_command(server.port, "ACL", "SETUSER", "default", "-info")
        with closing(patient_store(server.url)) as store:
            assert store.evictions() == [Evictions("", 0, None)]
            with pytest.raises(OnlineStoreError, match="ACL"):
                store.check()


@pytest.mark.redis
def test_projects_with_different_prefixes_are_isolated(redis_url: str) -> None:
    stores = [patient_store(redis_url, key_prefix=prefix) for prefix in ("pf:", "team/b:")]
    for store in stores:
        state = ViewKeys("shop", "spend", store.key_prefix).state
        assert store.compare_and_set_many([Write(state, None, b"mine")]) == [True]
        store.check()
        store.close()
    with closing(patient_store(redis_url)) as store:
        found = sorted(key for page in store.scan(b"") for key in page)
    assert found == [b"pf:{shop:spend}#state", b"team/b:{shop:spend}#state"]


def test_a_memory_address_is_a_store_of_its_own() -> None:
    one, two = open_store("memory://"), open_store("memory://")
    assert one.compare_and_set_many([Write(b"k", None, b"v")]) == [True]
    assert (one.get_many([b"k"]), two.get_many([b"k"])) == ([b"v"], [None])


def test_an_unsupported_address_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="redis://"):
        open_store("http://localhost:6379")
    with pytest.raises(ConfigurationError, match="redis://"):
        open_store("memory")
