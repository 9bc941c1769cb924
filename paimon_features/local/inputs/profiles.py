"""What the columns of an input are: types, times and their units, keys, measures.

Everything is decided from a sample of rows; what could be otherwise is a note of the column.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.durations import MAX_TIME_MS, MIN_TIME_MS
from paimon_features.errors import ConfigurationError
from paimon_features.foreign_types import is_plain
from paimon_features.input_settings import InputSettings
from paimon_features.local.ingest.text_values import text_values
from paimon_features.local.inputs.conversion import TimeTexts, number_pattern, plain_numbers
from paimon_features.local.inputs.dialects import null_texts, sniff
from paimon_features.local.inputs.opening import (
    OpenedInput,
    checked_form,
    closing_of,
    open_input,
    reported,
)
from paimon_features.local.inputs.reading_process import progressed
from paimon_features.schema import (
    CONSTANTS,
    Bool,
    DataType,
    Date,
    Float64,
    Int64,
    String,
    Timestamp,
)
from paimon_features.suggestions import did_you_mean
from paimon_features.times import floor_times

SAMPLE_ROWS = 200_000
SAMPLE_BYTES = 256 << 20
_TRIED = 2_000
"""Different texts of a column with which formats of times are tried."""
MOST_WRONG = 0.02
"""The share of texts that are no number in a column of numbers, at most: those are rejected."""

Role = Literal["event time", "key", "event id", "measure", "category", "flag", "other", "skipped"]

_TIME_NAME = re.compile(
    r"(^|_)(time|times|timestamp|ts|date|datetime|day|at|when|created|updated|occurred|zeit|datum"
    r"|fecha|epoch|ms)(_|$)|time|date"
)
_KEY_NAME = re.compile(
    r"(^|_)(id|ids|key|uid|uuid|guid|user|customer|client|account|device|member|visitor|session"
    r"|person|patient|player|driver|seller|merchant|store|shop|card|host|sensor|vehicle|machine"
    r"|product|item|sku|email|phone|ip|kunde|kundennr|nr|no|number|code)(_|$)"
)
_STRONG = re.compile(
    r"(^|_)(user|customer|client|account|member|visitor|person|patient|player|device|driver"
    r"|card|kunde)"
)
_UNITS = (("s", 1e9), ("ms", 1e12), ("us", 1e15), ("ns", 1e18))
_YEARS = (631_152_000.0, 4_102_444_800.0)
"""1990 and 2100, in seconds: numbers between them are taken for times."""


@dataclass(frozen=True, slots=True)
class InputColumnProfile:
    """A column of an input: its name there and as a column of a source, its type and role.

    ``type`` is None for a column that cannot be one of a source; ``notes`` say why, and what is
    ambiguous. ``per_value`` is the mean number of rows of a value, 0 without values.
    ``is_read`` says whether ``ingest`` reads the texts of ``time_format`` as they are.
    """

    field: str
    name: str
    stored: str
    type: DataType | None
    nulls: int
    distinct: int
    example: str
    role: Role = "other"
    decimals: int | None = None
    per_value: float = 0.0
    time_format: str | None = None
    time_unit: str | None = None
    days_only: bool = False
    is_read: bool = False
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class InputProfile:
    """What a sample of an input shows. ``total`` is the number of all rows, if that is known."""

    path: Path
    form: str
    settings: InputSettings
    rows: int
    complete: bool
    total: int | None
    columns: list[InputColumnProfile]
    first_ms: int
    last_ms: int
    unreadable: int = 0
    notes: list[str] = field(default_factory=list)
    times: Any = None
    sample: Any = None

    @property
    def event_time(self) -> InputColumnProfile:
        return next(c for c in self.columns if c.role == "event time")

    def of_role(self, *roles: Role) -> list[InputColumnProfile]:
        return [c for c in self.columns if c.role in roles]


def profile_input(
    path: Path,
    given: InputSettings,
    kept: set[str],
    *,
    event_time: str | None = None,
    sample_rows: int = SAMPLE_ROWS,
) -> InputProfile:
    """Read the first rows of an input and decide what its columns are.

    ``kept`` are the entries of ``given`` that the caller set: they are not looked for.

    Raises
    ------
    ConfigurationError
        If it cannot be read, has no rows, or no column that can be the event time.
    """
    notes: list[str] = []
    settings = given
    if checked_form(path) == "CSV":
        with reported(path, "CSV"):
            settings = sniff(path, settings, kept, notes)
    opened = open_input(path, settings)
    with closing_of(opened.batches):
        sample, complete = take_sample(opened, sample_rows)
    if not sample.num_rows:
        raise ConfigurationError(
            f"{path}: it has columns ({', '.join(opened.schema.names[:20])}) but no rows"
        )
    settings = _number_settings(sample, settings, kept, notes)
    parser = TimeTexts(settings.time_zone)
    try:
        columns = [_column(sample, name, settings, parser) for name in sample.column_names]
        columns, settings = _choose_time(path, columns, settings, kept, event_time, notes)
        columns = _named(columns)
        chosen = next(c for c in columns if c.role == "event time")
        times = _times(sample.column(chosen.field), chosen, settings, parser)
    finally:
        parser.close()
    known = times.drop_null()
    if not len(known):
        unit = f" in {settings.time_unit}" if chosen.time_format is None else ""
        raise ConfigurationError(
            f"{path}: no value of {chosen.field!r}, as {chosen.example!r}, is a time{unit} of the "
            "years 1 to 9999; name another column by --event-time, the unit of numbers by --input "
            "time_unit=..., or the form of texts by --input time_format='...'"
        )
    columns = [_role(c, sample.num_rows) for c in columns]
    clear = {c.name: c.field for c in columns if c.type is not None and c.name != c.field}
    kept_names = {
        n: f
        for n, f in clear.items()
        if re.sub(r"[^0-9a-z]", "", f.lower()) != re.sub(r"[^0-9a-z]", "", n)
    }
    settings = replace(settings, columns={**kept_names, **given.columns})
    return InputProfile(
        path,
        opened.form,
        settings,
        sample.num_rows,
        complete,
        sample.num_rows if complete else opened.rows,
        columns,
        pc.min(known).as_py(),
        pc.max(known).as_py(),
        len(opened.unreadable),
        notes,
        times,
        sample,
    )


def profile_parts(
    path: Path,
    given: InputSettings,
    kept: set[str],
    event_time: str | None = None,
    sample_rows: int = SAMPLE_ROWS,
) -> Iterator[InputProfile]:
    """The profile, for ``read_apart``."""
    yield profile_input(path, given, kept, event_time=event_time, sample_rows=sample_rows)


def take_sample(opened: OpenedInput, rows: int) -> tuple[pa.Table, bool]:
    """The first rows, and whether these are all."""
    batches: list[pa.RecordBatch] = []
    count = size = 0
    complete = True
    for batch in opened.batches:
        batches.append(batch)
        count, size = count + batch.num_rows, size + batch.nbytes
        if count >= rows or size >= SAMPLE_BYTES:
            complete = count <= rows and next(iter(opened.batches), None) is None
            break
    table = pa.Table.from_batches(batches, opened.schema if not batches else batches[0].schema)
    return table.slice(0, rows), complete


def _number_settings(
    sample: pa.Table, settings: InputSettings, kept: set[str], notes: list[str]
) -> InputSettings:
    """Texts without a value, and the decimal and thousands characters, of a sample of texts."""
    texts = {n: _different(sample.column(n)) for n in sample.column_names
             if pa.types.is_string(sample.schema.field(n).type)}  # fmt: skip
    if "nulls" not in kept:
        found = {
            text
            for values in texts.values()
            for text in null_texts(values)
            if len(values) > 2 and _mostly_numbers([v for v in values if v != text])
        }
        if found:
            settings = replace(settings, nulls=tuple(sorted(found)))
            shown = ", ".join(map(repr, settings.nulls))
            notes.append(f"{shown} among numbers or times are read as no value (--input nulls=...)")
    if kept & {"decimal", "thousands"}:
        return settings
    styles = ((".", ""), (",", ""), (".", ","), (",", "."), (",", " "), (".", " "), (".", "'"))
    votes = dict.fromkeys(styles, 0)
    doubtful = False
    for values in texts.values():
        numbers = [v.strip() for v in values if v.strip() and v not in settings.nulls]
        if not numbers or not any(re.search("[.,' \u00a0\u202f]", v) for v in numbers):
            continue
        for style in styles:
            pattern = re.compile(number_pattern(*style))
            if all(pattern.match(v) for v in numbers):
                votes[style] += 1
                doubtful |= style == (",", "") and all(
                    re.fullmatch(r"[+-]?[0-9]{1,3}(,[0-9]{3})?", v) for v in numbers
                )
                break
    best = max(styles, key=lambda style: votes[style])
    # with a fraction, and with groups of digits: both are one style
    if votes[best] and best != (".", ""):
        if best == (",", "") and votes[(",", ".")]:
            best = (",", ".")
        notes.append(
            f"numbers have a decimal {'comma' if best[0] == ',' else 'point'}"
            + (f" and {best[1]!r} between thousands" if best[1] else "")
            + (
                "; '1,234' is read as 1.234 (--input decimal=. --input thousands=, reads 1234)"
                if doubtful
                else ""
            )
        )
        settings = replace(settings, decimal=best[0], thousands=best[1])
    return settings


def _different(column: pa.ChunkedArray, most: int = _TRIED) -> list[str]:
    values: list[str] = pc.unique(column.slice(0, 50_000)).drop_null().to_pylist()
    return values[:most]


def _mostly_numbers(values: Sequence[str]) -> bool:
    numeric = sum(bool(re.match(r"^\s*[+-]?[0-9]", v)) for v in values)
    return numeric > 0.8 * max(1, len(values))


def _column(
    sample: pa.Table, name: str, settings: InputSettings, parser: TimeTexts
) -> InputColumnProfile:
    progressed()
    column = sample.column(name)
    stored = str(column.type)
    if not is_plain(column.type):
        note = f"skipped: {stored[:200]} is no type of a source's column; convert it"
        return InputColumnProfile(name, name, stored, None, 0, 0, "", "skipped", notes=(note,))
    if settings.nulls and pa.types.is_string(column.type):
        gone = pc.is_in(column, pa.array(settings.nulls))
        column = pc.if_else(gone, pa.scalar(None, column.type), column)
    nulls, valid = column.null_count, len(column) - column.null_count
    if not valid:
        note = "skipped: no value in the rows that were read"
        return InputColumnProfile(name, name, stored, None, nulls, 0, "", "skipped", notes=(note,))
    kind, decimals, notes, fmt, unit, days = _type(column, name, settings, parser)
    try:
        distinct = pc.count_distinct(column).as_py()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        distinct = 0
    example = _shown(column.drop_null())[:40]
    role: Role = "other" if kind is not None else "skipped"
    return InputColumnProfile(
        name, name, stored, kind, nulls, distinct, example, role, decimals,
        valid / distinct if distinct else 0.0, fmt, unit, days,
        fmt is not None and _is_read(column, fmt, parser), tuple(notes),
    )  # fmt: skip


def _shown(values: pa.ChunkedArray) -> str:
    """The first value as a text."""
    try:
        return str(values[0].as_py())
    except (OverflowError, ValueError):  # a time that Python does not have
        return str(values.slice(0, 1).combine_chunks().to_string(skip_new_lines=True)).strip("[ ]")


_Typed = tuple[DataType | None, int | None, list[str], str | None, str | None, bool]


def _type(column: pa.ChunkedArray, name: str, settings: InputSettings, parser: TimeTexts) -> _Typed:
    kind = column.type
    if pa.types.is_string(kind):
        return _text_type(column, name, settings, parser)
    if pa.types.is_timestamp(kind):
        zone = [] if kind.tz or settings.time_zone != "UTC" else ["no time zone: read as UTC"]
        return Timestamp, None, zone, None, "ms", False
    if pa.types.is_date(kind):
        return Date, None, ["days: midnight in UTC is the time"], None, "ms", True
    if pa.types.is_boolean(kind):
        return Bool, None, [], None, None, False
    if pa.types.is_integer(kind):
        unit = _unit(column) if _unit(column) and not _KEY_NAME.search(name.lower()) else None
        return Int64, None, [], None, unit, False
    if pa.types.is_floating(kind):
        # Arrow compares no half floats
        finite = column.drop_null().cast(pa.float64())
        finite = finite.filter(pc.is_finite(finite))
        odd = len(column) - column.null_count - len(finite)
        if not len(finite):
            return None, None, ["skipped: no value is a finite number"], None, None, False
        note = "values are NaN or infinite: ingest rejects these rows; write null for no value"
        notes = [f"{odd:,} {note}"] if odd else []
        return Float64, _decimals_of(finite), notes, None, _unit(finite), False
    if pa.types.is_decimal(kind):
        return Float64, kind.scale, [], None, None, False
    reason = f"skipped: {kind} is no type of a source's column; flatten or convert it"
    return None, None, [reason], None, None, False


def _text_type(
    column: pa.ChunkedArray, name: str, settings: InputSettings, parser: TimeTexts
) -> _Typed:
    cells = pa.array(_different(column, 20_000), pa.string())
    if (settings.decimal, settings.thousands) != (".", ""):
        numbers = plain_numbers(cells, settings.decimal, settings.thousands)
    else:
        numbers = cells
    bare = pc.utf8_trim_whitespace(cells)
    forms = _formats(bare, parser, settings)
    if forms and not pc.all(pc.match_substring_regex(bare, r"^[0-9.]+$")).as_py():
        return _time_of(forms, bare, settings)
    for kind in (Int64, Float64):
        made = text_values(numbers, kind)
        bad = np.zeros(len(cells), np.bool_) if made.wrong is None else made.wrong
        bad = bad if made.infinite is None else bad | made.infinite
        share = bad.sum() / len(cells)
        if share > MOST_WRONG or (share and bad.sum() > len(cells) - 2):
            continue
        if kind is Int64 and pc.any(pc.match_substring_regex(bare, r"^0[0-9]")).as_py():
            return String, None, ["digits with leading zeros: kept as a text"], None, None, False
        if kind is Int64 and pc.any(pc.match_substring_regex(numbers, r"\.")).as_py():
            continue
        notes = []
        if bad.any():
            shown = cells[int(np.flatnonzero(bad)[0])].as_py()
            notes.append(
                f"{int(bad.sum())} of {len(cells)} different values are no number, as {shown!r}: "
                "ingest rejects these rows; pf.String keeps them"
            )
        unit = _unit(pa.chunked_array([made.values]))
        form = forms[0] if forms and kind is Int64 and unit is None else None
        if _KEY_NAME.search(name.lower()) and not _TIME_NAME.search(name.lower()):
            unit = form = None
        decimals = _written_decimals(numbers) if kind is Float64 else None
        return kind, decimals, notes, form, unit, False
    lower = set(pc.utf8_lower(bare).to_pylist())
    if lower <= {"true", "false", "t", "f", "yes", "no", "y", "n"} and len(lower) <= 2:
        return Bool, None, [], None, None, False
    return String, None, [], None, None, False


def _time_of(forms: list[str], bare: pa.Array, settings: InputSettings) -> _Typed:
    form, *others = forms
    days = "%H" not in form and "%I" not in form
    notes = []
    swapped = [f for f in others if f != form]
    if swapped:
        notes.append(
            f"day and month could be swapped: read as {form!r}; for the other order: --input "
            f"time_format='{swapped[0]}'"
        )
    if settings.time_zone == "UTC" and not form.endswith(("%z", "Z")):
        notes.append("no time zone: read as UTC (--input time_zone=Europe/Berlin for another)")
    return (Date if days else Timestamp), None, notes, form, None, days


_DATES = (
    "%Y-%m-%d", "%d.%m.%Y", "%d.%m.%y", "%d/%m/%Y", "%m/%d/%Y", "%d/%m/%y", "%m/%d/%y",
    "%Y/%m/%d", "%Y.%m.%d", "%d-%m-%Y", "%m-%d-%Y", "%Y%m%d", "%d %b %Y", "%d %B %Y",
    "%b %d, %Y", "%B %d, %Y", "%d-%b-%Y", "%d-%b-%y", "%a, %d %b %Y", "%a %b %d %Y",
)  # fmt: skip
_CLOCKS = (
    "", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", "T%H:%M", "T%H:%M:%S", "T%H:%M:%S.%f",
    " %I:%M %p", " %I:%M:%S %p", ", %H:%M", ", %H:%M:%S",
)  # fmt: skip
_DATE_LIKE = (
    r"^[0-9]{1,4}[-./ ][A-Za-z0-9]{1,9}[-./ ,]+[0-9]{2,4}|^[A-Za-z]{3,9},? |^[0-9]{8}([0-9]{4,6})?$"
)
"""What every text of a format below looks like: trying them all takes a while."""
_ZONES = ("", "%z", " %z")


def _formats(bare: pa.Array, parser: TimeTexts, settings: InputSettings) -> list[str]:
    """The formats of which all (but a few broken) texts are, the likeliest first."""
    if settings.time_format:
        tried: list[str] = list(settings.time_format)
    else:
        tried = [f"{d}{c}{z}" for d in _DATES for c in _CLOCKS for z in (_ZONES if c else ("",))]
        tried += ["%Y%m%d%H%M%S", "%Y%m%d%H%M", "%d/%b/%Y:%H:%M:%S %z"]
    cells = bare.slice(0, 300)
    if not pc.any(pc.match_substring_regex(cells.slice(0, 5), _DATE_LIKE)).as_py():
        return []
    # one text leaves few formats
    few = cells.slice(0, 2)
    tried = parser.matching(few, tried)
    found = []
    for form in tried:
        parsed = parser.parse(cells, form)
        if parsed.null_count <= MOST_WRONG * len(cells):
            found.append((parsed.null_count, _disorder(parsed), len(form), form))
    # the fewest broken ones; of day and month, the order in which the rows ascend, then the day
    found.sort(key=lambda item: (item[0], item[1] if len(cells) > 3 else 0))
    return [item[-1] for item in found]


def _disorder(times: pa.Array) -> int:
    plain = times.drop_null().cast(pa.int64()).to_numpy(zero_copy_only=False)
    return int((np.diff(plain) < 0).sum())


def _unit(column: pa.ChunkedArray) -> str | None:
    """The unit in which all numbers are times between 1990 and 2100, None if there is none."""
    known = column.drop_null()
    if not len(known):
        return None
    least, greatest = float(pc.min(known).as_py()), float(pc.max(known).as_py())
    for unit, scale in _UNITS:
        per_second = scale / 1e9
        if _YEARS[0] * per_second <= least and greatest <= _YEARS[1] * per_second:
            return unit
    return None


def _decimals_of(column: pa.ChunkedArray) -> int | None:
    values = column.slice(0, 20_000).to_numpy()
    for scale in range(5):
        if np.allclose(np.round(values * 10**scale), values * 10**scale, rtol=0, atol=1e-6):
            return scale
    return None


def _written_decimals(numbers: pa.Array) -> int | None:
    longest = max((len(t.partition(".")[2]) for t in numbers.to_pylist()), default=0)
    return longest if longest <= 4 else None


def _choose_time(
    path: Path,
    columns: list[InputColumnProfile],
    settings: InputSettings,
    kept: set[str],
    wanted: str | None,
    notes: list[str],
) -> tuple[list[InputColumnProfile], InputSettings]:
    def is_time(c: InputColumnProfile) -> bool:
        return c.type is not None and (
            c.type.text in ("timestamp", "date") or c.time_unit is not None
            or c.time_format is not None or (c.field == wanted and c.type.is_numeric)
        )  # fmt: skip

    candidates = [c for c in columns if is_time(c)]
    if wanted is not None:
        if wanted not in [c.field for c in columns]:
            raise ConfigurationError(
                f"--event-time {wanted}: {path} has no such column"
                f"{did_you_mean(wanted, [c.field for c in columns])}; it has: "
                f"{', '.join(c.field for c in columns)}"
            )
        candidates = [c for c in candidates if c.field == wanted]
        if not candidates:
            got = next(c for c in columns if c.field == wanted)
            raise ConfigurationError(
                f"--event-time {wanted}: its values, as {got.example!r}, are not recognised as "
                "times; give their form by --input time_format='%d.%m.%Y %H:%M', or the unit of "
                "numbers by --input time_unit=s"
            )
    if not candidates:
        raise ConfigurationError(
            f"{path}: no column has times; features need the time of each event. It has: "
            + ", ".join(f"{c.field} (as {c.example!r})" for c in columns[:20])
            + ". Name it by --event-time COLUMN, with its form by --input time_format='...'"
        )
    named = [c for c in candidates if _TIME_NAME.search(c.field.lower())]
    typed = [c for c in candidates if c.type is not None and c.type.text == "timestamp"]
    order = [*[c for c in typed if c in named], *typed, *named, *candidates]
    chosen = order[0]
    rest = [c.field for c in dict.fromkeys(order) if c is not chosen]
    if rest and wanted is None:
        notes.append(
            f"event time: {chosen.field!r}; {', '.join(map(repr, rest))} could be it, too "
            f"(--event-time {rest[0]})"
        )
    unit = settings.time_unit if "time_unit" in kept else chosen.time_unit or "ms"
    form = chosen.time_format
    if "time_format" not in kept:
        forms = [c.time_format for c in (chosen, *candidates) if c.time_format and not c.is_read]
        settings = replace(settings, time_format=tuple(dict.fromkeys(forms)))
    settings = replace(settings, time_unit=unit if form is None else "ms")
    is_number = chosen.type is not None and chosen.type.is_numeric and form is None
    if is_number and not settings.time_format:
        notes.append(f"numbers in {chosen.field!r} are read as {unit} since 1970 in UTC")
    out = []
    for c in columns:
        if c is chosen:
            c = replace(c, role="event time", type=Int64)
        elif c.time_format and c.type is not None and c.type.is_numeric:
            c = replace(c, time_format=None)
        out.append(c)
    return out, settings


def _is_read(column: pa.ChunkedArray, form: str, parser: TimeTexts) -> bool:
    """Whether ``ingest`` reads the texts of a format as they are: ISO 8601 with all digits."""
    if not form.startswith("%Y-%m-%d") or form.endswith("%z") or "%I" in form or ", " in form:
        return False
    cells = pa.array(_different(column, 20_000), pa.string())
    refused = text_values(cells, Int64, True).wrong
    # texts that neither reads are the rows', not the format's
    if refused is None:
        return True
    parsed = parser.parse(cells.filter(pa.array(refused)), form)
    return not len(parsed.drop_null())


def _times(
    column: pa.ChunkedArray, chosen: InputColumnProfile, settings: InputSettings, parser: TimeTexts
) -> pa.Array:
    """The event times of the sample in milliseconds, null where there is none."""
    from paimon_features.local.inputs.conversion import CellConverter

    cells = pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
    converter = CellConverter(settings, {chosen.field: Int64}, chosen.field)
    with converter:
        batch = converter.convert(pa.RecordBatch.from_arrays([cells], names=[chosen.field]))
    made = batch.column(0)
    if pa.types.is_string(made.type):
        made = text_values(made, Int64, True).values
    elif pa.types.is_timestamp(made.type) or pa.types.is_date(made.type):
        made = floor_times(made).view(pa.int64())
    made = made.cast(pa.int64())
    odd = pc.or_(pc.less(made, MIN_TIME_MS), pc.greater(made, MAX_TIME_MS))
    return pc.if_else(odd, pa.scalar(None, pa.int64()), made)


def _plain(name: str) -> str:
    """A name in plain letters: Ünïcode is unicode, TotalPrice total_price."""
    letters = "".join(
        c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c)
    )
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", letters.replace("ß", "ss"))
    plain = re.sub(r"[^a-z0-9]+", "_", spaced.lower()).strip("_")
    return plain if plain[:1].isalpha() else f"c_{plain}".rstrip("_")


_RESERVED = {"event_day", "ingest_time_ms", "tile_day", "tile_start", *CONSTANTS}


def _named(columns: list[InputColumnProfile]) -> list[InputColumnProfile]:
    """Names that a source's columns may have, each once."""
    taken: set[str] = set()
    out = []
    for column in columns:
        name = _plain(column.field)
        if name in _RESERVED or name.startswith("p_"):
            name = f"{name}_value" if name in _RESERVED else f"c_{name}"
        stem, number = name, 2
        while name in taken:
            name, number = f"{stem}_{number}", number + 1
        taken.add(name)
        out.append(replace(column, name=name))
    return out


def _role(column: InputColumnProfile, rows: int) -> InputColumnProfile:
    if column.role != "other" or column.type is None:
        return column
    kind, name = column.type, column.name
    is_key_type = kind.is_key and kind.text not in ("bool", "date")
    unique = rows > 20 and column.distinct >= 0.999 * (rows - column.nulls)
    if is_key_type and _KEY_NAME.search(name):
        role: Role = "event id" if unique and not _STRONG.search(name) else "key"
        return replace(column, role=role)
    if kind.text == "bool":
        return replace(column, role="flag")
    if kind.is_numeric:
        return replace(column, role="measure")
    if kind.text == "string" and column.distinct <= max(20, 0.05 * rows) and column.distinct > 1:
        return replace(column, role="category")
    return column


def strength(column: InputColumnProfile) -> tuple[float, ...]:
    """How likely a key is the entity: by its name, and by several events of a value."""
    several = 1.0 if column.per_value >= 1.2 and column.distinct >= 2 else 0.0
    named = 2.0 if _STRONG.search(column.name) else 1.0 if column.name.endswith("_id") else 0.0
    return (several, named, -float(column.nulls), float(column.distinct))


def iter_roles(profile: InputProfile) -> Iterator[InputColumnProfile]:
    """The columns that can be an entity's key, the likeliest first."""
    keys = profile.of_role("key")
    yield from sorted(keys, key=strength, reverse=True)
    texts = [c for c in profile.of_role("other", "category") if c.type == String]
    yield from sorted((c for c in texts if c.per_value >= 1.2 and c.distinct >= 2),
                      key=lambda c: c.distinct, reverse=True)  # fmt: skip
