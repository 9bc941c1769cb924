"""Transformed features: online, offline, and row by row from the exported file, one value."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from paimon_features.core.errors import TableError
from paimon_features.core.types.schema import Float64, Int64, String, arrow_schema
from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.definitions import (
    Definitions,
    Entity,
    EventSource,
    FeatureService,
    FeatureView,
    Fitted,
    Interaction,
    RequestSource,
    Selection,
    Transformed,
)
from paimon_features.definitions.aggregates import Count, Last, Mean, Sum
from paimon_features.lake import table_options
from paimon_features.offline.training_set import build_training_set
from paimon_features.online.materialize import Materializer
from paimon_features.online.store import MemoryStore
from paimon_features.serving.reading.fetcher import FeatureFetcher
from paimon_features.serving.reading.query import FeatureQuery
from paimon_features.testing.reference.interactions import apart
from paimon_features.testing.reference.transformed import wrong_transformed
from paimon_features.transformers import (
    Clip,
    ColumnTransformer,
    FittedVersion,
    FrequencyEncoder,
    Frozen,
    HashingEncoder,
    Imputer,
    MinMaxScaler,
    OneHotEncoder,
    Pipeline,
    StandardScaler,
    StoredTransformer,
    TargetEncoder,
)
from paimon_features.transformers.fitted_version import write_version
from tests.offline.lake_of_views import LakeOfViews
from tests.transformers.numeric import MAKERS

SHOP = EventSource(
    "shop",
    schema={"user": Int64, "word": String, "t": Int64, "amount": Float64},
    event_time="t",
)
SPEND = FeatureView(
    "spend",
    source=SHOP,
    entity=Entity("user", keys={"user": Int64}),
    features=[
        Sum("amount", windows=["1h", "7d"], scale=2),
        Mean("amount", windows=["1h"]),
        Count(windows=["7d"]),
        Last("word", windows=["7d"]),
    ],
    ttl="5d",
)
PAYMENT = RequestSource("payment", schema={"price": Float64})
OVER = Interaction("over", "price * price / spend:count_7d", request=PAYMENT)
NOW = 1_700_000_000_000 // DAY_MS * DAY_MS + 12 * HOUR_MS

ONE = Transformed("one", "spend:sum_amount_7d", Fitted("amount", 1))
MEAN = Transformed("mean", "spend:mean_amount_1h", Fitted("amount", 1))
PRICED = Transformed("priced", OVER, Fitted("amount", 1))
THREE = Transformed("three", ["spend:mean_amount_1h", OVER, "spend:count_7d"], Fitted("three", 1))
STRICT = Transformed("strict", "spend:last_word_7d", Fitted("strict", 1))
LENIENT = Transformed("lenient", "spend:last_word_7d", Fitted("lenient", 1))
PIPED = Transformed(
    "piped", ["spend:mean_amount_1h", "spend:last_word_7d", "spend:count_7d"], Fitted("piped", 1)
)
SERVICE = FeatureService(
    "model", [ONE, "spend:count_7d", THREE, STRICT, LENIENT, PRICED, MEAN, PIPED]
)
NAMES = ["one", "count_7d", "three", "strict", "lenient", "priced", "mean", "piped"]


def export(folder: Path, name: str, transformer: StoredTransformer, version: int = 1) -> None:
    write_version(folder, FittedVersion(name, version, transformer, 0))


def definitions(folder: Path, service: FeatureService) -> Definitions:
    export(folder, "amount", StandardScaler().fit([[1.5], [20.0], [None], [3.1]]))
    export(folder, "three", MinMaxScaler((-1, 1)).fit([[1.0, 0.0, 1.0], [9.0, 0.5, 7.0]]))
    export(folder, "strict", OneHotEncoder().fit([["a"], ["b"]]))
    export(folder, "lenient", OneHotEncoder("ignore").fit([["a"], ["b"], [None]]))
    word = TargetEncoder(target_type="continuous").fit([["a"], ["b"], ["a"]], [0.5, 1.5, 2.5])
    columns = ColumnTransformer([
        ("mean", Pipeline([("fill", Imputer()), ("scale", StandardScaler())]), 0),
        ("target", Frozen(word), 1),
        ("hot", OneHotEncoder("infrequent_if_exist", max_categories=2), 1),
        ("place", HashingEncoder(9, output="index"), 1),
        ("share", FrequencyEncoder(handle_unknown="null"), 1),
    ], remainder="passthrough")  # fmt: skip
    piped = Pipeline([("columns", columns), ("clip", Clip(-2, 4))])
    export(folder, "piped", piped.fit([[1.5, "a", 2], [None, "b", 1], [4.0, "a", 7]]))
    for name, make in MAKERS.items():
        export(folder, name, make().fit([[20.0, 1.0], [3.5, None], [0.0, 7.25], [61.5, 80.0]]))
    return Definitions.of([SPEND, service], fitted=folder)


NUMERIC = FeatureService(
    "numeric",
    [
        Transformed(
            f"made_{name}", ["spend:sum_amount_7d", "spend:mean_amount_1h"], Fitted(name, 1)
        )
        for name in MAKERS
    ],
)


class Clock:
    now_ms = NOW

    def __call__(self) -> int:
        return self.now_ms


class Shop:
    """A lake with the view, an online store made of it, and exported versions."""

    def __init__(
        self, folder: Path, events: list[dict[str, Any]], service: FeatureService = SERVICE
    ) -> None:
        self.defined = definitions(folder / "fitted", service)
        self.outputs = self.defined.outputs(service.items())
        self.lake = LakeOfViews(folder / "lake", SPEND)
        self.lake.commit(pa.Table.from_pylist(events, schema=arrow_schema(SHOP.schema)))
        store = MemoryStore(Clock())
        record = self.lake.generation(SPEND.compiled)
        Materializer(
            self.lake.lake, "shop", SPEND.compiled, lambda: record, store,
            lease_ttl_ms=None, clock=Clock(),
        ).run_once()  # fmt: skip
        self.fetcher = FeatureFetcher("shop", [SPEND.compiled], store, clock=Clock())


def event(user: int, word: str | None, t: int, amount: float | None = 1.0) -> dict[str, Any]:
    return {"user": user, "word": word, "t": t, "amount": amount}


def test_online_offline_and_the_file_say_the_same_to_the_bit(tmp_path: Path) -> None:
    rng = random.Random(5)
    events = [
        event(rng.randrange(20), rng.choice(["a", "b", "z", None]),
              NOW - int(rng.expovariate(1) * DAY_MS) - 1,
              rng.choice([None, round(rng.random() * 100, 2), 0.0]))
        for _ in range(250)
    ]  # fmt: skip
    shop = Shop(tmp_path, events)
    users = [rng.randrange(24) for _ in range(150)]
    prices = [rng.choice([None, 0.0, 9.99, 1.7e308]) for _ in range(150)]
    selection = Selection.of(shop.outputs)
    parts = [shop.defined.interaction(OVER)]
    every = Selection.of([*selection.refs, *parts, *selection.transformed])
    statuses: dict[str, set[str]] = {name: set() for name in NAMES}
    nulls: dict[str, set[Any]] = {name: set() for name in NAMES}
    for as_of_ms in (NOW, NOW + 300_000, NOW + DAY_MS, NOW + 6 * DAY_MS):
        rows = pa.table({"user": users, "price": prices, "event_time_ms": [as_of_ms] * 150})
        got = shop.fetcher.get(shop.outputs, {"user": users}, as_of_ms, {"price": prices})
        past = shop.lake.store.get_historical_features(shop.outputs, rows, statuses=True)
        assert got.features == NAMES
        for name in NAMES:
            assert got.table[name].combine_chunks().equals(past[name].combine_chunks()), name
            reported = got.statuses[name].to_pylist()
            assert reported == past[f"{name}__status"].to_pylist(), name
            statuses[name] |= set(reported)
            values = got.table[name].to_pylist()
            nulls[name] |= {s for s, v in zip(reported, values, strict=True) if v is None}
        online = shop.fetcher.get(every.outputs, {"user": users}, as_of_ms, {"price": prices}).table
        tiles = shop.lake.store.get_historical_features(every.outputs, rows)
        assert not [*wrong_transformed(every, online), *wrong_transformed(every, tiles)]
        assert not [*apart(every, online, tiles)]
        reordered = online.set_column(1, online.column_names[1], online.column(1).take(
            pa.array(range(149, -1, -1))))  # fmt: skip
        assert len([*wrong_transformed(every, reordered)]) > 10 or as_of_ms > NOW + DAY_MS
    assert all({"PRESENT", "MISSING", "EXPIRED"} <= reported for reported in statuses.values())
    # a word that is not known, and a price whose square is beyond float64
    assert all("ILL_CONDITIONED" in statuses[name] for name in ("strict", "three", "priced"))
    assert not any(
        "ILL_CONDITIONED" in statuses[name] for name in ("one", "lenient", "mean", "piped")
    )
    assert nulls["one"] == {"MISSING", "EXPIRED"}
    assert nulls["mean"] == {"PRESENT", "MISSING", "EXPIRED"}  # an empty window has no mean
    assert nulls["piped"] == set()  # a number stands in for a mean that is not there
    assert nulls["lenient"] == set()  # null is a category that it was fitted with
    assert "ILL_CONDITIONED" in nulls["strict"]
    assert nulls["three"] == {"MISSING", "EXPIRED"}  # a part without a value is null in it


def test_every_numeric_kind_is_the_same_online_offline_and_by_its_file(tmp_path: Path) -> None:
    rng = random.Random(8)
    events = [
        event(rng.randrange(20), None, NOW - int(rng.expovariate(2) * DAY_MS) - 1,
              rng.choice([None, round(rng.random() * 60, 2), 0.0, -30.0]))
        for _ in range(200)
    ]  # fmt: skip
    shop = Shop(tmp_path, events, NUMERIC)
    users = [rng.randrange(24) for _ in range(100)]
    every = Selection.of(
        [*Selection.of(shop.outputs).refs, *Selection.of(shop.outputs).transformed]
    )
    rows = pa.table({"user": users, "event_time_ms": [NOW] * 100})
    online = shop.fetcher.get(every.outputs, {"user": users}, NOW, {}).table
    tiles = shop.lake.store.get_historical_features(every.outputs, rows)
    assert not [*wrong_transformed(every, online), *wrong_transformed(every, tiles)]
    for name in MAKERS:
        assert (
            online[f"made_{name}"].combine_chunks().equals(tiles[f"made_{name}"].combine_chunks())
        ), name
        assert online[f"made_{name}"].null_count < 100


def test_values_are_those_of_the_transformer_itself(tmp_path: Path) -> None:
    events = [event(1, "a", NOW - HOUR_MS // 2, 20.0), event(2, "z", NOW - 3 * HOUR_MS, 4.0)]
    shop = Shop(tmp_path, events)
    got = shop.fetcher.get(shop.outputs, {"user": [1, 2, 3]}, NOW, {"price": [1.0, 2.0, 3.0]})
    amount = shop.defined.transformation(ONE).fitted.transformer
    three = shop.defined.transformation(THREE).fitted.transformer
    rows = got.to_pydict()
    assert rows["one"] == amount.transform([20.0, 4.0, None])
    assert rows["priced"] == amount.transform([1.0, 4.0, None])
    assert rows["three"][:2] == three.transform([[20.0, 1.0, 1], [None, 4.0, 1]])
    assert rows["three"][2] is None
    piped = shop.defined.transformation(PIPED).fitted.transformer
    assert rows["piped"] == piped.transform([[20.0, "a", 1], [None, "z", 1], [None, None, None]])
    assert rows["strict"] == [[1.0, 0.0], None, None]
    assert rows["lenient"] == [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    assert got.statuses.to_pylist()[1] == {
        "one": "PRESENT", "count_7d": "PRESENT", "three": "PRESENT", "strict": "ILL_CONDITIONED",
        "lenient": "PRESENT", "priced": "PRESENT", "mean": "PRESENT",
        "piped": "PRESENT",
    }  # fmt: skip
    assert set(got.statuses.to_pylist()[2].values()) == {"MISSING"}
    assert got.table.schema.field("three").type == pa.list_(pa.float64())


def test_no_entities_and_many_asks_at_once(tmp_path: Path) -> None:
    shop = Shop(tmp_path, [event(1, "a", NOW - 1), event(2, "b", NOW - 1, 7.0)])
    empty = shop.fetcher.get(shop.outputs, {"user": []}, NOW, {"price": []})
    assert empty.table.num_rows == 0
    rows = pa.table({"user": pa.array([], pa.int64()), "price": pa.array([], pa.float64()),
                     "event_time_ms": pa.array([], pa.int64())})  # fmt: skip
    past = shop.lake.store.get_historical_features(shop.outputs, rows)
    assert past.select(NAMES).schema == empty.table.select(NAMES).schema
    selection = Selection.of(shop.outputs)
    queries = [FeatureQuery(selection, {"user": [user]}, NOW, {"price": 2.0}) for user in (1, 2, 3)]
    whole = shop.fetcher.get(shop.outputs, {"user": [1, 2, 3]}, NOW, {"price": 2.0})
    each = [answer.to_pylist()[0] for answer in shop.fetcher.get_many(queries)]  # type: ignore[union-attr]
    assert each == whole.to_pylist()


def test_a_training_set_names_the_versions_and_is_another_one_with_another_version(
    tmp_path: Path,
) -> None:
    shop = Shop(tmp_path, [event(1, "a", NOW - 1)])
    rows = pa.table({"user": [1], "price": [2.0], "event_time_ms": [NOW]})
    built = build_training_set(shop.lake.store, "model", shop.outputs, rows)
    assert list(built.features) == NAMES
    documents = json.loads(
        table_options.properties(shop.lake.lake, "training_model")["training-set.transformed"]
    )
    one = shop.defined.transformation(ONE)
    assert documents["one"] == {
        "of": ["spend:sum_amount_7d"],
        "fitted": {"name": "amount", "version": 1, "digest": one.fitted.digest},
        "kind": "standard_scaler",
    }
    assert documents["priced"]["of"][0]["expression"] == "price * price / spend:count_7d"
    assert build_training_set(shop.lake.store, "model", shop.outputs, rows) == built
    export(tmp_path / "fitted", "amount", StandardScaler().fit([[1.0], [2.0]]), 2)
    newer = Transformed("one", "spend:sum_amount_7d", Fitted("amount", 2))
    changed = Definitions.of([SPEND, newer], fitted=tmp_path / "fitted")
    outputs = [changed.transformation(newer), *shop.outputs[1:]]
    with pytest.raises(TableError, match="different: .*transformed"):
        build_training_set(shop.lake.store, "model", outputs, rows)
