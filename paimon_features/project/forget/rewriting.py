"""Delete rows of a table by replacing the partitions that contain them.

A Paimon table has no statement that deletes rows of an append or aggregation table. Each partition
that contains such a row is read at one snapshot, merged, and replaced by its other rows in an
OVERWRITE commit. Interrupted anywhere, the table has its rows of before, or fewer of those to
delete; repeating it deletes the rest.
"""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.types.array_types import Bools
from paimon_features.lake import Lake, iter_batches, latest_snapshot
from paimon_features.lake.table_folders import merge_folder, rollup_folder
from paimon_features.lake.writing.overwrite import Overwrite

Mask = Callable[[pa.Table], Bools]
"""Which rows of a table to delete."""
Partition = tuple[Any, ...]


@dataclass(frozen=True)
class TableRows:
    """The rows of a table that are to be deleted: how many in which partitions, at a snapshot.

    ``columns`` are those that ``mask`` needs.
    """

    table: str
    columns: tuple[str, ...]
    mask: Mask
    snapshot: str | None
    partitions: Mapping[Partition, int]

    @property
    def rows(self) -> int:
        return sum(self.partitions.values())


def find_rows(lake: Lake, table: str, columns: tuple[str, ...], mask: Mask) -> TableRows:
    """Find the rows to delete: reads ``columns`` of the whole table, a batch at a time."""
    newest = latest_snapshot(lake, table)
    if newest is None:
        return TableRows(table, columns, mask, None, {})
    keys = partition_keys(lake, table)
    counts: Counter[Partition] = Counter()
    wanted = list(dict.fromkeys([*columns, *keys]))
    for batch in iter_batches(lake, table, wanted, newest.ref):
        rows = pa.Table.from_batches([batch])
        matches = rows.filter(pa.array(mask(rows))).select(keys)
        counts.update(_partitions(matches))
    return TableRows(table, columns, mask, newest.ref, dict(counts))


def delete_rows(lake: Lake, found: TableRows) -> int | None:
    """Delete the rows; returns the newest snapshot, None if there was nothing to delete.

    The caller owns the table since before ``find_rows``. Caches of merged and rolled-up rows of the
    table are deleted first.
    """
    if not found.rows:
        return None
    for cache in (rollup_folder(lake, found.table), merge_folder(lake, found.table)):
        if cache is not None:
            shutil.rmtree(cache, ignore_errors=True)
    keys = partition_keys(lake, found.table)
    with Overwrite(lake, found.table, f"forget-{uuid.uuid4()}") as overwrite:
        for partition in found.partitions:
            named = dict(zip(keys, partition, strict=True))
            kept = 0
            for rows in _rows(lake, found, named):
                left = rows.filter(pa.array(~found.mask(rows)))
                if left.num_rows:
                    overwrite.replace(left)
                    kept += left.num_rows
            if not kept:
                overwrite.empty(named)
        return overwrite.commit()


def partition_keys(lake: Lake, table: str) -> list[str]:
    """Return the partition columns of a table."""
    return list(lake.table(table).partition_keys)


def _rows(lake: Lake, found: TableRows, partition: Mapping[str, Any]) -> Iterator[pa.Table]:
    """Yield all rows of a partition, merged."""
    ranges = {
        name: (value, value + 1)
        for name, value in partition.items()
        if isinstance(value, int) and not isinstance(value, bool)
    }
    others = {name: value for name, value in partition.items() if name not in ranges}
    for batch in iter_batches(lake, found.table, None, found.snapshot, ranges or None):
        rows = pa.Table.from_batches([batch])
        if others:
            same = np.array(
                [p == tuple(others.values()) for p in _partitions(rows.select(list(others)))]
            )
            rows = rows.filter(pa.array(same, pa.bool_()))
        yield rows


def _partitions(rows: pa.Table) -> Iterator[Partition]:
    if not rows.num_columns:
        return (() for _ in range(rows.num_rows))
    return zip(*(column.to_pylist() for column in rows.columns), strict=True)
