"""Rules for rejecting rows of events, shared by all ways of ingestion.

The reasons are the values of the column ``reason`` of the rejected table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.times.utc_ms import conform, utc_ms
from paimon_features.core.types.array_types import Bools
from paimon_features.core.windows import DAY_MS, MAX_TIME_MS, MIN_TIME_MS
from paimon_features.definitions.source import ROW_KINDS

UNREADABLE = "unreadable"
TOO_FEW_COLUMNS = "too_few_columns"
TOO_MANY_COLUMNS = "too_many_columns"
LINE_TOO_LONG = "line_too_long"
WRONG_TYPE = "wrong_type"
NOT_FINITE = "not_finite"
MISSING_TIME = "missing_time"
TIME_OUT_OF_RANGE = "time_out_of_range"
TIME_IN_FUTURE = "time_in_future"
"""Held for a future event time (see ``ingest.release``); no other rejected row is ever released."""
BAD_RETRACTION = "bad_retraction"
MISSING_EVENT_ID = "missing_event_id"
DUPLICATE = "duplicate"
RELEASED = "released"
"""Not a rejection but a note: the held row was released as an event."""

DEFAULT_MAX_SKEW_MS = DAY_MS
"""The maximum lead of an event time over the clock of the ingesting host."""


@dataclass
class Verdict:
    """The verdict for each row: the first reason found, if any."""

    rows: int
    bad: Bools = field(init=False)
    reason: list[str | None] = field(init=False)
    detail: list[str | None] = field(init=False)

    def __post_init__(self) -> None:
        self.bad = np.zeros(self.rows, np.bool_)
        self.reason = [None] * self.rows
        self.detail = [None] * self.rows

    def complain(self, rows: Bools, reason: str, detail: str) -> None:
        """Reject these rows, unless already rejected."""
        for row in np.flatnonzero(rows & ~self.bad):
            self.reason[row], self.detail[row] = reason, detail
        self.bad |= rows

    def counts(self) -> dict[str, int]:
        """Return the number of rejected rows by reason, sorted by reason."""
        rows_by_reason = Counter(self.reason[row] for row in np.flatnonzero(self.bad))
        return dict(sorted((reason, count) for reason, count in rows_by_reason.items() if reason))


def judge(
    rows: pa.Table,
    columns: Mapping[str, pa.DataType],
    event_time: str,
    now_ms: int,
    max_skew_ms: int = DEFAULT_MAX_SKEW_MS,
    retraction: str | None = None,
    event_id: str | None = None,
) -> tuple[pa.Table, Verdict]:
    """Cast the columns to their types and decide which rows are invalid.

    Returns the table with exactly ``columns`` (null where a value is invalid) and the verdict.
    Invalid are: values that cannot be represented in the column's type, NaN and infinities, a
    missing event time, one outside the years 1 to 9999 or after ``now_ms + max_skew_ms``, an
    unknown value of ``retraction``, a missing ``event_id``.
    """
    verdict = Verdict(rows.num_rows)
    arrays = []
    for name, kind in columns.items():
        array = rows.column(name).combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = pa.array([], array.type) if array.num_chunks == 0 else array.chunk(0)
        cast, wrong = _cast(array, kind, name == event_time)
        if pa.types.is_temporal(kind) and name != event_time:
            cast, outside = _within_years(cast)
            wrong |= outside
        verdict.complain(wrong, WRONG_TYPE, f"column {name}: no {kind}")
        if pa.types.is_floating(kind):
            infinite = pc.invert(pc.is_finite(cast)).fill_null(False)
            verdict.complain(_flags(infinite), NOT_FINITE, f"column {name}: NaN or infinity")
        arrays.append(cast)
    table = pa.table(arrays, names=list(columns))
    times = time_ms(table.column(event_time).combine_chunks())
    verdict.complain(_flags(times.is_null()), MISSING_TIME, f"column {event_time} is null")
    plain = times.fill_null(0).to_numpy(zero_copy_only=False)
    verdict.complain(
        (plain < MIN_TIME_MS) | (plain > MAX_TIME_MS),
        TIME_OUT_OF_RANGE,
        f"column {event_time}: outside the years 1 to 9999",
    )
    verdict.complain(
        plain > now_ms + max_skew_ms,
        TIME_IN_FUTURE,
        f"column {event_time}: more than {max_skew_ms} ms ahead of the clock",
    )
    if retraction is not None:
        kinds = table.column(retraction)
        valid = kinds.is_valid()
        if pa.types.is_string(kinds.type):
            valid = pc.and_(valid, pc.is_in(kinds, pa.array(ROW_KINDS)))
        verdict.complain(
            ~_flags(valid), BAD_RETRACTION, f"column {retraction}: neither event nor retraction"
        )
    if event_id is not None:
        missing = _flags(table.column(event_id).is_null())
        verdict.complain(missing, MISSING_EVENT_ID, f"column {event_id} is null")
    return table, verdict


def _within_years(times: pa.Array) -> tuple[pa.Array, Bools]:
    """Return the times, null where one is outside the years 1 to 9999, and where that is."""
    # a day as milliseconds, without an overflow
    ms = (
        pc.multiply(times.cast(pa.int32()).cast(pa.int64()), DAY_MS)
        if pa.types.is_date32(times.type)
        else utc_ms(times)
    )
    outside = pc.or_(pc.less(ms, MIN_TIME_MS), pc.greater(ms, MAX_TIME_MS)).fill_null(False)
    flags = _flags(outside)
    return (
        pc.if_else(outside, pa.scalar(None, times.type), times) if flags.any() else times
    ), flags


def time_ms(times: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return event times as int64 milliseconds, from integers or timestamps."""
    if isinstance(times, pa.ChunkedArray):
        times = pa.concat_arrays(times.chunks) if times.num_chunks else pa.array([], times.type)
    return utc_ms(times)


def _cast(array: pa.Array, kind: pa.DataType, event_time: bool) -> tuple[pa.Array, Bools]:
    """Return the values as ``kind``, null where one does not fit, and where that is."""
    try:
        return conform(array, kind, event_time=event_time), np.zeros(len(array), np.bool_)
    except _NO_CAST:
        pass
    try:
        conform(array.slice(0, 0), kind, event_time=event_time)
    except _NO_CAST:  # no value of this type fits
        return pa.nulls(len(array), kind), np.asarray(array.is_valid())
    if len(array) == 1:
        return pa.nulls(1, kind), np.ones(1, np.bool_)
    # some value is invalid: bisect, because invalid rows are few
    middle = len(array) // 2
    left, wrong_left = _cast(array.slice(0, middle), kind, event_time)
    right, wrong_right = _cast(array.slice(middle), kind, event_time)
    return pa.concat_arrays([left, right]), np.concatenate([wrong_left, wrong_right])


_NO_CAST = (pa.ArrowInvalid, pa.ArrowNotImplementedError)


def _flags(array: pa.Array | pa.ChunkedArray) -> Bools:
    return np.asarray(array.to_numpy(zero_copy_only=False), np.bool_)
