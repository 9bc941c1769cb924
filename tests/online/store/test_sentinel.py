"""A service under sentinels: the primary is found, lost, and found again elsewhere."""

from __future__ import annotations

import os
import signal
from contextlib import closing

import pytest

from paimon_features.core.errors import OnlineStoreError
from paimon_features.online.store import Write
from paimon_features.testing.servers.redis_server import RedisServer
from tests.online.store.conftest import DOWN_AFTER_MS
from tests.online.store.test_failures import reads
from tests.patient_stores import patient_store
from tests.servers.online_servers import (
    SentinelServers,
    free_ports,
    send_command,
    wait_for,
)

pytestmark = pytest.mark.redis


def test_failing_sentinels_are_named(sentinels: SentinelServers) -> None:
    nobody = free_ports(1)[0]
    for url, expected in (
        (f"redis+sentinel://127.0.0.1:{nobody}/features", f"no sentinel.*{nobody}: .*refused"),
        (sentinels.url.replace("/features", "/other"), "unknown service 'other'"),
    ):
        with closing(patient_store(url)) as store, pytest.raises(OnlineStoreError, match=expected):
            store.get_many([b"k"])
    # one that is gone does not prevent queries to the others
    one_of_two = f"redis+sentinel://127.0.0.1:{nobody},127.0.0.1:{sentinels.ports[0]}/features"
    with closing(patient_store(one_of_two)) as store:
        store.check()


def test_after_a_failover_the_new_primary_is_read_and_written(sentinels: SentinelServers) -> None:
    old = sentinels.primary_port()
    new = next(server.port for server in sentinels.servers if server.port != old)
    primary = next(server for server in sentinels.servers if server.port == old)
    send_command(old, "FLUSHALL")
    with closing(patient_store(sentinels.url, timeout="2s")) as store:
        run, _ = store.run_and_values([b"k"])
        assert store.compare_and_set_many([Write(b"k", None, b"v")], run) == [True]
        wait_for(lambda: send_command(new, "GET", "k") == "v", "the replica has it")
        os.kill(primary.pid, signal.SIGSTOP)
        try:
            with pytest.raises(OnlineStoreError):
                store.get_many([b"k"])
            # not while a sentinel considers the replica's state too old
            command = ("SENTINEL", "FAILOVER", "features")
            wait_for(lambda: send_command(sentinels.ports[0], *command) == "OK", "it begins")
            wait_for(lambda: sentinels.agree_on(new), "the sentinels agree")
            wait_for(reads(store, b"v"), "it is read")
            # the replica may lack what the primary had acknowledged: it is another run
            with pytest.raises(OnlineStoreError, match="replaced"):
                store.compare_and_set_many([Write(b"k", b"v", b"w")], run)
            assert store.compare_and_set_many([Write(b"k", b"v", b"w")]) == [True]
        finally:
            os.kill(primary.pid, signal.SIGCONT)
        # the old one still considers itself the primary: no read goes there
        for _ in range(200):
            wait_for(reads(store, b"w"), "it is read")
        assert store.compare_and_set_many([Write(b"k", b"w", b"x")]) == [True]
        with closing(patient_store(sentinels.url)) as another:
            assert another.get_many([b"k"]) == [b"x"]
            another.check()


def test_a_replaced_primary_that_still_replies_is_abandoned(
    sentinels: SentinelServers, own_server: RedisServer
) -> None:
    #  after a failover the old primary learns seconds later that it is a replica
    old, new = sentinels.primary_port(), own_server.port
    with closing(patient_store(sentinels.url)) as store:
        store.compare_and_set_many([Write(b"of old and new", None, b"v")])
        assert send_command(old, "GET", "of old and new") == "v"
        watch(sentinels, new)
        try:
            wait_for(
                lambda: store.get_many([b"of old and new"]) == [None],
                "the other one is read",
            )
            assert store.compare_and_set_many([Write(b"of old and new", None, b"w")]) == [True]
            assert (
                send_command(old, "GET", "of old and new"),
                send_command(new, "GET", "of old and new"),
            ) == (
                "v",
                "w",
            )
        finally:
            watch(sentinels, old)


def watch(sentinels: SentinelServers, port: int) -> None:
    for sentinel in sentinels.ports:
        send_command(sentinel, "SENTINEL", "REMOVE", "features")
        send_command(sentinel, "SENTINEL", "MONITOR", "features", "127.0.0.1", str(port), "2")
        options = ("down-after-milliseconds", str(DOWN_AFTER_MS))
        send_command(sentinel, "SENTINEL", "SET", "features", *options)
