"""The client against a server over real sockets: values, errors, tries, deadlines, the cache."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import (
    ConfigurationError,
    OnlineStoreError,
    OverloadedError,
    RequestError,
    StoreNotReadyError,
    UnknownNameError,
)
from paimon_features.core.types.schema import Float64, Int64, String
from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.definitions import Entity, EventSource, FeatureRef, FeatureView
from paimon_features.definitions.aggregates import Count, Last, Sum, Variance
from paimon_features.online.store import MemoryStore
from paimon_features.online_features import FeatureCache
from paimon_features.serving.client import AsyncFeatureClient, FeatureClient
from paimon_features.serving.client.retries import RetryPolicy, RetryState
from paimon_features.serving.client.row_cache import RowCache
from paimon_features.serving.reading.fetcher import FeatureFetcher
from tests.serving.client.served import FeatureServer
from tests.tile_lake import PROJECT, TileLake

ROOT = Path(__file__).parents[3]
SOURCE = EventSource(
    "clicks", schema={"user": Int64, "t": Int64, "x": Float64, "word": String}, event_time="t"
)
USER = Entity("user", keys={"user": Int64})
NOW = 1_700_000_000_000 // DAY_MS * DAY_MS + 12 * HOUR_MS
VIEW = FeatureView(
    "v", source=SOURCE, entity=USER, max_staleness="1h", ttl="10d",
    features=[
        Sum("x", windows=["1d"]), Count(windows=["7d"]), Last("word", windows=["7d"]),
        Variance("x", windows=["1d"]),
    ],
)  # fmt: skip
UNAVAILABLE = (503, {}, {"code": "store_unavailable", "detail": "the store is away"})


class Clock:
    now_ms = NOW + 1

    def __call__(self) -> int:
        return self.now_ms


class World:
    """A lake, a store, a server; and a materializer that moves one to the other."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.lake = Clock(), TileLake(folder, VIEW)
        self.store = MemoryStore(self.clock)
        self.materializer = self.lake.materializer(self.store, clock=self.clock)
        self.fetcher = FeatureFetcher(PROJECT, [VIEW.compiled], self.store, clock=self.clock)
        self.server = FeatureServer(self.fetcher, [VIEW.compiled], self.clock)

    def commit(self, *events: tuple[int, int, float, str | None]) -> None:
        self.lake.commit([dict(zip(("user", "t", "x", "word"), e, strict=True)) for e in events])
        self.materializer.run_once()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("lake"))
    world.commit(
        (1, NOW, 2.5, "ü"), (1, NOW, 3.0, None), (2, NOW - 9 * DAY_MS, 1.0, "old"),
        (3, NOW - 10 * DAY_MS - 1, 1.0, "older"), (4, NOW, 1e9, "a"), (4, NOW, 1e9 + 1e-6, "b"),
    )  # fmt: skip
    yield world
    world.server.close()


@pytest.fixture
def world(shared: World) -> World:
    shared.server.seen.clear()
    shared.server.faults.clear()
    shared.server.token = None
    shared.clock.now_ms = NOW + 1
    return shared


@pytest.fixture
def client(world: World) -> Iterator[FeatureClient]:
    with FeatureClient(world.server.url, timeout_s=60.0) as client:
        yield client


# -- replies -------------------------------------------------------------------------------


def test_a_reply_has_what_the_fetcher_answers(world: World, client: FeatureClient) -> None:
    users = [1, 2, 3, 4, 99]
    got = client.get_online_features("everything", {"user": users})
    refs = [FeatureRef("v", f.name) for f in VIEW.compiled.features]
    wanted = world.fetcher.get(refs, {"user": users}, NOW + 1)
    assert got.to_pydict() == wanted.to_pydict()
    assert got.to_pylist() == wanted.to_pylist()
    assert got.statuses == wanted.statuses.to_pydict()
    assert {s for column in got.statuses.values() for s in column} >= {
        "PRESENT", "MISSING", "ILL_CONDITIONED",
    }  # fmt: skip
    assert got.features == wanted.features
    assert (got.keys, got.as_of_ms) == (["user"], NOW + 1)
    assert got.event_times_ms == {n: wanted.event_times["v"].to_pylist() for n in got.features}
    assert got.applied_snapshot == {"v": 1}
    reported, known = got.freshness["v"], wanted.freshness["v"]
    assert (reported.commit_time_ms, reported.current_ms) == (
        known.commit_time_ms,
        known.current_ms,
    )
    assert (reported.event_time_high_ms, reported.stale) == (known.event_time_high_ms, False)


def test_features_can_be_listed_and_called_by_their_full_names(
    world: World, client: FeatureClient
) -> None:
    one = client.get_online_features("v:sum_x_1d", {"user": np.array([1])})
    assert one.to_pydict() == {"user": [1], "sum_x_1d": [5.5]}
    named = client.get_online_features(
        ["v:count_7d", "v:sum_x_1d"], {"user": pa.array([1])}, full_feature_names=True
    )
    assert named.to_pydict() == {"user": [1], "v__count_7d": [2], "v__sum_x_1d": [5.5]}
    later = client.get_online_features("v:sum_x_1d", {"user": (1,)}, as_of_ms=NOW + 2 * DAY_MS)
    assert (later.as_of_ms, later.to_pydict()["sum_x_1d"]) == (NOW + 2 * DAY_MS, [0.0])
    assert world.server.reads()[0] == {"features": ["v:sum_x_1d"], "entities": {"user": [1]}}


def test_the_async_client_answers_the_same(world: World, client: FeatureClient) -> None:
    async def run_calls() -> list[Any]:
        async with AsyncFeatureClient(world.server.url, timeout_s=60) as own:
            await own.health()
            many = [own.get_online_features("everything", {"user": [u]}) for u in range(8)]
            return [await own.features(), *await asyncio.gather(*many)]

    features, *replies = asyncio.run(run_calls())
    assert features == client.features()
    for user, reply in enumerate(replies):
        wanted = client.get_online_features("everything", {"user": [user]})
        assert reply.to_pylist() == wanted.to_pylist()
        assert reply.statuses == wanted.statuses


def test_one_connection_serves_many_requests(world: World, client: FeatureClient) -> None:
    before = world.server.connections
    for _ in range(5):
        client.get_online_features("everything", {"user": [1]})
    assert world.server.connections == before + 1


def test_a_request_has_an_id_that_its_tries_share(world: World, client: FeatureClient) -> None:
    world.server.faults[:] = [UNAVAILABLE]
    reply = client.get_online_features("everything", {"user": [1]})
    ids = [headers["x-request-id"] for _, headers, _ in world.server.seen]
    assert ids == [reply.request_id] * 2
    again = client.get_online_features("everything", {"user": [1]})
    assert again.request_id != reply.request_id


# -- what cannot be answered ---------------------------------------------------------------


def test_errors_have_the_words_of_the_server(world: World, client: FeatureClient) -> None:
    with pytest.raises(UnknownNameError, match="no service 'nothing'"):
        client.get_online_features("nothing", {"user": [1]})
    with pytest.raises(UnknownNameError, match="'v:nothing'; available: v:count_7d"):
        client.get_online_features(["v:nothing"], {"user": [1]})
    with pytest.raises(RequestError, match="entity key 'user': expected Int64") as caught:
        client.get_online_features("everything", {"user": ["1"]})
    sent = world.server.seen[-1][1]["x-request-id"]
    assert caught.value.__notes__ == [f"request id {sent}"]
    assert len(world.server.seen) == 3  # none of these is worth a second try


def test_what_cannot_be_requested_is_not_sent(world: World, client: FeatureClient) -> None:
    for entities, request, message in (
        ({"user": 7}, None, "'user': got the single value 7"),
        ({"user": "77"}, None, "single value"),
        ({"user": [1], "shop": [1, 2]}, None, "different lengths"),
        ({"user": [1]}, {"amount": [1, 2]}, "2 values for 1 entities"),
        ({"user": [float("nan")]}, None, "cannot be sent"),
        ({"user": [object()]}, None, "cannot be sent"),
    ):
        with pytest.raises(RequestError, match=message):
            client.get_online_features("everything", entities, request=request)
    assert world.server.seen == []


def test_values_of_other_libraries_and_types_are_sent_as_json(
    world: World, client: FeatureClient
) -> None:
    day, moment = dt.date(2024, 2, 29), dt.datetime(2024, 2, 29, 1, tzinfo=dt.UTC)
    with pytest.raises(RequestError):
        client.get_online_features(
            "everything", {"user": [day]}, request={"a": np.float64(2.5), "b": [moment], "c": "c"}
        )
    body = world.server.reads()[-1]
    assert body["entities"] == {"user": ["2024-02-29"]}
    assert body["request"] == {"a": 2.5, "b": ["2024-02-29T01:00:00.000Z"], "c": "c"}


def test_a_token_comes_from_the_argument_or_the_environment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.server.token = "s3cret"
    with FeatureClient(world.server.url, token="s3cret", timeout_s=60) as client:
        client.health()
    monkeypatch.setenv("PAIMON_FEATURES_TOKEN", "s3cret")
    with FeatureClient(world.server.url, timeout_s=60) as client:
        client.health()
    for token in ("other", None):
        monkeypatch.delenv("PAIMON_FEATURES_TOKEN", raising=False)
        with (
            FeatureClient(world.server.url, token=token, timeout_s=60) as client,
            pytest.raises(ConfigurationError, match="token is not known.*PAIMON_FEATURES_TOKEN"),
        ):
            client.get_online_features("everything", {"user": [1]})


def test_an_unavailable_store_and_a_lost_connection_are_retried(
    world: World, client: FeatureClient
) -> None:
    world.server.faults[:] = [UNAVAILABLE, "drop", UNAVAILABLE]
    assert client.get_online_features("v:count_7d", {"user": [1]}).to_pydict()["count_7d"] == [2]
    assert len(world.server.reads()) == 4


def test_retry_after_is_waited_for(world: World, client: FeatureClient) -> None:
    world.server.faults[:] = [(503, {"retry-after": "0.3"}, {"code": "overloaded"})]
    start = time.monotonic()
    client.get_online_features("v:count_7d", {"user": [1]})
    assert time.monotonic() - start >= 0.3


def test_a_deadline_ends_the_tries(world: World, client: FeatureClient) -> None:
    world.server.faults[:] = [(503, {"retry-after": "60"}, {"code": "overloaded"})] * 9
    with pytest.raises(OverloadedError):
        client.get_online_features("everything", {"user": [1]})
    assert len(world.server.reads()) == 1  # not at all before the deadline, so at once
    world.server.faults[:] = [(503, {}, {"code": "not_ready", "detail": "being built"})] * 99
    with pytest.raises(StoreNotReadyError, match="being built") as caught:
        client.get_online_features("everything", {"user": [1]})
    assert "6 tries within 60 s" in caught.value.__notes__[1]
    # the server's error is reported, not that the last try got no reply
    world.server.faults[:] = [(503, {}, {"code": "overloaded", "detail": "busy"}), *["drop"] * 9]
    with pytest.raises(OverloadedError, match="busy"):
        client.get_online_features("everything", {"user": [1]})
    with FeatureClient(world.server.url, timeout_s=0.3) as client:
        world.server.faults[:] = ["slow"]
        with pytest.raises(OnlineStoreError, match="does not respond .*Timeout"):
            client.get_online_features("everything", {"user": [1]})


def test_a_server_that_is_not_there_is_reported() -> None:
    with (
        FeatureClient("http://127.0.0.1:9", max_tries=2, timeout_s=60) as client,
        pytest.raises(OnlineStoreError, match=r"127.0.0.1:9 does not respond .*2 tries.*serve"),
    ):
        client.health()


def test_something_else_that_answers_is_reported(world: World, client: FeatureClient) -> None:
    world.server.faults[:] = ["nonsense"]
    with pytest.raises(OnlineStoreError, match="something other than a feature server.*It works"):
        client.get_online_features("everything", {"user": [1]})
    world.server.faults[:] = [(500, {}, {"code": "internal", "detail": "a fault"})]
    with pytest.raises(OnlineStoreError, match="a fault"):
        client.get_online_features("everything", {"user": [1]})


def test_settings_that_cannot_be_right_are_refused() -> None:
    for url, options in (("localhost:6566", {}), ("http://h", {"timeout_s": 0.0})):
        with pytest.raises(ConfigurationError, match="expected"):
            FeatureClient(url, **options)


def test_tries_spread_out_by_chance_and_never_before_retry_after() -> None:
    policy = RetryPolicy(timeout_s=100, max_tries=9, base_s=0.1, cap_s=0.5)
    for chance, waits in ((0.0, [1, 1, 1, 1, 1]), (0.5, [1.05, 1.1, 1.2, 1.25, 1.25])):
        exchange = RetryState("url", policy, clock=lambda: 0.0, chance=lambda c=chance: c)
        got = [exchange.rejected(503, {"retry-after": "1"}, b"{}", "id") for _ in waits]
        assert got == pytest.approx(waits)
    dated = RetryState("url", policy, clock=lambda: 0.0, chance=lambda: 0.0)
    assert dated.rejected(503, {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, b"", "id") == 0


def test_a_last_try_that_the_deadline_cuts_short_is_not_what_is_reported() -> None:
    now_s = 0.0
    policy = RetryPolicy(timeout_s=2, max_tries=9)
    exchange = RetryState("url", policy, clock=lambda: now_s, chance=lambda: 0.0)
    busy = b'{"code": "overloaded", "detail": "busy"}'
    assert exchange.rejected(503, {}, busy, "id") == 0
    now_s = 2.0
    with pytest.raises(OverloadedError, match="busy"):
        exchange.failed(TimeoutError())


# -- the cache -----------------------------------------------------------------------------


def test_rows_of_a_moment_ago_are_not_requested_again(world: World) -> None:
    cache = FeatureCache(100)
    with FeatureClient(world.server.url, cache=cache, cache_ttl_s=60, timeout_s=60) as client:
        first = client.get_online_features("everything", {"user": [1, 99]})
        again = client.get_online_features("everything", {"user": [99, 1, 1]})
        assert again.to_pylist() == [first.to_pylist()[i] for i in (1, 0, 0)]
        assert again.statuses["count_7d"] == ["MISSING", "PRESENT", "PRESENT"]
        assert (again.request_id, again.freshness) == (None, first.freshness)
        assert again.event_times_ms["count_7d"] == [None, NOW, NOW]
        world.clock.now_ms += 5_000
        some = client.get_online_features("everything", {"user": [4, 1, 2]})
        assert [body["entities"] for body in world.server.reads()] == [
            {"user": [1, 99]}, {"user": [4, 2]},
        ]  # fmt: skip
        assert (some.to_pydict()["user"], some.as_of_ms) == ([4, 1, 2], NOW + 1)
        plain = client.get_online_features("everything", {"user": [4, 1, 2]}, as_of_ms=NOW + 1)
        assert some.to_pylist() == plain.to_pylist()
        client.get_online_features("everything", {"user": [4, 1, 2]}, full_feature_names=True)
        client.get_online_features("v:count_7d", {"user": [1]})
        assert len(world.server.reads()) == 5  # another time, other names, other features
        with pytest.raises(RequestError):
            client.get_online_features("everything", {"user": [True]})  # equals 1, and is not


def test_rows_are_kept_for_no_longer_than_they_are_worth(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ttl_s, now_s = 0.2, 0.0
    clocked = partial(RowCache, clock=lambda: now_s)
    monkeypatch.setattr("paimon_features.serving.client.core.RowCache", clocked)
    with FeatureClient(
        world.server.url, cache=FeatureCache(), cache_ttl_s=ttl_s, timeout_s=60
    ) as client:

        def requests_sent() -> int:
            before = len(world.server.reads())
            client.get_online_features("everything", {"user": [1]})
            return len(world.server.reads()) - before

        assert [requests_sent(), requests_sent()] == [1, 0]
        now_s += ttl_s
        assert requests_sent() == 1
    with FeatureClient(
        world.server.url, cache=FeatureCache(), cache_ttl_s=60, timeout_s=60
    ) as client:
        # an hour of max_staleness, of which 100 ms are left
        world.clock.now_ms = NOW + 1 + HOUR_MS - 100
        assert [requests_sent(), requests_sent()] == [1, 0]
        now_s += 0.15
        assert requests_sent() == 1
        world.clock.now_ms += 200
        now_s += 0.15
        assert [requests_sent(), requests_sent()] == [1, 1]  # stale: true, but nothing to keep
        reply = client.get_online_features("everything", {"user": [1]})
        assert (reply.statuses["count_7d"], reply.freshness["v"].stale) == (["STALE"], True)


def test_a_cache_is_shared_by_clients_of_one_server_only(world: World, tmp_path: Path) -> None:
    cache = FeatureCache()
    other = World(tmp_path)
    other.commit((1, NOW, 40.0, "x"))
    try:
        got = []
        for server in (world.server, other.server, world.server):
            with FeatureClient(server.url, cache=cache, cache_ttl_s=60, timeout_s=60) as client:
                got.append(client.get_online_features("v:sum_x_1d", {"user": [1]}).to_pylist())
        assert [rows[0]["sum_x_1d"] for rows in got] == [5.5, 40.0, 5.5]
        assert len(world.server.reads()) == 1
    finally:
        other.server.close()


def test_the_async_client_keeps_rows_too(world: World) -> None:
    async def run_calls() -> list[Any]:
        async with AsyncFeatureClient(
            world.server.url, cache=FeatureCache(), cache_ttl_s=60, timeout_s=60
        ) as own:
            return [await own.get_online_features("everything", {"user": [1]}) for _ in range(3)]

    first, *others = asyncio.run(run_calls())
    assert [reply.to_pylist() for reply in others] == [first.to_pylist()] * 2
    assert len(world.server.reads()) == 1


# -- a host without NumPy ------------------------------------------------------------------

NOT_THERE = (
    "numpy", "pyarrow", "pandas", "polars", "pypaimon", "redis", "msgspec", "pyflink",
    "torch", "click", "rich",
)  # fmt: skip
HOST = f"""
import sys

class NotThere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {NOT_THERE!r}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, NotThere())
import asyncio, json
from paimon_features.serving.client import AsyncFeatureClient, FeatureClient
from paimon_features.online_features import FeatureCache

with FeatureClient(sys.argv[1], cache=FeatureCache(10), cache_ttl_s=60, timeout_s=60) as client:
    reply = client.get_online_features("everything", {{"user": [1]}})
    client.get_online_features("everything", {{"user": [1]}})

async def main():
    async with AsyncFeatureClient(sys.argv[1], timeout_s=60) as client:
        return (await client.get_online_features("v:count_7d", {{"user": [1]}})).to_pylist()

print(json.dumps([reply.to_pylist(), asyncio.run(main())]))
"""


def test_a_host_without_numpy_and_arrow_reads_features(world: World) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", HOST, world.server.url],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    whole, one = json.loads(done.stdout)
    assert whole[0]["sum_x_1d"] == 5.5
    assert one == [{"user": 1, "count_7d": 2}]
