"""Events with future timestamps: held while they are ahead of the clock, then released.

The held rows follow from the rejected table alone, which is append-only::

    reason           raw    origin   ingest_id      detail
    time_in_future   {..}   a.csv    8c1f           ...           held
    released         {..}   a.csv    release-5      8c1f          ... released as an event at 5

A release commits its notes first and the events second, both with the same user and release
number. After a crash in between, the next release finds notes without events and writes those
first: nothing is lost or duplicated.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.errors import TableError
from paimon_features.definitions.source import EventSource
from paimon_features.lake import table_options
from paimon_features.lake.catalog import Lake
from paimon_features.lake.events.event_ids import duplicates, identity_columns
from paimon_features.lake.events.rejects import DUPLICATE, RELEASED, TIME_IN_FUTURE
from paimon_features.lake.reading.table_reader import iter_batches
from paimon_features.lake.specs import INGEST_TIME_MS
from paimon_features.lake.writing.table_writer import (
    append_arrow,
    committed_identifiers,
    event_rows,
)

_PREFIX = "release-"
_COLUMNS = ("reason", "detail", "raw", "origin", "ingest_id")


@dataclass(frozen=True, slots=True)
class Released:
    """The result of a release at ``time_ms`` (the events' ``ingest_time_ms``; 0 if nothing was
    held).

    ``events`` were released; ``duplicates`` had a known event id; ``waiting`` are still ahead of
    the clock, the first of them until ``next_ms``.
    """

    time_ms: int
    events: int
    duplicates: int
    waiting: int
    next_ms: int | None


def release_due(lake: Lake, source: EventSource, now_ms: int) -> Released:
    """Release held events that are no longer ahead of the clock by more than ``max_skew``.

    The caller must own both tables. Idempotent.

    Raises
    ------
    TableError
        If a held row is not in the expected format.
    """
    user = f"release-{source.name}"
    noted = committed_identifiers(lake, source.rejected_table, user)
    entered = committed_identifiers(lake, source.table, user)
    waiting: list[tuple[str, str, str]] = []
    unfinished: list[str] = []
    done: Counter[tuple[str, str, str]] = Counter()
    for reason, detail, raw, origin, ingest_id in _rows(lake, source.rejected_table):
        if reason == TIME_IN_FUTURE:
            waiting.append((raw, origin, ingest_id))
        elif reason in (RELEASED, DUPLICATE) and ingest_id.startswith(_PREFIX):
            done[raw, origin, detail] += 1
            if reason == RELEASED and ingest_id == f"{_PREFIX}{noted}":
                unfinished.append(raw)
    recovered = 0
    if noted is not None and noted != entered and unfinished:
        _enter(lake, source, _parsed(source, unfinished), user, noted)
        recovered = len(unfinished)
    still = []
    for row in waiting:
        if done[row]:
            done[row] -= 1
        else:
            still.append(row)
    rows = _parsed(source, [raw for raw, _, _ in still])
    times = rows.column(source.event_time).to_numpy()
    due = times <= now_ms + source.max_skew_ms
    late = times[~due]
    next_ms = int(late.min()) - source.max_skew_ms if len(late) else None
    if not due.any():
        time_ms = noted if recovered and noted is not None else 0
        return Released(time_ms, recovered, 0, len(late), next_ms)
    number = max(now_ms, 0 if noted is None else noted + 1)
    again = np.zeros(len(due), np.bool_)
    if source.event_id is not None and source.horizon_ms is not None:
        columns = identity_columns(source.event_id, source.retraction, source.schema)
        since_ms = now_ms - source.horizon_ms
        again = duplicates(lake, source.table, columns, rows, due, since_ms)
    released = np.flatnonzero(due).tolist()
    notes = pa.table(
        {
            "reason": [DUPLICATE if again[i] else RELEASED for i in released],
            "detail": [still[i][2] for i in released],
            "raw": [still[i][0] for i in released],
            "origin": [still[i][1] for i in released],
            "ingest_id": [f"{_PREFIX}{number}"] * len(released),
            INGEST_TIME_MS: pa.array([number] * len(released), pa.int64()),
        }
    )
    append_arrow(lake, source.rejected_table, notes, commit_user=user, commit_identifier=number)
    fresh = rows.filter(pa.array(due & ~again))
    _enter(lake, source, fresh, user, number)
    events = recovered + fresh.num_rows
    return Released(number, events, int(again.sum()), len(late), next_ms)


@dataclass(frozen=True, slots=True)
class RejectedCounts:
    """Counts of a rejected table: ``rejected`` by reason, ``held`` events, ``released`` ones."""

    rejected: Mapping[str, int]
    held: int
    released: int


def count_rejected(lake: Lake, table: str, snapshot_id: int | None = None) -> RejectedCounts:
    """Count the rows of a rejected table; reads two columns of all of them."""
    counts: Counter[str] = Counter()
    ended = released = 0
    columns = ("reason", "ingest_id")
    for batch in iter_batches(lake, table, columns, snapshot_id=snapshot_id):
        pairs = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        for reason, ingest_id in pairs:
            if reason in (RELEASED, DUPLICATE) and ingest_id.startswith(_PREFIX):
                ended += 1
                released += reason == RELEASED
            else:
                counts[reason] += 1
    held = counts.pop(TIME_IN_FUTURE, 0) - ended
    return RejectedCounts(dict(sorted(counts.items())), held, released)


def _enter(lake: Lake, source: EventSource, rows: pa.Table, user: str, number: int) -> None:
    events = event_rows(
        rows, source.event_time, number, table_options.partition_days(lake, source.table)
    )
    append_arrow(lake, source.table, events, commit_user=user, commit_identifier=number)


def _rows(lake: Lake, table: str) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield the rows of the rejected table that concern held events."""
    wanted = {"reason": [TIME_IN_FUTURE, RELEASED, DUPLICATE]}
    for batch in iter_batches(lake, table, _COLUMNS, where=wanted):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _parsed(source: EventSource, raws: list[str]) -> pa.Table:
    """Held rows with the columns and types of the source."""
    # parse numbers from text: floats would round decimals and large integers
    rows = [json.loads(raw, parse_int=str, parse_float=str) for raw in raws]
    arrays = []
    for name, kind in source.schema.items():
        try:
            arrays.append(_array([row[name] for row in rows], kind.arrow))
        except (KeyError, TypeError, ValueError) as error:
            raise TableError(
                f"table {source.rejected_table!r}: a held row cannot be read, "
                f"column {name!r}: {error!r}"
            ) from error
    return pa.table(arrays, names=list(source.schema))


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_list(kind):
        texts = [None if v is None else [_text(item) for item in v] for v in values]
        return pa.array(texts, pa.list_(pa.string())).cast(kind)
    texts = pa.array([_text(value) for value in values], pa.string())
    if pa.types.is_binary(kind):
        plain = [None if v is None else base64.b64decode(v) for v in texts.to_pylist()]
        return pa.array(plain, kind)
    if pa.types.is_timestamp(kind):
        return texts.cast(pa.timestamp("us")).cast(kind)
    return texts.cast(kind)


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return "true" if value is True else "false" if value is False else str(value)
