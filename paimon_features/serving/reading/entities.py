"""The entities of a request: validated, and encoded as the bytes and buckets of their records."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paimon_features.core._arrow import is_arrow
from paimon_features.core.columns.column import Column
from paimon_features.core.hashing.buckets import bucket_of
from paimon_features.core.types.schema import DataType
from paimon_features.definitions.request_values import plain_list
from paimon_features.online.store.keys import check_lengths, entity_bytes, key_arrays, plain_key

_DAY_0 = dt.date(1970, 1, 1)
_INTEGERS = {"int32": 2**31, "int64": 2**63}
_PLACEHOLDERS: Mapping[str, Any] = {
    "int32": 0, "int64": 0, "string": "", "bool": False, "date": _DAY_0,
}  # fmt: skip
_NO_ENTITY = b"\\null"
"""Where a key is null: no entity is encoded like this, as a backslash is always escaped."""


@dataclass(slots=True, eq=False)
class EntityKeys:
    """Some entities of one kind; not to be changed (a frozen one takes a microsecond to make).

    ``columns`` has the Python values of each key column, by name, and ``parts`` what their
    bucket is computed from: the same, but dates as days since 1970. ``encoded`` are the bytes
    that their records' keys end with.
    """

    columns: Mapping[str, Sequence[Any]]
    parts: Sequence[Sequence[Any]]
    encoded: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.encoded)


def entity_keys(keys: Mapping[str, DataType], entities: Mapping[str, object]) -> EntityKeys:
    """Return the entities of a request.

    Raises
    ------
    RequestError
        As ``online.keys.key_arrays`` does.
    """
    parsed = _of_lists(keys, entities)
    if parsed is None:
        plain = {name: plain_list(entities.get(name)) for name in keys}
        has_arrow = any(values is None for values in plain.values())
        parsed = (_of_arrow if has_arrow else _of_plain)(keys, entities)
    return parsed


def keys_of_events(keys: Mapping[str, DataType], events: Mapping[str, object]) -> EntityKeys:
    """Return the entities that the columns of events name; one with a null key has no record."""
    values = {name: plain_list(events[name]) or [] for name in keys}
    null = [None in row for row in zip(*values.values(), strict=True)]
    if not any(null):
        return entity_keys(keys, events)
    filled = {
        name: [
            _PLACEHOLDERS[kind.text] if is_null else value
            for value, is_null in zip(values[name], null, strict=True)
        ]
        for name, kind in keys.items()
    }
    of_filled = entity_keys(keys, filled)
    encoded = [
        _NO_ENTITY if is_null else one for one, is_null in zip(of_filled.encoded, null, strict=True)
    ]
    return EntityKeys(values, of_filled.parts, encoded)


def _of_plain(keys: Mapping[str, DataType], entities: Mapping[str, object]) -> EntityKeys:
    """Return the entities of lists, tuples and NumPy arrays of plain values, valid or not."""
    columns = {
        name: plain_key(name, kind, plain_list(entities[name]) or []) for name, kind in keys.items()
    }
    check_lengths({name: len(values) for name, values in columns.items()})
    parts = [
        [(value - _DAY_0).days for value in values] if kind.text == "date" else values
        for kind, values in zip(keys.values(), columns.values(), strict=True)
    ]
    texts = [_texts(kind, part) for kind, part in zip(keys.values(), parts, strict=True)]
    return EntityKeys(columns, parts, [b"|".join(row) for row in zip(*texts, strict=True)])


def _texts(kind: DataType, part: Sequence[Any]) -> list[bytes]:
    if kind.text == "string":
        return [_escaped(text.encode()) for text in part]
    if kind.text == "bool":
        return [b"t" if value else b"f" for value in part]
    return [b"%d" % value for value in part]


def _of_arrow(keys: Mapping[str, DataType], entities: Mapping[str, object]) -> EntityKeys:
    arrays = key_arrays(keys, entities)
    return EntityKeys(
        {name: array.to_pylist() for name, array in zip(keys, arrays, strict=True)},
        [Column.from_arrow(array).values.tolist() for array in arrays],
        entity_bytes(list(keys.values()), arrays),
    )


def _of_lists(keys: Mapping[str, DataType], entities: Mapping[str, object]) -> EntityKeys | None:
    """Return a fast path without Arrow for most requests: lists of plain integers or strings, or
    arrays of exactly these types. None for anything else, also for invalid values: the general path
    reports them."""
    if len(keys) == 1:
        [(name, kind)] = keys.items()
        only: Any = entities.get(name)
        encoded_keys = _encoded(kind, only) if type(only) is list else None
        if encoded_keys is not None:
            return EntityKeys({name: only}, [only], encoded_keys)
    columns: dict[str, list[Any]] = {}
    encoded: list[list[bytes]] = []
    for name, kind in keys.items():
        values: Any = entities.get(name)
        if is_arrow(values) and values.type == kind.arrow:
            # a tenth of the time, where it is exact
            is_plain = kind.text in _INTEGERS and not values.null_count
            values = values.to_numpy().tolist() if is_plain else values.to_pylist()
        if type(values) is not list:
            return None
        texts = _encoded(kind, values)
        if texts is None:
            return None
        columns[name] = values
        encoded.append(texts)
    if len(encoded) == 1:
        return EntityKeys(columns, list(columns.values()), encoded[0])
    if len(set(map(len, encoded))) > 1:
        return None
    joined = [b"|".join(parts) for parts in zip(*encoded, strict=True)]
    return EntityKeys(columns, list(columns.values()), joined)


def _encoded(kind: DataType, values: list[Any]) -> list[bytes] | None:
    types = set(map(type, values))
    bound = _INTEGERS.get(kind.text)
    if bound is not None and types == {int}:
        if min(values) < -bound or max(values) >= bound:
            return None
        return [b"%d" % value for value in values]
    if kind.text == "string" and types == {str}:
        try:
            texts = [value.encode() for value in values]
        except UnicodeEncodeError:
            return None
        return [
            text if b"\\" not in text and b"|" not in text else _escaped(text) for text in texts
        ]
    return None


def _escaped(text: bytes) -> bytes:
    return text.replace(b"\\", b"\\\\").replace(b"|", b"\\|")


class Buckets:
    """The bucket of each entity by Paimon's hash, cached for recent entities."""

    def __init__(self, types: Sequence[DataType], count: int, remembered: int = 65_536) -> None:
        self._types, self.count, self._most = list(types), count, remembered
        self._known: dict[bytes, int] = {}

    def __len__(self) -> int:
        """Return the number of cached entities: ``remembered`` at most, or those of one read."""
        return len(self._known)

    def of(self, entities: Sequence[EntityKeys]) -> list[int]:
        """Return the bucket of each entity, in order."""
        encoded = [one for keys in entities for one in keys.encoded]
        cached = self._known
        all_buckets = [cached.get(one) for one in encoded]
        missing = [row for row, bucket in enumerate(all_buckets) if bucket is None]
        if missing:
            parts = [
                [value for keys in entities for value in keys.parts[i]]
                for i in range(len(self._types))
            ]
            columns = [
                np.array([part[row] for row in missing], object if kind.text == "string" else None)
                for part, kind in zip(parts, self._types, strict=True)
            ]
            if len(cached) + len(missing) > self._most:
                # a new dictionary: another thread may be reading the old one
                self._known = cached = {}
            buckets = bucket_of(columns, self._types, self.count).tolist()
            for row, bucket in zip(missing, buckets, strict=True):
                all_buckets[row] = bucket
                cached[encoded[row]] = bucket
        return all_buckets  # type: ignore[return-value]
