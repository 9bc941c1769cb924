"""A read with an event: the stored events before it, and the event itself, as the oracle says."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.errors import (
    DefinitionError,
    OnlineStoreError,
    RequestError,
    UnknownNameError,
)
from paimon_features.core.types.schema import Float64, Int64, String
from paimon_features.definitions import (
    Definitions,
    Entity,
    EventSource,
    FeatureRef,
    FeatureService,
    FeatureView,
    Interaction,
    Selection,
)
from paimon_features.definitions.aggregates import Aggregate, Count, Last, Mean, Sum
from paimon_features.definitions.own_events import EventReads
from paimon_features.online.store.memory_store import MemoryStore
from paimon_features.serving.reading.explain import explain_event, plain, service_event
from paimon_features.serving.reading.fetcher import FeatureFetcher
from paimon_features.serving.reading.query import FeatureQuery
from paimon_features.serving.replies.response import OnlineResponse
from paimon_features.testing.generators import random_events
from paimon_features.testing.reference.compare import differences
from paimon_features.testing.reference.features import Event, answer
from paimon_features.testing.reference.tiler import event_rows
from paimon_features.testing.sizes import cases
from tests import generators
from tests.tile_lake import PROJECT, TileLake

PAYMENTS = EventSource(
    "payments",
    schema={"card": Int64, "merchant": String, "amount": Float64, "at": Int64},
    event_time="at",
)
CARD = Entity("card", keys={"card": Int64})
MERCHANT = Entity("merchant", keys={"merchant": String})
NOW_MS = 1_300_000_000_000


def by_card(*features: Aggregate, **options: Any) -> FeatureView:
    chosen = features or (Count(windows=["1h"]), Mean("amount", windows=["1h"]))
    options = {"tile": "1ms", **options}
    return FeatureView("by_card", source=PAYMENTS, entity=CARD, features=chosen, **options)


def payment(**columns: Any) -> dict[str, Any]:
    return {"card": 7, "merchant": "m", "amount": 8.0, "at": NOW_MS, **columns}


@pytest.mark.parametrize("core", [True, False])
@given(seed=st.integers(0, 2**32 - 1))
@cases(12)  # each writes real tables
def test_reads_equal_the_oracle(
    tmp_path_factory: pytest.TempPathFactory, core: bool, seed: int
) -> None:
    rng = random.Random(seed)
    view = generators.random_view(rng)
    while not view.compiled.ends_at_any_time:
        view = generators.random_view(rng)
    events, spine = event_rows(random_events(rng, view, 60)), random_events(rng, view, 20)
    store = MemoryStore()
    lake = TileLake(tmp_path_factory.mktemp("lake"), view)
    lake.commit(events)
    lake.materializer(store).run_once()
    reads = EventReads.of(view.source, {}, [view.compiled], {})
    with pytest.MonkeyPatch.context() as patch:
        if not core:
            patch.setattr("paimon_features.serving.reading.view_results.CORE", None)
        fetcher = FeatureFetcher(PROJECT, [view.compiled], store)
        states: Counter[str] = Counter()
        for raw, own in zip(spine.to_pylist(), event_rows(spine), strict=True):
            _check(rng, fetcher, reads, view, events, raw, own, states)


def _check(
    rng: random.Random,
    fetcher: FeatureFetcher,
    reads: EventReads,
    view: FeatureView,
    events: Sequence[Event],
    raw: dict[str, Any],
    own: dict[str, Any],
    states: Counter[str],
) -> None:
    keys = view.entity.keys
    high_ms = max((e["t"] for e in events if None not in (e[k] for k in keys)), default=0)
    if rng.random() < 0.7:
        own["t"] = high_ms + rng.choice((0, 1, -1, 1_000, 3_600_000, -5_000, -310_000))
    try:
        event = reads.parse({**raw, "t": own["t"]})
    except RequestError:  # a retraction
        return
    try:
        got = fetcher.get_event(
            [FeatureRef(view.name, f.name) for f in view.compiled.features], event
        )
    except (RequestError, OnlineStoreError):  # the latter for events after this host's clock
        assert own["t"] < high_ms - view.compiled.margin_ms
        return
    key = {name: own[name] for name in keys}
    mine = [
        e for e in events if None not in key.values() and all(e[k] == v for k, v in key.items())
    ]
    expected = answer(view, mine, own["t"], own_event=own)
    values, statuses = event_rows(got.table)[0], got.statuses.to_pylist()[0]
    wrong = differences(view, mine, own["t"], expected, values, statuses, own_event=own)
    assert not wrong, (own, got.own_event, wrong)
    [served] = got.table.to_pylist()
    names = [f.name for f in view.compiled.features]
    document = explain_event(fetcher, view.name, event, names)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert got.own_event == {view.name: document["own_event"]["state"]}
    counted = document["own_event"]["state"] == "counted"
    for feature, shown in zip(view.compiled.features, document["features"], strict=True):
        assert (shown["value"], shown["status"]) == (
            plain(served[feature.name]), statuses[feature.name],
        )  # fmt: skip
        is_counted = counted and feature.aggregate.counts_own_event
        assert (shown["own_event"] is not None) == is_counted, shown
        assert ("event of the request" in shown["sentence"]) == is_counted, shown
        if is_counted and not shown["cells"]:
            assert shown["own_event"]["alone"] == shown["value"]


class Shop:
    """Views over payments, materialized from these events."""

    def __init__(
        self, folder: Path, events: Sequence[Event], *views: FeatureView, **of: Any
    ) -> None:
        self.service = FeatureService("fraud", of.pop("features", views), request=PAYMENTS, **of)
        self.definitions = Definitions.of([self.service, *views])
        self.outputs = self.definitions.outputs(self.service.items())
        store = MemoryStore()
        for view in views:
            lake = TileLake(folder / view.name, view)
            lake.commit(events)
            lake.materializer(store).run_once()
        self.fetcher = FeatureFetcher(PROJECT, [view.compiled for view in views], store)

    def query(self, **columns: Any) -> FeatureQuery:
        event = self.definitions.event_reads(self.service).parse(payment(**columns))
        return FeatureQuery.of_event(Selection.of(self.outputs), event)

    def read(self, **columns: Any) -> OnlineResponse:
        [response] = self.fetcher.get_many([self.query(**columns)])
        assert isinstance(response, OnlineResponse), response
        return response


def test_an_event_that_was_ingested_already_is_counted_once(tmp_path: Path) -> None:
    stored = [payment(at=NOW_MS - 1_000, amount=2.0), payment()]
    before = Count(windows=["1h"], own_event=False, name="before")
    shop = Shop(tmp_path, stored, by_card(Count(windows=["1h"]), before, Sum("amount")))
    [row] = shop.read().to_pylist()
    assert row == {"card": 7, "count_1h": 2, "before_1h": 1, "sum_amount": 10.0}
    # read again, and later: its time decides
    assert shop.read().to_pylist() == [row]
    assert shop.read(at=NOW_MS + 1).to_pylist()[0]["count_1h"] == 3


def test_an_unknown_entity_is_known_by_its_event(tmp_path: Path) -> None:
    before = Count(windows=["1h"], own_event=False, name="before")
    shop = Shop(tmp_path, [payment(card=1)], by_card(Count(windows=["1h"]), before))
    response = shop.read(card=8)
    assert response.to_pylist() == [{"card": 8, "count_1h": 1, "before_1h": None}]
    assert response.status_rows() == [{"count_1h": "PRESENT", "before_1h": "MISSING"}]
    assert response.own_event == {"by_card": "counted"}


def test_events_that_are_no_members_change_nothing_and_are_reported(tmp_path: Path) -> None:
    view = by_card(Sum("amount", windows=["1h"], bound=100.0), where="amount > 1")
    shop = Shop(tmp_path, [payment(at=NOW_MS - 1)], view)
    small, large = shop.read(amount=1.0), shop.read(amount=1_000.0)
    assert small.to_pylist() == large.to_pylist() == [{"card": 7, "sum_amount_1h": 8.0}]
    assert small.own_event == {"by_card": "not a member"}
    assert large.own_event["by_card"].startswith("skipped: out_of_bounds")


def test_a_null_key_is_an_unknown_entity_of_its_view_only(tmp_path: Path) -> None:
    by_merchant = FeatureView(
        "by_merchant", source=PAYMENTS, entity=MERCHANT, tile="1ms",
        features=[Count(windows=["1d"])],
    )  # fmt: skip
    stored = [payment(at=NOW_MS - 1), payment(at=NOW_MS - 2, merchant=None)]
    shop = Shop(tmp_path, stored, by_card(), by_merchant)
    response = shop.read(merchant=None)
    assert response.to_pylist() == [
        {"card": 7, "merchant": None, "count_1h": 3, "mean_amount_1h": 8.0, "count_1d": None}
    ]
    assert response.status_rows()[0]["count_1d"] == "MISSING"


def test_an_explanation_has_the_event_and_its_value_alone(tmp_path: Path) -> None:
    usual = Mean("amount", windows=["1h"], own_event=False, name="usual")
    view = by_card(Sum("amount", windows=["1h"]), usual, where="amount > 0")
    shop = Shop(tmp_path, [payment(at=NOW_MS - 1, amount=2.0)], view)

    def explained(**columns: Any) -> Any:
        event, names = service_event(shop.definitions, "fraud", payment(**columns), "by_card")
        return explain_event(shop.fetcher, "by_card", event, names)

    document = explained()
    total, before = document["features"]
    assert document["as_of_ms"] == NOW_MS
    assert document["own_event"]["state"] == "counted"
    assert document["own_event"]["partials"]["p_sum_amount"] == 8.0
    assert (total["value"], total["merged"], total["own_event"]) == (
        10.0, {"p_sum_amount": 2.0}, {"alone": 8.0},
    )  # fmt: skip
    assert "from 1 event in 1 cell of 1s and from the event of the request" in total["sentence"]
    assert (before["value"], before["own_event"]) == (2.0, None)
    dropped = explained(amount=-1.0)
    assert dropped["own_event"] == {"state": "not a member", "partials": None}
    assert dropped["features"][0]["value"] == 2.0
    unknown = explained(card=None)
    assert (unknown["entity"], unknown["record"]) == ({"card": None}, None)
    assert {feature["status"] for feature in unknown["features"]} == {"MISSING"}
    first = explained(card=8)
    assert (first["record"], first["features"][0]["value"]) == (None, 8.0)
    assert "from no cell and from the event of the request" in first["features"][0]["sentence"]
    with pytest.raises(UnknownNameError, match="'by_card:mean' of service 'fraud'"):
        service_event(shop.definitions, "fraud", payment(), "by_card", ["mean"])
    with pytest.raises(UnknownNameError, match="feature view 'other' of service 'fraud'"):
        service_event(shop.definitions, "fraud", payment(), "other")


def test_request_inputs_are_columns_of_the_event(tmp_path: Path) -> None:
    view = by_card(Mean("amount", windows=["1h"], own_event=False, name="usual"))
    ratio = Interaction("ratio", "amount / by_card:usual_1h", request=PAYMENTS.as_request())
    shop = Shop(tmp_path, [payment(at=NOW_MS - 1)], view, features=[ratio])
    assert shop.read(amount=24.0).to_pylist() == [{"card": 7, "ratio": 3.0}]


def test_queries_of_one_time_do_not_see_each_other(tmp_path: Path) -> None:
    shop = Shop(
        tmp_path, [payment(at=NOW_MS - 1)], by_card(Count(windows=["1h"]), Last("merchant"))
    )
    queries = [shop.query(merchant="a"), shop.query(merchant="b"), shop.query(card=8)]
    responses = shop.fetcher.get_many(queries)
    rows = [r.to_pylist()[0] for r in responses if isinstance(r, OnlineResponse)]
    assert [row["count_1h"] for row in rows] == [2, 2, 1]
    assert [row["last_merchant"] for row in rows] == ["a", "b", "m"]


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"amount": 1.0}, "no column"),
        (payment(amuont=1.0), "unknown column 'amuont' of source 'payments'"),
        (payment(amount="12"), "event column 'amount': expected Float64"),
        (payment(amount=float("nan")), "finite"),
        (payment(at=None), "'at' is None; expected UTC milliseconds"),
        (payment(at=2**62), "years 1 to 9999"),
        ([1], "event is a list; expected a mapping"),
    ],
)
def test_odd_events_are_errors(event: Any, message: str) -> None:
    definitions = Definitions.of([FeatureService("fraud", [by_card()], request=PAYMENTS)])
    with pytest.raises(RequestError, match=message):
        definitions.event_reads(definitions.service("fraud")).parse(event)


def test_a_retraction_is_no_event_of_a_request() -> None:
    orders = EventSource(
        "orders", schema={"card": Int64, "at": Int64, "op": String}, event_time="at",
        retraction="op",
    )  # fmt: skip
    view = FeatureView("v", source=orders, entity=CARD, tile="1ms", features=[Count()])
    reads = EventReads.of(orders, {}, [view.compiled], {})
    assert reads.parse({"card": 7, "at": NOW_MS, "op": "+I"}).of_view(view.compiled) is not None
    with pytest.raises(RequestError, match="is a retraction"):
        reads.parse({"card": 7, "at": NOW_MS, "op": "-D"})


@pytest.mark.parametrize(
    ("service", "message"),
    [
        ({"views": [by_card(tile="5min")]}, "tile='1ms'.*kind='hop'"),
        ({"views": [by_card()], "keys": {"card": "merchant"}}, "column 'merchant' .* is String"),
        ({"views": [by_card()], "keys": {"crad": "card"}}, "unknown entity key 'crad'"),
        ({"views": [by_card()], "request": None, "keys": {"card": "card"}}, "give request="),
    ],
)
def test_services_that_cannot_be_read_with_an_event_are_refused(
    service: dict[str, Any], message: str
) -> None:
    options = {"request": PAYMENTS, **service}
    with pytest.raises(DefinitionError, match=message):
        Definitions.of([FeatureService("fraud", options.pop("views"), **options)])


def test_hop_windows_may_have_any_tile_and_offsets_exclude_the_event() -> None:
    hop = by_card(Count(windows=["1h"], offset="1d"), tile="5min", kind="hop")
    Definitions.of([FeatureService("fraud", [hop], request=PAYMENTS)])
    [feature] = hop.compiled.features
    assert not feature.aggregate.counts_own_event
    with pytest.raises(DefinitionError, match="own_event=True and offset='1d' exclude each other"):
        Count(windows=["1h"], offset="1d", own_event=True)


def test_records_contain_single_events_for_a_short_time() -> None:
    compiled = by_card().compiled
    assert compiled.levels_ms[:3] == (1, 1_000, 60_000)
    assert compiled.margin_ms == 5 * 60_000 + 10_000
    assert by_card(read_behind="1min").compiled.margin_ms == 6 * 60_000
