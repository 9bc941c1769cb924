"""The client against the feature server itself: what it answers, refuses, and sends in bulk."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from paimon_features.core.errors import (
    ConfigurationError,
    RequestError,
    StoreNotReadyError,
    UnknownNameError,
)
from paimon_features.core.types.schema import Float64, Int64, String
from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.definitions import (
    Definitions,
    Entity,
    EventSource,
    FeatureService,
    FeatureView,
    Interaction,
    RequestSource,
    Selection,
)
from paimon_features.definitions.aggregates import Count, Last, Sum
from paimon_features.online.store import MemoryStore
from paimon_features.online_features import FeatureCache
from paimon_features.serving.client import AsyncFeatureClient, FeatureClient
from paimon_features.serving.http.access.tokens import add_token
from paimon_features.serving.http.definitions.definition_set import DefinitionSet
from tests.serving.live import LiveServer
from tests.tile_lake import PROJECT, TileLake

NOW = 1_700_000_000_000 // DAY_MS * DAY_MS + 12 * HOUR_MS
SOURCE = EventSource(
    "clicks", schema={"user": Int64, "t": Int64, "x": Float64, "word": String}, event_time="t"
)
VIEW = FeatureView(
    "v", source=SOURCE, entity=Entity("user", keys={"user": Int64}), max_staleness="1h",
    features=[Sum("x", windows=["1d", "30d"]), Count(windows=["7d"]), Last("word")],
)  # fmt: skip
BASKET = RequestSource("basket", schema={"amount": Float64})
SHARE = Interaction("share", "ratio(amount, v:sum_x_30d, zero=0)", request=BASKET)
SERVICE = FeatureService("all_v1", [VIEW, SHARE])
PART = FeatureService("part_v1", ["v:count_7d"])
DEFINITIONS = Definitions.of([VIEW, SHARE, SERVICE, PART])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> DefinitionSet:
    rng = random.Random(7)
    lake, store = TileLake(tmp_path_factory.mktemp("lake"), VIEW), MemoryStore()
    lake.commit([
        {"user": rng.randrange(20), "t": NOW - rng.randrange(20 * DAY_MS), "x": rng.random(),
         "word": rng.choice(("ü", None, "a"))} for _ in range(200)
    ])  # fmt: skip
    lake.materializer(store).run_once()
    return DefinitionSet(PROJECT, DEFINITIONS, store, 0)


@pytest.fixture(scope="module")
def server(served: DefinitionSet) -> Iterator[LiveServer]:
    server = LiveServer(served)
    yield server
    server.close()


@pytest.fixture
def client(server: LiveServer) -> Iterator[FeatureClient]:
    with FeatureClient(server.url, timeout_s=60) as client:
        yield client


def expected(served: DefinitionSet, users: list[int], amount: object) -> Any:
    outputs = DEFINITIONS.outputs(SERVICE.items())
    return served.fetcher.get(
        Selection.of(outputs).outputs, {"user": users}, NOW, {"amount": amount}
    )


def test_replies_are_what_the_fetcher_answers(served: DefinitionSet, client: FeatureClient) -> None:
    users = [*range(22)]
    for amount in (2.5, [float(user) for user in users]):
        got = client.get_online_features("all_v1", {"user": users}, NOW, {"amount": amount})
        wanted = expected(served, users, amount)
        assert got.to_pylist() == wanted.to_pylist()
        assert got.statuses == wanted.statuses.to_pydict()
        assert got.event_times_ms["sum_x_1d"] == wanted.event_times["v"].to_pylist()
        assert got.freshness["v"].current_ms == wanted.freshness["v"].current_ms
        assert got.as_of_ms == NOW
        assert got.request_id


def test_in_bulk_both_ways_are_arrow(served: DefinitionSet, client: FeatureClient) -> None:
    users = [*range(22)]
    wanted = expected(served, users, 2.5)
    columns: Any
    for columns in (
        {"user": users, "amount": [2.5] * 22},
        pa.table({"user": users, "amount": [2.5] * 22}),
    ):
        got = client.get_online_features_arrow("all_v1", columns, NOW)
        assert got.select(wanted.table.column_names).to_pylist() == wanted.table.to_pylist()
        reported = json.loads(got.schema.metadata[b"paimon_features"])
        names = reported["status_names"]
        statuses = [names[i] for i in got.column("sum_x_1d__status").to_pylist()]
        assert statuses == wanted.statuses.column("sum_x_1d").to_pylist()
        assert got.column("v__event_time_ms").to_pylist() == wanted.event_times["v"].to_pylist()
        assert reported["freshness"]["v"]["applied_snapshot"] == 1
    named = client.get_online_features_arrow(
        ["v:sum_x_1d", "v:count_7d"], {"user": users}, NOW, full_feature_names=True
    )
    assert named.column("v__count_7d").to_pylist() == wanted.table.column("count_7d").to_pylist()


def test_the_async_client_and_the_cache_answer_the_same(
    served: DefinitionSet, server: LiveServer
) -> None:
    async def run_calls() -> list[Any]:
        async with AsyncFeatureClient(
            server.url, cache=FeatureCache(), cache_ttl_s=60, timeout_s=60
        ) as own:
            first = await own.get_online_features("part_v1", {"user": [1, 2, 99]})
            again = await own.get_online_features("part_v1", {"user": [99, 1]})
            table = await own.get_online_features_arrow("part_v1", {"user": [1, 2]}, NOW)
            return [first, again, table]

    first, again, table = asyncio.run(run_calls())
    assert again.request_id is None
    assert again.to_pylist() == [first.to_pylist()[2], first.to_pylist()[0]]
    assert table.num_rows == 2


def test_what_is_served_and_how_it_is_are_reported(client: FeatureClient) -> None:
    reported = client.features()
    assert [service["name"] for service in reported["services"]] == ["all_v1", "part_v1"]
    assert reported["views"][0]["max_staleness_ms"] == HOUR_MS
    assert client.health()["status"] == "ready"


def test_refusals_become_our_errors(
    served: DefinitionSet, client: FeatureClient, tmp_path: Path
) -> None:
    with pytest.raises(UnknownNameError, match="'nothing'"):
        client.get_online_features("nothing", {"user": [1]})
    with pytest.raises(RequestError, match="amount"):
        client.get_online_features("all_v1", {"user": [1]})
    with pytest.raises(RequestError, match="user"):
        client.get_online_features("part_v1", {"user": [1.5]})
    with pytest.raises(RequestError, match="years 1 to 9999"):
        client.get_online_features("part_v1", {"user": [1]}, as_of_ms=2**60)
    token = add_token(tmp_path / "tokens.toml", "part", ["part_v1"], "2026-01-01")
    closed = LiveServer(served, tmp_path / "tokens.toml")
    try:
        with FeatureClient(closed.url, token=token, timeout_s=60) as own:
            assert own.get_online_features("part_v1", {"user": [99]}).features == ["count_7d"]
            with pytest.raises(ConfigurationError, match="may not read"):
                own.get_online_features("v:sum_x_1d", {"user": [1]})
        with (
            FeatureClient(closed.url, timeout_s=60) as own,
            pytest.raises(ConfigurationError, match="no token.*PAIMON_FEATURES_TOKEN"),
        ):
            own.get_online_features("part_v1", {"user": [1]})
    finally:
        closed.close()


def test_a_store_that_is_rebuilt_meanwhile_is_waited_for(tmp_path: Path) -> None:
    lake, store = TileLake(tmp_path, VIEW), MemoryStore()
    lake.commit([{"user": 1, "t": NOW, "x": 1.0, "word": "a"}])
    server = LiveServer(DefinitionSet(PROJECT, DEFINITIONS, store, 0))
    try:
        with (
            FeatureClient(server.url, max_tries=2, timeout_s=60) as hasty,
            pytest.raises(StoreNotReadyError, match="not in the online store yet"),
        ):
            hasty.get_online_features("part_v1", {"user": [1]}, NOW + 1)
        with FeatureClient(server.url, timeout_s=60) as client:
            assert client.health()["status"] == "not_ready"
            lake.materializer(store).run_once()
            got = client.get_online_features("part_v1", {"user": [1]}, NOW + 1)
            assert got.to_pydict()["count_7d"] == [1]
    finally:
        server.close()
