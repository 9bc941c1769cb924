"""Reads in an event loop: the same values, and errors, outages and recovery as by a thread."""

from __future__ import annotations

import asyncio
import gc
import os
import select
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from paimon_features.core.errors import OnlineStoreError
from paimon_features.online.store import MemoryStore, OnlineSettings, Write, open_store
from paimon_features.online.store.redis_store import RedisStore
from paimon_features.online.store.redis_store.loop_reads import MOST_KEYS, LoopReads
from paimon_features.online.store.store import ReadsInLoop
from paimon_features.testing.servers.redis_server import RedisServer
from tests.servers.online_servers import free_ports, send_command
from tests.waiting import LONG_S

pytestmark = pytest.mark.redis


def store_at(port: int, **values: Any) -> RedisStore:
    return store_of(f"redis://127.0.0.1:{port}", **values)


def store_of(url: str, **values: Any) -> RedisStore:
    given = {"url": url, "timeout": "60s", **values}
    store = open_store(OnlineSettings.of(given, environ={}))
    assert isinstance(store, RedisStore)
    return store


async def read(reader: LoopReads, keys: Sequence[bytes]) -> Any:
    """The result of a read in the loop; False if it was left to the thread."""
    found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    return await found if reader.get_many(keys, found.set_result) else False


async def until_read(reader: LoopReads, keys: Sequence[bytes]) -> Any:
    """The result of the first read that the reader takes, once it has a connection."""
    async with asyncio.timeout(LONG_S):
        while not isinstance(found := await read(reader, keys), list):
            await asyncio.sleep(0.01)  # no connection, a lost one, or a deadline of a busy machine
    return found


def run(
    store: RedisStore, test: Callable[[LoopReads], Coroutine[Any, Any, None]], uv: bool = True
) -> None:
    async def main() -> None:
        reader = store.loop_reader(asyncio.get_running_loop())
        assert reader is not None
        try:
            await test(reader)
        finally:
            reader.close()
            await asyncio.sleep(0.01)

    if uv:
        uvloop = pytest.importorskip("uvloop", reason="the loop of the feature server")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
    else:
        asyncio.run(main())


@pytest.mark.parametrize("uv", [True, False], ids=["uvloop", "asyncio"])
def test_values_are_those_of_the_other_way(own_server: RedisServer, uv: bool) -> None:
    with closing(store_at(own_server.port)) as store:
        values = {b"a": b"1", b"b": b"", b"{t}c": os.urandom(3_000_000), b"crlf": b"\r\n$3\r\n"}
        store.compare_and_set_many([Write(k, None, v) for k, v in values.items()])
        keys = [*values, b"absent", b"a"]

        async def test(reader: LoopReads) -> None:
            assert await read(reader, keys) is False, "it has no connection yet"
            assert await until_read(reader, keys) == store.get_many(keys)
            for _ in range(50):
                assert await read(reader, [b"absent", b"a"]) == [None, b"1"]
            assert await read(reader, [b"x"] * (MOST_KEYS + 1)) is False
            # one at a time
            first: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            assert reader.get_many([b"a"], first.set_result)
            assert not reader.get_many([b"b"], first.set_result)
            assert await first == [b"1"]

        run(store, test, uv)


@pytest.mark.parametrize("uv", [True, False], ids=["uvloop", "asyncio"])
def test_values_come_through_a_unix_socket_also_after_a_restart(
    tmp_path_factory: pytest.TempPathFactory, uv: bool
) -> None:
    path = tmp_path_factory.mktemp("s") / "redis.sock"
    options = {"unixsocket": str(path)}
    with RedisServer(options=options) as server, closing(store_of(f"unix://{path}")) as store:
        store.compare_and_set_many([Write(b"a", None, b"1"), Write(b"b", None, b"2" * 300_000)])

        async def test(reader: LoopReads) -> None:
            assert await until_read(reader, [b"a", b"c", b"b"]) == [b"1", None, b"2" * 300_000]
            server.restart(flush=False)
            assert await until_read(reader, [b"a"]) == [b"1"]

        run(store, test, uv)


def test_a_user_with_a_password_reads_and_one_without_rights_is_left_to_the_thread(
    own_server: RedisServer,
) -> None:
    port = own_server.port
    send_command(port, "SET", "k", "v")
    send_command(port, "ACL", "SETUSER", "app", "on", ">pw", "~k", "+mget", "+select")
    settings = OnlineSettings.of(
        {"url": f"redis://app:pw@127.0.0.1:{port}", "timeout": "60s"}, environ={}
    )
    with closing(RedisStore(settings)) as store:

        async def test(reader: LoopReads) -> None:
            assert await until_read(reader, [b"k"]) == [b"v"]
            assert await read(reader, [b"other"]) is None, "an error reply"
            with pytest.raises(OnlineStoreError, match="ACL"):
                store.get_many([b"other"])
            assert await read(reader, [b"k"]) == [b"v"], "the connection is as good as before"

        run(store, test)
    with closing(RedisStore(replace(settings, password="wrong"))) as store:

        async def refused(reader: LoopReads) -> None:
            for _ in range(5):
                assert await read(reader, [b"k"]) is False
                connecting = reader._connecting
                if connecting is not None:
                    await asyncio.wait([connecting])
            assert reader._transport is None

        run(store, refused)


def test_a_connection_that_breaks_leaves_the_read_to_the_thread_and_is_made_again() -> None:
    with RedisServer(port=free_ports(1)[0]) as server, closing(store_at(server.port)) as store:
        store.compare_and_set_many([Write(b"k", None, b"v")])

        async def test(reader: LoopReads) -> None:
            for _ in range(3):
                assert await until_read(reader, [b"k"]) == [b"v"]
                send_command(server.port, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                # the reader learns of it before or while it reads
                found = await read(reader, [b"k"])
                assert found in (False, None)
                again = store.get_many if found is False else reader.repeat
                assert await asyncio.to_thread(again, [b"k"]) == [b"v"]
            server.restart(flush=True)
            assert await until_read(reader, [b"k"]) == [None]

        run(store, test)


def test_a_server_that_hangs_is_an_error_by_the_deadline_and_then_the_threads(
    own_server: RedisServer,
) -> None:
    with closing(store_at(own_server.port, timeout="1s")) as store:
        store.compare_and_set_many([Write(b"k", None, b"v")])

        async def test(reader: LoopReads) -> None:
            assert await until_read(reader, [b"k"]) == [b"v"]
            os.kill(own_server.pid, signal.SIGSTOP)
            try:
                error = await read(reader, [b"k"])
                assert isinstance(error, OnlineStoreError)
                assert "no reply before the deadline" in str(error)
                assert "timeout 1000 ms" in str(error)
                # the breaker has counted it, and decides about the next ones
                assert await read(reader, [b"k"]) is False
                with pytest.raises(OnlineStoreError):
                    await asyncio.to_thread(store.get_many, [b"k"])
            finally:
                os.kill(own_server.pid, signal.SIGCONT)
            async with asyncio.timeout(LONG_S):
                while True:
                    try:
                        assert await asyncio.to_thread(store.get_many, [b"k"]) == [b"v"]
                        break
                    except OnlineStoreError:
                        await asyncio.sleep(0.05)
            assert await until_read(reader, [b"k"]) == [b"v"]

        run(store, test)


@pytest.mark.parametrize("uv", [True, False], ids=["uvloop", "asyncio"])
def test_a_reply_that_came_while_the_loop_was_held_up_is_returned(
    own_server: RedisServer, uv: bool
) -> None:
    """Also if the timer of the deadline runs before the loop has looked at the socket."""
    with closing(store_at(own_server.port)) as store:
        store.compare_and_set_many([Write(b"k", None, b"v")])

        async def test(reader: LoopReads) -> None:
            assert await until_read(reader, [b"k"]) == [b"v"]
            transport = reader._transport
            assert transport is not None
            os.kill(own_server.pid, signal.SIGSTOP)
            try:
                found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                assert reader.get_many([b"k"], found.set_result)
                await asyncio.sleep(0.01)  # a uvloop sends what was written when it is idle
            finally:
                os.kill(own_server.pid, signal.SIGCONT)
            # the loop is held up until the reply is there, and then until the time is over
            sock = transport.get_extra_info("socket")
            assert select.select([sock.fileno()], [], [], LONG_S)[0]
            assert not found.done()
            reader._until_s = time.monotonic()
            reader._check_time()
            assert await found == [b"v"]
            assert reader._transport is transport, "the connection is as good as before"
            assert await read(reader, [b"k"]) == [b"v"]

        run(store, test, uv)


def test_the_last_look_for_a_reply_ends_no_later_read(own_server: RedisServer) -> None:
    with closing(store_at(own_server.port)) as store:

        async def test(reader: LoopReads) -> None:
            await until_read(reader, [b"k"])
            assert reader._timer is not None
            reader._timer.cancel()
            first: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            assert reader.get_many([b"k"], first.set_result)
            overdue_s = reader._until_s = time.monotonic()
            reader._check_time()
            looking = reader._timer
            assert await first == [None]
            looking.cancel()
            os.kill(own_server.pid, signal.SIGSTOP)
            try:
                second: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                assert reader.get_many([b"k"], second.set_result)
                reader._give_up(overdue_s)
                assert not second.done()
            finally:
                os.kill(own_server.pid, signal.SIGCONT)
            assert await second == [None]

        run(store, test)


def test_a_reader_that_is_closed_finishes_its_read(own_server: RedisServer) -> None:
    with closing(store_at(own_server.port)) as store:

        async def test(reader: LoopReads) -> None:
            await until_read(reader, [b"k"])
            found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            assert reader.get_many([b"k"], found.set_result)
            reader.close()
            assert await found == [None]
            await asyncio.sleep(0)
            assert await read(reader, [b"k"]) is False

        run(store, test)


@pytest.mark.parametrize("uv", [True, False], ids=["uvloop", "asyncio"])
def test_a_loop_that_ends_before_the_read_of_a_closed_reader_closes_the_connection(
    own_server: RedisServer, uv: bool
) -> None:
    with closing(store_at(own_server.port)) as store:
        transports: list[asyncio.Transport] = []
        found: list[Any] = []

        async def test(reader: LoopReads) -> None:
            await until_read(reader, [b"k"])
            assert reader._transport is not None
            transports.append(reader._transport)
            os.kill(own_server.pid, signal.SIGSTOP)
            assert reader.get_many([b"k"], found.append)
            reader.close()
            reader.close()

        try:
            run(store, test, uv)
        finally:
            os.kill(own_server.pid, signal.SIGCONT)
        assert found == [None], "the read could be repeated"
        assert transports.pop().is_closing()
        gc.collect()  # a transport that was not closed is an error here


def test_where_the_thread_reads_there_is_no_reader() -> None:
    loop = asyncio.new_event_loop()
    with closing(loop):
        for url in ("redis+cluster://a", "redis+sentinel://a/s", "rediss://a"):
            assert RedisStore(OnlineSettings.of({"url": url}, environ={})).loop_reader(loop) is None
    assert not isinstance(MemoryStore(), ReadsInLoop)
