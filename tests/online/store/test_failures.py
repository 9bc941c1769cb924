"""A server that dies, stops, is slow, full or read-only: errors or right values, and recovery."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

import pytest

from paimon_features.core.errors import OnlineStoreError
from paimon_features.online.store import OnlineStore, Write
from paimon_features.testing.servers.redis_server import RedisServer
from tests.patient_stores import PATIENT_ONLINE, patient_store
from tests.servers.online_servers import free_ports, send_command, wait_for

pytestmark = pytest.mark.redis

AT_ONCE = {"repl-diskless-sync-delay": "0"}
"""So soon after the server is back are reads answered again."""


def patient(port: int, **values: Any) -> OnlineStore:
    """A store that waits for a loaded machine."""
    return patient_store(f"redis://127.0.0.1:{port}", **values)


def quick(port: int, **values: Any) -> OnlineStore:
    """A store that gives up early."""
    return patient(port, **dict.fromkeys(PATIENT_ONLINE, "1s"), **values)


def reads(store: OnlineStore, value: bytes | None, key: bytes = b"k") -> Callable[[], bool]:
    """Whether a read is answered; wrong answers fail at once."""

    def read() -> bool:
        assert store.get_many([key]) == [value]
        return True

    return read


def until_suspended(store: OnlineStore, keys: Sequence[bytes] = (b"k",)) -> None:
    """Read until the error says that nothing is sent; some calls try the server meanwhile."""

    def suspended() -> bool:
        try:
            store.get_many(keys)
        except OnlineStoreError as error:
            return "requests are suspended" in str(error)
        raise AssertionError("it is read")

    wait_for(suspended, "requests are suspended")


def seconds_of_error(call: Callable[[], object], match: str | None = None) -> float:
    started = time.monotonic()
    with pytest.raises(OnlineStoreError, match=match):
        call()
    return time.monotonic() - started


def kill(server: RedisServer) -> None:
    os.kill(server.pid, signal.SIGKILL)
    wait_for(lambda: not server.running, "the server is gone")


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server on a port that it keeps when it is started again."""
    with RedisServer(port=free_ports(1)[0], options=AT_ONCE) as server:
        yield server


@pytest.mark.parametrize("keep", [True, False], ids=["with its data", "empty"])
def test_a_killed_server_is_an_error_until_it_restarts(server: RedisServer, keep: bool) -> None:
    with closing(patient(server.port)) as store:
        run, _ = store.run_and_values([b"k"])
        store.compare_and_set_many([Write(b"k", None, b"v")])
        if keep:
            send_command(server.port, "SAVE")
        kill(server)
        seconds_of_error(lambda: store.get_many([b"k"]), "refused")
        # once the breaker is open, calls fail without waiting for the server
        until_suspended(store)
        server.start()
        wait_for(reads(store, b"v" if keep else None), "it is read")
        with pytest.raises(OnlineStoreError, match="restarted"):
            store.compare_and_set_many([Write(b"k", b"v" if keep else None, b"w")], run)
        # the script is unknown to the new process, the expectation is checked all the same
        assert store.compare_and_set_many([Write(b"k", b"v", b"w")]) == [keep]


def test_a_restart_between_two_calls_is_not_an_error(server: RedisServer) -> None:
    with closing(patient(server.port)) as store, ThreadPoolExecutor(8) as pool:
        store.compare_and_set_many([Write(b"k", None, b"v")])
        barrier = threading.Barrier(8)

        def read(_: int) -> list[bytes | None]:
            barrier.wait()
            return store.get_many([b"k"])

        for _ in range(3):  # many connections lie idle, and all of them are dead at once
            assert list(pool.map(read, range(8))) == [[b"v"]] * 8
            server.restart(flush=False)
        assert store.compare_and_set_many([Write(b"k", b"v", b"w")]) == [True]


def test_a_paused_server_fails_by_the_deadline_and_recovers(server: RedisServer) -> None:
    with closing(quick(server.port)) as store:
        with closing(patient(server.port)) as other:
            other.compare_and_set_many([Write(b"k", None, b"v")])
        wait_for(reads(store, b"v"), "it is connected")
        os.kill(server.pid, signal.SIGSTOP)
        try:
            assert seconds_of_error(lambda: store.get_many([b"k"]), "before the deadline") > 0.9
            write = Write(b"k", b"v", b"w")
            seconds_of_error(lambda: store.compare_and_set_many([write]), "before the deadline")
            until_suspended(store)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        # the write was sent, and nobody can say whether it will be done
        wait_for(lambda: store.get_many([b"k"]) in ([b"v"], [b"w"]), "it is read")


def test_a_slow_reply_is_accepted_until_the_deadline(server: RedisServer) -> None:
    with closing(patient(server.port)) as store, closing(quick(server.port)) as hasty:
        wait_for(reads(hasty, None), "it is connected")
        for fails in (False, True, False):
            if fails:
                os.kill(server.pid, signal.SIGSTOP)
                try:
                    seconds_of_error(lambda: hasty.get_many([b"k"]), "timeout 1000 ms")
                finally:
                    os.kill(server.pid, signal.SIGCONT)
                wait_for(reads(hasty, None), "it is read")
            else:
                assert store.get_many([b"k"]) == [None]
                send_command(server.port, "CLIENT", "PAUSE", "100", "ALL")
                assert store.get_many([b"k"]) == [None]


def test_a_reply_in_small_packets_shares_one_deadline() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    done = threading.Event()

    def drip() -> None:
        client, _ = listener.accept()
        with client, suppress(OSError):
            client.recv(1 << 16)
            client.sendall(b"*1\r\n$1000\r\n")
            while not done.wait(0.02):
                client.sendall(b"x")

    threading.Thread(target=drip, daemon=True).start()
    port = listener.getsockname()[1]
    with listener, closing(quick(port, user=None)) as store:
        seconds_of_error(lambda: store.get_many([b"k"]), "before the deadline")
        done.set()


def test_a_full_server_serves_reads_and_accepts_writes_after_more_memory(
    server: RedisServer,
) -> None:
    with closing(patient(server.port)) as store:
        store.compare_and_set_many([Write(b"k", None, b"v")])
        send_command(server.port, "CONFIG", "SET", "maxmemory", "1mb")
        writes = [Write(b"%d" % i, None, b"x" * 10_000) for i in range(1000)]
        with pytest.raises(OnlineStoreError, match="is full"):
            store.compare_and_set_many(writes)
        with pytest.raises(OnlineStoreError, match="is full; increase its memory"):
            store.check()
        assert store.get_many([b"k"]) == [b"v"]
        send_command(server.port, "CONFIG", "SET", "maxmemory", "0")
        store.check()
        there = [value is not None for value in store.get_many([w.key for w in writes])]
        assert store.compare_and_set_many(writes) == [not was for was in there]


def test_a_server_that_cannot_persist_reports_the_remedy(server: RedisServer) -> None:
    with closing(patient(server.port)) as store:
        store.compare_and_set_many([Write(b"k", None, b"v")])
        send_command(server.port, "CONFIG", "SET", "save", "3600 1")
        assert server._folder is not None
        shutil.rmtree(server._folder)
        with suppress(OnlineStoreError):
            send_command(server.port, "BGSAVE")
        wait_for(
            lambda: "bgsave_status:err" in str(send_command(server.port, "INFO")), "saving fails"
        )
        for call in (
            store.check,
            lambda: store.compare_and_set_many([Write(b"k", b"v", b"w")]),
            lambda: store.acquire_lease(b"lease", "me", 100),
        ):
            with pytest.raises(OnlineStoreError, match="cannot persist to disk"):
                call()
        assert store.get_many([b"k"]) == [b"v"]
        server._folder.mkdir()
        send_command(server.port, "CONFIG", "SET", "save", "")


def test_a_replica_serves_reads_and_rejects_writes(server: RedisServer) -> None:
    with RedisServer() as replica:
        with closing(patient(server.port)) as store:
            store.compare_and_set_many([Write(b"k", None, b"v")])
        send_command(replica.port, "REPLICAOF", "127.0.0.1", str(server.port))
        with closing(patient(replica.port)) as store:
            wait_for(lambda: store.get_many([b"k"]) == [b"v"], "the replica is in step")
            with pytest.raises(OnlineStoreError, match=f"replica of 127.0.0.1:{server.port}.*sent"):
                store.check()
            with pytest.raises(OnlineStoreError, match="read-only replica; point 'url'"):
                store.compare_and_set_many([Write(b"k", b"v", b"w")])
            # what was read from it before is no base for writing once it is a primary
            run, _ = store.run_and_values([b"k"])
            send_command(replica.port, "REPLICAOF", "NO", "ONE")
            with pytest.raises(OnlineStoreError, match="replaced"):
                store.compare_and_set_many([Write(b"k", b"v", b"w")], run)
            assert store.compare_and_set_many([Write(b"k", b"v", b"w")]) == [True]
            store.check()


def test_a_server_that_evicts_keys_is_rejected(server: RedisServer) -> None:
    send_command(server.port, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with (
        closing(patient(server.port)) as store,
        pytest.raises(OnlineStoreError, match="noeviction"),
    ):
        store.check()


class Losing:
    """Between a store and its server; loses a given number of replies, with the connection."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.lose = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # else its thread would accept for ever
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        address = ("127.0.0.1", self._target)
        with suppress(OSError), client, socket.create_connection(address) as server:
            while request := client.recv(1 << 20):
                server.sendall(request)
                reply = server.recv(1 << 20)
                if self.lose and b"EVAL" in request:
                    self.lose -= 1
                    return
                client.sendall(reply)


def test_a_write_whose_reply_is_lost_is_reported_as_applied(server: RedisServer) -> None:
    with closing(Losing(server.port)) as proxy, closing(patient(proxy.port)) as store:
        run, _ = store.run_and_values([b"k"])
        for lost in (0, 1, 2):
            old, new = [b"v%d" % lost, b"v%d" % (lost + 1)]
            expected = None if lost == 0 else old
            proxy.lose = lost
            writes = [Write(b"k", expected, new), Write(b"%d" % lost, None, b"x", 600_000)]
            assert store.compare_and_set_many(writes, run) == [True, True]
            assert proxy.lose == 0
            assert store.get_many([b"k", b"%d" % lost]) == [new, b"x"]
            # one that does not fit is not done, however often it is sent
            proxy.lose = lost
            assert store.compare_and_set_many([Write(b"k", b"other", b"y")]) == [False]
        proxy.lose = 2
        lease = store.acquire_lease(b"lease", "me", 600_000)
        assert lease.mine
        assert store.acquire_lease(b"lease", "me", 600_000) == lease


def test_calls_beyond_the_pool_size_wait(server: RedisServer) -> None:
    with ThreadPoolExecutor(16) as pool, closing(patient(server.port, connections=2)) as store:
        store.compare_and_set_many([Write(b"k", None, b"v")])
        found = list(pool.map(lambda _: store.get_many([b"k"]), range(500)))
        assert found == [[b"v"]] * 500
        assert "connected_clients:3" in str(send_command(server.port, "INFO", "clients"))
    with (
        closing(quick(server.port, connections=2)) as store,
        ThreadPoolExecutor(16) as pool,
    ):
        wait_for(reads(store, b"v"), "it is connected")
        os.kill(server.pid, signal.SIGSTOP)
        try:
            calls = [pool.submit(store.get_many, [b"k"]) for _ in range(4)]
            errors = [str(call.exception()) for call in calls]
        finally:
            os.kill(server.pid, signal.SIGCONT)
        # whoever began late enough finds that the others wait in vain, and does not wait at all
        known = "no reply before the deadline|all 2 connections are in use|retry in"
        assert all(re.search(known, error) for error in errors), errors
        wait_for(reads(store, b"v"), "it is read")


def test_a_child_process_does_not_read_its_parents_replies(server: RedisServer) -> None:
    with closing(patient(server.port)) as store:
        store.compare_and_set_many([Write(b"k", None, b"parent"), Write(b"c", None, b"child")])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of other tests
            child = os.fork()
        if child == 0:
            wrong = sum(store.get_many([b"c"]) != [b"child"] for _ in range(200))
            os._exit(1 if wrong else 0)
        assert all(store.get_many([b"k"]) == [b"parent"] for _ in range(200))
        assert os.waitpid(child, 0)[1] == 0


def test_a_store_that_nobody_refers_to_closes_its_connections(server: RedisServer) -> None:
    """Also where the collector of cycles would finalize the socket first, and warn."""

    def sockets() -> list[socket.socket]:
        return [one for one in gc.get_objects() if type(one) is socket.socket]

    before = sockets()
    store = patient(server.port)
    assert store.get_many([b"k"]) == [None]
    cycle: list[Any] = [one for one in sockets() if not any(one is other for other in before)]
    (connected,) = map(socket.socket.fileno, cycle)
    cycle += [store, cycle]
    gc.collect()  # puts the objects into the order in which they are found from here
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        del store, cycle
        gc.collect()
    assert [str(one.message) for one in warned] == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(connected)


def test_readers_see_no_wrong_value_while_the_server_dies_and_stops(server: RedisServer) -> None:
    """A writer moves a record, then its marker, on; a reading never has the marker ahead."""
    record, marker, stop = b"pf:{v:0}:1", b"pf:{v:0}#marker", threading.Event()
    answered = [0] * 3

    def write(store: OnlineStore) -> None:
        while not stop.is_set():
            with suppress(OnlineStoreError):
                run, (old, reported) = store.run_and_values([record, marker])
                number = int(old or 0) + 1
                new = b"%09d" % number
                if store.compare_and_set_many([Write(record, old, new)], run) == [True]:
                    store.compare_and_set_many([Write(marker, reported, new)], run)

    def read(i: int, store: OnlineStore) -> None:
        while not stop.is_set():
            with suppress(OnlineStoreError):
                value, reported = store.get_many([record, marker])
                assert int(value or 0) >= int(reported or 0)
                answered[i] += 1

    hasty = dict.fromkeys(PATIENT_ONLINE, "200ms")  # shorter than the stops
    stores = [patient(server.port, **hasty) for _ in range(2)]
    with ThreadPoolExecutor(4) as pool:
        work = [pool.submit(write, stores[0]), *(pool.submit(read, i, stores[1]) for i in range(3))]
        try:
            for i in range(6):
                time.sleep(0.15)
                if i % 2:
                    os.kill(server.pid, signal.SIGSTOP)
                    time.sleep(0.3)
                    os.kill(server.pid, signal.SIGCONT)
                else:
                    with suppress(OnlineStoreError):
                        send_command(server.port, "SAVE")
                    kill(server)
                    server.start()
                before = sum(answered)
                wait_for(lambda before=before: sum(answered) > before + 10, "readers continue")
        finally:
            stop.set()
        for one in work:
            one.result()
    for store in stores:
        store.close()
