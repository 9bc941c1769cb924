"""Logged reads with an event of the request are computed again with the event counted."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from paimon_features.core.types.schema import Date, Float64, Int64, String, Timestamp
from paimon_features.core.windows import HOUR_MS
from paimon_features.definitions import (
    Entity,
    EventSource,
    FeatureService,
    FeatureView,
    Interaction,
)
from paimon_features.definitions.aggregates import Count, DecayedSum, Last, Mean, Sum
from paimon_features.definitions.served import definition_of
from paimon_features.online.store import MemoryStore
from paimon_features.project.verification.request_log.check import check_log, check_rows
from paimon_features.project.verification.request_log.log_report import LogReport
from paimon_features.project.verification.request_log.sampled_rows import LoggedRow
from paimon_features.serving.reading.fetcher import FeatureFetcher
from tests.project.verification.shop import NAME, Shop, clock_ms

SALT = b"a salt of sixteen"
PAYMENTS = EventSource(
    "payments",
    schema={
        "card": Int64, "shop": String, "amount": Float64, "cents": Int64, "day": Date,
        "seen": Timestamp, "t": Int64,
    },
    event_time="t",
)  # fmt: skip
BY_CARD = FeatureView(
    "by_card",
    source=PAYMENTS,
    entity=Entity("card", keys={"card": Int64}),
    tile="1ms",
    where="cents > 0",
    features=[
        Count(windows=["1h"]), Sum("cents", windows=["1h"]), Mean("amount", windows=["1h"]),
        Last("day", windows=["1d"]), Last("shop", windows=["1d"]),
        DecayedSum("amount", half_life="1h", windows=["1d"]),
        Count(windows=["1h"], own_event=False, name="before"),
    ],
)  # fmt: skip
BY_SHOP = FeatureView(
    "by_shop",
    source=PAYMENTS,
    entity=Entity("shop", keys={"shop": String}),
    kind="hop",
    features=[Count(windows=["1h"]), Last("seen", windows=["1d"])],
)
RATIO = Interaction("ratio", "amount * by_card:before_1h", request=PAYMENTS.as_request())
SERVICE = FeatureService("fraud", [BY_CARD, "by_shop:count_1h", "by_shop:last_seen_1d", RATIO],
                         request=PAYMENTS)  # fmt: skip


def payment(rng: random.Random, t: int) -> dict[str, Any]:
    return {
        "card": rng.randrange(4), "shop": rng.choice("ab"), "amount": rng.gauss(0, 9),
        "cents": rng.randrange(-2, 9), "day": rng.choice((19_000, 19_001)), "seen": t - 5, "t": t,
    }  # fmt: skip


def served(folder: Path, salt: bytes | None) -> Shop:
    """Events are stored, then requests are logged of which some are for unknown keys."""
    rng, now_ms = random.Random(3), clock_ms()
    shop = Shop(folder, [BY_CARD, BY_SHOP, RATIO, SERVICE], MemoryStore())
    stored = [payment(rng, now_ms - rng.randrange(2 * HOUR_MS)) for _ in range(80)]
    shop.commit(BY_CARD, stored)
    shop.tile(BY_SHOP, stored)
    for view in (BY_CARD, BY_SHOP):
        shop.materializer(view).run_once()
    defined = shop.project.definitions
    reads, outputs = defined.event_reads(SERVICE), defined.outputs(SERVICE.items())
    fetcher = FeatureFetcher(NAME, [v.compiled for v in (BY_CARD, BY_SHOP)], shop.store)
    log = shop.log(salt=salt)
    for number in range(40):
        event = payment(rng, now_ms + number)
        event["day"] = "2022-01-08" if rng.random() < 0.5 else None
        event["card"] = rng.choice([event["card"], event["card"], 99, None])
        response = fetcher.get_event(outputs, reads.parse(event))
        assert log.note(f"r{number}", "fraud", response)
    log.close()
    assert log.stats.dropped_defect == 0
    shop.logged = shop.rows()
    return shop


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return served(tmp_path_factory.mktemp("shop"), None)


def by_card(shop: Shop) -> list[dict[str, Any]]:
    return [dict(row) for row in shop.logged if row["view"] == "by_card"]


def checked(shop: Shop, rows: list[dict[str, Any]], salt: bytes | None = None) -> LogReport:
    report = LogReport()
    check_rows(shop.project, [LoggedRow.of(row) for row in rows], report, salt=salt)
    return report


def test_the_same_event_results_in_the_same_number(shop: Shop) -> None:
    shop.bring()
    report = check_log(shop.project, since_ms=0, until_ms=2**50, sample=1_000)
    assert report.differences == []
    assert (report.requests, report.rows, report.unchecked) == (40, 120, {})
    assert report.by_events > 50


@pytest.mark.parametrize("column", ["cents", "shop"])
def test_another_event_is_a_difference(shop: Shop, column: str) -> None:
    counted = [
        row
        for row in by_card(shop)
        if json.loads(row["inputs"])["cents"] > 0 and json.loads(row["entity"]) != [None]
    ]
    assert len(counted) > 10
    assert checked(shop, counted).differences == []
    for row in counted:
        inputs = json.loads(row["inputs"])
        inputs[column] = {"cents": inputs["cents"] + 1, "shop": "elsewhere"}[column]
        row["inputs"] = json.dumps(inputs)
    report = checked(shop, counted)
    assert {d.request_id for d in report.differences} == {row["request_id"] for row in counted}


def test_a_row_without_the_event_is_counted_as_unchecked(shop: Shop) -> None:
    rows = by_card(shop)
    for row in rows:
        row["inputs"] = None
    report = checked(shop, rows)
    assert report.differences == []
    assert sum(n for why, n in report.unchecked.items() if "log lacks" in why) > 10


def test_hashed_entities_leave_the_keys_out_of_the_log(tmp_path: Path) -> None:
    shop = served(tmp_path, SALT)
    rows = [row for row in shop.logged if row["view"]]
    for row in rows:
        assert not {"card", "shop", "t"} & json.loads(row["inputs"]).keys()
    report = checked(shop, rows, SALT)
    assert report.differences == []
    by_reason = dict(report.unchecked)
    assert by_reason.pop("events of which the log lacks 'shop'") > 10  # the last shop of a card
    assert by_reason.keys() <= {"events of entities that are hashed, and that no tile has"}
    assert report.rows >= 40  # those by shop


def test_a_feature_that_counts_its_event_has_another_definition() -> None:
    view = BY_CARD.compiled
    plain = {f.name: definition_of(view, [f.name]) for f in view.features}
    with_event = {f.name: definition_of(view, [f.name], with_event=True) for f in view.features}
    assert {name for name in plain if plain[name] == with_event[name]} == {"before_1h"}
