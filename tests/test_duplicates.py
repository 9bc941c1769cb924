"""Repeated names are found in linear time, here and wherever names are checked."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from paimon_features.core.repeated_items import duplicates
from paimon_features.serving.http.bodies.arrow_body import MAX_COLUMNS, read_columns
from paimon_features.serving.http.bodies.formats import Format
from paimon_features.serving.http.bodies.request_body import decode
from paimon_features.serving.http.http_errors import RequestRejected

ROOT = Path(__file__).parents[1]
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Counted(str):
    """A name that counts how often names are compared."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return str.__eq__(self, str(other))

    __hash__ = str.__hash__


def test_comparisons_grow_with_the_length_and_not_with_its_square() -> None:
    for size in (1_000, 4_000, 16_000):
        names = [Counted(f"n{i % (size // 2)}") for i in range(size)]
        Counted.comparisons = 0
        assert len(duplicates(names)) == size // 2
        # hashes that collide in the table cost a comparison now and then
        assert Counted.comparisons < 4 * size


def quadratic(source: str) -> Iterator[int]:
    """Lines where a list is searched once for each of its items."""
    if "count" not in source:  # most files; parsing takes seconds
        return
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, COMPREHENSIONS):
            continue
        targets = {
            name.id
            for loop in node.generators
            for name in ast.walk(loop.target)
            if isinstance(name, ast.Name)
        }
        for call in ast.walk(node):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr == "count"
                and {arg.id for arg in call.args if isinstance(arg, ast.Name)} & targets
            ):
                yield call.lineno


def test_no_list_is_searched_for_each_of_its_items() -> None:
    assert list(quadratic("{x for x in names if names.count(x) > 1}")) == [1]
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for package in ("paimon_features", "trainer_bridge", "jobs")
        for path in sorted((ROOT / package).rglob("*.py"))
        for line in quadratic(path.read_text())
    ]
    assert found == []


def test_a_json_body_of_repeated_keys_is_rejected_by_the_first_of_them() -> None:
    pairs = [f'"k{i}": [1]' for i in range(2_000)] * 2
    body = f'{{"features": ["v:f"], "entities": {{{", ".join(pairs)}}}}}'.encode()
    with pytest.raises(RequestRejected, match="has the key 'k0' twice") as caught:
        decode(body, Format.JSON, b"")
    assert caught.value.status == 422


def test_a_request_has_a_limited_number_of_keys_and_inputs() -> None:
    keys = {f"k{i}": [1] for i in range(MAX_COLUMNS)}
    body = {"features": ["v:f"], "entities": keys}
    assert len(decode(json.dumps(body).encode(), Format.JSON, b"").columns) == MAX_COLUMNS
    for fields in ({"entities": {**keys, "one": [1]}}, {"request": {"one": 1}}):
        with pytest.raises(RequestRejected, match="1,001 entity keys, request inputs") as caught:
            decode(json.dumps({**body, **fields}).encode(), Format.JSON, b"")
        assert (caught.value.status, caught.value.code) == (413, "too_large")


def test_an_arrow_stream_of_many_columns_is_rejected() -> None:
    names = [f"k{i}" for i in range(MAX_COLUMNS + 1)]
    sink = pa.BufferOutputStream()
    rows = pa.record_batch([pa.array([1])] * len(names), names=names)
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    with pytest.raises(RequestRejected, match="1,001 columns") as caught:
        read_columns(sink.getvalue().to_pybytes())
    assert (caught.value.status, caught.value.code) == (413, "too_large")
