"""What was served is what the lake says, and whatever was tampered with is found."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from paimon_features.core.errors import OnlineStoreError, RequestError, VerificationError
from paimon_features.core.types.schema import Date, Float64, Int64, String
from paimon_features.core.windows import DAY_MS, HOUR_MS, MINUTE_MS
from paimon_features.definitions import (
    Definitions,
    Entity,
    EventSource,
    FeatureRef,
    FeatureView,
    Fitted,
    Interaction,
    RequestSource,
    Transformed,
)
from paimon_features.definitions.aggregates import Count, DecayedSum, Last, Max, Mean, StdDev, Sum
from paimon_features.online.store import MemoryStore, OnlineStore
from paimon_features.project.verification.request_log.check import check_log
from paimon_features.project.verification.request_log.log_report import LogReport
from paimon_features.serving.reading.fetcher import FeatureFetcher
from paimon_features.serving.request_log.log import RequestLog
from paimon_features.testing.generators import random_events
from paimon_features.testing.reference.features import Event
from paimon_features.testing.reference.tiler import event_rows
from paimon_features.transformers import FittedVersion, StandardScaler
from paimon_features.transformers.fitted_version import write_version
from tests import generators
from tests.patient_stores import patient_store
from tests.project.verification.shop import NAME, Shop, clock_ms
from tests.stored import Stored

SALT = b"a salt of sixteen"
CLICKS = EventSource(
    "clicks",
    schema={"user": Int64, "day": Date, "t": Int64, "x": Float64, "n": Int64, "word": String},
    event_time="t",
)
VIEW = FeatureView(
    "clicks",
    source=CLICKS,
    entity=Entity("user_day", keys={"user": Int64, "day": Date}),
    features=[
        Sum("n", windows=["10min", "1d", None]), Count(windows=["12d"]), Max("n", windows=["1h"]),
        Last("word", windows=["30d"]), Sum("x", windows=["1d"]), Mean("x", windows=["1h"]),
        StdDev("x", windows=["1d"]), DecayedSum("x", half_life="1h", windows=["1d"]),
    ],
    ttl="20d",
    max_staleness="1h",
)  # fmt: skip
PER_USER = FeatureView(
    "per_user",
    source=EventSource("visits", schema={"user": Int64, "t": Int64}, event_time="t"),
    entity=Entity("user", keys={"user": Int64}),
    features=[Count(windows=["1h", "1d"])],
)
PAYMENT = RequestSource("payment", schema={"amount": Float64, "currency": String})
SHARE = Interaction(
    "share", "ratio(amount, clicks:sum_x_1d, zero=0) + per_user:count_1d", request=PAYMENT
)
SCALED = Transformed("scaled", SHARE, Fitted("share", version=1))
EURO = Interaction("euro", "currency = 'EUR' and clicks:count_12d > 3", request=PAYMENT)
DAYS = (19_000, 19_001)


def clicks(rng: random.Random, now_ms: int, count: int) -> list[Event]:
    out: list[Event] = []
    for _ in range(count):
        ago_ms = rng.choice([0, 0, DAY_MS, 11 * DAY_MS, 19 * DAY_MS]) + rng.randrange(2 * HOUR_MS)
        out.append(
            {
                "user": rng.randrange(8),
                "day": rng.choice(DAYS),
                "t": now_ms - ago_ms,
                "n": rng.randint(-1000, 1000),
                "x": rng.choice([None, rng.gauss(0, 1), rng.gauss(0, 1) * 1e6]),
                "word": rng.choice([None, "a", "long word of more than a few bytes"]),
            }
        )
    return out


class Server:
    """Answers requests and logs them, while commits and materializers continue."""

    def __init__(self, shop: Shop, rng: random.Random, salt: bytes | None = None) -> None:
        self.shop, self.rng = shop, rng
        defined = shop.project.definitions
        views = [view.compiled for view in defined.views.values()]
        self.fetcher = FeatureFetcher(NAME, views, shop.store)
        self.outputs: Sequence[Any] = [
            *[FeatureRef("clicks", f.name) for f in VIEW.compiled.features],
            FeatureRef("per_user", "count_1h"), *map(defined.interaction, (SHARE, EURO)),
            defined.transformation(SCALED),
        ]  # fmt: skip
        self.log: RequestLog = shop.log(salt=salt)
        self.count = 0

    def request(self, users: int = 3) -> None:
        rng = self.rng
        self.count += 1
        # dates as a client of this library gives them
        days = pa.array([rng.choice(DAYS) for _ in range(users)], pa.int32()).view(pa.date32())
        entities = {"user": [rng.randrange(10) for _ in range(users)], "day": days}
        inputs = {"amount": [rng.gauss(0, 9) for _ in range(users)], "currency": "EUR"}
        as_of_ms = clock_ms() + rng.choice([0, 0, -MINUTE_MS, 7 * MINUTE_MS, DAY_MS])
        got = self.fetcher.get(self.outputs, entities, as_of_ms, inputs)
        assert self.log.note(f"r{self.count}", rng.choice(["", "buying_v1"]), got)


def simulate(shop: Shop, server: Server, rounds: int) -> None:
    """Commits, materializers that have done half their work, and requests in between."""
    rng, view = server.rng, VIEW
    halves = [shop.materializer(view, shard=(i, 2)) for i in (0, 1)]
    visits = shop.materializer(PER_USER)
    late: list[Event] = []
    for number in range(rounds):
        now_ms = clock_ms()
        shop.tile(view, late)
        events = clicks(rng, now_ms, 40)
        tiled = rng.choice([40, 40, 25])
        shop.commit(view, events, tiled=tiled)
        late = events[tiled:]
        visit = [{"user": rng.randrange(8), "t": now_ms - rng.randrange(DAY_MS)} for _ in range(9)]
        shop.commit(PER_USER, visit)
        if number < 2 or rng.random() < 0.7:
            visits.run_once()
        stored = Stored(shop.store, view.name)
        before = stored.markers() if number >= 2 else {}
        for half in rng.sample(halves, 2 if number < 2 else 1):
            half.run_once()
        if before and (
            number == 4 or rng.random() < 0.3
        ):  # killed between the records and the marker
            stored.put(before)
            halves = [shop.materializer(view, shard=(i, 2)) for i in (0, 1)]
        if number >= 1:
            for _ in range(5):
                server.request(rng.choice([1, 3, 9]))
    server.log.close()


def made(
    folder: Path, store: OnlineStore, salt: bytes | None = None, seed: int = 4, rounds: int = 8
) -> Shop:
    scaler = StandardScaler().fit([[0.0], [1.5], [7.0]])
    write_version(folder / "fitted", FittedVersion("share", 1, scaler, 0))
    shop = Shop(folder, [VIEW, PER_USER, SHARE, EURO, SCALED], store)
    server = Server(shop, random.Random(seed), salt)
    simulate(shop, server, rounds)
    assert server.log.stats.dropped_disk == server.log.stats.dropped_defect == 0
    return shop


def check(shop: Shop, **options: Any) -> LogReport:
    options = {"sample": 10_000, "since_ms": 0, "until_ms": 2**50, **options}
    return check_log(shop.project, **options)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """Served, committed and still with its spool files to tamper with."""
    shop = made(tmp_path_factory.mktemp("shop"), MemoryStore())
    shop.logged = shop.rows()
    shop.bring()
    return shop


@pytest.mark.long
def test_everything_that_was_served_while_commits_went_on_is_the_truth(shop: Shop) -> None:
    report = check(shop)
    assert report.differences == []
    assert report.ok
    assert not report.unchecked
    rows = shop.logged
    assert report.rows == len(rows)
    assert report.requests == 35
    # most tiles held all events there are, and some grew later
    assert report.by_events > len(rows) / 4
    # records were ahead of their buckets' markers, and behind; and statuses of all kinds
    ahead = [r["record_snapshot"] - r["applied_snapshot"] for r in rows if r["record_snapshot"]]
    assert min(ahead) < 0 < max(ahead)
    statuses = {s for row in rows for s in json.loads(row["feature_statuses"]).values()}
    assert statuses >= {"PRESENT", "MISSING"}


@pytest.mark.redis
def test_the_same_with_redis_and_hashed_entities(tmp_path: Path, redis_url: str) -> None:
    shop = made(tmp_path, patient_store(redis_url), SALT, seed=5, rounds=5)
    shop.bring()
    report = check(shop, salt=SALT)
    assert report.differences == []
    assert report.ok
    assert not report.unchecked
    views = report.rows
    for salt, reason in ((None, "no salt is given"), (SALT + b"!", "by another salt")):
        report = check(shop, salt=salt)
        # interactions are made of what was logged with them, and need no entity
        assert report.ok
        [(why, number)] = report.unchecked.items()
        assert reason in why
        assert number + report.rows == views


@pytest.mark.parametrize("seed", range(4))
def test_random_views_are_checked_without_a_difference(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    view = generators.random_view(rng)
    events = random_events(rng, view, 60)
    waiting = [e for e in event_rows(events) if all(e[k] is not None for k in view.entity.keys)]
    waiting = [e for e in waiting if e[view.source.event_time] is not None]
    shop = Shop(tmp_path, [view], MemoryStore())
    fetcher, log = FeatureFetcher(NAME, [view.compiled], shop.store), shop.log()
    refs = [FeatureRef(view.name, f.name) for f in view.compiled.features]
    worker = shop.materializer(view)
    refused = 0
    for start in range(0, len(waiting), 15):
        shop.commit(view, waiting[start : start + 15])
        worker.run_once()
        keys, times = generators.random_rows(rng, view, events, 6)
        for i, t in enumerate(times):
            requested = {name: keys.column(name).slice(i, 1) for name in keys.column_names}
            try:
                log.note(f"{start}-{i}", "", fetcher.get(refs, requested, t))
            # too old for the store, or a key that is null; events after this host's clock
            except (RequestError, OnlineStoreError):
                refused += 1
    log.close()
    shop.bring()
    report = check(shop)
    assert report.differences == []
    assert report.rows + refused >= 6 * (len(waiting) // 15)


Tamper = Callable[[dict[str, Any]], None]


def _value(name: str, change: Callable[[Any], Any]) -> Tamper:
    def tamper(row: dict[str, Any]) -> None:
        values = json.loads(row["feature_values"])
        values[name] = change(values[name])
        row["feature_values"] = json.dumps(values)

    return tamper


def _status(name: str, status: str) -> Tamper:
    def tamper(row: dict[str, Any]) -> None:
        statuses = json.loads(row["feature_statuses"])
        assert statuses[name] != status
        statuses[name] = status
        row["feature_statuses"] = json.dumps(statuses)

    return tamper


def _column(name: str, change: Callable[[Any], Any]) -> Tamper:
    def tamper(row: dict[str, Any]) -> None:
        row[name] = change(row[name])

    return tamper


def _present(row: dict[str, Any]) -> bool:
    values = json.loads(row["feature_values"])
    return row["view"] == "clicks" and None not in (values["sum_x_1d"], values["stddev_x_1d"])


TAMPERED = [
    (_value("sum_n_1d", lambda v: v + 1), "sum_n_1d"),
    (_value("sum_n", lambda v: float(v)), "sum_n"),
    (_value("sum_n_10min", lambda v: None), "sum_n_10min"),
    (_value("sum_x_1d", lambda v: v * (1 + 1e-7)), "sum_x_1d"),
    (_value("last_word_30d", lambda v: "b"), "last_word_30d"),
    (_status("count_12d", "MISSING"), "count_12d"),
    (_status("count_12d", "EXPIRED"), "count_12d"),
    (_status("count_12d", "STALE"), "count_12d"),
    (_column("freshness_ms", lambda v: v + 2 * HOUR_MS), "sum_n_10min"),
    (_column("record_snapshot", lambda v: 1_000), "applied_snapshot"),
    (_column("commit_time_ms", lambda v: v - 1), "commit_time_ms"),
    (_column("entity", lambda v: "[77,19000]"), "sum_n_10min"),
    (_column("as_of_ms", lambda v: v + 5 * DAY_MS), "sum_x_1d"),
    (_column("served_at_ms", lambda v: v - HOUR_MS), "applied_snapshot"),
]
"""What is done to a row, and which difference reports it."""


@pytest.fixture(scope="module")
def tampered(shop: Shop) -> tuple[dict[str, Any], LogReport]:
    """A row, and the report on copies of it, each tampered with in one way."""
    row = next(row for row in shop.logged if _present(row))
    copies = [
        {**row, "service": "tampered", "request_id": f"tampered {number}"}
        for number in range(len(TAMPERED))
    ]
    for copy, (tamper, _) in zip(copies, TAMPERED, strict=True):
        tamper(copy)
    shop.write(copies, "tampered")
    shop.bring()
    return row, check(shop, service="tampered")


@pytest.mark.parametrize("number", range(len(TAMPERED)))
def test_whatever_is_tampered_with_is_found(
    tampered: tuple[dict[str, Any], LogReport], number: int
) -> None:
    row, report = tampered
    assert not report.ok
    request_id, feature = f"tampered {number}", TAMPERED[number][1]
    found = {d.feature: d for d in report.differences if d.request_id == request_id}
    assert feature in found
    assert found[feature].served_at_ms in (row["served_at_ms"], row["served_at_ms"] - HOUR_MS)
    assert str(found[feature]).startswith(f"request {request_id} at")


_TAMPERED = iter(range(1_000))


def _tampered(shop: Shop, rows: list[dict[str, Any]], tamper: Tamper) -> LogReport:
    """The report on rows of a service of their own, of which the first is tampered with."""
    service = f"tampered_{next(_TAMPERED)}"
    rows = [{**row, "service": service} for row in rows]
    tamper(rows[0])
    shop.write(rows, service)
    shop.bring()
    return check(shop, service=service)


def test_another_snapshot_is_found_where_the_entity_changed_in_between(shop: Shop) -> None:
    rows = shop.logged
    latest = max(row["record_snapshot"] or 0 for row in rows if row["view"] == "clicks")
    changed = 0
    own = [r for r in rows if _present(r) and r["record_snapshot"] < r["applied_snapshot"]][:3]
    for row in own:
        report = _tampered(shop, [row], _column("record_snapshot", lambda _: latest))
        changed += bool(report.differences)
    assert changed


def test_a_tampered_interaction_or_input_is_found(shop: Shop) -> None:
    rows = shop.logged
    at = next(
        i for i, row in enumerate(rows) if not row["view"] and (_value_of(row, "share") or 0) % 1
    )
    request = [r for r in rows if r["request_id"] == rows[at]["request_id"]]
    own = [rows[at], *[r for r in request if r is not rows[at]]]
    other = _column(
        "inputs", lambda v: json.dumps({**json.loads(v), "currency": "USD", "amount": 1})
    )
    for tamper in (_value("share", lambda v: v * (1 + 2**-50)), _status("share", "STALE"), other):
        report = _tampered(shop, own, tamper)
        assert "share" in {difference.feature for difference in report.differences}
        assert {difference.by for difference in report.differences} == {"features"}
    report = _tampered(shop, own, _value("scaled", lambda v: v * (1 + 2**-50)))
    assert {difference.feature for difference in report.differences} == {"scaled"}
    report = _tampered(shop, [rows[at]], lambda row: None)
    assert report.unchecked == {"computed features of which the log lacks 'clicks'": 1}


def _value_of(row: dict[str, Any], name: str) -> Any:
    return json.loads(row["feature_values"]).get(name)


def test_what_cannot_be_checked_is_counted_with_its_reason(shop: Shop) -> None:
    row = next(row for row in shop.logged if _present(row))
    cases = {
        "generation 9 of 'clicks' is gone": _column("generation", lambda _: 9),
        "generation 1 of 'clicks' was rolled back since": _column("incarnation", lambda _: 1),
        "the definition of 'clicks' has changed since": _column("definition", lambda _: "x"),
        "feature view 'old' is not defined any more": _column("view", lambda _: "old"),
        "not readable: ": _column("feature_values", lambda _: "{"),
        "entities are hashed, and no salt is given": _column("entity", lambda _: "blake2:00:0"),
    }
    copies = [{**row, "service": "odd", "request_id": reason} for reason in cases]
    for copy, tamper in zip(copies, cases.values(), strict=True):
        tamper(copy)
    shop.write(copies, "odd")
    shop.bring()
    report = check(shop, service="odd")
    assert sorted(report.unchecked.values()) == [1] * len(cases)
    for reason in cases:
        assert any(known.startswith(reason) for known in report.unchecked), reason
    assert not report.ok  # nothing was compared
    assert not report.differences


def test_requests_of_one_id_at_one_time_are_not_mixed(shop: Shop) -> None:
    same = {"service": "same", "request_id": "x", "served_at_ms": clock_ms()}
    copies = [{**row, **same} for row in shop.logged if row["number"] <= 20]
    shop.write(copies, "same")
    shop.bring()
    report = check(shop, service="same")
    assert (report.requests, report.differences) == (20, [])
    assert report.rows == len(copies)
    assert check(shop, service="same", sample=4).requests == 4


def test_expired_snapshots_are_counted_and_those_that_are_there_are_checked(
    tmp_path: Path,
) -> None:
    shop = made(tmp_path, MemoryStore(), seed=6, rounds=5)
    every = shop.rows()
    shop.bring()
    folder = Path(shop.lake.path(shop.table(VIEW))) / "snapshot"
    ids = sorted(int(path.name[9:]) for path in folder.glob("snapshot-*"))
    for number in ids[: len(ids) // 2]:
        (folder / f"snapshot-{number}").unlink()
    report = check(shop)
    assert report.ok
    assert report.unchecked["the snapshot has expired"] > 0
    assert report.rows + report.unchecked.total() == len(every)


def test_a_sample_is_of_whole_requests_and_of_the_time_and_service_requested(shop: Shop) -> None:
    rows = shop.logged
    some = check(shop, service="buying_v1", sample=3)
    assert some.requests == 3
    assert some.differences == []
    served = sorted({row["served_at_ms"] for row in rows})
    middle = served[len(served) // 2]
    before = check(shop, service="buying_v1", until_ms=middle)
    assert before.requests == len(
        {
            row["request_id"]
            for row in rows
            if row["service"] == "buying_v1" and row["served_at_ms"] < middle
        }
    )
    with pytest.raises(VerificationError, match="no request of service 'nobody'"):
        check(shop, service="nobody")


def test_without_a_log_the_error_says_how_to_get_one(tmp_path: Path) -> None:
    shop = Shop(tmp_path, [PER_USER], MemoryStore())
    with pytest.raises(VerificationError, match=r"set \[serve\] request_log"):
        check(shop)


def test_features_that_are_added_to_a_view_leave_its_log_checkable(shop: Shop) -> None:
    more = FeatureView(
        "per_user", source=PER_USER.source, entity=PER_USER.entity,
        features=[*PER_USER.features, Count(windows=["1d"], name="again")],
    )  # fmt: skip
    known = shop.project.definitions
    shop.project.__dict__["definitions"] = Definitions.of([VIEW, more])
    try:
        report = check(shop, service="buying_v1", sample=5)
        assert "the definition of 'per_user' has changed since" not in report.unchecked
        assert report.differences == []
    finally:
        shop.project.__dict__["definitions"] = known
