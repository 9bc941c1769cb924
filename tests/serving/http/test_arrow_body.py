"""Arrow requests of a shape that was seen before are read as they were the first time."""

from __future__ import annotations

import io
import random
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.serving.http.bodies import arrow_body
from paimon_features.serving.http.bodies.arrow_body import read_columns
from paimon_features.serving.http.http_errors import RequestRejected
from paimon_features.testing.sizes import cases


def stream(columns: Mapping[str, Any], batches: int = 1) -> bytes:
    table = pa.table(columns).replace_schema_metadata({"features": "v:n"})
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table, max(1, table.num_rows // batches))
    return out.getvalue()


def outcome(body: bytes) -> object:
    try:
        arrays, metadata = read_columns(body)
    except RequestRejected as error:
        return error.status, error.code
    return {n: (a.type, a.to_pylist()) for n, a in arrays.items()}, dict(metadata)


def test_the_second_body_of_a_shape_is_not_parsed() -> None:
    arrow_body._shapes.clear()
    assert outcome(stream({"user": [1, 2], "x": [0.5, -1.0]})) == outcome_of([1, 2], [0.5, -1.0])
    [[shape]] = arrow_body._shapes.values()
    body = stream({"user": [-7, 2**63 - 1], "x": [3.0, 4.0]})
    assert shape.is_of(body)
    assert outcome(body) == outcome_of([-7, 2**63 - 1], [3.0, 4.0])
    assert not shape.is_of(stream({"use_": [1, 2], "x": [0.5, 1.0]}))
    # nulls, texts, several batches: parsed each time
    for other in (
        stream({"user": [1, None], "x": [0.5, 1.0]}),
        stream({"user": ["a", "b"]}),
        stream({"user": [1, 2]}, batches=2),
    ):
        outcome(other)
    assert sum(map(len, arrow_body._shapes.values())) == 1


def outcome_of(user: list[int], x: list[float]) -> object:
    return {"user": (pa.int64(), user), "x": (pa.float64(), x)}, {b"features": b"v:n"}


@given(seed=st.integers(0, 2**32 - 1))
@cases(60)
def test_damaged_bodies_have_the_outcome_that_they_had_without_shapes(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.choice((1, 2, 9))
    body = bytearray(stream({"user": [rng.randrange(99) for _ in range(count)], "n": [7] * count}))
    arrow_body._shapes.clear()
    outcome(bytes(body))
    for _ in range(rng.choice((1, 2, 5))):
        body[rng.randrange(len(body))] = rng.randrange(256)
    known = outcome(bytes(body))
    arrow_body._shapes.clear()
    assert known == outcome(bytes(body))
