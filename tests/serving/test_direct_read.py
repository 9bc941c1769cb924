"""Reads that the native core answers alone: the general way's responses, to the byte."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.hashing.buckets import bucket_of
from paimon_features.core.native import CORE
from paimon_features.core.types.schema import DataType, Int32, Int64, String
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import Selection
from paimon_features.serving.http.bodies.rendered_reply import statuses_once
from paimon_features.serving.reading.direct_read import DirectRead, DirectResponse
from paimon_features.serving.reading.entities import entity_keys
from paimon_features.serving.reading.fetcher import FeatureFetcher
from paimon_features.serving.reading.query import FeatureQuery
from paimon_features.serving.replies.response import OnlineResponse
from paimon_features.testing.sizes import cases
from tests.serving.test_get_many import REFS, reported, shop, spoilt
from tests.serving.test_interactions import NOW, SOLD, SPEND, Shop

__all__ = ["shop"]
pytestmark = pytest.mark.skipif(CORE is None, reason="the native core is not built (make test)")


NUMBERS = {
    "spend": [ref for ref in REFS["spend"] if ref.feature.startswith("sum")],
    "sold": REFS["sold"],
}
"""The features that the core finishes."""


def queries_of_one_form(rng: random.Random) -> list[FeatureQuery]:
    """Queries as most batches have them: one selection, one time, lists of keys."""
    name = rng.choice(("spend", "sold"))
    refs = rng.choice((REFS[name], NUMBERS[name]))
    selection = Selection.of(rng.sample(refs, rng.randint(1, len(refs))))
    as_of_ms = rng.choice((None, None, None, NOW, NOW - 9 * DAY_MS))
    out = []
    for _ in range(rng.choice((1, 1, 2, 5))):
        rows = rng.choice((1, 1, 1, 3, 20))
        keys: Any = [rng.randrange(24) for _ in range(rows)]
        if name == "sold":
            keys = [rng.choice(("a", "b", "c", "d", "|", "é", "longer than seven\\")) for _ in keys]
        elif rng.random() < 0.2:
            keys = pa.array(keys)
        if rng.random() < 0.05:
            keys = rng.choice(([True], [], [2**63], ["\ud800"], [None], (1,)))
        out.append(
            FeatureQuery(selection, {"user" if name == "spend" else "product": keys}, as_of_ms)
        )
    return out


@given(seed=st.integers(0, 2**32 - 1))
@cases(40)
def test_both_ways_answer_the_same(shop: Shop, seed: int) -> None:
    rng = random.Random(seed)
    store = spoilt(rng, shop) if rng.random() < 0.5 else shop.store
    views = [SPEND.compiled, SOLD.compiled]
    direct = FeatureFetcher("shop", views, store, clock=shop.clock)
    general = FeatureFetcher("shop", views, store, clock=shop.clock)
    general._direct_batch = lambda queries, clock_ms: None  # type: ignore[method-assign]
    for _ in range(4):
        queries = queries_of_one_form(rng)
        got, expected = direct.get_many(queries), general.get_many(queries)
        # first what the reply needs, as the server does, then everything
        assert [counted(one) for one in got] == [counted(one) for one in expected]
        assert list(map(reported, got)) == list(map(reported, expected))
        assert (direct.records_read, direct.cells_read) == (
            general.records_read, general.cells_read,
        )  # fmt: skip


def counted(answer: object) -> Any:
    """The statuses that the first response of a batch counts; None for all others."""
    return statuses_once(answer) if isinstance(answer, OnlineResponse) else answer.__class__


def test_most_reads_are_direct_and_ask_the_store_once(shop: Shop) -> None:
    store = spoilt(random.Random(2), shop)
    whole = FeatureFetcher("shop", [SPEND.compiled], shop.store, clock=shop.clock)
    selection = Selection.of(NUMBERS["spend"])
    query = FeatureQuery(selection, {"user": [1]})
    whole.get_many([query])  # reads the state
    [response] = whole.get_many([query])
    assert isinstance(response, DirectResponse)
    # what is found to be unusual is not read a second time
    fetcher = FeatureFetcher("shop", [SPEND.compiled], store, clock=shop.clock)
    fetcher.get_many([query])
    store.reads = 0
    for user in range(24):
        fetcher.get_many([FeatureQuery(selection, {"user": [user]})])
    assert store.reads == 24


_KEYS: dict[DataType, st.SearchStrategy[Any]] = {
    Int32: st.integers(-(2**31), 2**31 - 1),
    Int64: st.integers(-(2**63), 2**63 - 1),
    String: st.text(max_size=20) | st.sampled_from(["", "|", "\\", "1234567", "12345678"]),
}


@given(data=st.data(), kind=st.sampled_from(list(_KEYS)), buckets=st.integers(1, 50))
@cases(60)
def test_the_core_places_entities_as_numpy_does(
    data: st.DataObject, kind: Any, buckets: int
) -> None:
    assert CORE is not None
    values = data.draw(st.lists(_KEYS[kind], min_size=1, max_size=12))
    stems = tuple(b"s%d:" % bucket for bucket in range(buckets))
    markers = tuple(b"m%d" % bucket for bucket in range(buckets))
    number = {"int32": 0, "int64": 1, "string": 2}[kind.text]
    placed = CORE.place(values, number, stems, markers, b"first")
    assert placed is not None
    column = np.array(values, object if kind is String else np.int64)
    of = bucket_of([column], [kind], buckets).tolist()
    distinct = list(dict.fromkeys(of))
    encoded = entity_keys({"k": kind}, {"k": values}).encoded
    records = [stems[b] + one for b, one in zip(of, encoded, strict=True)]
    assert placed[0] == [b"first", *(markers[b] for b in distinct), *records]
    assert placed[1] == distinct
    assert np.frombuffer(placed[2], np.int32).tolist() == of


@pytest.mark.parametrize(
    ("kind", "value"), [(1, True), (1, 1.0), (1, None), (1, "1"), (1, 2**63), (0, 2**31), (2, 1),
                        (2, b"a"), (2, "\ud800"), (1, np.int64(1))],
)  # fmt: skip
def test_a_value_of_another_type_is_left_to_the_check_of_all_keys(kind: int, value: Any) -> None:
    assert CORE is not None
    assert CORE.place([value], kind, (b"s",), (b"m",), b"first") is None


def test_a_read_follows_a_switch_of_the_epoch(shop: Shop) -> None:
    fetcher = FeatureFetcher("shop", [SPEND.compiled], shop.store, clock=shop.clock)
    selection = Selection.of(NUMBERS["spend"])
    fetcher.get_many([FeatureQuery(selection, {"user": [1]})])
    plan = fetcher._plan(selection)
    served = fetcher._views["spend"]
    first = DirectRead.of(plan, served)
    assert first is not None
    assert first.is_current
    served.last = None
    assert not first.is_current
    assert DirectRead.of(plan, served) is None
