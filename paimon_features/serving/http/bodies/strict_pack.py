"""The fields of a MessagePack body, each once."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from paimon_features.serving.http.http_errors import RequestRejected, invalid_request

MAX_FIELDS = 1_000
_FIELDS = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])


def fields_of(body: bytes | bytearray | msgspec.Raw, what: str) -> Mapping[str, msgspec.Raw]:
    """Return the fields of a map, undecoded. ``what`` names it in errors.

    Raises
    ------
    msgspec.DecodeError
        For bytes that are no MessagePack, or no map with texts as keys.
    RequestRejected
        413 for more than ``MAX_FIELDS``, 422 for a field that is there twice.
    """
    count = _count(bytes(memoryview(body)[:5]))
    if count > MAX_FIELDS:
        raise RequestRejected(
            "too_large", f"{what} has {count:,} fields; expected at most {MAX_FIELDS:,}"
        )
    fields = _FIELDS.decode(body)
    if len(fields) != count:
        raise invalid_request(f"{what} has a field twice")
    return fields


def _count(head: bytes) -> int:
    """Return the number of entries of a map
    (https://github.com/msgpack/msgpack/blob/master/spec.md)."""
    if not head:
        return 0
    if head[0] == 0xDE:
        return int.from_bytes(head[1:3])
    if head[0] == 0xDF:
        return int.from_bytes(head[1:5])
    return head[0] & 0x0F
