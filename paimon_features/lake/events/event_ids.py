"""Duplicates by event id, looked up in the events table: the rule of Python's writers.

The rule equals the ingest job's (``paimon_features.ingest.flink.duplicates``): a row is a duplicate
if a row with its id was ingested within the horizon, or precedes it in the same batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.types.array_types import Bools
from paimon_features.lake.catalog import Lake
from paimon_features.lake.reading.table_reader import iter_batches
from paimon_features.lake.specs import INGEST_TIME_MS


def identity_columns(event_id: str, retraction: str | None, schema: Mapping[str, Any]) -> list[str]:
    """Return the columns that identify duplicates.

    A retraction has the id of its event, and each occurs once. (With the row kinds of a change
    log there is no event id, see ``EventSource``.)
    """
    return [event_id] if retraction is None else [event_id, retraction]


def duplicates(
    lake: Lake,
    table: str,
    columns: Sequence[str],
    rows: pa.Table,
    requested: Bools,
    since_ms: int,
) -> Bools:
    """Return which of the ``requested`` rows are duplicates.

    Only ids ingested after ``since_ms`` (exclusive) count; files of the events table without any of
    them are not opened.
    """
    keys = list(zip(*(rows.column(name).to_pylist() for name in columns), strict=True))
    wanted = {keys[i] for i in np.flatnonzero(requested).tolist()}
    seen: set[tuple[Any, ...]] = set()
    if wanted:
        recent = {INGEST_TIME_MS: (since_ms + 1, None)}
        for batch in iter_batches(lake, table, columns, partitions=recent):
            ids = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            seen.update(wanted.intersection(ids))
    again = np.zeros(len(keys), np.bool_)
    for i in np.flatnonzero(requested).tolist():
        again[i] = keys[i] in seen
        seen.add(keys[i])
    return again
