"""Requests at random: what fits the OpenAPI document, what does not, and what nobody would send.

Each is answered or refused with a status and a body that the document names; never with a 5xx.
``make fuzz`` sends 100,000 and more of them.
"""

from __future__ import annotations

import asyncio
import functools
import json
import random
import resource
import string
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paimon_features.testing.sizes import many, seeds
from tests.serving.http.test_predict import MODEL, models
from tests.serving.prediction.networks import state

schemathesis = pytest.importorskip("schemathesis", reason="the fuzzer of the interface")
pytest.importorskip("onnxruntime", reason="the runtime of models")
NOT_SET = schemathesis.core.NOT_SET

PACK = "application/msgpack"
LETTERS = string.printable + "\x00\ud7ff\U0001f600é"
WITH_INPUT = (
    "/get-online-features", "/health/ready", "/explain", "/predict/{model}",
    "/v2/models/{model}/infer", "/invocations",
)  # fmt: skip
REQUESTS = 200
"""For one seed."""


def check(answer: Any, document: Any, path: str, method: str) -> None:
    """The reply is one that the document names."""
    assert answer.status < 500, answer.body
    responses = document["paths"][path][method]["responses"]
    assert str(answer.status) in responses, (answer.status, answer.body)
    media = answer.headers["content-type"].partition(";")[0]
    assert media in responses[str(answer.status)]["content"]
    if "json" in media:
        json.loads(answer.body)


@functools.lru_cache(maxsize=1)
def document_and_requests(client: Any, mode: str) -> tuple[Any, st.SearchStrategy[Any]]:
    document = client.get("/openapi.json").json
    schema = schemathesis.openapi.from_dict(document)
    requests = st.one_of(
        schema[path][method.upper()].as_strategy(generation_mode=schemathesis.GenerationMode(mode))
        for path, methods in document["paths"].items()
        for method in methods
        # of those without any input nothing wrong can be made
        if mode == "positive" or path in WITH_INPUT
    )
    return document, requests


@pytest.mark.parametrize("mode", ["positive", "negative"])
@settings(max_examples=many(60), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_requests_made_from_the_interface_are_answered_as_it_says(
    client: Any, mode: str, data: Any
) -> None:
    document, requests = document_and_requests(client, mode)
    if not client.app.state.models.models:
        client.app.replace_models(models((MODEL, state(MODEL))))
    case = data.draw(requests)
    if case.method.lower() not in document["paths"][case.path]:
        return  # a method that the path does not have
    body = case.body if isinstance(case.body, bytes) else b""
    if not isinstance(case.body, bytes | type(NOT_SET)):
        body = json.dumps(case.body).encode()
    headers = {str(k): str(v) for k, v in (case.headers or {}).items()}
    headers = {k: v for k, v in headers.items() if v.isascii() and k.isascii()}
    if case.media_type:
        headers.setdefault("content-type", case.media_type)
    query = "&".join(f"{k}={v}" for k, v in (case.query or {}).items())
    # half of the models that are made up are the one that there is
    path = unquote(case.formatted_path)
    if data.draw(st.booleans()):
        path = case.path.replace("{model}", "churn").replace("{version}", "1")
    answer = client.request(case.method, path, body, headers=headers, query=query)
    check(answer, document, case.path, case.method.lower())


# -- what nobody would send ------------------------------------------------------------------


def scalar(rng: random.Random) -> Any:
    return rng.choice(
        [
            lambda: rng.randint(-3, 3),
            lambda: rng.choice([2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**30, -(10**400)]),
            lambda: rng.choice([0.0, -0.0, 1e308, 5e-324, 1.5]),
            lambda: rng.choice([True, False, None]),
            lambda: "".join(rng.choices(LETTERS, k=rng.randint(0, 8))),
            lambda: rng.choice(
                ["2011-01-26", "north", "12.50", "2011-01-26T00:00+25:00", "9" * 40]
            ),
            lambda: [scalar(rng) for _ in range(rng.randint(0, 2))],
            lambda: {"a": scalar(rng)},
        ]
    )()


def request_document(rng: random.Random) -> dict[str, Any]:
    """A request that is right in some of its parts."""
    names = ["clicks:sum_n_1d", "clicks:count_12d", "share", "visits:sum_n_1d", "clicks:x", ":"]
    keys = ["user", "person", "shop", "day", "amount", "x", ""]
    document: dict[str, Any] = {
        "entities": {
            key: [scalar(rng) for _ in range(rng.choice([0, 1, 1, 1, 2, 3]))]
            for key in rng.sample(keys, rng.randint(0, 3))
        }
    }
    if rng.random() < 0.2:
        users = [rng.randint(0, 3) for _ in range(rng.randint(1, 3))]
        return {"entities": {"user": users}, "features": rng.sample(names[:2], 1)}
    if rng.random() < 0.5:
        document["entities"] = {"user": [rng.randint(0, 3) for _ in range(rng.randint(1, 3))]}
    if rng.random() < 0.6:
        document["features"] = rng.choices(names, k=rng.randint(0, 4))
    if rng.random() < 0.5:
        services = ["reading_v1", "paying_v1", "visiting_v1", "other", ""]
        document["feature_service"] = rng.choice(services)
    if rng.random() < 0.3:
        document["request"] = {"amount": scalar(rng)}
    if rng.random() < 0.2:
        document[rng.choice(["as_of", "full_feature_names", "request", "more"])] = scalar(rng)
    return document


def mangled(rng: random.Random, body: bytes) -> bytes:
    out = bytearray(body)
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(out) + 1)
        change = rng.random()
        if change < 0.4:
            out[at : at + 1] = bytes([rng.randrange(256)])
        elif change < 0.6:
            del out[at : at + rng.randint(1, 30)]
        elif change < 0.8:
            out[at:at] = rng.choice([b"[" * 3_000, b"\xff\xfe", b"NaN", b"1e999", b"\\ud800", b'"'])
        else:
            out[at:at] = out[: rng.randint(0, 40)]
    return bytes(out)


HEADERS: list[Callable[[random.Random], dict[str, str]]] = [
    lambda rng: {},
    lambda rng: {"accept": rng.choice(["*/*", PACK, "text/html", ";;q=,", "application/json;q=x"])},
    lambda rng: {"content-type": "".join(rng.choices(string.printable, k=20))},
    lambda rng: {"x-request-id": "".join(map(chr, rng.choices(range(256), k=30)))},
    lambda rng: {"traceparent": rng.choice(["", "00-x", f"00-{'0' * 32}-{'0' * 16}-01"])},
    lambda rng: {"authorization": "Bearer " + "x" * rng.randint(0, 2_000)},
    lambda rng: {"content-length": rng.choice(["", "-1", "1e3", "9" * 30, "0"])},
]


@pytest.mark.parametrize("seed", seeds(10))
def test_whatever_is_sent_is_answered_or_refused_and_no_fault(client: Any, seed: int) -> None:
    rng = random.Random(seed)
    document = client.get("/openapi.json").json
    statuses: dict[int, int] = {}
    for _ in range(REQUESTS):
        requested = request_document(rng)
        pack = rng.random() < 0.3
        try:
            body = (msgspec.msgpack.encode if pack else msgspec.json.encode)(requested)
        except (OverflowError, UnicodeEncodeError):  # larger than MessagePack's integers
            pack, body = False, json.dumps(requested).encode()
        if rng.random() < 0.4:
            body = mangled(rng, body)
        headers = {"content-type": PACK if pack else "application/json"}
        if rng.random() < 0.3:
            headers |= rng.choice(HEADERS)(rng)
        query = "" if rng.random() < 0.95 else "".join(rng.choices(string.printable, k=9))
        query = query.encode("ascii", "replace").decode()
        headers = {k: v.encode("latin-1", "replace").decode("latin-1") for k, v in headers.items()}
        answer = client.read(body, headers=headers, query=query)
        check(answer, document, "/get-online-features", "post")
        statuses[answer.status] = statuses.get(answer.status, 0) + 1
    # the requests are near enough to right ones that some of them are
    assert statuses.keys() >= {200, 400, 422}, statuses


def test_memory_does_not_grow_with_what_is_refused(client: Any) -> None:
    rng = random.Random(1)

    def peak_kb(count: int) -> int:
        for _ in range(count):
            client.read(mangled(rng, msgspec.json.encode(request_document(rng))))
        client.app.log.flush()
        client._log.truncate(0)
        client._log.seek(0)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = peak_kb(many(500))
    assert peak_kb(many(500)) - before < 8_192


def test_many_requests_at_once_are_each_answered_as_alone(client: Any) -> None:
    rng = random.Random(2)
    bodies = [json.dumps(request_document(rng)).encode() for _ in range(60)]
    alone = [client.read(body) for body in bodies]

    async def together() -> list[Any]:
        return await asyncio.gather(
            *(client.send("POST", "/get-online-features", body) for body in bodies)
        )

    for one, other in zip(alone, client.run(together()), strict=True):
        assert one.status == other.status
        if one.status == 200:
            assert one.json["results"] == other.json["results"]
        else:
            assert one.json["detail"] == other.json["detail"]
