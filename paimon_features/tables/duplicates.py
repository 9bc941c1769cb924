"""Duplicates by their event id, looked up in the events table: the rule of Python's writers.

The same rule as the ingest job's (``paimon_features.flink.sql.duplicates``): a row is a
duplicate if a row with
its id has entered within the horizon, or stands before it in the same batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.array_types import Bools
from paimon_features.tables.catalog import Lake
from paimon_features.tables.reader import iter_batches
from paimon_features.tables.specs import INGEST_TIME_MS


def identity_columns(event_id: str, retraction: str | None, schema: Mapping[str, Any]) -> list[str]:
    """The columns that have to be equal for a row to be a duplicate.

    A withdrawal has the id of its event, and each of them comes once. (With the kinds of a change
    log there is no event id, see ``EventSource``.)
    """
    return [event_id] if retraction is None else [event_id, retraction]


def duplicates(
    lake: Lake,
    table: str,
    columns: Sequence[str],
    rows: pa.Table,
    asked: Bools,
    since_ms: int,
) -> Bools:
    """Which of the ``asked`` rows are duplicates.

    Ids that entered after ``since_ms`` (exclusive) count; of the files of the events table, those
    that hold none of these are not opened.
    """
    keys = list(zip(*(rows.column(name).to_pylist() for name in columns), strict=True))
    wanted = {keys[i] for i in np.flatnonzero(asked).tolist()}
    seen: set[tuple[Any, ...]] = set()
    if wanted:
        recent = {INGEST_TIME_MS: (since_ms + 1, None)}
        for batch in iter_batches(lake, table, columns, partitions=recent):
            found = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            seen.update(wanted.intersection(found))
    again = np.zeros(len(keys), np.bool_)
    for i in np.flatnonzero(asked).tolist():
        again[i] = keys[i] in seen
        seen.add(keys[i])
    return again
