"""Each part of a request, ever larger: the work grows in proportion at most, the replies do not.

Work is counted in lines of Python, which a loaded machine does not change. It finds loops over
loops, and loops over the bytes of one value, which are linear and yet hold up all other requests.
"""

from __future__ import annotations

import io
import json
import random
import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest

from paimon_features.testing.sizes import seeds

PACK, ARROW = "application/msgpack", "application/vnd.apache.arrow.stream"
LONGEST_REPLY = 2_048
LINES_OF_A_VALUE = 6_000
"""What any one value may cost: a text of the largest size is hashed, four lines for four bytes."""
GROWTH = 1.3
"""The lines of a request eight times as large, by eight times those of the small one, at most."""


class Sent(NamedTuple):
    """A request."""

    body: bytes = b""
    headers: Mapping[str, str] = {}
    query: str = ""
    path: str = "/get-online-features"
    method: str = "POST"


def lines_of(work: Callable[[], Any]) -> tuple[int, Any]:
    """The lines of Python that some work takes, in all threads that it starts, and its result."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        result = work()
    finally:
        sys.settrace(before)
        threading.settrace(before)  # type: ignore[arg-type]
    return count, result


def read(**fields: object) -> Sent:
    document = {"feature_service": "reading_v1", "entities": {"user": [1]}, **fields}
    return Sent(json.dumps({k: v for k, v in document.items() if v is not None}).encode())


def packed(**fields: object) -> Sent:
    return Sent(
        msgspec.msgpack.encode(
            {"feature_service": "reading_v1", "entities": {"user": [1]}, **fields}
        ),
        {"content-type": PACK},
    )


def arrow(columns: Mapping[str, Any], **metadata: str) -> Sent:
    table = pa.table(dict(columns)).replace_schema_metadata(
        {"feature_service": "reading_v1", **metadata}
    )
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return Sent(out.getvalue(), {"content-type": ARROW})


def visits(shops: list[str]) -> dict[str, Any]:
    return {"shop": shops, "day": ["2011-01-26"] * len(shops)}


def paying(**inputs: object) -> Sent:
    return read(feature_service="paying_v1", request=inputs)


VALUES: dict[str, Callable[[str], Sent]] = {
    "service": lambda t: read(feature_service=t),
    "service, packed": lambda t: packed(feature_service=t),
    "service, Arrow": lambda t: arrow({"user": [1]}, feature_service=t),
    "feature": lambda t: read(feature_service=None, features=[t]),
    "view": lambda t: read(feature_service=None, features=[f"{t}:x"]),
    "feature of a view": lambda t: read(feature_service=None, features=[f"clicks:{t}"]),
    "both": lambda t: read(feature_service=t, features=["clicks:sum_n_1d"]),
    "name of a key": lambda t: read(entities={t: [1]}),
    "name of a key, Arrow": lambda t: arrow({t: [1]}),
    "name of an input": lambda t: read(request={t: 1}),
    "name of a field": lambda t: read(**{t: 1}),
    "integer key as text": lambda t: read(entities={"user": [t]}),
    "text key": lambda t: read(feature_service="visiting_v1", entities=visits([t])),
    "text key, packed": lambda t: packed(feature_service="visiting_v1", entities=visits([t])),
    "text key, Arrow": lambda t: arrow(
        {"shop": [t], "day": pa.array([15_000], pa.date32())}, feature_service="visiting_v1"
    ),
    "large text key, Arrow": lambda t: arrow(
        {"shop": pa.array([t], pa.large_string()), "day": pa.array([15_000], pa.date32())},
        feature_service="visiting_v1",
    ),
    "date": lambda t: read(feature_service="visiting_v1", entities={"shop": ["north"], "day": [t]}),
    "input": lambda t: paying(amount=t),
    "digits": lambda t: paying(amount="1" * len(t)),
    "integer": lambda t: Sent(
        b'{"feature_service":"reading_v1","entities":{"user":[%b]}}' % (b"1" * len(t))
    ),
    "fraction": lambda t: Sent(
        b'{"feature_service":"reading_v1","entities":{"user":[1.%b]}}' % (b"1" * len(t))
    ),
    "blanks": lambda t: Sent(b"{" + b" " * len(t) + b"}"),
    "brackets": lambda t: Sent(b"[" * len(t)),
    "value of an ignored field": lambda t: read(other_words=t),
    "flag": lambda t: arrow({"user": [1]}, full_feature_names=t),
    "time": lambda t: arrow({"user": [1]}, now_ms=t),
    "content type": lambda t: read()._replace(headers={"content-type": quoted(t)}),
    "accept": lambda t: read()._replace(headers={"accept": quoted(t)}),
    "authorization": lambda t: read()._replace(headers={"authorization": f"Bearer {quoted(t)}"}),
    "host": lambda t: read()._replace(headers={"host": quoted(t)}),
    "request id": lambda t: read()._replace(headers={"x-request-id": quoted(t)}),
    "query": lambda t: read()._replace(query=quoted(t)),
    "path": lambda t: Sent(path=f"/{quoted(t)}", method="GET"),
    "method": lambda t: Sent(method=quoted(t)),
    "explained feature": lambda t: explain(f"feature={quoted(t)}&user=1"),
    "explained key": lambda t: explain(f"feature=clicks:sum_n_1d&user={quoted(t)}"),
    "explained name": lambda t: explain(f"feature=clicks:sum_n_1d&{quoted(t)}=1"),
}
"""One text of any length in each place of a request."""


def quoted(text: str) -> str:
    """As much of a text as a head may have."""
    return "".join(c for c in text if c.isascii() and c.isalnum())[:32_768]


def explain(query: str) -> Sent:
    return Sent(query=query, path="/explain", method="GET")


LISTS: dict[str, Callable[[int], Sent]] = {
    "entities": lambda n: read(entities={"user": list(range(n))}),
    "entities, packed": lambda n: packed(entities={"user": list(range(n))}),
    "entities, Arrow": lambda n: arrow({"user": pa.array(range(n), pa.int64())}),
    "texts": lambda n: read(
        feature_service="visiting_v1", entities=visits([f"shop {i}" for i in range(n)])
    ),
    "one long text among short ones": lambda n: read(
        feature_service="visiting_v1", entities=visits(["x" * 4_000, *map(str, range(n))])
    ),
    "features": lambda n: read(feature_service=None, features=[f"clicks:f{i}" for i in range(n)]),
    "one feature many times": lambda n: read(
        feature_service=None, features=["clicks:sum_n_1d"] * n
    ),
    "features, Arrow": lambda n: arrow(
        {"user": [1]}, features=",".join(f"clicks:f{i}" for i in range(n))
    ),
    "keys": lambda n: read(entities={f"k{i}": [1] for i in range(n)}),
    "inputs": lambda n: read(request={f"k{i}": 1 for i in range(n)}),
    "fields": lambda n: read(**{f"k{i}": 1 for i in range(n)}),
    "columns, Arrow": lambda n: arrow({f"k{i}": [1] for i in range(n)}),
    "metadata, Arrow": lambda n: arrow({"user": [1]}, **{f"k{i}": "x" for i in range(n)}),
    "quotes": lambda n: read(other_words='":' * n),
    "repeated fields": lambda n: Sent(b'{"features":[%b]}' % b",".join([b'{"a":1,"a":1}'] * n)),
    "accepted types": lambda n: read()._replace(headers={"accept": "a/b;q=0.1," * n}),
    "query fields": lambda n: read()._replace(query="&".join(f"k{i}=1" for i in range(n))),
    "explained keys": lambda n: explain("&".join(f"k{i}=1" for i in range(n))),
}
"""Many parts, in each place that takes some."""


def send(client: Any, sent: Sent) -> tuple[int, Any]:
    """The lines that a request costs, and its reply, which is short unless it is an answer."""
    lines, reply = lines_of(
        lambda: client.request(
            sent.method, sent.path, sent.body, headers=sent.headers, query=sent.query
        )
    )
    assert reply.status < 500, reply.body[:500]
    if reply.status >= 400:
        assert len(reply.body) <= LONGEST_REPLY, reply.body[:LONGEST_REPLY]
        assert all(len(value) <= 300 for value in reply.headers.values())
    return lines, reply


@pytest.fixture
def client(make_client: Any) -> Any:
    return make_client(hosts=("localhost",))


@pytest.mark.parametrize("place", VALUES)
@pytest.mark.parametrize("seed", seeds(1))
def test_one_value_costs_next_to_nothing_however_long_it_is(
    client: Any, place: str, seed: int
) -> None:
    rng = random.Random(f"{place}{seed}")
    letters = rng.choice(("a", "0", 'a"', "\\", "é:", "\U0001f600", "a b=c;"))
    size = rng.choice((3_000, 4_096, 100_000))
    send(client, VALUES[place]("a"))  # imports
    short, _ = send(client, VALUES[place](letters))
    long, reply = send(client, VALUES[place]((letters * size)[:size]))
    assert long - short <= LINES_OF_A_VALUE, (reply.status, reply.body[:300])


@pytest.mark.parametrize("place", LISTS)
@pytest.mark.parametrize("seed", seeds(1))
def test_many_parts_cost_in_proportion_to_their_number(client: Any, place: str, seed: int) -> None:
    count = random.Random(seed).randrange(300, 700)
    send(client, LISTS[place](2))
    few, _ = send(client, LISTS[place](count))
    many, reply = send(client, LISTS[place](8 * count))
    assert many <= 8 * GROWTH * few, (reply.status, reply.body[:300])


def test_a_text_over_the_limit_is_refused_by_the_name_of_its_key(make_client: Any) -> None:
    client = make_client(max_text_bytes=10)
    good = "ééééé"
    for sent in (
        read(feature_service="visiting_v1", entities=visits(["north", good])),
        arrow(
            {"shop": [good], "day": pa.array([15_000], pa.date32())}, feature_service="visiting_v1"
        ),
    ):
        answer = client.read(sent.body, headers=sent.headers)
        assert answer.status == 200
    for sent in (
        read(feature_service="visiting_v1", entities=visits(["north", good + "x"])),
        arrow(
            {"shop": [good + "x"], "day": pa.array([15_000], pa.date32())},
            feature_service="visiting_v1",
        ),
    ):
        status, code, detail = client.read(sent.body, headers=sent.headers).problem
        assert (status, code) == (422, "invalid_request")
        assert detail == (
            "entity key 'shop' has a text of 11 bytes; expected at most 10 ([serve] max_text_bytes)"
        )
    status, code, detail = client.read(paying(amount="1" * 11).body).problem
    assert (status, code) == (422, "invalid_request")
    assert detail.startswith("request input 'amount' has a text of 11 bytes")
