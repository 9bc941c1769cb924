"""Services over several entities with interactions: online, offline, and row by row, one value."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from paimon_features.core.errors import RequestError
from paimon_features.core.types.schema import Float64, Int64, String, arrow_schema
from paimon_features.core.windows import DAY_MS, HOUR_MS, MINUTE_MS
from paimon_features.definitions import (
    Definitions,
    Entity,
    EventSource,
    FeatureService,
    FeatureView,
    Interaction,
    Output,
    RequestSource,
    Selection,
)
from paimon_features.definitions.aggregates import Count, Last, Max, Sum, Variance
from paimon_features.lake import table_options
from paimon_features.offline.training_set import build_training_set
from paimon_features.online.materialize import Materializer
from paimon_features.online.store import MemoryStore
from paimon_features.serving.reading.fetcher import FeatureFetcher
from paimon_features.testing.reference.interactions import apart, wrong_interactions
from tests.offline.lake_of_views import LakeOfViews

SHOP = EventSource(
    "shop",
    schema={"user": Int64, "product": String, "t": Int64, "amount": Float64},
    event_time="t",
)
SPEND = FeatureView(
    "spend",
    source=SHOP,
    entity=Entity("user", keys={"user": Int64}),
    features=[
        Sum("amount", windows=["1h", "7d"], scale=2),
        Variance("amount", windows=["7d"]),
        Last("product", windows=["7d"]),
    ],
    ttl="5d",
)
SOLD = FeatureView(
    "sold",
    source=SHOP,
    entity=Entity("product", keys={"product": String}),
    features=[Count(windows=["7d"]), Sum("amount", windows=["7d"], scale=2)],
)
TASTE = FeatureView(
    "taste",
    source=SHOP,
    entity=Entity("user_product", keys={"user": Int64, "product": String}),
    features=[Count(windows=["7d"]), Max("amount", windows=["7d"], scale=2)],
    max_staleness="1h",
)
PAYMENT = RequestSource("payment", schema={"price": Float64, "currency": String})
HOT = Interaction("hot", "ratio(spend:sum_amount_1h, spend:sum_amount_7d, zero=0)")
SHARE = Interaction("share", "ratio(taste:count_7d, sold:count_7d)")
OVER = Interaction("over", "ratio(price, taste:max_amount_7d, zero=1) - hot", request=PAYMENT)
CROSS = Interaction(
    "cross", "hash_cross(spend:last_product_7d, currency, buckets=97)", request=PAYMENT
)
LOG = Interaction("log", "log_ratio(spend:sum_amount_7d, sold:sum_amount_7d, add=1)")
SAFE = Interaction("safe", "coalesce(bucket(spend:variance_amount_7d, 1, 10, 100), -1)")
SERVICE = FeatureService("model", [SHARE, "spend:sum_amount_7d", OVER, CROSS, TASTE, LOG, SAFE])
DEFINITIONS = Definitions.of([SPEND, SOLD, TASTE, HOT, SERVICE])
OUTPUTS = DEFINITIONS.outputs(SERVICE.items())
NAMES = ["share", "sum_amount_7d", "over", "cross", "count_7d", "max_amount_7d", "log", "safe"]
NOW = 1_700_000_000_000 // DAY_MS * DAY_MS + 12 * HOUR_MS


class FakeClock:
    now_ms = NOW

    def __call__(self) -> int:
        return self.now_ms


class Shop:
    """One lake with the three views, and an online store made of it."""

    def __init__(self, folder: Path, events: list[dict[str, Any]]) -> None:
        self.lake = LakeOfViews(folder, SPEND, SOLD, TASTE)
        self.lake.commit(pa.Table.from_pylist(events, schema=arrow_schema(SHOP.schema)))
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        views = [view.compiled for view in (SPEND, SOLD, TASTE)]
        for view in views:
            record = self.lake.generation(view)
            Materializer(
                self.lake.lake, "shop", view, lambda r=record: r, self.store,
                lease_ttl_ms=None, clock=self.clock,
            ).run_once()  # fmt: skip
        self.fetcher = FeatureFetcher("shop", views, self.store, clock=self.clock)

    def online(
        self,
        keys: dict[str, Any],
        as_of_ms: int,
        outputs: tuple[Output, ...] = OUTPUTS,
        **request: Any,
    ) -> Any:
        return self.fetcher.get(outputs, keys, as_of_ms, request)

    def offline(
        self, rows: dict[str, Any], outputs: tuple[Output, ...] = OUTPUTS, **options: Any
    ) -> pa.Table:
        return self.lake.store.get_historical_features(outputs, pa.table(rows), **options)


def buy(
    user: int | None, product: str | None, t: int, amount: float | None = 1.0
) -> dict[str, Any]:
    return {"user": user, "product": product, "t": t, "amount": amount}


def test_online_and_offline_give_one_number_to_the_bit(tmp_path: Path) -> None:
    rng = random.Random(11)
    events = [
        buy(rng.randrange(12), rng.choice("abcdef"), NOW - int(rng.expovariate(1) * 2 * DAY_MS) - 1,
            rng.choice([None, round(rng.random() * 100, 2), 0.01, 0.0]))
        for _ in range(300)
    ]  # fmt: skip
    shop = Shop(tmp_path, events)
    keys = {
        "user": [rng.randrange(14) for _ in range(120)],
        "product": [rng.choice("abcdefgh") for _ in range(120)],
    }
    request = {
        "price": [rng.choice([None, 0.0, 9.99, 1.7e308]) for _ in range(120)],
        "currency": [rng.choice(["EUR", None, ""]) for _ in range(120)],
    }
    every = Selection.of([*Selection.of(OUTPUTS).refs, *Selection.of(OUTPUTS).interactions])
    inputs = {"price": pa.array(request["price"]), "currency": pa.array(request["currency"])}
    statuses: set[str] = set()
    for as_of_ms in (NOW, NOW + 5 * MINUTE_MS, NOW + DAY_MS, NOW + 6 * DAY_MS):
        rows = {**keys, **request, "event_time_ms": [as_of_ms] * 120}
        got = shop.online(keys, as_of_ms, **request)
        past = shop.offline(rows, statuses=True)
        assert got.features == NAMES
        for name in NAMES:
            assert got.table[name].combine_chunks().equals(past[name].combine_chunks()), name
            assert got.statuses[name].to_pylist() == past[f"{name}__status"].to_pylist(), name
        online = shop.online(keys, as_of_ms, every.outputs, **request).table
        tiles = shop.offline(rows, every.outputs)
        assert not [*wrong_interactions(every, online, inputs)]
        assert not [*wrong_interactions(every, tiles, inputs)]
        assert not [*apart(every, online, tiles)]
        statuses |= {s for row in got.statuses.to_pylist() for s in row.values()}
    assert {"PRESENT", "MISSING", "EXPIRED", "ILL_CONDITIONED"} <= statuses


def test_keys_of_all_entities_are_given_in_one_call(tmp_path: Path) -> None:
    events = [
        buy(1, "a", NOW - 10 * MINUTE_MS, 6.0), buy(1, "a", NOW - DAY_MS, 2.0),
        buy(1, "b", NOW - DAY_MS, 4.0), buy(2, "a", NOW - DAY_MS, 3.0),
    ]  # fmt: skip
    shop = Shop(tmp_path, events)
    got = shop.online({"product": ["a", "b", "c"], "user": [1, 2, 1]}, NOW, price=3, currency="EUR")
    assert got.table.column_names == ["user", "product", *NAMES]
    assert got.to_pydict() == {
        "user": [1, 2, 1],
        "product": ["a", "b", "c"],
        "share": [2 / 3, None, None],
        "sum_amount_7d": [12.0, 3.0, 12.0],
        "over": [3 / 6 - 6 / 12, None, None],
        "cross": [39, 39, 39],
        "count_7d": [2, None, None],
        "max_amount_7d": [6.0, None, None],
        "log": [pytest.approx(0.08004270767353637), pytest.approx(-0.22314355131420976), None],
        "safe": [1, 0, 1],
    }
    assert got.statuses.to_pylist()[1] == {
        "share": "MISSING", "sum_amount_7d": "PRESENT", "over": "MISSING", "cross": "PRESENT",
        "count_7d": "MISSING", "max_amount_7d": "MISSING", "log": "PRESENT", "safe": "PRESENT",
    }  # fmt: skip
    assert set(got.freshness) == set(got.event_times) == {"spend", "sold", "taste"}
    with pytest.raises(RequestError, match="missing entity key 'product'"):
        shop.online({"user": [1]}, NOW, price=3, currency="EUR")


def test_an_interaction_is_as_stale_and_as_expired_as_what_it_is_made_of(tmp_path: Path) -> None:
    shop = Shop(tmp_path, [buy(1, "a", NOW - DAY_MS, 2.0)])
    shop.clock.now_ms += 2 * HOUR_MS
    got = shop.online({"user": [1], "product": ["a"]}, NOW, price=3.0, currency="")
    status = got.statuses.to_pylist()[0]
    assert (status["share"], status["over"], status["log"]) == ("STALE", "STALE", "PRESENT")
    assert got.to_pydict()["share"] == [1.0]
    got = shop.online({"user": [1], "product": ["a"]}, NOW + 5 * DAY_MS, price=3.0, currency="")
    assert got.statuses.to_pylist()[0]["safe"] == "EXPIRED"
    assert got.to_pydict()["safe"] == [-1]  # as its text says of a null


def test_request_inputs_are_checked_where_they_are_given(tmp_path: Path) -> None:
    shop = Shop(tmp_path, [buy(1, "a", NOW - DAY_MS)])
    keys = {"user": [1, 1], "product": ["a", "a"]}
    with pytest.raises(
        RequestError, match=r"missing request input 'price'; .*price \(Float64\), currency"
    ):
        shop.online(keys, NOW, currency="EUR")
    with pytest.raises(RequestError, match="'currency': expected String values; got 3"):
        shop.online(keys, NOW, price=1, currency=3)
    with pytest.raises(RequestError, match="'price' has 3 values for 2 entities"):
        shop.online(keys, NOW, price=[1, 2, 3], currency="EUR")
    with pytest.raises(RequestError, match="'prize' is used by none"):
        shop.online(keys, NOW, price=1, currency="EUR", prize=2)
    with pytest.raises(RequestError, match="'price' is used by none .* no inputs"):
        shop.online(keys, NOW, DEFINITIONS.outputs(TASTE_ONLY.items()), price=1)
    rows = {**keys, "event_time_ms": [NOW, NOW], "price": [1.0, 2.0]}
    with pytest.raises(RequestError, match="no column 'currency', a request input"):
        shop.offline(rows)
    with pytest.raises(RequestError, match="'price' is inf in row 1"):
        shop.offline({**rows, "price": [1.0, float("inf")], "currency": ["", ""]})


TASTE_ONLY = FeatureService("taste_only", [TASTE])


def test_no_entities_and_null_keys(tmp_path: Path) -> None:
    shop = Shop(tmp_path, [buy(1, "a", NOW - DAY_MS)])
    got = shop.online({"user": [], "product": []}, NOW, price=1, currency=[])
    assert got.table.num_rows == 0
    assert got.features == NAMES
    rows = {"user": [None, 1], "product": ["a", "a"], "event_time_ms": [NOW, NOW]}
    past = shop.offline({**rows, "price": [1.0, 1.0], "currency": ["", ""]}, statuses=True)
    assert past["share"].to_pylist() == [None, 1.0]
    assert past["share__status"].to_pylist() == ["MISSING", "PRESENT"]


def test_a_training_set_names_its_interactions_with_their_expressions(tmp_path: Path) -> None:
    shop = Shop(tmp_path, [buy(1, "a", NOW - DAY_MS)])
    rows = pa.table(
        {"user": [1], "product": ["a"], "event_time_ms": [NOW], "price": [2.0], "currency": ["EUR"]}
    )
    built = build_training_set(shop.lake.store, "model", OUTPUTS, rows)
    assert list(built.features) == NAMES
    properties = table_options.properties(shop.lake.lake, "training_model")
    documents = json.loads(properties["training-set.interactions"])
    assert documents["over"] == {
        "expression": "ratio(price, taste:max_amount_7d, zero=1) - hot",
        "canonical": DEFINITIONS.interaction("over").expression.text,
        "request": {"price": "float64"},
    }
    assert {source["table"] for source in json.loads(properties["training-set.sources"])} == {
        "tiles_spend_g1", "tiles_sold_g1", "tiles_taste_g1", "events_shop",
    }  # fmt: skip
    assert build_training_set(shop.lake.store, "model", OUTPUTS, rows) == built
    other = Interaction("over", "ratio(price, taste:max_amount_7d, zero=2)", request=PAYMENT)
    changed = Definitions.of([SPEND, SOLD, TASTE, other])
    outputs = [*OUTPUTS[:2], changed.interaction(other), *OUTPUTS[3:]]
    with pytest.raises(Exception, match="different: .*interactions"):
        build_training_set(shop.lake.store, "model", outputs, rows)
