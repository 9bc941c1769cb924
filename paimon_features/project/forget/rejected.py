"""Rejected rows of an entity: by its columns where a row has them, else by its values as fields.

A rejected line of a CSV file has no names of columns, and a row can be rejected because its key
cannot be read. Such a row is the entity's if each value of its key is a field of the text. The
value alone may also find a rejected row of another entity: that deletes a diagnostic, not an event,
while the opposite error would keep the entity's data.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.errors import RequestError
from paimon_features.core.types.array_types import Bools
from paimon_features.project.forget.entities import EntitySet, parsed

COLUMNS = ("raw", "detail")
_BOUNDARY = re.compile(r"""[,;|\t\r\n"'{}\[\]:=]+""")
_NUMBER = re.compile(r"([+-]?)0*(\d+)(?:\.0*)?")
_THOUSANDS = re.compile(r"(?<=\d)[,. _'\u00a0\u202f](?=\d{3}(?!\d))")
_ESCAPES = re.compile(r"""(?:\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt]))+""")


class RejectedRows:
    """Finds the rejected rows of entities.

    ``by_value`` counts those that were found by the values alone, ``others`` the rows without
    readable columns that do not contain the values.
    """

    def __init__(self, entities: EntitySet) -> None:
        self._entities = entities
        self.by_value = self.others = 0
        self._keys: defaultdict[str, list[tuple[frozenset[str], ...]]] = defaultdict(list)
        for key in entities.keys:
            parts = tuple(frozenset(_parts(str(value))) for value in key)
            first = min(parts[0], default="")
            self._keys[first].append(parts)

    def mask(self, rows: pa.Table) -> Bools:
        """Return which rows are theirs."""
        texts = zip(*(rows.column(name).to_pylist() for name in COLUMNS), strict=True)
        theirs = [self._is_theirs(raw or "", detail or "") for raw, detail in texts]
        return np.array(theirs, np.bool_)

    def _is_theirs(self, raw: str, detail: str) -> bool:
        named = self._by_columns(raw)
        if named is None:
            named = self._contains(f"{raw}\n{detail}")
            self.by_value += named
            self.others += not named
        return named

    def _by_columns(self, raw: str) -> bool | None:
        """Compare the columns of a JSON object; None if it is none or lacks a column."""
        try:
            pairs = json.loads(raw, object_pairs_hook=_Pairs)
        except (ValueError, RecursionError):
            return None
        if not isinstance(pairs, _Pairs):
            return None
        # a repeated name has several values
        values = [[v for name, v in pairs if name == c] for c in self._entities.columns]
        if not all(values):
            return None
        if all(len(of) == 1 for of in values):
            with suppress(RequestError):  # a value that is none of the type
                return self._key([of[0] for of in values]) in self._entities.keys
        return self._contains("\n".join(str(value) for of in values for value in of))

    def _key(self, values: Iterable[Any]) -> tuple[Any, ...]:
        types = self._entities.types
        return tuple(
            None if value is None else parsed(types[column], str(value), column)
            for column, value in zip(self._entities.columns, values, strict=True)
        )

    def _contains(self, text: str) -> bool:
        fields = set(_fields(text))
        return any(
            all(part <= fields for part in parts)
            for field in fields & self._keys.keys()
            for parts in self._keys[field]
        )


class _Pairs(list[tuple[str, Any]]):
    """The members of a JSON object, repeated names included."""


def _fields(text: str) -> Iterable[str]:
    """Yield the fields of a line, in any dialect; numbers without padding and separators.

    >>> sorted(set(_fields('"Smith, Ann";007;12,346.0')))
    ['007', '12', '12346', '12346.0', '346', '346.0', '7', 'Ann', 'Smith']
    """
    unescaped = _ESCAPES.sub(lambda found: str(json.loads(f'"{found[0]}"')), text)
    for form in {text, unescaped, _THOUSANDS.sub("", text)}:
        for field in _parts(form):
            yield field
            if number := _NUMBER.fullmatch(field):
                yield number[1].replace("+", "") + number[2]


def _parts(text: str) -> Iterable[str]:
    return filter(None, map(str.strip, _BOUNDARY.split(text)))
