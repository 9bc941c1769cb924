"""Reads the protocol buffers of an ONNX model so strictly that no other reader finds anything else.

Readers of protocol buffers differ where bytes are not as a writer makes them: a tag of more than 32
bits loses its upper bits, the last of several values wins or all are merged, a field of another
wire type or an unknown number is skipped. All of that is refused here, so what is read is what
onnxruntime reads (https://protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

from collections.abc import Iterator

from paimon_features.core.errors import ModelError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LETTERS = {_VARINT: "v", _FIXED64: "d", _BYTES: "b", _FIXED32: "f"}
_SIZES = {_FIXED64: 8, _FIXED32: 4}

FIELDS: dict[str, dict[int, str]] = {
    "model": {1: "v", 2: "b", 3: "b", 4: "b", 5: "v", 6: "b", 7: "b", 8: "B", 14: "B", 20: "B",
              25: "B", 26: "B"},
    "graph": {1: "B", 2: "b", 5: "B", 10: "b", 11: "B", 12: "B", 13: "B", 14: "B", 15: "B",
              16: "B"},
    "node": {1: "B", 2: "B", 3: "b", 4: "b", 5: "B", 6: "b", 7: "b", 8: "b", 9: "B", 10: "B"},
    "attribute": {1: "b", 2: "f", 3: "v", 4: "b", 5: "b", 6: "b", 7: "FB", 8: "VB", 9: "B",
                  10: "B", 11: "B", 13: "b", 14: "b", 15: "B", 20: "v", 21: "b", 22: "b", 23: "B"},
    "tensor": {1: "VB", 2: "v", 3: "b", 4: "FB", 5: "VB", 6: "B", 7: "VB", 8: "b", 9: "b",
               10: "DB", 11: "VB", 12: "b", 13: "B", 14: "v", 16: "B"},
    "sparse": {1: "b", 2: "b", 3: "VB"},
    "value": {1: "b", 2: "b", 3: "b", 4: "B"},
    "type": {1: "b", 4: "b", 5: "b", 6: "b", 7: "b", 8: "b", 9: "b"},
    "tensor_type": {1: "v", 2: "b"},
    "shape": {1: "B"},
    "dim": {1: "v", 2: "b", 3: "b"},
}  # fmt: skip
"""The fields of each message of ``onnx.proto`` that is read, and their wire types.

``v`` is a varint, ``f`` and ``d`` are 4 and 8 bytes, ``b`` bytes; capitals may be repeated.
"""

ENUMS = {("attribute", 20): 14, ("tensor", 14): 1}
"""The greatest value of each field that is an enumeration: readers drop the field above it."""


def read_fields(data: bytes, kind: str, start: int, end: int) -> Iterator[tuple[int, int | slice]]:
    """Yield the fields of a message in order: a number, or where its bytes are.

    Raises
    ------
    ModelError
        For bytes that are not as a writer of this message makes them.
    """
    wires = FIELDS[kind]
    seen: set[int] = set()
    at = start
    while at < end:
        begin = at
        key, at = _varint(data, at, end)
        field, wire = key >> 3, key & 7
        letter, allowed = _LETTERS.get(wire, "?"), wires.get(field, "")
        if key >> 32 or letter not in allowed.lower():
            raise ModelError(
                f"the network is no ONNX model that can be read: field {field} of wire type {wire} "
                f"in a {kind} at byte {begin:,}; expected the fields of ONNX's format"
            )
        if letter in allowed:  # not one that may be repeated
            if field in seen:
                raise ModelError(
                    f"the network is no ONNX model: field {field} twice in a {kind} at byte "
                    f"{begin:,}"
                )
            seen.add(field)
        number = _SIZES.get(wire, 0)
        if not number:
            number, at = _varint(data, at, end)
        if wire == _VARINT:
            if number > ENUMS.get((kind, field), number):
                raise ModelError(
                    f"the network is no ONNX model: field {field} of a {kind} at byte {begin:,} "
                    f"has the value {number}, which is not in its enumeration"
                )
            yield field, number
            continue
        if number > end - at:
            raise ModelError(f"the network is no ONNX model: it ends within a field at {at:,}")
        yield field, slice(at, at + number)
        at += number


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return a number of at most 64 bits in as few bytes as possible, and where the next field
    is."""
    number = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if (byte or not shift) and not number >> 64:
                return number, at
            break
        shift += 7
    raise ModelError(f"the network is no ONNX model: there is no number at byte {at:,}")
