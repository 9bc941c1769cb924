"""Monitoring of a materializer: metrics, liveness, and reasons for not being ready."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from paimon_features.core.errors import ConfigurationError
from paimon_features.online.materialize.monitor import SILENT_AFTER_S, STORE_TROUBLE, Monitor
from paimon_features.online.materialize.monitor_server import MAX_CONNECTIONS, MonitorServer
from paimon_features.online.store import MemoryStore
from tests.clicks import ClickStream
from tests.servers.online_servers import wait_for
from tests.tile_lake import TileLake

VIEW = "clicks"


class Time:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def monitor(time: Time) -> Monitor:
    return Monitor([VIEW], time)


@pytest.fixture
def server(monitor: Monitor) -> Iterator[MonitorServer]:
    with MonitorServer(monitor, "0") as server:
        yield server


@pytest.fixture
def address(server: MonitorServer) -> str:
    return server.address


def get(address: str, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=120) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def health(address: str, what: str) -> tuple[int, dict[str, Any]]:
    code, body = get(address, f"/health/{what}")
    return code, json.loads(body)


def metrics(address: str) -> dict[str, float]:
    _, text = get(address, "/metrics")
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            assert sample.labels == {"view": VIEW}
            found[sample.name.removeprefix("paimon_features_materializer_")] = sample.value
    return found


def test_metrics_count_what_was_materialized(
    lake: TileLake, stream: ClickStream, monitor: Monitor, address: str
) -> None:
    assert health(address, "live")[0] == 200
    assert health(address, "ready")[0] == 503
    worker = lake.materializer(MemoryStore(), progress=monitor.working)
    tiles = records = 0
    for _ in range(3):
        stream.commit()
        stop = threading.Event()

        def passed(progress: Any, stop: threading.Event = stop) -> None:
            nonlocal tiles, records
            tiles += progress.tiles
            records += progress.records
            monitor.passed(progress)
            if progress.caught_up:
                stop.set()

        worker.follow(1, stop, on_pass=passed)
    found = metrics(address)
    assert found["tiles_total"] == tiles > 0
    assert found["records_total"] == records > 0
    assert found["applied_snapshot"] == found["latest_snapshot"] == 3
    assert found["rebuilds_total"] == 1  # into the empty store
    assert found["store_errors_total"] == 0
    assert found["last_pass_seconds"] > 1.7e9
    code, reported = health(address, "ready")
    assert code == 200
    assert reported["views"][VIEW]["applied_snapshot"] == 3


def test_with_an_unavailable_store_it_is_live_but_not_ready(
    lake: TileLake, monitor: Monitor, address: str
) -> None:
    monitor.passed(lake.materializer(MemoryStore()).run_once())
    assert health(address, "ready")[0] == 200
    monitor.failed(VIEW)
    code, reported = health(address, "ready")
    assert (code, reported["views"][VIEW]["trouble"]) == (503, STORE_TROUBLE)
    assert health(address, "live")[0] == 200
    assert metrics(address)["store_errors_total"] == 1


def test_a_materializer_without_progress_is_not_live(
    time: Time, monitor: Monitor, address: str
) -> None:
    time.now_s += SILENT_AFTER_S - 1
    assert health(address, "live")[0] == 200
    time.now_s += 2
    code, reported = health(address, "live")
    assert (code, reported["views"][VIEW]["silent_s"]) == (503, SILENT_AFTER_S + 1)


def test_unknown_paths_list_the_available_ones(address: str) -> None:
    code, text = get(address, "/")
    assert (code, text) == (404, b"available: /metrics, /health/live, /health/ready\n")


@pytest.mark.parametrize("wrong", ["", "9464x", "127.0.0.1:99999", "203.0.113.7:0", "a:b"])
def test_an_unusable_listen_address_is_rejected(monitor: Monitor, wrong: str) -> None:
    with pytest.raises(ConfigurationError, match="listen"):
        MonitorServer(monitor, wrong)


def status(address: str, sent: bytes) -> int:
    """The status of the reply, 0 if the connection ends without one."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        connection.sendall(sent)
        got = connection.makefile("rb").read()
    return int(got.split()[1]) if got else 0


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"GET /health/live HTTP/1.1\r\nhost: localhost:9464\r\n\r\n", 200),
        (b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\nx: y\r\n\r\n", 200),
        (b"GET /health/live HTTP/1.0\r\n\r\n", 200),
        (b"GET /health/live HTTP/1.1\r\nhost: evil.example\r\n\r\n", 421),
        (b"GET /health/live HTTP/1.0\r\nhost: evil.example\r\n\r\n", 421),
        (b"GET /health/live HTTP/1.1\r\nhost: a b\r\n\r\n", 421),
        (b"GET /health/live HTTP/1.1\r\n\r\n", 400),
        (b"GET /health/live HTTP/0.9\r\n\r\n", 400),
        (b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n", 400),
        (b"POST /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n", 405),
        (b"GET /health/live\r\n\r\n", 400),
        (b"\x16\x03\x01\r\n\r\n", 400),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 500 + b"\r\n", 400),
    ],
)
def test_it_answers_requests_under_its_names_only(address: str, head: bytes, expected: int) -> None:
    assert status(address, head) == expected


def test_it_answers_to_the_names_it_is_given(monitor: Monitor) -> None:
    with MonitorServer(monitor, "0", [".example.com"]) as server:
        for name, expected in ((b"m.example.com", 200), (b"localhost", 421)):
            head = b"GET /metrics HTTP/1.1\r\nhost: %b\r\n\r\n" % name
            assert status(server.address, head) == expected


def test_slow_clients_are_few_have_no_threads_and_keep_nobody_waiting(
    server: MonitorServer,
) -> None:
    host, _, port = server.address.rpartition(":")
    threads = set(threading.enumerate())
    with ExitStack() as stack:
        for _ in range(3 * MAX_CONNECTIONS):
            slow = socket.create_connection((host, int(port)))
            stack.enter_context(slow).sendall(b"GET /metrics HTTP/1.1\r\n")
        assert health(server.address, "live")[0] == 200
        assert len(server) <= MAX_CONNECTIONS
        # a thread of another test may have ended meanwhile
        assert set(threading.enumerate()) <= threads


def test_a_request_has_a_deadline(monitor: Monitor, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "paimon_features.online.materialize.monitor_server.REQUEST_TIMEOUT_S"
    monkeypatch.setattr(module, 0.2)
    with MonitorServer(monitor, "0") as server:
        assert status(server.address, b"GET /metrics HTTP/1.1\r\n") == 0
        wait_for(lambda: len(server) == 0, "the connection is closed")
