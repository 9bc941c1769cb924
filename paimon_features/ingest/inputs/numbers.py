"""Numbers in texts: how they are written, what stands for none, and the type that holds all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.configuration.input_settings import InputSettings
from paimon_features.core.types.schema import DataType, Decimal, Float64, Int64, String
from paimon_features.ingest.cells.text_values import text_values
from paimon_features.ingest.inputs.conversion import STYLE, number_pattern, plain_numbers
from paimon_features.ingest.inputs.different_texts import DifferentTexts

NULLS = ("NA", "N/A", "NULL", "null", "NaN", "nan", "None", "\\N", "-", "?")
"""Texts that stand for no value in many files."""
EXACT_DIGITS = 15
"""Digits of a decimal that a double has, however they are."""
MOST_DIGITS = 38
MOST_DECIMALS = 9
"""Decimals of exact sums."""
_INTEGER = r"^[+-]?[0-9]+(?:\.0*)?$"
_FLOAT = r"^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$"
_LONG = r"[0-9](?:\.?[0-9]){17}"
"""More digits than a double has."""
_POINTS: tuple[tuple[str, str], ...] = ((",", ""), (".", ","))
_REST: tuple[tuple[str, str], ...] = ((",", "."), (",", " "), (".", " "), (".", "'"))


class ColumnEntries(TypedDict, total=False):
    """Entries of one column that a sample can show; see ``InputSettings`` for what they mean."""

    nulls: tuple[str, ...]
    decimal: str
    thousands: str
    time_format: tuple[str, ...]


def with_entries(settings: InputSettings, name: str, entries: ColumnEntries) -> InputSettings:
    """Return the settings with entries of one column of the source."""
    column_entries = {**settings.by_column.get(name, {}), **entries}
    return replace(settings, by_column={**settings.by_column, name: column_entries})


def number_settings(
    sample: pa.Table,
    names: Mapping[str, str],
    settings: InputSettings,
    kept: set[str],
    notes: list[str],
) -> InputSettings:
    """Return the settings with the null texts and number styles of each column of a sample.

    ``names`` has the source's column of each field; entries in ``kept`` stay.
    """
    texts = {
        names[field.name]: sample.column(field.name)
        for field in sample.schema
        if pa.types.is_string(field.type)
    }
    if "nulls" not in kept:
        settings = _with_nulls(texts, settings, notes)
    if kept & {"decimal", "thousands"}:
        return settings
    return _with_styles(texts, settings, notes)


def _with_nulls(
    texts: Mapping[str, pa.ChunkedArray], settings: InputSettings, notes: list[str]
) -> InputSettings:
    for name, column in texts.items():
        if "nulls" in settings.by_column.get(name, {}):
            continue
        values = DifferentTexts.of(column)
        present = [n for n in NULLS if pc.any(pc.equal(values.bare, n)).as_py()]
        if not present or len(values.bare) <= 2:
            continue
        others = DifferentTexts.of(column, without=tuple(present))
        if others.share(others.match("^[+-]?[0-9]")) <= 0.8:
            continue
        markers = tuple(sorted(present))
        settings = with_entries(settings, name, {"nulls": markers})
        notes.append(
            f"{', '.join(map(repr, markers))} among numbers or times of {name!r} are read as no "
            f"value (--input {name}.nulls=...)"
        )
    return settings


def _with_styles(
    texts: Mapping[str, pa.ChunkedArray], settings: InputSettings, notes: list[str]
) -> InputSettings:
    # between commas, a quoted comma is one between thousands; between semicolons a decimal one
    points = _POINTS[::-1] if settings.delimiter == "," else _POINTS
    styles = (STYLE, *points, *_REST)
    possible: dict[str, list[tuple[str, str]]] = {}
    either: list[str] = []
    for name, column in texts.items():
        values = DifferentTexts.of(column, without=settings.of_column(name).nulls)
        if not len(values.bare) or values.share(values.match("[.,' \u00a0\u202f]")) == 0:
            continue
        fitting = [s for s in styles if values.are_mostly(values.match(number_pattern(*s)))]
        if fitting:
            possible[name] = fitting
        if values.are_all(r"^[+-]?[0-9]{1,3}(,[0-9]{3})?$"):
            either.append(name)
    if not possible:
        return settings
    best = max(
        styles,
        key=lambda s: (sum(s in candidates for candidates in possible.values()), -styles.index(s)),
    )
    settings = replace(settings, decimal=best[0], thousands=best[1])
    if best != STYLE:
        notes.append(_about(best, "numbers"))
    for name, fitting in possible.items():
        if best not in fitting:
            decimal, thousands = fitting[0]
            settings = with_entries(settings, name, {"decimal": decimal, "thousands": thousands})
            notes.append(_about(fitting[0], f"numbers of {name!r}"))
    for name in either:
        column_settings = settings.of_column(name)
        style = (column_settings.decimal, column_settings.thousands)
        decided = any(set(fitting) & set(_POINTS) == {style} for fitting in possible.values())
        if decided:
            continue
        one, other = ("1.234", "1234") if column_settings.decimal == "," else ("1234", "1.234")
        how = (
            "decimal=. --input thousands=,"
            if column_settings.decimal == ","
            else "decimal=, --input thousands="
        )
        notes.append(f"{name!r}: '1,234' is read as {one} (--input {how} reads {other})")
    return settings


def _about(style: tuple[str, str], what: str) -> str:
    point = "comma" if style[0] == "," else "point"
    between = f" and {style[1]!r} between thousands" if style[1] else ""
    return f"{what} have a decimal {point}{between}"


class NumberType(NamedTuple):
    """The type of texts that are numbers, with the number of each text (null where it is none)."""

    type: DataType
    values: pa.Array
    notes: tuple[str, ...] = ()
    decimals: int | None = None


def number_type(
    values: DifferentTexts, settings: InputSettings, *, is_key: bool
) -> NumberType | None:
    """Return the type of texts that are numbers; None for others.

    All digits of each number are kept: as Int64, Float64, a decimal, or else as texts. ``is_key``:
    equal numbers are one entity, so nothing but integers is a number.
    """
    numbers = values.bare
    if (settings.decimal, settings.thousands) != STYLE:
        numbers, matching = plain_numbers(numbers, settings.decimal, settings.thousands)
        numbers = pc.if_else(matching, numbers, "")
    whole = np.asarray(pc.match_substring_regex(numbers, _INTEGER))
    number = np.asarray(pc.match_substring_regex(numbers, _FLOAT))
    if is_key and number.any() and not whole.all():
        if number.all() and not _has_exponent(numbers):
            return _fractions(values, numbers, number)
        return NumberType(String, numbers, ("not all are integers: kept as texts",))
    if values.are_mostly(whole):
        has_points = np.asarray(pc.match_substring(numbers, "."))[whole].any()
        if pc.any(values.match("^[+-]?0[0-9]")).as_py():
            return NumberType(String, numbers, ("digits with leading zeros: kept as a text",))
        if is_key and pc.any(values.match(r"^\+")).as_py():
            return NumberType(String, numbers, ("digits with a sign: kept as a text",))
        integers = text_values(numbers, Int64)
        if integers.wrong is not None and (integers.wrong & whole).any():
            return NumberType(String, numbers, ("integers of more than 64 bits: kept as texts",))
        if is_key or not has_points:
            notes = ("integers written with a fraction: read as integers",) if has_points else ()
            return NumberType(Int64, integers.values, notes + _about_broken(values, whole))
    return _fractions(values, numbers, number) if values.are_mostly(number) else None


def _fractions(values: DifferentTexts, numbers: pa.Array, number: Any) -> NumberType:
    floats = text_values(numbers, Float64)
    finite = number if floats.infinite is None else number & ~floats.infinite
    if not values.are_mostly(finite):
        note = "numbers beyond those of a double: kept as texts"
        return NumberType(String, floats.values, (note,))
    notes = _about_broken(values, finite)
    finite_numbers = numbers.filter(pa.array(finite))
    decimals = _longest_match(finite_numbers, r"\.(?P<digits>[0-9]*)")
    long = finite_numbers.filter(pc.match_substring_regex(finite_numbers, _LONG))
    if not len(long) or _are_doubles(long):
        return NumberType(Float64, floats.values, notes, decimals if decimals <= 4 else None)
    digits = _longest_match(finite_numbers, r"^[+-]?0*(?P<digits>[0-9]*)") + decimals
    if digits > MOST_DIGITS or _has_exponent(finite_numbers):
        note = "more digits than numbers have: kept as texts"
        return NumberType(String, floats.values, (note,))
    note = "more digits than a double has: read as exact decimals"
    shown = decimals if decimals <= MOST_DECIMALS else None
    return NumberType(Decimal(MOST_DIGITS, decimals), floats.values, (*notes, note), shown)


def _has_exponent(numbers: pa.Array) -> bool:
    return bool(pc.any(pc.match_substring_regex(numbers, "[eE]")).as_py())


def _longest_match(numbers: pa.Array, pattern: str) -> int:
    """Return the length of the longest group ``digits`` of a pattern; 0 without any."""
    digits = pc.struct_field(pc.extract_regex(numbers, pattern), "digits")
    return pc.max(pc.utf8_length(pc.fill_null(digits, ""))).as_py() or 0


def _are_doubles(texts: pa.Array) -> bool:
    """Return True if texts of many digits are those of doubles, which may be written so."""
    return all(
        len(re.sub(r"[eE].*|[^0-9]", "", text).strip("0")) <= 17 for text in texts.to_pylist()
    )


def _about_broken(values: DifferentTexts, good: Any) -> tuple[str, ...]:
    bad = np.flatnonzero(~np.asarray(good))
    if not len(bad):
        return ()
    shown = values.bare[int(bad[0])].as_py()
    return (
        f"{len(bad)} of {len(values.bare)} different values are not numbers, as {shown!r}: "
        "ingest rejects these rows; pf.String keeps them",
    )
