"""Keys of records, markers and view states in the online store.

::

    pf:{shop:spend:1a2b3c4d:7}:12346      record of entity 12346, bucket 7, epoch 1a2b3c4d
    pf:{shop:spend:1a2b3c4d:7}#marker     the snapshot applied to this bucket
    pf:{shop:spend:1a2b3c4d:7}#lease      the materializer that owns the bucket
    pf:{shop:spend}#state                 the epoch that readers use

The hash tag (the part in braces) places a bucket's records and its marker on one node of a
cluster, so that one command reads both atomically. The encoding is injective: the parts of a
composite key are joined by ``|``, and strings escape ``|`` as ``\\|`` and ``\\`` as ``\\\\``.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paimon_features.core._arrow import pa
from paimon_features.core.errors import RequestError
from paimon_features.core.types.foreign_types import plain_array
from paimon_features.core.types.schema import DataType
from paimon_features.definitions.request_values import key_values

PREFIX = "pf:"
"""The default key prefix; a store's own is ``OnlineStore.key_prefix``."""
MARKER_END = b"#marker"
"""The end of each marker key; an entity can end so, too (``ViewKeys.by_marker``)."""
_SEPARATOR = b"|"


def new_epoch() -> str:
    """Return a new random epoch name: eight hexadecimal digits."""
    return secrets.token_hex(4)


class ViewKeys:
    """The keys of one view of one project.

    >>> keys = ViewKeys("shop", "spend")
    >>> keys.state, keys.bucket("1a2b3c4d", 7).marker
    (b'pf:{shop:spend}#state', b'pf:{shop:spend:1a2b3c4d:7}#marker')
    """

    def __init__(self, project: str, view: str, prefix: str = PREFIX) -> None:
        self._stem = f"{prefix}{{{project}:{view}"
        self.state = f"{self._stem}}}#state".encode()
        self.all_epochs = f"{self._stem}:".encode()
        """The common prefix of the keys of all epochs, which the state key does not share."""

    def epoch(self, epoch: str) -> bytes:
        """Return the common prefix of all keys of an epoch."""
        return f"{self._stem}:{epoch}:".encode()

    def epoch_of(self, key: bytes) -> str:
        """Return the epoch of a key with the prefix ``all_epochs``."""
        return key[len(self.all_epochs) :].split(b":", 1)[0].decode()

    def by_marker(self, keys: Iterable[bytes]) -> dict[bytes, list[bytes]]:
        """Return keys with the prefix ``all_epochs`` by the marker key of their bucket.

        >>> keys = ViewKeys("shop", "spend")
        >>> keys.by_marker([b"pf:{shop:spend:1a2b3c4d:7}:some|}#marker"])
        {b'pf:{shop:spend:1a2b3c4d:7}#marker': [b'pf:{shop:spend:1a2b3c4d:7}:some|}#marker']}
        """
        start = len(self.all_epochs)
        by_stem: dict[bytes, list[bytes]] = {}
        for key in keys:
            by_stem.setdefault(key[: key.index(b"}", start) + 1], []).append(key)
        return {stem + MARKER_END: of_stem for stem, of_stem in by_stem.items()}

    def bucket(self, epoch: str, bucket: int) -> BucketKeys:
        """Return the keys of one bucket."""
        return BucketKeys(f"{self._stem}:{epoch}:{bucket}}}".encode())


class BucketKeys:
    """The keys of one bucket of one epoch."""

    __slots__ = ("lease", "marker", "record_stem")

    def __init__(self, stem: bytes) -> None:
        self.record_stem = stem + b":"
        """The prefix of the bucket's record keys; the entity's bytes follow."""
        self.marker = stem + MARKER_END
        self.lease = stem + b"#lease"


def entity_bytes(types: Sequence[DataType], columns: Sequence[pa.Array]) -> list[bytes]:
    """Return the canonical bytes of each entity, from one Arrow array per key column.

    The arrays have the key columns' types and no nulls.

    >>> from paimon_features.core.types.schema import Bool, Int64, String
    >>> entity_bytes([Int64, String, Bool],
    ...     [pa.array([-5]), pa.array(["a|b"]), pa.array([True])])
    [b'-5|a\\\\|b|t']

    Raises
    ------
    RequestError
        For a type that is not supported in entity keys.
    """
    parts = [_part(kind, column) for kind, column in zip(types, columns, strict=True)]
    if len(parts) == 1:
        return parts[0]
    return [_SEPARATOR.join(row) for row in zip(*parts, strict=True)]


def _part(kind: DataType, column: pa.Array) -> list[bytes]:
    if kind.text in ("int32", "int64"):
        return [b"%d" % value for value in column.to_pylist()]
    if kind.text == "date":
        return [b"%d" % value for value in column.view(pa.int32()).to_pylist()]
    if kind.text == "bool":
        return [b"t" if value else b"f" for value in column.to_pylist()]
    if kind.text == "string":
        return [
            text.replace(b"\\", b"\\\\").replace(_SEPARATOR, b"\\|")
            for text in column.cast(pa.binary()).to_pylist()
        ]
    raise RequestError(f"an entity key cannot be {kind!r}")


def key_arrays(keys: Mapping[str, DataType], entities: Mapping[str, object]) -> list[pa.Array]:
    """Return the key columns of a request as Arrow arrays of their types.

    Raises
    ------
    RequestError
        For a missing column, a null, columns of different lengths, or a value that is not of
        the key's type. Nothing is rounded or parsed: ``"12346"`` and ``12346.5`` are not Int64.
    """
    missing = [name for name in keys if name not in entities]
    if missing:
        raise RequestError(
            f"missing entity key {missing[0]!r}; "
            f"got: {', '.join(entities) or 'none'}, expected: {', '.join(keys)}"
        )
    arrays = [_key_array(name, kind, entities[name]) for name, kind in keys.items()]
    check_lengths({name: len(array) for name, array in zip(keys, arrays, strict=True)})
    return arrays


def plain_key(name: str, kind: DataType, values: Sequence[Any]) -> list[Any]:
    """Return the values of a key column as Python values of its type, from plain values.

    Raises
    ------
    RequestError
        For a null, or a value that is not of the key's type.
    """
    try:
        converted = key_values(kind, values)
    except (TypeError, ValueError) as error:
        raise RequestError(f"entity key {name!r}: expected {kind!r} values; {error}") from error
    if None in converted:
        row = converted.index(None)
        raise RequestError(f"entity key {name!r} is null in row {row}; expected a value")
    return converted


def check_lengths(lengths: Mapping[str, int]) -> None:
    """Raise RequestError if key columns have different lengths."""
    if len(set(lengths.values())) > 1:
        raise RequestError(f"entity keys of different lengths: {dict(lengths)}")


def _key_array(name: str, kind: DataType, values: object) -> pa.Array:
    try:
        array = _as_arrow(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise RequestError(f"entity key {name!r}: expected {kind!r} values; {error}") from error
    if array.null_count:
        row = array.is_null().to_pylist().index(True)
        raise RequestError(f"entity key {name!r} is null in row {row}; expected a value")
    return array


def _as_arrow(values: Any, kind: DataType) -> pa.Array:
    if isinstance(values, str | bytes):
        raise TypeError(f"got the single value {values!r}, expected a sequence")
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    if not isinstance(values, pa.Array):
        if isinstance(values, list | tuple):
            # Arrow would truncate 5.5 to 5 when given the type
            odd = next((v for v in values if isinstance(v, float)), None)
            if odd is not None:
                raise TypeError(f"got {odd!r}")
            return pa.array(values, kind.arrow)
        values = pa.array(values)
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
    values = plain_array(values)
    if values.type == kind.arrow:
        return values
    narrower = pa.types.is_integer(values.type) and kind.is_integer
    if not (narrower or pa.types.is_null(values.type)):
        raise TypeError(f"got {values.type}")
    return values.cast(kind.arrow)
