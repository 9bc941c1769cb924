"""Files whose first rows show another type or format than later ones: no value is changed.

`init` sees the first rows only. Each row of the file is then stored with its exact meaning, or is
rejected and counted.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from paimon_features.core.configuration.input_settings import InputSettings
from paimon_features.definitions import EventSource
from paimon_features.ingest.inputs.profiles import profile_input
from paimon_features.project.first_steps.trial import read_events
from paimon_features.testing.sizes import many

pytest.importorskip("duckdb")
fastavro = pytest.importorskip("fastavro")
EPOCH = dt.date(1970, 1, 1)
REUSED = [HealthCheck.function_scoped_fixture]
# what a cell means, and how it is written: a text, or a value of JSON and Avro
Cell = tuple[Any, Any]
MEANINGS: dict[str, Callable[[int], Cell]] = {
    "integers": lambda n: (n, n),
    "fractions": lambda n: (Fraction(4 * n + 3, 4), n + 0.75),
    "long integers": lambda n: (12345678901234567890 + n, str(12345678901234567890 + n)),
    "integers of pandas": lambda n: (n, f"{n}.0"),
    "many digits": lambda n: (
        Fraction(Decimal(f"{n}.12345678901234567891")), f"{n}.12345678901234567891",
    ),
    "decimal commas": lambda n: (Fraction(2 * n + 1, 2), f"{n},5"),
    "commas between thousands": lambda n: (1000 * (n + 1) + 234, f"{n + 1},234"),
    "two commas": lambda n: (1_000_000 * (n + 1) + 234_567, f"{n + 1},234,567"),
    "points between thousands": lambda n: (
        Fraction(Decimal(f"{n + 1}234567.25")), f"{n + 1}.234.567,25",
    ),
    "leading zeros": lambda n: (f"{n:04d}", f"{n:04d}"),
    "texts": lambda n: (f"t{n}", f"t{n}"),
    "texts with quotes": lambda n: (f"'s {n} \"x\"", f"'s {n} \"x\""),
    "null texts": lambda n: ("NA", "NA"),
    "nothing": lambda n: (None, None),
    "flags": lambda n: (n % 2 == 0, n % 2 == 0),
    "European days": lambda n: _day(n, "%d/%m/%Y"),
    "American days": lambda n: _day(n, "%m/%d/%Y"),
    "dotted days": lambda n: _day(n, "%d.%m.%Y"),
    "ISO days": lambda n: _day(n, "%Y-%m-%d"),
    "compact days": lambda n: _day(n, "%Y%m%d"),
}  # fmt: skip
DAYS = [name for name in MEANINGS if name.endswith("days")]


def _day(n: int, form: str) -> Cell:
    # each third one is after the 12th of a month, so that its order is certain
    day = dt.date(2020 + n % 3, n % 12 + 1, 13 + n % 15 if n % 3 == 0 else n * 7 % 12 + 1)
    return day, day.strftime(form)


def text_of(written: Any) -> str:
    if isinstance(written, bool):
        return "true" if written else "false"
    return "" if written is None else str(written)


def quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if {*',"'} & {*text} else text


Row = tuple[int, str, Cell]


def write_csv(path: Path, rows: list[Row]) -> None:
    lines = [f"{n},{at},{quoted(text_of(cell[1]))}" for n, at, cell in rows]
    path.write_text("\n".join(["row,at,value", *lines, ""]), "utf-8")


def write_lines(path: Path, rows: list[Row]) -> None:
    path.write_text("".join(json.dumps(_object(row)) + "\n" for row in rows), "utf-8")


def write_array(path: Path, rows: list[Row]) -> None:
    path.write_text(json.dumps([_object(row) for row in rows]), "utf-8")


def write_avro(path: Path, rows: list[Row]) -> None:
    kinds = ["null", "boolean", "long", "double", "string"]
    names = {"row": "long", "at": "string", "value": kinds}
    fields = [{"name": name, "type": kind} for name, kind in names.items()]
    schema = fastavro.parse_schema({"type": "record", "name": "event", "fields": fields})
    with path.open("wb") as file:
        fastavro.writer(file, schema, map(_object, rows))


def _object(row: Row) -> dict[str, Any]:
    return {"row": row[0], "at": row[1], "value": row[2][1]}


FILES: dict[str, Callable[[Path, list[Row]], None]] = {
    "a.csv": write_csv, "a.jsonl": write_lines, "a.json": write_array, "a.avro": write_avro,
}  # fmt: skip


def is_same(stored: Any, meaning: Any, written: Any) -> bool:
    """Whether a stored value is what a cell means, or its text."""
    if stored is None:
        return written in (None, "")
    if isinstance(stored, str):
        return bool(stored == text_of(written))
    if isinstance(stored, bool) or isinstance(meaning, bool):
        return stored is meaning
    if isinstance(meaning, dt.date) and isinstance(stored, int | float) and written.isdigit():
        return bool(stored == int(written))  # a day without separators is a number, too
    if isinstance(meaning, dt.date) or isinstance(stored, dt.date):
        return bool((stored.date() if isinstance(stored, dt.datetime) else stored) == meaning)
    if isinstance(meaning, str):
        # a number of leading zeros is the same number
        return meaning.isdigit() and stored == int(meaning)
    return stored == float(meaning) if isinstance(stored, float) else Fraction(stored) == meaning


def read(path: Path, sample: int) -> tuple[dict[int, dict[str, Any]], int]:
    """The stored rows by number, and how many are rejected, after a look at the first rows."""
    profile = profile_input(path, InputSettings(), set(), event_time="at", sample_rows=sample)
    schema = {c.name: c.type for c in profile.columns if c.type is not None}
    source = EventSource("lying", schema=schema, event_time=profile.event_time.name)
    found = read_events(path, source, profile.settings, profile.settings.columns)
    stored = {row["row"]: row for row in found.events.to_pylist()}
    assert len(stored) == found.events.num_rows
    return stored, sum(found.rejected.values())


@given(
    name=st.sampled_from(list(FILES)),
    first=st.sampled_from(list(MEANINGS)),
    later=st.sampled_from(list(MEANINGS)),
    counts=st.tuples(st.integers(4, 60), st.integers(3, 40)),
)
@settings(max_examples=many(8), deadline=None, suppress_health_check=REUSED)
def test_each_row_is_stored_exactly_or_rejected_whatever_the_first_rows_show(
    tmp_path: Path, name: str, first: str, later: str, counts: tuple[int, int]
) -> None:
    # where a comma begins the decimals, 5,234 is a number between five and six
    commas = {"decimal commas", "points between thousands"}
    assume(first not in commas or later != "commas between thousands")
    cells = [MEANINGS[first if n < counts[0] else later](n) for n in range(sum(counts))]
    rows = [(n, f"2024-03-01T10:00:{n % 60:02d}Z", cell) for n, cell in enumerate(cells)]
    FILES[name](tmp_path / name, rows)
    stored, rejected = read(tmp_path / name, counts[0])
    assert len(stored) + rejected == len(rows)
    wrong = [
        (stored[n]["value"], cell)
        for n, _, cell in rows
        if n in stored and "value" in stored[n] and not is_same(stored[n]["value"], *cell)
    ]
    assert wrong == []


@given(
    name=st.sampled_from(list(FILES)),
    first=st.sampled_from(DAYS),
    later=st.sampled_from(DAYS),
    counts=st.tuples(st.integers(6, 60), st.integers(6, 40)),
)
@settings(max_examples=many(5), deadline=None, suppress_health_check=REUSED)
def test_each_event_has_its_day_or_is_rejected_whatever_the_first_rows_show(
    tmp_path: Path, name: str, first: str, later: str, counts: tuple[int, int]
) -> None:
    # without settings, digits in an event time are milliseconds, as documented
    assume((first, later) != ("ISO days", "compact days"))
    cells = [MEANINGS[first if n < counts[0] else later](n) for n in range(sum(counts))]
    rows: list[Row] = [(n, text_of(cell[1]), (n, n)) for n, cell in enumerate(cells)]
    FILES[name](tmp_path / name, rows)
    stored, rejected = read(tmp_path / name, counts[0])
    assert len(stored) + rejected == len(rows)
    found = {n: EPOCH + dt.timedelta(milliseconds=row["at"]) for n, row in stored.items()}
    assert {n: (day, cells[n]) for n, day in found.items() if day != cells[n][0]} == {}
