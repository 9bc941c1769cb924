"""JSON that passes is read alike by every parser of this package."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.documents.unambiguous_json import parse_unambiguous_json

VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=5),
              st.floats(allow_nan=False, allow_infinity=False)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b", "A", "digest", ""]), inner, max_size=4),
    ),
    max_leaves=8,
)  # fmt: skip


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """A document after changes of its text: members that repeat, constants, bytes."""
    text = json.dumps(draw(VALUES), ensure_ascii=draw(st.booleans())).encode("utf-8", "replace")
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(text)))
        piece = draw(st.one_of(st.binary(max_size=2), st.sampled_from([
            b'"a": 1, ', b'"\\u0061": 2, ', b"NaN", b"-Infinity", b"//x\n", b"\xef\xbb\xbf", b",",
            b"1_0", b"0x1", b"\x00", b"{", b"[" * 3, b"\xff", b"'a'",
        ])))  # fmt: skip
        text = text[:at] + piece + text[at + draw(st.integers(0, 1)) :]
    return text


@given(texts())
def test_what_is_accepted_is_what_another_parser_reads(text: bytes) -> None:
    try:
        value = parse_unambiguous_json(text)
    except ValueError:
        return
    try:
        other: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return  # that one refuses it
    assert value == other
    assert parse_unambiguous_json(json.dumps(value)) == value


@pytest.mark.parametrize(
    "text",
    ['{"a": 1, "a": 1}', '{"a": {"b": 1, "\\u0062": 2}}', "[NaN]", "Infinity", "{} {}", "",
     "[" * 100_000, '{"a":' * 50_000, b"\xff", b'{"\xed\xa0\x80": 1}', "\ufeff{}"],
)  # fmt: skip
def test_other_texts_are_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of json, or of this package
        parse_unambiguous_json(text)
