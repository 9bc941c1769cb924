"""Column types: one set of types, with their names in Arrow and in Flink SQL.

>>> Int64.arrow
DataType(int64)
>>> Decimal(10, 2).flink
'DECIMAL(10, 2)'
>>> type_from_text("list(float32, 3)")
List(Float32, 3)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from paimon_features.core._arrow import pa
from paimon_features.core.errors import DefinitionError, unknown_name

NAME = re.compile(r"[a-z][a-z0-9_]*")
"""The names of definitions and columns: lower-case letters, digits, underscores."""


_ARROW_NAMES = {"bool": "bool_", "bytes": "binary", "date": "date32"}
"""Arrow's functions for types that have other names there."""


@dataclass(frozen=True, slots=True)
class DataType:
    """A column type. ``text`` is its canonical name, as in the registry."""

    text: str
    flink: str
    _arrow: pa.DataType | None = field(default=None, init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        return self.text.title()

    def __call__(self, *arguments: object) -> NoReturn:
        """Raise DefinitionError: a type is a value, not a class."""
        raise DefinitionError(f"{self!r} is a type already, and is not called: write pf.{self!r}")

    @property
    def arrow(self) -> pa.DataType:
        """The type in Arrow; MissingExtraError if pyarrow is not installed."""
        if self._arrow is None:
            object.__setattr__(self, "_arrow", self._to_arrow())
        return self._arrow

    def _to_arrow(self) -> pa.DataType:
        if self.text == "timestamp":
            return pa.timestamp("ms")
        return getattr(pa, _ARROW_NAMES.get(self.text, self.text))()

    @property
    def is_integer(self) -> bool:
        return self.text in ("int32", "int64")

    def __reduce__(self) -> tuple[Callable[[str], DataType], tuple[str]]:
        # code compares plain types by identity
        return type_from_text, (self.text,)

    @property
    def is_float(self) -> bool:
        return self.text in ("float32", "float64")

    @property
    def is_decimal(self) -> bool:
        return isinstance(self, DecimalType)

    @property
    def is_numeric(self) -> bool:
        return self.is_integer or self.is_float or self.is_decimal

    @property
    def is_scalar(self) -> bool:
        """Whether values are ordered: neither bytes nor lists nor maps."""
        return not isinstance(self, ListType | MapType) and self.text != "bytes"

    @property
    def is_key(self) -> bool:
        """Whether an entity key can have this type: equal values must have equal bytes."""
        return self.text in ("int32", "int64", "string", "bool", "date")


@dataclass(frozen=True, slots=True, repr=False)
class DecimalType(DataType):
    """Exact decimals of ``precision`` digits, ``scale`` of them after the point."""

    precision: int
    scale: int

    def __repr__(self) -> str:
        return f"Decimal({self.precision}, {self.scale})"

    def _to_arrow(self) -> pa.DataType:
        return pa.decimal128(self.precision, self.scale)


@dataclass(frozen=True, slots=True, repr=False)
class ListType(DataType):
    """Lists of ``length`` items (any length where it is None)."""

    item: DataType
    length: int | None

    def __repr__(self) -> str:
        tail = "" if self.length is None else f", {self.length}"
        return f"List({self.item!r}{tail})"

    def _to_arrow(self) -> pa.DataType:
        return pa.list_(self.item.arrow)


@dataclass(frozen=True, slots=True, repr=False)
class MapType(DataType):
    """Maps from texts to values of one type; the entries are ordered."""

    item: DataType

    def __repr__(self) -> str:
        return f"Map(String, {self.item!r})"

    def _to_arrow(self) -> pa.DataType:
        return pa.map_(pa.string(), self.item.arrow)


Bool = DataType("bool", "BOOLEAN")
Int32 = DataType("int32", "INT")
Int64 = DataType("int64", "BIGINT")
Float32 = DataType("float32", "FLOAT")
Float64 = DataType("float64", "DOUBLE")
String = DataType("string", "STRING")
Bytes = DataType("bytes", "BYTES")
Date = DataType("date", "DATE")
Timestamp = DataType("timestamp", "TIMESTAMP(3)")


def Decimal(precision: int, scale: int) -> DecimalType:  # noqa: N802 - reads as a type
    """Return the type of exact decimals; ``1 <= precision <= 38``, ``0 <= scale <= precision``.

    Raises
    ------
    DefinitionError
        For a precision or scale outside these bounds.
    """
    if not (1 <= precision <= 38 and 0 <= scale <= precision):
        raise DefinitionError(
            f"Decimal({precision}, {scale}): expected 1 <= precision <= 38 "
            "and 0 <= scale <= precision"
        )
    return DecimalType(
        f"decimal({precision}, {scale})",
        f"DECIMAL({precision}, {scale})",
        precision,
        scale,
    )


def List(item: DataType, length: int | None = None) -> ListType:  # noqa: N802 - reads as a type
    """Return the type of lists of scalars, of exactly ``length`` items where it is given.

    Raises
    ------
    DefinitionError
        For items that are lists, maps or bytes themselves, or a length below 1.
    """
    if not item.is_scalar:
        raise DefinitionError(f"List({item!r}): items must be scalars, not lists, maps or bytes")
    if length is not None and length < 1:
        raise DefinitionError(f"List({item!r}, {length}): expected a length of at least 1")
    tail = "" if length is None else f", {length}"
    return ListType(f"list({item.text}{tail})", f"ARRAY<{item.flink}>", item, length)


def Map(key: DataType, item: DataType) -> MapType:  # noqa: N802 - reads as a type
    """Return the type of maps from texts to scalars: the results of aggregates by category.

    Raises
    ------
    DefinitionError
        For keys that are not String, or items that are not scalars.
    """
    if key != String or not item.is_scalar:
        raise DefinitionError(f"Map({key!r}, {item!r}): expected String keys and scalar items")
    return MapType(f"map(string, {item.text})", f"MAP<STRING, {item.flink}>", item)


_PLAIN = {t.text: t for t in (Bool, Int32, Int64, Float32, Float64, String, Bytes, Date, Timestamp)}


def type_from_text(text: str) -> DataType:
    """Return the type with this canonical name, the inverse of ``DataType.text``.

    Raises
    ------
    DefinitionError
        For a text that names no type.
    """
    plain = _PLAIN.get(text)
    if plain is not None:
        return plain
    if match := re.fullmatch(r"decimal\((\d+), (\d+)\)", text):
        return Decimal(int(match[1]), int(match[2]))
    if match := re.fullmatch(r"list\((\w+|.+\))(?:, (\d+))?\)", text):
        return List(type_from_text(match[1]), int(match[2]) if match[2] else None)
    if match := re.fullmatch(r"map\(string, (.+)\)", text):
        return Map(String, type_from_text(match[1]))
    types = [*_PLAIN, "decimal(p, s)", "list(type, n)", "map(string, type)"]
    raise DefinitionError(unknown_name("column type", text, types))


MAX_NAME = 128
"""Characters of a name: with prefixes and suffixes it names files, which have at most 255 bytes."""

CONSTANTS = ("true", "false", "null")
"""Words that are values in expressions, so that they name nothing."""

MAX_FEATURE_NAME = 400
"""Characters of a feature's name, which contains that of its column and its window by default."""


def check_name(what: str, name: str, longest: int = MAX_NAME) -> str:
    """Return ``name`` if it can name a definition or column, else raise DefinitionError."""
    if len(str(name)) > longest:
        raise DefinitionError(
            f"{what} {str(name)[:40]!r}...: a name has at most {longest} characters, got "
            f"{len(str(name)):,}"
        )
    if not NAME.fullmatch(str(name)):
        raise DefinitionError(
            f"{what} {name!r}: a name starts with a lower-case letter, followed by "
            "lower-case letters, digits and underscores"
        )
    if name in CONSTANTS:
        raise DefinitionError(
            f"{what} {name!r}: that is a constant in expressions and in SQL; choose another name"
        )
    return name


def arrow_schema(columns: Mapping[str, DataType]) -> pa.Schema:
    """Return the Arrow schema of named columns, all of them nullable, in order."""
    return pa.schema([pa.field(name, kind.arrow) for name, kind in columns.items()])
