"""An Arrow stream from an untrusted client: columns of plain types, or it is rejected.

A few bytes of a stream can stand for much memory: compressed buffers, dictionaries, columns of
nulls. A request needs none of these, so they are rejected before anything is unpacked.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paimon_features.core._arrow import pa
from paimon_features.core.repeated_items import duplicates
from paimon_features.core.types.foreign_types import check_foreign_types
from paimon_features.serving.http.http_errors import RequestRejected, invalid_request

MAX_COLUMNS = 1_000
"""The most entity keys and request inputs of a request, far more than views have."""

_SCHEMA, _RECORD_BATCH = 1, 3
_PLAIN = ("integer", "floating", "boolean", "string", "large_string", "date32", "timestamp",
          "decimal")  # fmt: skip


def read_columns(body: bytes | bytearray) -> tuple[dict[str, pa.Array], Mapping[bytes, bytes]]:
    """Return the columns of a stream by name, each one array, and the schema's metadata.

    Raises
    ------
    RequestRejected
        400 for bytes that are not an Arrow stream, 422 for one with anything other than plain,
        uncompressed columns of distinct names.
    """
    for shape in _shapes.get(len(body), ()):
        if shape.is_of(body):
            return shape.columns(body), shape.metadata
    try:
        _reject_compressed(body)
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            schema = reader.schema
            _check(schema)
            table = reader.read_all()
        table.validate(full=True)
        table = table.combine_chunks()
    except (pa.ArrowException, OSError, ValueError, struct.error, IndexError) as error:
        text = str(error)[:300]
        raise RequestRejected("malformed", f"the body is not an Arrow stream: {text}") from None
    arrays = {
        name: column.chunk(0) if column.num_chunks else pa.array([], column.type)
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    metadata = schema.metadata or {}
    _remember(body, arrays, metadata)
    return arrays, metadata


@dataclass(frozen=True, slots=True, eq=False)
class _StreamShape:
    """A stream without its numbers: ``places`` are where those of each column are in the body.

    What is between them says all but the values, so the same bytes mean the same columns.
    """

    places: Mapping[str, tuple[pa.DataType, int, int]]
    between: Sequence[tuple[int, bytes]]
    metadata: Mapping[bytes, bytes]

    def is_of(self, body: bytes | bytearray) -> bool:
        """Return True if a body of the same length has this shape."""
        return all(body.startswith(part, start) for start, part in self.between)

    def columns(self, body: bytes | bytearray) -> dict[str, pa.Array]:
        """Return the columns of a body of this shape."""
        data = pa.py_buffer(body)
        return {
            name: pa.Array.from_buffers(kind, size // 8, [None, data.slice(start, size)])
            for name, (kind, start, size) in self.places.items()
        }


_shapes: dict[int, list[_StreamShape]] = {}
"""Shapes of bodies that were read before, by their length."""
_MOST_SHAPES = 64
_SHAPES_OF_A_LENGTH = 4
_LONGEST_SHAPE = 4_096
"""Bytes without the numbers: more are parsed each time."""


def _remember(
    body: bytes | bytearray, arrays: Mapping[str, pa.Array], metadata: Mapping[bytes, bytes]
) -> None:
    """Remember the shape of a body with nothing but integers and floats of eight bytes."""
    data = pa.py_buffer(body)
    places = {}
    for name, array in arrays.items():
        if array.type not in (pa.int64(), pa.float64()) or array.offset or not len(array):
            return
        validity, values = array.buffers()
        start = values.address - data.address
        if validity is not None or start < 0 or start + 8 * len(array) > len(body):
            return  # it has nulls, or was copied
        places[name] = array.type, start, 8 * len(array)
    between: list[tuple[int, bytes]] = []
    at = 0
    for _, start, size in sorted(places.values(), key=lambda place: place[1]):
        if start < at:
            return
        between.append((at, bytes(body[at:start])))
        at = start + size
    between.append((at, bytes(body[at:])))
    if not places or sum(len(part) for _, part in between) > _LONGEST_SHAPE:
        return
    if len(body) not in _shapes and len(_shapes) >= _MOST_SHAPES:
        _shapes.pop(next(iter(_shapes)))
    shapes = _shapes.setdefault(len(body), [])
    if len(shapes) >= _SHAPES_OF_A_LENGTH:
        del shapes[0]
    shapes.append(_StreamShape(places, between, metadata))


def _check(schema: pa.Schema) -> None:
    if len(schema) > MAX_COLUMNS:
        raise RequestRejected(
            "too_large",
            f"the Arrow stream has {len(schema):,} columns; expected at most {MAX_COLUMNS:,}",
        )
    for field in schema:
        if not any(getattr(pa.types, f"is_{plain}")(field.type) for plain in _PLAIN):
            raise invalid_request(
                f"column {field.name[:80]!r} is {field.type}; expected a column of integers, "
                "floats, decimals, booleans, strings, dates or timestamps (no dictionaries)"
            )
    try:
        check_foreign_types(schema)
    except pa.ArrowInvalid as error:
        raise invalid_request(str(error)) from None
    double = duplicates(schema.names)
    if double:
        raise invalid_request(f"two columns are called {double[0][:80]!r}")


def _reject_compressed(body: bytes | bytearray) -> None:
    """Reject content that can be larger than the body, by the messages' headers alone."""
    reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(body))
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return
        kind, compressed = _header(message.metadata.to_pybytes())
        if kind not in (_SCHEMA, _RECORD_BATCH):
            raise invalid_request(
                f"the Arrow stream has a message of type {message.type!r}; expected record "
                "batches of plain columns (no dictionaries)"
            )
        if compressed:
            raise invalid_request(
                "the Arrow stream has compressed buffers; write it without compression"
            )


def _header(metadata: bytes) -> tuple[int, bool]:
    """Return the kind of a message, and whether the buffers of a record batch are compressed.

    By Arrow's ``Message.fbs``: a message's second field is the kind of its header, the third
    the header; a record batch's fourth field is the compression.
    """
    root = struct.unpack_from("<I", metadata, 0)[0]
    kind_at, header_at = _field(metadata, root, 1), _field(metadata, root, 2)
    kind = metadata[kind_at] if kind_at else 0
    if kind != _RECORD_BATCH or not header_at:
        return kind, False
    batch = header_at + struct.unpack_from("<I", metadata, header_at)[0]
    return kind, _field(metadata, batch, 3) != 0


def _field(data: bytes, table: int, number: int) -> int:
    """Return the offset of a field of a flatbuffer's table; 0 if the table does not have it."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    size = struct.unpack_from("<H", data, vtable)[0]
    slot = 4 + 2 * number
    if slot + 2 > size:
        return 0
    offset: int = struct.unpack_from("<H", data, vtable + slot)[0]
    return table + offset if offset else 0
