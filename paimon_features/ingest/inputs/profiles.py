"""What the columns of an input are: types, times and their units, keys, measures.

Everything is decided from a sample of rows; what could be otherwise is a note of the column.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.configuration.input_settings import InputSettings
from paimon_features.core.errors import ConfigurationError, unknown_name
from paimon_features.core.times.durations import MAX_TIME_MS, MIN_TIME_MS
from paimon_features.core.times.utc_ms import floor_times
from paimon_features.core.types.foreign_types import is_plain
from paimon_features.core.types.schema import (
    Date,
    Int64,
    String,
    Timestamp,
)
from paimon_features.ingest.cells.text_values import text_values
from paimon_features.ingest.input_columns import candidates_of
from paimon_features.ingest.inputs.column_names import (
    has_key_word,
    has_time_word,
    names_entity,
    source_names,
)
from paimon_features.ingest.inputs.column_types import (
    ColumnType,
    InputColumnProfile,
    Role,
    column_type,
)
from paimon_features.ingest.inputs.conversion import CellConverter
from paimon_features.ingest.inputs.dialects import sniff
from paimon_features.ingest.inputs.numbers import (
    number_settings,
    with_entries,
)
from paimon_features.ingest.inputs.opening import (
    OpenedInput,
    checked_form,
    closing_of,
    open_input,
    reported,
)
from paimon_features.ingest.inputs.proof import rejected_notes
from paimon_features.ingest.inputs.reading_process import progressed
from paimon_features.ingest.inputs.time_texts import TimeTexts

SAMPLE_ROWS = 200_000
SAMPLE_BYTES = 256 << 20


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
    unreadable = len(opened.unreadable)
    if not sample.num_rows:
        raise ConfigurationError(_no_rows(path, opened))
    names = source_names(sample.column_names)
    settings = number_settings(sample, names, settings, kept, notes)
    with TimeTexts(settings.time_zone) as parser:
        columns = [
            _column(sample, field, names[field], settings, parser, opened.nested.get(field))
            for field in sample.column_names
        ]
        columns, settings = _choose_time(path, columns, settings, kept, event_time, notes)
        chosen = next(c for c in columns if c.role == "event time")
        times = _times(sample.column(chosen.field), chosen, settings)
    event_times = times.drop_null()
    if not len(event_times):
        unit = f" in {settings.time_unit}" if chosen.time_format is None else ""
        raise ConfigurationError(
            f"{path}: no value of {chosen.field!r}, as {chosen.example!r}, is a time{unit} of the "
            "years 1 to 9999; name another column by --event-time, the unit of numbers by --input "
            "time_unit=..., or the form of texts by --input time_format='...'"
        )
    columns = [_role(c, sample.num_rows) for c in columns]
    clear = {
        c.name: c.field
        for c in columns
        if c.type is not None and candidates_of(c.name, None, sample.column_names) != [c.field]
    }
    settings = replace(settings, columns={**clear, **given.columns})
    notes += rejected_notes(path, sample, settings, columns, opened.take_unreadable())
    return InputProfile(
        path,
        opened.form,
        settings,
        sample.num_rows,
        complete,
        sample.num_rows if complete else opened.rows,
        columns,
        pc.min(event_times).as_py(),
        pc.max(event_times).as_py(),
        unreadable,
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
    """Yield the profile, for ``read_apart``."""
    yield profile_input(path, given, kept, event_time=event_time, sample_rows=sample_rows)


def take_sample(opened: OpenedInput, rows: int) -> tuple[pa.Table, bool]:
    """Return the first rows, and whether these are all."""
    batches: list[pa.RecordBatch] = []
    count = size = 0
    complete = True
    for batch in opened.batches:
        batches.append(batch)
        count, size = count + batch.num_rows, size + batch.nbytes
        if count >= rows or size >= SAMPLE_BYTES:
            complete = count <= rows and next(iter(opened.batches), None) is None
            break
    tables = [pa.Table.from_batches([batch]) for batch in batches] or [opened.schema.empty_table()]
    # a batch of JSON may have more keys than those before it
    return pa.concat_tables(tables, promote_options="default").slice(0, rows), complete


def _no_rows(path: Path, opened: OpenedInput) -> str:
    names = ", ".join(opened.schema.names[:20])
    if not opened.unreadable:
        return f"{path}: it has columns ({names}) but no rows"
    first = opened.unreadable[0]
    return (
        f"{path}: none of the {len(opened.unreadable):,} rows that were read can be split into the "
        f"columns ({names}): {first.detail}, as {first.text[:80]!r}; give other names by --input "
        "header=false --input skip=1 --input names=a,b,..., lines before the header by --input "
        "skip=N, or another --input delimiter"
    )


def _column(
    sample: pa.Table,
    field: str,
    name: str,
    settings: InputSettings,
    parser: TimeTexts,
    nested: str | None,
) -> InputColumnProfile:
    progressed()
    column = sample.column(field)
    stored = nested or str(column.type)
    if not is_plain(column.type):
        note = f"skipped: {stored[:200]} cannot be a column of a source; convert it"
        return InputColumnProfile(field, name, stored, None, 0, 0, "", "skipped", notes=(note,))
    settings = settings.of_column(name)
    if settings.nulls and pa.types.is_string(column.type):
        gone = pc.is_in(pc.utf8_trim_whitespace(column), pa.array(settings.nulls))
        column = pc.if_else(gone, pa.scalar(None, column.type), column)
    nulls, valid = column.null_count, len(column) - column.null_count
    if not valid:
        note = "skipped: no value in the rows that were read"
        return InputColumnProfile(field, name, stored, None, nulls, 0, "", "skipped", notes=(note,))
    if nested is None:
        typed = column_type(column, field, settings, parser)
    else:
        reason = f"skipped: a JSON {nested} cannot be a column of a source; flatten or convert it"
        typed = ColumnType(None, (reason,))
    try:
        distinct = pc.count_distinct(column).as_py()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        distinct = 0
    example = _shown(column.drop_null())[:40]
    role: Role = "other" if typed.type is not None else "skipped"
    per_value = valid / distinct if distinct else 0.0
    return InputColumnProfile(
        field, name, stored, typed.type, nulls, distinct, example, role, typed.decimals, per_value,
        typed.time_format, typed.time_unit, typed.days_only, typed.notes,
    )  # fmt: skip


def _shown(values: pa.ChunkedArray) -> str:
    """Return the first value as a text."""
    try:
        return str(values[0].as_py())
    except (OverflowError, ValueError):  # a time that Python does not have
        return str(values.slice(0, 1).combine_chunks().to_string(skip_new_lines=True)).strip("[ ]")


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
        fields = [c.field for c in columns]
        if wanted not in fields:
            message = unknown_name("column", wanted, fields, str(path))
            raise ConfigurationError(f"--event-time {wanted}: {message}")
        candidates = [c for c in candidates if c.field == wanted]
        if not candidates:
            got = next(c for c in columns if c.field == wanted)
            raise ConfigurationError(
                f"--event-time {wanted}: its values, as {got.example!r}, are not recognised as "
                "times; give their form by --input time_format='%d.%m.%Y %H:%M', or the unit of "
                "numbers by --input time_unit=s"
            )
    if not candidates:
        hints = "".join(f"; {note}" for note in notes if "--input skip=" in note)
        raise ConfigurationError(
            f"{path}: no column has times; features need the time of each event. Columns: "
            + ", ".join(f"{c.field} (as {c.example!r})" for c in columns[:20])
            + ". Name it by --event-time COLUMN, with its form by --input time_format='...'"
            + hints
        )
    named = [c for c in candidates if has_time_word(c.field)]
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
        settings = replace(settings, time_format=() if form is None else (form,))
        for c in columns:
            other_format = c.time_format if c.type in (Timestamp, Date) else None
            if c is not chosen and other_format is not None and other_format != form:
                settings = with_entries(settings, c.name, {"time_format": (other_format,)})
    settings = replace(settings, time_unit=unit if form is None else "ms")
    is_number = chosen.type is not None and chosen.type.is_numeric and form is None
    if is_number and not settings.time_format:
        notes.append(f"numbers in {chosen.field!r} are read as {unit} since 1970 in UTC")
    columns = [
        replace(c, role="event time", type=Int64) if c is chosen
        else replace(c, time_format=None) if c.type is not None and c.type.is_numeric
        else c
        for c in columns
    ]  # fmt: skip
    return columns, settings


def _times(
    column: pa.ChunkedArray, chosen: InputColumnProfile, settings: InputSettings
) -> pa.Array:
    """Return the event times of the sample in milliseconds, null where there is none."""
    cells = pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
    columns = {chosen.field: (chosen.name, Int64)}
    with CellConverter(settings, columns, {chosen.field}) as converter:
        batch = converter.convert(pa.RecordBatch.from_arrays([cells], names=[chosen.field]))
    times = batch.column(0)
    if pa.types.is_string(times.type):
        times = text_values(times, Int64, True).values
    elif pa.types.is_timestamp(times.type) or pa.types.is_date(times.type):
        times = floor_times(times).view(pa.int64())
    times = times.cast(pa.int64())
    odd = pc.or_(pc.less(times, MIN_TIME_MS), pc.greater(times, MAX_TIME_MS))
    return pc.if_else(odd, pa.scalar(None, pa.int64()), times)


def _role(column: InputColumnProfile, rows: int) -> InputColumnProfile:
    if column.role != "other" or column.type is None:
        return column
    kind, name = column.type, column.name
    is_key_type = kind.is_key and kind.text not in ("bool", "date")
    unique = rows > 20 and column.distinct >= 0.999 * (rows - column.nulls)
    if is_key_type and has_key_word(name):
        role: Role = "event id" if unique and not names_entity(name) else "key"
        return replace(column, role=role)
    if kind.text == "bool":
        return replace(column, role="flag")
    if kind.is_numeric and not (kind.is_decimal and column.decimals is None):
        return replace(column, role="measure")
    if kind.text == "string" and column.distinct <= max(20, 0.05 * rows) and column.distinct > 1:
        return replace(column, role="category")
    return column


def strength(column: InputColumnProfile) -> tuple[float, ...]:
    """Return how likely a key is the entity: by its name, and by several events of a value."""
    several = 1.0 if column.per_value >= 1.2 and column.distinct >= 2 else 0.0
    named = 2.0 if names_entity(column.name) else 1.0 if column.name.endswith("_id") else 0.0
    return (several, named, -float(column.nulls), float(column.distinct))


def iter_roles(profile: InputProfile) -> Iterator[InputColumnProfile]:
    """Yield the columns that can be an entity's key, the likeliest first."""
    keys = profile.of_role("key")
    yield from sorted(keys, key=strength, reverse=True)
    texts = [c for c in profile.of_role("other", "category") if c.type == String]
    yield from sorted((c for c in texts if c.per_value >= 1.2 and c.distinct >= 2),
                      key=lambda c: c.distinct, reverse=True)  # fmt: skip
