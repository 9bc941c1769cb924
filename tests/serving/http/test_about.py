"""What the server reports about itself: features, health, metrics, interface, logs."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from paimon_features.core.errors import OnlineStoreError
from paimon_features.core.times.clock import now_ms
from paimon_features.core.windows import DAY_MS, MINUTE_MS
from paimon_features.definitions import Definitions, FeatureView
from paimon_features.definitions.aggregates import Count
from paimon_features.definitions.aggregates.fold import NEVER_MS
from paimon_features.online.store import Marker, MemoryStore, Write
from paimon_features.online.store.store import Evictions
from paimon_features.serving.http.http_errors import STORE_UNAVAILABLE
from paimon_features.serving.http.metrics import Counts, CountsFile, page
from tests.waiting import LONG_S

READ = {"feature_service": "reading_v1", "entities": {"user": [1, 99]}}


def samples(text: bytes) -> dict[str, float]:
    """Values by name and labels, as Prometheus reads them."""
    return {
        sample.name.removeprefix("paimon_features_")
        + "".join(f" {k}={v}" for k, v in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


# -- features --------------------------------------------------------------------------------


def test_features_tells_all_that_a_client_needs_to_ask(client: Any) -> None:
    document = client.get("/features").json
    service = document["services"][1]
    assert (service["name"], service["keys"], service["request"]) == (
        "paying_v1", {"user": "int64"}, {"amount": "float64"},
    )  # fmt: skip
    view = document["views"][0]
    assert (view["name"], view["owner"], view["tags"]) == ("clicks", "growth", {"team": "web"})
    feature = view["features"][0]
    assert feature["reference"] == "clicks:sum_n_1h"
    assert (feature["type"], feature["window_ms"]) == ("int64", 3_600_000)
    assert document["entities"][0]["keys"] == {"user": "int64"}
    for service in document["services"]:
        # everything that it lists can be requested
        request = {
            "feature_service": service["name"],
            "entities": {
                key: {"int64": [1], "string": ["a"], "date": ["2011-01-26"]}[kind]
                for key, kind in service["keys"].items()
            },
            "request": dict.fromkeys(service["request"], 1.0),
        }
        assert client.read(request).status == 200


def test_versions_change_with_the_meaning_and_only_then(make_client: Any, filled: Any) -> None:
    def services(definitions: Definitions) -> dict[str, str]:
        document = make_client(definitions=definitions).get("/features").json
        return {service["name"]: service["version"] for service in document["services"]}

    before = services(filled.definitions)
    clicks = filled.definitions.views["clicks"]
    other: FeatureView = replace(clicks, features=[*clicks.features, Count(windows=["1h"])])
    views = [replace(filled.definitions.services["visiting_v1"]), other]
    assert services(filled.definitions) == before
    after = services(Definitions.of([*views, replace(filled.definitions.services["reading_v1"],
                                                     features=[other])]))  # fmt: skip
    assert after["visiting_v1"] == before["visiting_v1"]
    assert after["reading_v1"] != before["reading_v1"]


# -- health ----------------------------------------------------------------------------------


def test_a_server_with_all_views_is_ready(client: Any) -> None:
    assert client.get("/health/live").json == {"status": "live"}
    answer = client.get("/health/ready")
    document = answer.json
    assert (answer.status, document["status"], document["reasons"]) == (200, "ready", [])
    assert document["views"]["clicks"]["applied_snapshot"] == 1
    whole = client.get("/health").json
    assert whole["live"] is True
    assert whole["worker"]["in_flight"] == 0


def test_a_store_without_a_view_is_not_ready_and_the_process_is_live(make_client: Any) -> None:
    client = make_client(store=MemoryStore())
    answer = client.get("/health/ready")
    assert (answer.status, answer.json["status"]) == (503, "not_ready")
    reason = "feature view 'clicks' is not in the online store yet; is its materializer running?"
    assert reason in answer.json["reasons"]
    assert client.get("/health/live").status == 200
    assert client.get("/health").status == 503


def test_a_store_that_evicts_or_has_evicted_is_not_ready(make_client: Any, filled: Any) -> None:
    class Changed(MemoryStore):
        current = Evictions("run", 0)

        def evictions(self) -> list[Evictions]:
            return [self.current]

    store = Changed()
    keys = [key for page in filled.store.scan(b"") for key in page]
    for key, value in zip(keys, filled.store.get_many(keys), strict=True):
        assert store.compare_and_set_many([Write(key, None, value)]) == [True]

    def ready() -> Any:
        return make_client(store=store).get("/health/ready")

    answer = ready()
    assert (answer.status, answer.json["reasons"]) == (200, [])
    assert answer.json["store"] == {
        "reachable": True, "maxmemory_policies": ["noeviction"], "evicted_keys": 0,
    }  # fmt: skip
    store.current = Evictions("run", 0, "allkeys-lru")
    answer = ready()
    assert answer.status == 503
    assert ["maxmemory-policy 'allkeys-lru'" in one for one in answer.json["reasons"]] == [True]
    store.current = Evictions("run", 7)
    answer = ready()
    assert answer.status == 503
    assert all("has evicted 7 keys" in one for one in answer.json["reasons"])
    store.current = Evictions("", 0, None)  # its user may not read it
    answer = ready()
    assert (answer.status, answer.json["store"]["maxmemory_policies"]) == (200, [None])


def with_markers(filled: Any, change: Callable[[int, Marker], Marker]) -> MemoryStore:
    """A copy of the store with other markers: ``change`` is given the bucket and the marker."""
    store = MemoryStore()
    keys = [key for page in filled.store.scan(b"") for key in page]
    for key, value in zip(keys, filled.store.get_many(keys), strict=True):
        bucket = re.search(rb":([0-9]+)}#marker$", key)
        if bucket is not None:
            value = change(int(bucket[1]), Marker.from_bytes(value)).to_bytes()
        assert store.compare_and_set_many([Write(key, None, value)]) == [True]
    return store


def test_low_and_high_marks_are_those_of_all_buckets(make_client: Any, filled: Any) -> None:
    def change(bucket: int, marker: Marker) -> Marker:
        return replace(marker, high_ms=1_000_000 + bucket * 1_000)

    client = make_client(store=with_markers(filled, change))
    view = client.get("/health").json["views"]["clicks"]
    assert (view["event_time_low_ms"], view["event_time_high_ms"]) == (1_000_000, 1_001_000)
    got = samples(client.get("/metrics").body)
    assert got["event_time_low_seconds view=clicks"] == 1_000
    assert got["event_time_high_seconds view=clicks"] == 1_001

    def without_events(bucket: int, marker: Marker) -> Marker:
        return replace(marker, high_ms=1_000 if bucket else NEVER_MS)

    client = make_client(store=with_markers(filled, without_events))
    view = client.get("/health").json["views"]["clicks"]
    assert (view["event_time_low_ms"], view["event_time_high_ms"]) == (None, 1_000)
    got = samples(client.get("/metrics").body)
    assert "event_time_low_seconds view=clicks" not in got
    assert got["event_time_high_seconds view=clicks"] == 1


def test_a_stopped_materializer_is_a_warning_without_max_staleness_and_an_idle_source_is_none(
    make_client: Any, filled: Any
) -> None:
    undeclared = replace(filled.definitions.views["clicks"], max_staleness=None)
    definitions = Definitions.of([undeclared])

    def after(minutes: int, idle_days: int, followed: bool) -> Any:
        def change(bucket: int, marker: Marker) -> Marker:
            return replace(
                marker,
                current_ms=now_ms() - minutes * MINUTE_MS * (bucket == 1),
                high_ms=now_ms() - idle_days * DAY_MS,
                followed=followed,
            )

        return make_client(store=with_markers(filled, change), definitions=definitions)

    for minutes, idle_days, followed, behind in (
        (0, 0, True, False),
        (4, 0, True, False),
        (0, 300, True, False),
        # a one-shot 'materialize' has not stopped: there may be nothing to apply
        (300, 0, False, False),
        (20, 0, True, True),
    ):
        client = after(minutes, idle_days, followed)
        answer = client.get("/health")
        view = answer.json["views"]["clicks"]
        assert (answer.status, answer.json["status"]) == (200, "ready")
        assert (view["stale"], view["behind"]) == (False, behind)
        assert len(answer.json["warnings"]) == behind
        # a read of the other bucket does not hide it
        client.read({"features": ["clicks:sum_n_1h"], "entities": {"user": [1]}})
        got = samples(client.get("/metrics").body)
        assert got["behind view=clicks"] == behind
        assert got["freshness_seconds view=clicks"] >= minutes * 60
    assert "it has stopped, or is too slow" in answer.json["warnings"][0]


def test_a_store_that_fails_is_not_ready_with_its_reason(make_client: Any) -> None:
    class Away(MemoryStore):
        def get_many(self, keys: Any) -> Any:
            raise OnlineStoreError("redis is away")

    answer = make_client(store=Away()).get("/health/ready")
    assert (answer.status, answer.json["reasons"]) == (503, [STORE_UNAVAILABLE])
    assert answer.json["store"] == {"reachable": False}


def test_a_store_that_hangs_is_reported_within_the_bound(
    make_client: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    go_on = threading.Event()

    class Hangs(MemoryStore):
        def get_many(self, keys: Any) -> Any:
            assert go_on.wait(LONG_S)
            return super().get_many(keys)

    monkeypatch.setattr("paimon_features.serving.http.definitions.health.TIMEOUT_S", 0.05)
    client = make_client(store=Hangs())
    assert client.get("/health/ready").json["reasons"] == [STORE_UNAVAILABLE]
    go_on.set()
    assert "the online store has not responded within 0.05 s" in caplog.text
    # metrics come nevertheless
    assert client.get("/metrics").status == 200


def test_a_view_in_another_definition_or_with_a_lost_marker_is_not_ready(
    make_client: Any, filled: Any
) -> None:
    clicks = filled.definitions.views["clicks"]
    other = replace(clicks, features=[*clicks.features, Count(windows=["60d"])])
    answer = make_client(definitions=Definitions.of([other])).get("/health/ready")
    assert "for another definition (generation 1)" in answer.json["reasons"][0]
    store = MemoryStore()
    store._values.update(filled.store._values)
    [marker, *_] = [key for key in store._values if key.endswith(b"#marker") and b"clicks" in key]
    store.delete([marker])
    answer = make_client(store=store).get("/health/ready")
    assert "the online store has lost 1 of 2 markers" in answer.json["reasons"][0]


def test_a_view_behind_its_bound_is_not_ready_unless_that_is_accepted(
    make_client: Any, filled: Any
) -> None:
    time.sleep(0.002)
    stale = replace(filled.definitions.views["clicks"], max_staleness="1ms")
    client = make_client(definitions=Definitions.of([stale]))
    answer = client.get("/health/ready")
    assert answer.status == 503
    assert "feature view 'clicks' is stale" in answer.json["reasons"][0]
    assert client.get("/health/ready", query="stale=ok").status == 200
    reply = client.read({"features": ["clicks:count_12d"], "entities": {"user": [1]}}).json
    assert reply["results"][1]["detailed_statuses"] == ["STALE"]
    assert samples(client.get("/metrics").body)["stale view=clicks"] == 1


def test_only_views_of_services_have_to_be_there(make_client: Any, filled: Any) -> None:
    unused = replace(filled.definitions.views["clicks"], name="unused")
    definitions = Definitions.of([unused, filled.definitions.services["reading_v1"]])
    assert make_client(definitions=definitions).get("/health/ready").status == 200
    answer = make_client(definitions=Definitions.of([unused])).get("/health/ready")
    assert answer.status == 503


# -- metrics ---------------------------------------------------------------------------------


def test_metrics_count_what_was_requested_and_answered(client: Any) -> None:
    for _ in range(3):
        client.read(READ)
    client.read({**READ, "as_of": "x"})
    client.get("/nowhere")
    got = samples(client.get("/metrics").body)
    assert got["requests_total route=/get-online-features status=200"] == 3
    assert got["requests_total route=/get-online-features status=422"] == 1
    assert got["requests_total route=other status=404"] == 1
    assert got["request_seconds_count route=/get-online-features"] == 4
    assert got["request_seconds_bucket le=+Inf route=/get-online-features"] == 4
    assert got["request_entities_bucket le=2.0"] == 3
    assert got["entity_rows_total"] == 6
    assert got["feature_values_total"] == 24
    assert got["feature_statuses_total status=PRESENT view=clicks"] == 12
    assert got["feature_statuses_total status=MISSING view=clicks"] == 12
    assert got["batches_total"] == got["batched_requests_total"] == 3
    assert got["applied_snapshot view=clicks"] == 1
    assert 0 <= got["freshness_seconds view=clicks"] < 3600
    assert (got["workers"], got["worker_starts_total"], got["definitions_ok"]) == (1, 1, 1)


def test_counts_of_workers_add_up_and_a_new_worker_goes_on(tmp_path: Path) -> None:
    files = [CountsFile(tmp_path, slot) for slot in range(2)]
    for slot, file in enumerate(files):
        counts = file.load()
        for _ in range(slot + 1):
            counts.request("/features", 200, 0.004)
            counts.answer(10, 20, {"v": [15, 0, 0, 5, 0]})
        counts.in_flight = 2
        file.write(counts, 100.0)
    again = files[0].load()
    assert (again.starts, again.in_flight) == (2, 0)
    again.request("/features", 200, 0.004)
    files[0].write(again, 101.0)
    got = samples(page(files[1].of_all(), 102.0, 0, True))
    assert got["requests_total route=/features status=200"] == 4
    assert got["request_seconds_bucket le=0.003 route=/features"] == 0
    assert got["request_seconds_bucket le=0.005 route=/features"] == 4
    assert got["feature_statuses_total status=MISSING view=v"] == 15
    assert (got["workers"], got["in_flight"], got["worker_starts_total"]) == (2, 2, 3)
    # one that has not written for long counts for what it did, and for nothing that it does
    later = samples(page(files[1].of_all(), 200.0, 0, True))
    assert (later["workers"], later["in_flight"]) == (0, 0)
    assert later["requests_total route=/features status=200"] == 4


def test_a_broken_file_of_counts_costs_the_counts_only(tmp_path: Path) -> None:
    (tmp_path / "worker-0.json").write_bytes(b"{")
    file = CountsFile(tmp_path, 0)
    assert file.load() == Counts(starts=1)
    assert file.of_all() == []


# -- interface -------------------------------------------------------------------------------


def test_the_openapi_document_names_what_there_is_and_its_references_resolve(client: Any) -> None:
    document = client.get("/openapi.json").json
    assert document["openapi"] == "3.1.0"
    assert not re.search(r"'\{\w+\}'|x-error", str(document)), "a part of the template is left"
    for found in re.findall(r"#/components/schemas/\w+", str(document)):
        assert found.rpartition("/")[2] in document["components"]["schemas"]
    request = document["components"]["schemas"]["Request"]["properties"]
    assert "clicks:count_12d" in request["features"]["items"]["enum"]
    assert request["feature_service"]["enum"] == ["reading_v1", "paying_v1", "visiting_v1"]
    post = document["paths"]["/get-online-features"]["post"]
    for example in post["requestBody"]["content"]["application/json"]["examples"].values():
        assert client.read(example["value"]).status == 200
    assert client.app._routes.keys() <= document["paths"].keys()


def test_the_page_needs_nothing_from_elsewhere(client: Any) -> None:
    answer = client.get("/docs")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")

    class Links(HTMLParser):
        found: list[str | None] = []  # noqa: RUF012

        def handle_starttag(self, tag: str, attrs: Any) -> None:
            assert tag != "script"
            self.found += [value for name, value in attrs if name in ("href", "src")]

    Links().feed(answer.body.decode())
    assert Links.found == ["openapi.json"]
    assert b"/get-online-features" in answer.body


def test_paths_and_methods_that_are_not_there_are_reported(client: Any) -> None:
    status, code, detail = client.get("/get-online-feature").problem
    assert (status, code) == (404, "not_found")
    assert "/get-online-features" in detail
    answer = client.get("/get-online-features")
    assert answer.problem[:2] == (405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"
    head = client.request("HEAD", "/features")
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["content-length"]) > 100


# -- logs ------------------------------------------------------------------------------------


def test_a_request_is_one_line_with_its_id_and_its_trace(client: Any) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    answer = client.read(READ, headers={"x-request-id": "order-7", "traceparent": trace})
    assert answer.headers["x-request-id"] == "order-7"
    [line] = client.log
    assert line["request_id"] == "order-7"
    assert line["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert line["span_id"] == "00f067aa0ba902b7"
    assert (line["status"], line["entities"], line["features"]) == (200, 2, 4)


@pytest.mark.parametrize("given", ["", "a\nb", "x" * 200, 'a"b', "é"])
def test_an_id_that_could_spoil_a_log_is_replaced(client: Any, given: str) -> None:
    made = client.read(READ, headers={"x-request-id": given}).headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f]{12}-\d+", made)


def test_of_good_requests_a_share_is_logged_and_of_bad_ones_all(make_client: Any) -> None:
    client = make_client(log_sample=0.0)
    client.read(READ)
    client.read(b"{")
    assert [line["code"] for line in client.log] == ["malformed"]
    assert make_client(log_level="warning").app.log.wants(200) is False
    client = make_client(log_level="error")
    assert (client.app.log.wants(400), client.app.log.wants(500)) == (False, True)
