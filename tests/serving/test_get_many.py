"""Many queries read at once: each returns what it would return alone, errors included."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.errors import (
    OnlineStoreError,
    PaimonFeaturesError,
    RequestError,
    StoreNotReadyError,
)
from paimon_features.core.types.schema import Int64
from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.definitions import Entity, FeatureRef, FeatureView, Output, Selection
from paimon_features.definitions.aggregates import Count
from paimon_features.online.store import MemoryStore, Write
from paimon_features.serving.reading.fetcher import FeatureFetcher
from paimon_features.serving.reading.query import FeatureQuery
from paimon_features.serving.replies.reply_formats import arrow_stream, feast_json, message_pack
from paimon_features.serving.replies.response import OnlineResponse
from paimon_features.testing.sizes import cases
from tests.serving.test_interactions import NOW, OUTPUTS, SHOP, SOLD, SPEND, TASTE, Shop, buy
from tests.tile_lake import PROJECT

NEVER = FeatureView(
    "never", source=SHOP, entity=Entity("user", keys={"user": Int64}),
    features=[Count(windows=["1h"])],
)  # fmt: skip
REFS = {view.name: [FeatureRef(view.name, f.name) for f in view.compiled.features]
        for view in (SPEND, SOLD, TASTE, NEVER)}  # fmt: skip


class ReadOnce(MemoryStore):
    """What another store holds, some of it spoilt; counts the reads."""

    reads = 0

    def get_many(self, keys: Any) -> Any:
        self.reads += 1
        return super().get_many(keys)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    rng = random.Random(3)
    events = [
        buy(rng.randrange(20), rng.choice("abcdef"), NOW - int(rng.expovariate(1) * 2 * DAY_MS) - 1,
            rng.choice([None, round(rng.random() * 100, 2), 0.01, 0.0]))
        for _ in range(400)
    ]  # fmt: skip
    return Shop(tmp_path_factory.mktemp("shop"), events)


def spoilt(rng: random.Random, shop: Shop) -> ReadOnce:
    """A copy of the store, in which a few markers and records are lost or no longer readable."""
    store = ReadOnce(shop.clock)
    keys = [key for page in shop.store.scan(b"pf:") for key in page]
    for key, value in zip(keys, shop.store.get_many(keys), strict=True):
        if b"#lease" in key or value is None:
            continue
        fate = rng.random()
        if b"#state" not in key and fate < 0.04:
            value = rng.choice((value[:-3], b"x", b"\xff" + value[1:]))
        elif b"#marker" in key and fate < 0.08:
            continue
        store.compare_and_set_many([Write(key, None, value)])
    return store


def random_query(rng: random.Random) -> FeatureQuery:
    outputs: list[Output] = []
    for name in rng.sample(list(REFS), rng.choice((1, 1, 1, 2, 3))):
        outputs += rng.sample(REFS[name], rng.randint(1, len(REFS[name])))
    if rng.random() < 0.3:
        outputs = list(OUTPUTS)
    rows = rng.choice((0, 1, 1, 1, 2, 5))
    users: Any = [rng.randrange(24) for _ in range(rows)]
    products: Any = [rng.choice("abcdefgh|") for _ in range(rows)]
    entities: dict[str, Any] = {"user": users, "product": products}
    inputs: dict[str, Any] = {"price": rng.choice((5, None, 0.0)), "currency": "EUR"}
    wrong = rng.random()
    if wrong < 0.05:
        entities["user"] = rng.choice((["x"], [None], 7, [2**63], [*users, 1]))
    elif wrong < 0.1:
        entities.pop(rng.choice(("user", "product")))
    elif wrong < 0.15:
        inputs = rng.choice(({}, {"price": "x", "currency": 1}, {**inputs, "more": 1}))
    elif wrong < 0.2:
        outputs[rng.randrange(len(outputs))] = FeatureRef("spend", "unknown")
    if not any(output in OUTPUTS[:1] for output in outputs):
        inputs = inputs if rng.random() < 0.05 else {}
    as_of_ms = rng.choice((None, None, None, NOW, NOW + HOUR_MS, NOW - 9 * DAY_MS, 2**62))
    try:
        return FeatureQuery(Selection.of(outputs), entities, as_of_ms, inputs)
    except RequestError:  # one that is named twice
        return random_query(rng)


def reported(answer: OnlineResponse | PaimonFeaturesError) -> Any:
    """All there is in an answer, to be compared."""
    if isinstance(answer, PaimonFeaturesError):
        return type(answer), str(answer)
    # read back: bits of an Arrow stream that nobody reads may differ
    stream = pa.ipc.open_stream(arrow_stream(answer)).read_all()
    return (
        feast_json(answer), message_pack(answer), stream.schema.metadata, stream.to_pydict(),
        answer.table.to_pydict(),
        answer.statuses.to_pydict(), answer.event_times, answer.freshness, answer.as_of_ms,
    )  # fmt: skip


@given(seed=st.integers(0, 2**32 - 1))
@cases(40)
def test_asks_together_get_what_each_gets_alone(shop: Shop, seed: int) -> None:
    rng = random.Random(seed)
    store = spoilt(rng, shop) if rng.random() < 0.7 else shop.store
    views = [view.compiled for view in (SPEND, SOLD, TASTE, NEVER)]
    fetcher = FeatureFetcher(PROJECT, views, store, clock=lambda: NOW + 2 * HOUR_MS)
    queries = [random_query(rng) for _ in range(rng.choice((1, 5, 30)))]
    together = [reported(answer) for answer in fetcher.get_many(queries)]
    alone = [reported(answer) for query in queries for answer in fetcher.get_many([query])]
    assert together == alone


def test_one_command_reads_for_all(shop: Shop) -> None:
    rng = random.Random(1)
    store = spoilt(random.Random(0), shop)
    views = [view.compiled for view in (SPEND, SOLD, TASTE)]
    fetcher = FeatureFetcher("shop", views, store, clock=shop.clock)
    queries = [FeatureQuery(Selection.of(OUTPUTS), {"user": [1], "product": ["a"]}, None,
                {"price": 1, "currency": "EUR"})] * 3  # fmt: skip
    queries += [
        FeatureQuery(Selection.of(REFS["sold"]), {"product": [rng.choice("abc")]})
        for _ in range(20)
    ]
    fetcher.get_many(queries)
    store.reads = 0
    fetcher.get_many(queries)
    assert store.reads == 1
    fetcher.get_many([])
    assert store.reads == 1


def test_a_view_that_is_not_there_yet_fails_only_those_who_ask_for_it(shop: Shop) -> None:
    views = [view.compiled for view in (SPEND, NEVER)]
    fetcher = FeatureFetcher("shop", views, shop.store, clock=shop.clock)
    spend, never, both, odd = fetcher.get_many(
        [
            FeatureQuery(Selection.of(REFS["spend"]), {"user": [1]}),
            FeatureQuery(Selection.of(REFS["never"]), {"user": [1]}),
            FeatureQuery(Selection.of([*REFS["never"], *REFS["spend"]]), {"user": [1]}),
            FeatureQuery(Selection.of(REFS["spend"]), {"user": ["one"]}),
        ]
    )
    assert isinstance(spend, OnlineResponse)
    assert isinstance(never, StoreNotReadyError)
    assert isinstance(both, StoreNotReadyError)
    assert isinstance(odd, RequestError)
    assert never is not both  # each is raised by itself


def test_an_error_that_many_asks_get_keeps_nothing_of_them() -> None:
    #  raising writes into an error what raised it: into a kept one without end
    fetcher = FeatureFetcher("shop", [NEVER.compiled], MemoryStore())
    for _ in range(3):
        [error] = fetcher.get_many([FeatureQuery(Selection.of(REFS["never"]), {"user": [1]})])
        assert isinstance(error, StoreNotReadyError)
        seen = fetcher._views["never"].last
        assert seen is not None
        assert seen.error is not None
        assert seen.error.__traceback__ is None


def test_a_store_that_does_not_answer_is_everybodys_error(shop: Shop) -> None:
    class Gone(MemoryStore):
        def get_many(self, keys: Any) -> Any:
            raise OnlineStoreError("gone")

    fetcher = FeatureFetcher("shop", [SPEND.compiled], Gone(), clock=shop.clock)
    right = FeatureQuery(Selection.of(REFS["spend"]), {"user": [1]})
    wrong = FeatureQuery(Selection.of(REFS["spend"]), {"user": ["one"]})
    got = fetcher.get_many([right, wrong, right])
    assert [type(error) for error in got] == [OnlineStoreError, RequestError, OnlineStoreError]
