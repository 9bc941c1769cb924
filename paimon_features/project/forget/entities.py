"""The entities to delete, and which rows are theirs."""

from __future__ import annotations

import csv
import datetime as dt
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.errors import RequestError, unknown_name
from paimon_features.core.types.array_types import Bools
from paimon_features.core.types.schema import DataType

MAX_ENTITIES = 100_000
"""The most entities of one call: all are in memory."""


@dataclass(frozen=True)
class EntitySet:
    """Entities by the values of some key columns; a row is theirs if all these columns match.

    >>> from paimon_features.core.types.schema import Int64, String
    >>> two = EntitySet.of(["customer_id=7", "customer_id=9"], {"customer_id": Int64})
    >>> two.mask(pa.table({"customer_id": [9, 8, None, 7]})).tolist()
    [True, False, False, True]
    >>> EntitySet.of(["user=7,shop=a"], {"user": Int64, "shop": String}).keys
    frozenset({('a', 7)})
    """

    columns: tuple[str, ...]
    types: Mapping[str, DataType]
    keys: frozenset[tuple[Any, ...]]

    @classmethod
    def of(cls, texts: Iterable[str], types: Mapping[str, DataType]) -> EntitySet:
        """Parse ``column=value`` texts, several columns separated by commas (``\\,`` in a value).

        ``types`` are those of all key columns of the project's entities.

        Raises
        ------
        RequestError
            For an unknown column, a value of the wrong type, or texts of different columns.
        """
        rows = [_pairs(text) for text in texts]
        return cls._of_rows(rows, types)

    @classmethod
    def read(cls, path: Path, types: Mapping[str, DataType]) -> EntitySet:
        """Read a CSV file with a header of key columns.

        Raises
        ------
        RequestError
            As ``of``; also if the file cannot be read, or has no row.
        """
        try:
            with path.open(encoding="utf-8", newline="") as file:
                reader = csv.DictReader(file, strict=True)
                rows = []
                for row in reader:
                    if None in row or None in row.values():
                        raise RequestError(
                            f"{path}, line {reader.line_num}: another number of cells"
                        )
                    rows.append(dict(row))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise RequestError(f"{path} cannot be read as CSV: {error}") from error
        return cls._of_rows(rows, types)

    @classmethod
    def _of_rows(
        cls, rows: Sequence[Mapping[str, str]], types: Mapping[str, DataType]
    ) -> EntitySet:
        if not rows:
            raise RequestError("no entity is given; pass --entity COLUMN=VALUE or --file FILE.csv")
        if len(rows) > MAX_ENTITIES:
            raise RequestError(f"{len(rows):,} entities; at most {MAX_ENTITIES:,} at a time")
        columns = tuple(sorted(rows[0]))
        for row in rows:
            if tuple(sorted(row)) != columns:
                raise RequestError(
                    f"entities of different columns: {', '.join(columns)} and "
                    f"{', '.join(sorted(row))}; forget them one kind after the other"
                )
        for column in columns:
            if column not in types:
                raise RequestError(unknown_name("key of an entity", column, types))
        keys = {tuple(parsed(types[c], row[c], c) for c in columns) for row in rows}
        return cls(columns, {c: types[c] for c in columns}, frozenset(keys))

    def __len__(self) -> int:
        return len(self.keys)

    def are_keys_of(self, columns: Iterable[str]) -> bool:
        """Return True if rows with these columns can be theirs."""
        return set(self.columns) <= set(columns)

    def mask(self, rows: pa.Table) -> Bools:
        """Return which rows are theirs; a null or a value of another type is not."""
        mask = np.ones(rows.num_rows, np.bool_)
        for position, column in enumerate(self.columns):
            values = rows.column(column)
            try:
                wanted = pa.array({key[position] for key in self.keys}, self.types[column].arrow)
                wanted = wanted.cast(values.type)
            except pa.ArrowException:
                return np.zeros(rows.num_rows, np.bool_)
            one = pc.is_in(values, value_set=wanted)
            mask &= np.asarray(one.to_numpy(zero_copy_only=False), np.bool_)
        if len(self.columns) > 1 and len(self.keys) > 1:  # of the right columns, not combined
            for row in np.flatnonzero(mask).tolist():
                key = tuple(rows.column(c)[row].as_py() for c in self.columns)
                mask[row] = key in self.keys
        return mask

    def of_skipped(self, details: Iterable[str], keys: Sequence[str]) -> Bools:
        """Return which rows of a table of skipped events are theirs: ``... | key=value ...
        time=value``.

        ``keys`` are those of the view, in their order.
        """
        fields = " ".join(f"{key}=(.*)" for key in keys)
        pattern = re.compile(rf"(?s).*\| {fields} \w+=\S*")
        places = [list(keys).index(column) for column in self.columns]
        wanted = {tuple(map(_text, key)) for key in self.keys}
        matches = (pattern.fullmatch(detail) for detail in details)
        return np.array(
            [m is not None and tuple(m[place + 1] for place in places) in wanted for m in matches],
            np.bool_,
        )


def parsed(kind: DataType, text: str, column: str) -> Any:
    """Return the value of a key from its text.

    Raises
    ------
    RequestError
        For text that is no value of the type.
    """
    try:
        if kind.text in ("int32", "int64"):
            return pa.scalar(int(text), kind.arrow).as_py()
        if kind.text == "bool":
            return {"true": True, "false": False}[text.lower()]
        if kind.text == "date":
            return dt.date.fromisoformat(text)
    except (ValueError, KeyError, OverflowError):
        raise RequestError(f"{column}={text}: {text!r} is not a valid {kind!r}") from None
    return text


def _text(value: Any) -> str:
    """Return a key as the tile jobs write it in the detail of a skipped event."""
    return str(value).upper() if isinstance(value, bool) else str(value)


def _pairs(text: str) -> dict[str, str]:
    out: dict[str, str] = {}
    for part in text.replace("\\,", "\0").split(","):
        column, equals, value = part.partition("=")
        if not equals or column in out:
            raise RequestError(
                f"--entity {text}: expected COLUMN=VALUE, or COLUMN=VALUE,COLUMN=VALUE for an "
                "entity of several keys"
            )
        out[column] = value.replace("\0", ",")
    return out
