"""How the files of a source are written: ``[inputs.NAME]`` of paimon-features.toml, checked.

``paimon-features init --from`` writes what it found in a file; every entry may be changed there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from paimon_features.core.errors import ConfigurationError, unknown_name

TIME_UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
"""Nanoseconds of each unit of numbers that are times."""

OF_COLUMNS = ("decimal", "thousands", "nulls", "time_format", "time_zone", "time_unit")
"""The entries that a column can have for itself, below ``by_column``."""


@dataclass(frozen=True, slots=True)
class InputSettings:
    """How the files of one source are written; the defaults are what ``ingest`` always reads.

    Attributes
    ----------
    delimiter, quote
        The characters between and around the fields of a text file.
    encoding
        Of a text file, in Python's names: ``utf-8``, ``cp1252``, ``utf-16``.
    header
        Whether the first line (after ``skip`` lines) names the columns; else ``names`` does.
    line_breaks
        Whether quoted fields may contain line breaks.
    decimal, thousands
        The character before the fraction of a number, and the one between groups of digits.
    nulls
        Texts that stand for no value, in addition to an empty field.
    time_format
        Formats of texts that are times, as of ``strptime``, tried in order.
    time_zone
        The zone of times that name none, such as ``Europe/Berlin``; UTC by default.
    time_unit
        What a number in the event time, or in the ``created_time`` of a TableSource, counts since
        1970: s, ms, us or ns.
    columns
        Column of the source -> its name in the file, where they differ.
    by_column
        Column of the source -> entries that differ for it, of ``OF_COLUMNS``.
    escape
        The character before a quote, a delimiter or itself that has no meaning; "" for quotes that
        are doubled.

    >>> InputSettings.of("sales", {"delimiter": ";", "decimal": ","}).decimal
    ','
    >>> InputSettings().is_default
    True
    """

    delimiter: str = ","
    quote: str = '"'
    encoding: str = "utf-8"
    header: bool = True
    names: tuple[str, ...] = ()
    skip: int = 0
    line_breaks: bool = False
    decimal: str = "."
    thousands: str = ""
    nulls: tuple[str, ...] = ()
    time_format: tuple[str, ...] = ()
    time_zone: str = "UTC"
    time_unit: str = "ms"
    columns: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    by_column: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))
    escape: str = ""

    def of_column(self, name: str) -> InputSettings:
        """Return the settings of one column of the source.

        >>> given = {"decimal": ",", "by_column": {"price": {"decimal": "."}}}
        >>> settings = InputSettings.of("sales", given)
        >>> settings.of_column("price").decimal, settings.of_column("weight").decimal
        ('.', ',')
        """
        overrides = self.by_column.get(name)
        return self if overrides is None else replace(self, **overrides)

    @property
    def is_default(self) -> bool:
        """Whether values need no conversion; ``columns`` is none."""
        return not self.changed - {"columns"}

    @property
    def changed(self) -> set[str]:
        """The names of the entries that are not defaults."""
        standard = InputSettings()
        return {f.name for f in fields(self) if getattr(self, f.name) != getattr(standard, f.name)}

    def to_document(self) -> dict[str, Any]:
        """Return what ``of`` reads again, without defaults."""
        document: dict[str, Any] = {}
        for name in (f.name for f in fields(self)):
            if name in self.changed:
                document[name] = _plain(getattr(self, name))
        return document

    @classmethod
    def of(cls, source: str, values: Mapping[str, Any]) -> InputSettings:
        """Read the table ``[inputs.<source>]``.

        Raises
        ------
        ConfigurationError
            For an unknown entry, or a value that it cannot have.
        """
        where = f"[inputs.{source}]"
        entries = {f.name: f for f in fields(cls)}
        standard = cls()
        read: dict[str, Any] = {}
        for name, value in values.items():
            if name not in entries:
                raise ConfigurationError(f"{where}: {unknown_name('entry', name, entries)}")
            read[name] = _checked(where, name, value, getattr(standard, name))
        settings = cls(**read)
        settings._check(where)
        for column in settings.by_column:
            settings.of_column(column)._check(f"{where} by_column {column}:")
        return settings

    def with_options(self, source: str, options: Iterable[str]) -> InputSettings:
        """Return the settings with ``NAME=VALUE`` texts of a command line.

        >>> InputSettings().with_options("s", ["delimiter=tab", "header=false"]).delimiter
        '\\t'
        """
        values = self.to_document()
        standard = InputSettings()
        for text in options:
            name, equals, value = text.partition("=")
            if not equals:
                raise ConfigurationError(f"--input {text}: expected NAME=VALUE, as delimiter=;")
            column, dot, entry = name.partition(".")
            if dot:
                by_column = values.get("by_column", {})
                read = InputSettings.of(source, by_column.get(column, {})).with_options(
                    source, [f"{entry}={value}"]
                )
                one = {entry: read.to_document().get(entry, getattr(standard, entry))}
                values["by_column"] = {**by_column, column: {**by_column.get(column, {}), **one}}
                continue
            default = getattr(standard, name, None)
            if isinstance(default, Mapping):
                column, _, in_file = value.partition("=")
                if not in_file:
                    raise ConfigurationError(
                        f"--input {text}: expected columns=COLUMN=NAME, the name being the file's, "
                        "or COLUMN.NAME=VALUE, as price.decimal=,"
                    )
                values[name] = {**values.get(name, {}), column: in_file}
            elif isinstance(default, tuple):
                # a format may contain a comma: repeat the option for several
                added = value.split(",") if name == "names" else [value]
                values[name] = [*values.get(name, []), *added]
            elif isinstance(default, bool):
                values[name] = {"true": True, "false": False}.get(value.lower(), value)
            elif isinstance(default, int):
                values[name] = int(value) if value.removeprefix("-").isdecimal() else value
            else:
                values[name] = {"tab": "\t", "space": " "}.get(value, value)
        return InputSettings.of(source, values)

    def _check(self, where: str) -> None:
        def refuse(name: str, expected: str) -> None:
            raise ConfigurationError(
                f"{where} {name} = {getattr(self, name)!r}; expected {expected}"
            )

        for name in ("delimiter", "quote"):
            letter = getattr(self, name)
            if len(letter) != 1 or not letter.isascii() or letter in "\r\n\0":
                refuse(name, "one ASCII character")
        if self.escape and (len(self.escape) != 1 or not self.escape.isascii()):
            refuse("escape", "'' or one ASCII character")
        if self.escape in (self.delimiter, self.quote):
            refuse("escape", "another character than the delimiter and the quote")
        if self.delimiter == self.quote:
            refuse("quote", f"another character than the delimiter, {self.delimiter!r}")
        try:
            "".encode(self.encoding)  # a codec of other things than text is refused, too
        except (LookupError, ValueError):
            refuse("encoding", "a name such as utf-8, cp1252, latin-1 or utf-16")
        if self.decimal not in (".", ","):
            refuse("decimal", "'.' or ','")
        if self.thousands not in ("", ".", ",", " ", "'", "_", "\u00a0", "\u202f"):
            refuse("thousands", "'', '.', ',', ' ', \"'\" or '_'")
        if self.thousands == self.decimal:
            refuse("thousands", f"another character than decimal, {self.decimal!r}")
        if self.time_unit not in TIME_UNITS:
            refuse("time_unit", ", ".join(TIME_UNITS))
        if self.skip < 0:
            refuse("skip", "0 or more lines")
        if self.names and self.header:
            refuse("names", "header = false with them: the header has the names")
        for text in self.time_format:
            if "%" not in text:
                refuse("time_format", "formats such as '%d.%m.%Y %H:%M'")
        try:
            ZoneInfo(self.time_zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            refuse("time_zone", "a name of the time zone database, such as 'Europe/Berlin'")


def _checked(where: str, name: str, value: Any, default: Any) -> Any:
    if isinstance(default, tuple):
        items = [value] if isinstance(value, str) else value
        if isinstance(items, list) and all(isinstance(item, str) for item in items):
            return tuple(items)
        expected = "a text, or a list of texts"
    elif name == "by_column":
        if isinstance(value, Mapping) and all(
            isinstance(entries, Mapping) for entries in value.values()
        ):
            return MappingProxyType(
                {c: _of_column(where, c, entries) for c, entries in value.items()}
            )
        expected = "a table of tables such as { price = { decimal = ',' } }"
    elif isinstance(default, Mapping):
        if isinstance(value, Mapping) and all(isinstance(v, str) for v in value.values()):
            return MappingProxyType(dict(value))
        expected = 'a table such as { customer_id = "CustomerID" }'
    else:
        if type(value) is type(default):
            return value
        expected = {str: "a text", bool: "true or false", int: "a number"}[type(default)]
    raise ConfigurationError(f"{where} {name} = {value!r}; expected {expected}")


def _of_column(where: str, column: str, entries: Mapping[str, Any]) -> Mapping[str, Any]:
    standard = InputSettings()
    for name in entries:
        if name not in OF_COLUMNS:
            message = unknown_name("entry of a column", name, OF_COLUMNS)
            hint = "; it is an entry of a whole file" if hasattr(standard, name) else ""
            raise ConfigurationError(f"{where} by_column {column}: {message}{hint}")
    return MappingProxyType(
        {
            name: _checked(f"{where} by_column {column}", name, value, getattr(standard, name))
            for name, value in entries.items()
        }
    )


def _plain(value: Any) -> Any:
    """Return tuples as lists and mappings as dicts, as TOML and JSON have them."""
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return value
