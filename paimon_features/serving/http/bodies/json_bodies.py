"""The one parser of JSON bodies: UTF-8, no key twice, no NaN, and a bounded number of objects.

Requests are first decoded by msgspec straight into their type, which is much faster, and accepted
if that says all of them: no unknown field, and as many keys as the type has values. Whatever that
leaves open is decided here, and the values are those that are read here.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np

from paimon_features.core.documents.unambiguous_json import (
    AmbiguousJsonError,
    parse_unambiguous_json,
)
from paimon_features.serving.http.http_errors import RequestRejected, invalid_request

LARGE = 64 << 10
"""Bodies of more bytes are decoded in a thread: the event loop is for all requests."""
MAX_ITEMS = 10_000
"""Most objects, lists and keys of a request that is about entities: it has a few for each column,
and whatever other fields of Feast's clients have."""
ITEMS_PER_ROW = 25
"""Most objects, lists and keys for each row of ready-made inputs."""
_KEY = re.compile(rb'"[ \t\r\n]*:')
_QUOTE, _PIECE = ord('"'), 1 << 20
_BEGINS_ITEM = np.isin(np.arange(256), list(b"{[:"))
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def repeats_no_key(body: bytes | bytearray, keys: int) -> bool:
    """Return True if a JSON body has so many keys; False also where it only may have more.

    Each key is matched at least once, so equal numbers mean that no key is repeated.
    """
    return len(_KEY.findall(body)) == keys


def parse(body: bytes | bytearray, most: int = MAX_ITEMS) -> Any:
    """Return the content of a JSON body.

    Raises
    ------
    RequestRejected
        400 for what is not JSON: not UTF-8, NaN or Infinity, half of a surrogate pair, or nested
        too deeply. 413 for more objects, lists and keys than ``most``. 422 for a key that is twice
        in one object, or a number that is out of range.
    """
    check_items(body, most)
    try:
        document = parse_unambiguous_json(body)
        if _SURROGATE.search(body):
            msgspec.json.encode(document)  # raises for half of a pair, which no text can have
    except AmbiguousJsonError as error:
        raise invalid_request(f"the JSON body: {error}") from None
    except ValueError as error:
        detail = f"the body is not JSON: {str(error)[:200]}"
        raise RequestRejected("malformed", detail) from None
    return document


def check_items(body: bytes | bytearray, most: int = MAX_ITEMS) -> None:
    """Raise RequestRejected (413) for a body, valid or not, with more objects, lists and keys."""
    if len(body) <= most or body.count(b"{") + body.count(b"[") + body.count(b":") <= most:
        return
    if _items(body.replace(rb"\\", b"").replace(rb"\"", b"")) > most:
        raise RequestRejected(
            "too_large",
            f"the JSON body has more than {most:,} objects, lists and keys; split the request, or "
            "send fewer fields",
        )


def _items(body: bytes | bytearray) -> int:
    """Count the objects, lists and keys of a body without escapes, outside of its texts."""
    codes = np.frombuffer(body, np.uint8)
    count, in_text = 0, 0
    for start in range(0, len(codes), _PIECE):
        piece = codes[start : start + _PIECE]
        # 1 from the quote that begins a text on, 0 from the one that ends it on
        inside = np.bitwise_xor.accumulate((piece == _QUOTE).view(np.uint8)) ^ in_text
        count += int(np.count_nonzero(_BEGINS_ITEM[piece] & (inside == 0)))
        in_text = int(inside[-1])
    return count
