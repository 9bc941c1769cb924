"""Hostile bodies: each endpoint refuses them with a 4xx, and large ones are decoded elsewhere."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("onnx", reason="networks for tests")
pytest.importorskip("onnxruntime", reason="the runtime of models")

from paimon_features.serving.http.bodies.json_bodies import LARGE, check_items, parse
from paimon_features.serving.http.http_errors import RequestRejected
from paimon_features.testing.sizes import many
from tests.long_cases import quick_cases
from tests.serving.http.test_predict import MODEL, models
from tests.serving.prediction.networks import state

PACK = {"content-type": "application/msgpack"}
READ = b'"feature_service":"reading_v1","entities":{"user":[1]}'
TENSORS = json.dumps(
    [
        {"name": each.name, "shape": [1, 1], "datatype": "FP64", "data": [1.0]}
        for each in MODEL.manifest.signature.inputs
    ]
).encode()
PATHS: dict[str, bytes] = {
    "/get-online-features": READ,
    "/predict/churn": b'"entities":{"user":[1]}',
    "/v2/models/churn/infer": b'"inputs":' + TENSORS,
    "/invocations": b'"instances":[[1.0,2.0]]',
}
"""The fields of a valid request."""
HOSTILE: dict[str, bytes] = {
    "text that is not UTF-8": b'{"zz":"\xff",%s}',
    "key that is not UTF-8": b'{"\xff":1,%s}',
    "nested text that is not UTF-8": b'{"zz":[{"a":["\xc3"]}],%s}',
    "overlong UTF-8": b'{"zz":"\xc0\xaf",%s}',
    "encoded surrogate": b'{"zz":"\xed\xa0\x80",%s}',
    "half of a pair": b'{"zz":"\\ud800",%s}',
    "half of a pair as a key": b'{"\\udfff":1,%s}',
    "key twice": b'{"zz":1,"zz":1,%s}',
    "key twice, one escaped": b'{"zz":1,"\\u007az":1,%s}',
    "nested key twice": b'{"zz":[{"a":1,"a":1}],%s}',
    "known key twice": b'{%s,"entities":{"user":[1]},"inputs":[],"instances":[],"entities":{}}',
    "not a number": b'{"zz":NaN,%s}',
    "infinity": b'{"zz":-Infinity,%s}',
    "number out of range": b'{"zz":1e999,%s}',
    "endless integer": b'{"zz":' + b"9" * 5_000 + b",%s}",
    "deep": b'{"zz":' + b"[" * 4_000 + b"]" * 4_000 + b",%s}",
    "never ends": b'{%s,"zz":"',
    "ends in a backslash": b'{%s,"zz":"\\',
    "comma at the end": b"{%s,}",
    "two documents": b"{%s}{}",
    "mark of the byte order": b"\xef\xbb\xbf{%s}",
    "UTF-16": b"\xff\xfe{\x00%s}\x00",
    "null byte": b'{"zz":"\x00",%s}',
}
BOMBS: dict[str, bytes] = {
    "objects": b'{"zz":[' + b'{"a":0},' * 900_000 + b"0],%s}",
    "empty objects": b'{"zz":[' + b"{}," * 2_700_000 + b"0],%s}",
    "lists": b'{"zz":[' + b"[]," * 2_700_000 + b"0],%s}",
    "keys": b'{"zz":{' + b",".join(b'"%d":0' % n for n in range(600_000)) + b"},%s}",
    "texts, then lists": b'{"zz":"'
    + b'\\"[' * 1_000_000
    + b'","y":['
    + b"[]," * 600_000
    + b"0],%s}",
}


@pytest.fixture
def served(client: Any) -> Any:
    client.app.replace_models(models((MODEL, state(MODEL))))
    return client


def refused(answer: Any) -> None:
    assert 400 <= answer.status < 500, answer.body
    assert json.loads(answer.body)


@pytest.mark.parametrize("path", PATHS)
def test_a_body_that_is_not_strict_json_is_refused(served: Any, path: str) -> None:
    fields = PATHS[path]
    assert served.request("POST", path, b"{%s}" % fields).status == 200
    for what, body in HOSTILE.items():
        # small ones are decoded in the event loop, large ones in a thread
        for padding in (b"", b" " * (LARGE + 1)):
            answer = served.request("POST", path, body.replace(b"%s", fields) + padding)
            assert 400 <= answer.status < 500, (what, answer.body)
            assert json.loads(answer.body)


@pytest.mark.parametrize("path", quick_cases(PATHS, "/get-online-features"))
def test_a_body_of_very_many_objects_is_refused_before_they_are_made(
    served: Any, path: str
) -> None:
    fields = PATHS[path]
    for what, bomb in BOMBS.items():
        body = bomb.replace(b"%s", fields)
        answer = served.request("POST", path, body)
        assert answer.status == 413, (what, answer.body[:200])
        tracemalloc.start()
        with pytest.raises(RequestRejected, match="more than 10,000 objects"):
            parse(body)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 3 * len(body), what


@pytest.mark.parametrize("path", ["/get-online-features", "/predict/churn"])
def test_a_field_that_is_twice_in_messagepack_is_refused(served: Any, path: str) -> None:
    document = json.loads(b"{%s}" % PATHS[path])
    whole = msgspec.msgpack.encode(document)
    assert served.request("POST", path, whole, headers=PACK).status == 200
    first, rest = whole[0] & 15, whole[1:]
    key, value = msgspec.msgpack.encode("entities"), msgspec.msgpack.encode(document["entities"])
    again = bytes([0x80 | (first + 1)]) + rest + key + value
    user = msgspec.msgpack.encode("user") + msgspec.msgpack.encode([1])
    twice = msgspec.msgpack.encode({k: v for k, v in document.items() if k != "entities"})
    inner = bytes([twice[0] + 1]) + twice[1:] + key + b"\x82" + user + user
    wide = bytes([0xDF]) + (first + 1).to_bytes(4) + rest + key + value
    for body in (again, inner, wide):
        answer = served.request("POST", path, body, headers=PACK)
        assert answer.problem[:2] == (422, "invalid_request")
        assert "twice" in answer.problem[2]
    many_keys = b"".join(b"\xa6%06d\xc0" % n for n in range(200_000))
    bombs = (
        b"\xdf" + (200_000).to_bytes(4) + many_keys,
        bytes([twice[0] + 1]) + twice[1:] + key + b"\xdf" + (200_000).to_bytes(4) + many_keys,
        bytes([whole[0] + 1]) + rest + b"\xa2zz" + b"\xdd" + (9).to_bytes(4) + b"\x80" * 8,
    )
    for body in bombs:
        refused(served.request("POST", path, body, headers=PACK))


def test_other_requests_are_answered_while_a_large_body_is_decoded(served: Any) -> None:
    rows = served.app.state.limits.max_entities
    # a key with blanks between the values, as a formatter may write it
    values = b",".join(b"%d%s" % (n, b" " * 200) for n in range(rows))
    large = b'{"feature_service":"reading_v1","entities":{"user":[%s]}}' % values
    small = b"{%s}" % READ
    order: list[str] = []

    async def send(name: str, body: bytes) -> int:
        answer = await served.send("POST", "/get-online-features", body)
        order.append(name)
        status: int = answer.status
        return status

    async def both() -> list[int]:
        first = asyncio.ensure_future(send("large", large))
        await asyncio.sleep(0)
        return await asyncio.gather(first, send("small", small))

    assert served.run(both()) == [200, 200]
    assert order == ["small", "large"]
    assert served.app.state.admission.in_flight == 0
    assert served.app.state.buffers.held == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",)) | st.sampled_from('{}[]:\\",')),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=20,
)  # fmt: skip


def items_of(document: Any) -> int:
    """The number of objects, lists and keys."""
    if isinstance(document, dict):
        return 1 + len(document) + sum(map(items_of, document.values()))
    return 1 + sum(map(items_of, document)) if isinstance(document, list) else 0


@settings(max_examples=many(100))
@given(document=JSON, escaped=st.booleans(), indent=st.sampled_from([None, 2]))
def test_a_document_is_read_as_it_was_written_and_its_items_are_counted(
    document: Any, escaped: bool, indent: int | None
) -> None:
    body = json.dumps(document, ensure_ascii=escaped, indent=indent).encode()
    assert parse(body) == document
    count = items_of(document)
    check_items(body, count)
    if count:
        with pytest.raises(RequestRejected, match="objects, lists and keys"):
            check_items(body, count - 1)


@settings(max_examples=many(100))
@given(data=st.binary(max_size=40), at=st.integers(0, 60))
def test_bytes_anywhere_in_a_body_are_read_as_json_does_or_refused(data: bytes, at: int) -> None:
    whole = b'{"feature_service":"reading_v1","entities":{"user":[1]}}'
    body = whole[:at] + data + whole[at:]
    try:
        found = parse(body)
    except RequestRejected:
        return
    assert found == json.loads(body.decode())
