"""The table of a derived view, ``features_<name>``: written and updated.

A refresh replaces whole days of starts: an event that comes late can move the start of a
session, or make two sessions one, so rows of before may have to go. Days whose rows are the
same are left alone, so that a refresh that finds nothing new commits nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from paimon_features.core.errors import TableError
from paimon_features.core.windows import DAY_MS, ceil_ms, floor_ms
from paimon_features.definitions import CompiledDerived
from paimon_features.definitions.derived import START_DAY
from paimon_features.lake import Lake, latest_snapshot, read_arrow, table_options
from paimon_features.lake.ownership.lease import acquire
from paimon_features.lake.reading.deltas import live_files
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.lake.specs import features_spec
from paimon_features.lake.table_options import PROPERTY_PREFIX
from paimon_features.lake.writing.overwrite import Overwrite
from paimon_features.offline.derived_rows import DerivedRead
from paimon_features.offline.reading.pinning import Pin

IDENTITY = "derived.identity"
"""Property: the fingerprint of the definition that the rows follow from."""


@dataclass(frozen=True, slots=True)
class DerivedRefresh:
    """Result of a refresh: rows in its range, days that it had to write.

    ``snapshot_id`` is the table's newest one (None while it has none), ``newest_ms`` the newest
    event that the tiles held.
    """

    table: str
    snapshot_id: int | None
    rows: int
    days_written: int
    days_emptied: int
    newest_ms: int
    source: Pin
    commits_not_included: int = 0
    """Commits of events that the tiles do not contain yet."""

    def to_document(self) -> dict[str, object]:
        """Return as JSON, for a program."""
        return {
            "table": self.table,
            "snapshot_id": self.snapshot_id,
            "rows": self.rows,
            "days_written": self.days_written,
            "days_emptied": self.days_emptied,
            "newest_ms": self.newest_ms,
            "sources": [self.source.to_document()],
            "commits_not_included": self.commits_not_included,
        }


def refresh(
    lake: Lake,
    derived: CompiledDerived,
    record: GenerationRecord,
    *,
    from_ms: int | None = None,
    to_ms: int | None = None,
    include_open: bool = False,
    replace: bool = False,
    memory_mb: float | None = None,
) -> DerivedRefresh:
    """Make the table hold the windows that start from ``from_ms`` to ``to_ms``, as of now.

    The range (UTC ms) is widened to whole days; rows outside stay as they are. Each day is
    replaced in one commit. Repeating it is harmless.

    Raises
    ------
    TableError
        If the table contains rows of another definition and ``replace`` is false.
    OwnershipError
        If another process is writing it.
    RequestError
        If there is no time between the two.
    """
    low = None if from_ms is None else floor_ms(from_ms, DAY_MS)
    high = None if to_ms is None else ceil_ms(to_ms, DAY_MS)
    read = DerivedRead(
        lake, derived, record,
        from_ms=low, to_ms=high, include_open=include_open, memory_mb=memory_mb,
    )  # fmt: skip
    target = derived.table
    with acquire(lake, target, purpose=f"derive {derived.name}"):
        _make(lake, derived, record, replace)
        gone = {day for day in _days(lake, target) if _inside(day, low, high)}
        rows = written = 0
        for table in read.tables():
            rows += table.num_rows
            with _overwrite(lake, target) as overwrite:
                for day, part in _changed(lake, derived, table, gone):
                    days = pa.array(np.full(part.num_rows, day, np.int32))
                    overwrite.replace(part.append_column(START_DAY, days))
                    written += 1
                overwrite.commit()
        with _overwrite(lake, target) as overwrite:
            for day in sorted(gone):
                overwrite.empty({"start_day": day})
            overwrite.commit()
    newest = latest_snapshot(lake, target)
    return DerivedRefresh(
        target,
        None if newest is None else newest.id,
        rows,
        written,
        len(gone),
        read.newest_ms,
        read.pin,
        read.not_included,
    )


def _make(lake: Lake, derived: CompiledDerived, record: GenerationRecord, replace: bool) -> None:
    """Create the table, or check that it contains rows of this definition."""
    target = derived.table
    if (
        lake.exists(target)
        and table_options.properties(lake, target).get(IDENTITY) != derived.fingerprint
    ):
        if not replace:
            raise TableError(
                f"table {target!r} contains rows of another definition of {derived.name!r}; "
                "replace it by the range that is derived now: replace=True, or --replace"
            )
        lake.drop(target, how="replaced")
    lake.create(
        features_spec(
            target,
            derived.columns,
            list(derived.view.keys),
            derived.start,
            record.buckets,
            {PROPERTY_PREFIX + IDENTITY: derived.fingerprint},
        )
    )


def _overwrite(lake: Lake, target: str) -> Overwrite:
    return Overwrite(lake, target, f"derive-{uuid.uuid4()}")


def _days(lake: Lake, target: str) -> set[int]:
    """Return the days that have rows."""
    newest = latest_snapshot(lake, target)
    if newest is None:
        return set()
    return {file.partition[START_DAY] for file in live_files(lake, target, newest.id)}


def _inside(day: int, low: int | None, high: int | None) -> bool:
    return (low is None or day * DAY_MS >= low) and (high is None or day * DAY_MS < high)


def _changed(
    lake: Lake, derived: CompiledDerived, table: pa.Table, there: set[int]
) -> Iterator[tuple[int, pa.Table]]:
    """Yield the days of these rows that differ in the table; all of them leave ``there``."""
    new = dict(_by_day(derived, table))
    order = [(name, "ascending") for name in (derived.start, *derived.view.keys)]
    span = {START_DAY: (min(new), max(new) + 1)}
    rows = read_arrow(lake, derived.table, table.column_names, partitions=span)
    old = dict(_by_day(derived, rows.sort_by(order)))
    for day, part in new.items():
        there.discard(day)
        if day not in old or not part.equals(old[day].cast(part.schema)):
            yield day, part


def _by_day(derived: CompiledDerived, table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield rows in the order of their starts, cut by the day of the start."""
    starts = table.column(derived.start).to_numpy()
    days, first = np.unique(starts // DAY_MS, return_index=True)
    for day, (begin, end) in zip(
        days.tolist(), pairwise([*first.tolist(), len(starts)]), strict=True
    ):
        yield day, table.slice(begin, end - begin).combine_chunks()
