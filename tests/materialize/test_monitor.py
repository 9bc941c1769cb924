"""Monitoring of a materializer: metrics, liveness, and reasons for not being ready."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from paimon_features.errors import ConfigurationError, OnlineStoreError
from paimon_features.materialize.monitor import SILENT_AFTER_S, Monitor, MonitorServer
from paimon_features.online import MemoryStore
from paimon_features.testing.clicks import ClickStream
from paimon_features.testing.tile_lake import TileLake

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
def address(monitor: Monitor) -> Iterator[str]:
    with MonitorServer(monitor, "0") as server:
        yield server.address


def get(address: str, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=5) as answer:
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
    monitor.failed(VIEW, OnlineStoreError("nobody answers"))
    code, reported = health(address, "ready")
    assert (code, reported["views"][VIEW]["trouble"]) == (503, "nobody answers")
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
