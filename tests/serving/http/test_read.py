"""POST /get-online-features: Feast's JSON in and out, and what it says to what cannot be read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paimon_features.core.windows import DAY_MS

READ = {"feature_service": "reading_v1", "entities": {"user": [1, 2, 99]}}


def test_a_service_is_answered_as_feast_answers(client: Any) -> None:
    answer = client.read(READ)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    document = answer.json
    assert document["metadata"]["feature_names"] == [
        "user", "sum_n_1h", "sum_n_1d", "count_12d", "last_word_30d",
    ]  # fmt: skip
    assert [result["values"] for result in document["results"]] == [
        [1, 2, 99], [5, 1, None], [12, 1, None], [2, 1, None], ["hello", None, None],
    ]  # fmt: skip
    assert [result["statuses"] for result in document["results"]] == [
        ["PRESENT"] * 3, *[["PRESENT", "PRESENT", "NOT_FOUND"]] * 4,
    ]  # fmt: skip
    times = document["results"][1]["event_timestamps"]
    assert times[2] == "1970-01-01T00:00:00Z"
    assert all(time.endswith("Z") for time in times)


def test_listed_features_come_in_their_order_with_full_names_if_requested(client: Any) -> None:
    request = {
        "features": ["clicks:count_12d", "clicks:sum_n_1d"],
        "entities": {"user": [1]},
        "full_feature_names": True,
    }
    document = client.read(request).json
    assert document["metadata"]["feature_names"] == [
        "user", "clicks__count_12d", "clicks__sum_n_1d",
    ]  # fmt: skip
    assert [result["values"] for result in document["results"]] == [[1], [2], [12]]


def test_what_feast_clients_send_besides_is_understood(client: Any) -> None:
    # Feast's SDK spells every field out, and names an entity by its key or by its name
    request = {
        "entities": {"person": [1]},
        "features": ["clicks:sum_n_1d"],
        "full_feature_names": False,
        "include_feature_view_version_metadata": False,
    }
    assert client.read(request).json["results"][1]["values"] == [12]
    service = {"entities": {"user": [1]}, "feature_service": "reading_v1", "features": []}
    assert client.read(service).status == 200
    # and inputs of on-demand features stand among the entities
    paying = {"feature_service": "paying_v1", "entities": {"user": [1, 2], "amount": [6.0, 3.0]}}
    assert client.read(paying).json["results"][2]["values"] == [0.5, 3.0]


def test_request_inputs_are_one_value_or_one_for_each_entity(client: Any) -> None:
    request = {"feature_service": "paying_v1", "entities": {"user": [1, 2]}}
    single = client.read({**request, "request": {"amount": 6}}).json
    assert single["results"][2]["values"] == [0.5, 6.0]
    many = client.read({**request, "request": {"amount": [6, 1.5]}}).json
    assert many["results"][2]["values"] == [0.5, 1.5]


def test_dates_are_texts_and_keys_of_several_parts_go_together(client: Any) -> None:
    request = {
        "feature_service": "visiting_v1",
        "entities": {"shop": ["north", "north"], "day": ["2011-01-26", "2011-01-27"]},
    }
    document = client.read(request).json
    assert document["metadata"]["feature_names"] == ["shop", "day", "sum_n_1d"]
    assert [r["values"] for r in document["results"]] == [
        ["north", "north"], ["2011-01-26", "2011-01-27"], [3, None],
    ]  # fmt: skip


def test_the_time_of_the_read_can_be_given(client: Any, filled: Any) -> None:
    later = client.read({**READ, "as_of": filled.now_ms + 2 * DAY_MS}).json
    assert later["metadata"]["as_of_ms"] == filled.now_ms + 2 * DAY_MS
    assert [result["values"][0] for result in later["results"]] == [1, 0, 0, 2, "hello"]
    status, code, detail = client.read({**READ, "as_of": 10**12}).problem
    assert (status, code) == (422, "invalid_request")
    assert "get_historical_features" in detail


def test_a_reply_tells_its_snapshot_and_how_fresh_it_is(client: Any) -> None:
    answer = client.read(READ)
    fresh = answer.json["metadata"]["freshness"]["clicks"]
    assert answer.headers["x-applied-snapshot"] == f"clicks={fresh['applied_snapshot']}"
    assert answer.headers["x-current-ms"] == f"clicks={fresh['current_ms']}"
    assert fresh["stale"] is False


def test_a_body_that_comes_in_parts_is_one_body(client: Any) -> None:
    whole = client.read({**READ, "as_of": None})
    parts = client.read({**READ, "as_of": None}, parts=7)
    assert (whole.status, parts.status) == (200, 200)
    assert whole.json["results"] == parts.json["results"]


WRONG: list[tuple[str, Any, int, str, str]] = [
    ("no json", b"{", 400, "malformed", "not JSON"),
    ("empty", b"", 400, "malformed", "not JSON"),
    ("bad utf-8", b'{"entities":{"user":["\xff"]}}', 400, "malformed", "utf-8"),
    ("NaN", b'{"entities":{"user":[NaN]}}', 400, "malformed", "not JSON"),
    ("deep", b"[" * 9_000, 400, "malformed", "nested"),
    ("deeper", b'{"entities":' + b'{"a":' * 4_000, 400, "malformed", "nested"),
    ("deep elsewhere", b'{"x":' + b"[" * 9_000, 400, "malformed", "nested"),
    ("deepest", b"[" * 100_000, 413, "too_large", "10,000 objects, lists and keys"),
    ("huge float", b'{"feature_service":"reading_v1","entities":{"user":[1e999]}}',
     422, "invalid_request", "out of range"),
    ("huge integer", b'{"feature_service":"reading_v1","entities":{"user":[%s]}}' % (b"9" * 60),
     422, "invalid_request", "entity key 'user'"),
    ("endless integer",
     b'{"feature_service":"reading_v1","entities":{"user":[%s]}}' % (b"9" * 6000),
     422, "invalid_request", ""),
    ("surrogate", b'{"feature_service":"visiting_v1","entities":{"shop":["\\ud800"],'
     b'"day":["2011-01-26"]}}', 400, "malformed", ""),
    ("not an object", [], 422, "invalid_request", "Expected `object`"),
    ("no entities", {"feature_service": "reading_v1"}, 422, "invalid_request",
     "'entities' is empty"),
    ("entities empty", {"feature_service": "reading_v1", "entities": {}}, 422, "invalid_request",
     "a list of values for each entity key"),
    ("entities no lists", {"feature_service": "reading_v1", "entities": {"user": 1}},
     422, "invalid_request", "entity key 'user': Expected `array`"),
    ("nested", {"feature_service": "reading_v1", "entities": {"user": [[1]]}},
     422, "invalid_request", "entity key 'user': Expected"),
    ("text for int", {"feature_service": "reading_v1", "entities": {"user": ["1"]}},
     422, "invalid_request", "entity key 'user': expected Int64"),
    ("float for int", {"feature_service": "reading_v1", "entities": {"user": [1.5]}},
     422, "invalid_request", "entity key 'user': expected Int64"),
    ("bool for int", {"feature_service": "reading_v1", "entities": {"user": [True]}},
     422, "invalid_request", "entity key 'user': expected Int64"),
    ("null key", {"feature_service": "reading_v1", "entities": {"user": [1, None]}},
     422, "invalid_request", "null in row 1"),
    ("other key", {"feature_service": "reading_v1", "entities": {"user": [1], "shop": ["a"]}},
     422, "invalid_request", "'shop' is used by none of the requested features; expected: 'user'"),
    ("no key", {"feature_service": "reading_v1", "entities": {"usr": [1]}},
     422, "invalid_request", "expected: 'user' (Int64)"),
    ("missing key", {"feature_service": "visiting_v1", "entities": {"shop": ["a"]}},
     422, "invalid_request", "has no entity key 'day'"),
    ("key and name", {"feature_service": "reading_v1", "entities": {"user": [1], "person": [1]}},
     422, "invalid_request", "'person' is given twice"),
    ("lengths", {"feature_service": "visiting_v1",
                 "entities": {"shop": ["a"], "day": ["2011-01-26", "2011-01-26"]}},
     422, "invalid_request", "'shop' has 1, 'day' has 2"),
    ("no date", {"feature_service": "visiting_v1", "entities": {"shop": ["a"], "day": ["x"]}},
     422, "invalid_request", "'day' has a text that is not a valid Date"),
    ("both", {"feature_service": "reading_v1", "features": ["clicks:count_12d"],
              "entities": {"user": [1]}}, 422, "invalid_request", "expected one of them"),
    ("neither", {"entities": {"user": [1]}}, 422, "invalid_request", "names no features"),
    ("no such service", {"feature_service": "churn", "entities": {"user": [1]}},
     404, "unknown_name", "unknown service 'churn'; available: paying_v1, reading_v1"),
    ("no such view", {"features": ["click:count_12d"], "entities": {"user": [1]}},
     404, "unknown_name", "'click'"),
    ("no such feature", {"features": ["clicks:count"], "entities": {"user": [1]}},
     404, "unknown_name", "clicks:count_12d"),
    ("no reference", {"features": ["clicks"], "entities": {"user": [1]}},
     404, "unknown_name", "'clicks'"),
    ("odd reference", {"features": ["a:b:c"], "entities": {"user": [1]}},
     404, "unknown_name", "a"),
    ("twice", {"features": ["clicks:count_12d"] * 2, "entities": {"user": [1]}},
     422, "invalid_request", "twice"),
    ("input missing", {"feature_service": "paying_v1", "entities": {"user": [1]}},
     422, "invalid_request", "request input 'amount' (Float64) is missing"),
    ("input unknown", {"feature_service": "reading_v1", "entities": {"user": [1]},
                       "request": {"amount": 1}}, 422, "invalid_request",
     "'amount' is used by none"),
    ("input of another type", {"feature_service": "paying_v1", "entities": {"user": [1]},
                               "request": {"amount": "1"}}, 422, "invalid_request", "'amount'"),
    ("misspelt", {**READ, "nowms": 5}, 422, "invalid_request",
     "unknown field `nowms`; did you mean 'as_of'?"),
    ("as-of time", {**READ, "As_Of_Ms": 5}, 422, "invalid_request", "did you mean 'as_of'?"),
    ("old name", {**READ, "now_ms": 5}, 422, "invalid_request", "did you mean 'as_of'?"),
    ("Feast's time", {**READ, "time_stamp": 5}, 422, "invalid_request", "did you mean 'as_of'?"),
    ("time to read at", {**READ, "as_of_time": 5}, 422, "invalid_request",
     "did you mean 'as_of'?"),
    ("many fields", {**READ, **{f"x{i}": 1 for i in range(1_000)}}, 422, "invalid_request",
     "1,000 unknown fields"),
    ("unknown and deep", b'{"x":' + b"[" * 900 + b"]" * 900 + b',"feature_service":"reading_v1",'
     b'"entities":{"user":[{}]}}', 422, "invalid_request", "entity key 'user': Expected"),
    ("unknown and twice", b'{"x":1,"x":2,"feature_service":"reading_v1","entities":{"user":[1]}}',
     422, "invalid_request", "the key 'x' twice"),
    ("request of lists", {"feature_service": "paying_v1", "entities": {"user": [1]},
                          "request": {"amount": [[1]]}}, 422, "invalid_request",
     "request input 'amount': Expected"),
    ("time as text", {**READ, "as_of": "5"}, 422, "invalid_request", "$.as_of"),
    ("time beyond", {**READ, "as_of": 2**62}, 422, "invalid_request", "years 1 to 9999"),
    ("versions", {**READ, "include_feature_view_version_metadata": True},
     422, "invalid_request", "GET /features"),
    ("twice in the body", b'{"feature_service":"reading_v1","entities":{"user":[1],"user":[2]}}',
     422, "invalid_request", "the key 'user' twice"),
    ("two entities", b'{"entities":{"user":[1]},"feature_service":"reading_v1","entities":'
     b'{"user":[2]}}', 422, "invalid_request", "the key 'entities' twice"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "body", "status", "code", "text"), WRONG, ids=[w[0] for w in WRONG]
)
def test_a_wrong_request_is_answered_with_what_is_wrong(
    client: Any, what: str, body: Any, status: int, code: str, text: str
) -> None:
    got = client.read(body).problem
    assert got[:2] == (status, code)
    assert text in got[2]


def test_no_entities_are_answered_with_no_rows(client: Any) -> None:
    document = client.read({"feature_service": "reading_v1", "entities": {"user": []}}).json
    assert [result["values"] for result in document["results"]] == [[]] * 5


def test_keys_that_only_look_double_are_none(client: Any) -> None:
    body = (
        b'{ "feature_service" : "visiting_v1", "entities" :\n'
        b'{"shop":["a\\":b", ":", "\\"user\\":"], "day":["2011-01-26","2011-01-26","2011-01-26"]}}'
    )
    assert json.loads(body)["entities"]["shop"] == ['a":b', ":", '"user":']
    assert client.read(body).json["results"][0]["values"] == ['a":b', ":", '"user":']
