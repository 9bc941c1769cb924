"""Read a table in parts: planned once, each part read by the process it is assigned to."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from paimon_features.lake.catalog import Lake
from paimon_features.lake.reading.table_reader import _PYTHON_ROUTE, _Reader


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """Splits of one snapshot of a table, which can be pickled and read elsewhere.

    ``splits`` are opaque; ``rows`` are upper bounds of their rows (before merging).
    """

    lake: Lake
    table: str
    columns: tuple[str, ...] | None
    snapshot_id: int | None
    splits: tuple[bytes, ...]
    rows: tuple[int, ...]

    def part(self) -> SplitPlan:
        """Return the same without its splits, for processes that receive some of them to
        ``read``."""
        return replace(self, splits=(), rows=())

    def read(self, splits: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
        """Return the rows of some of the splits, in record batches.

        Raises
        ------
        SnapshotExpiredError
            If the snapshot has expired since planning.
        """
        reader = self._reader()
        if reader.table is None:
            return iter(())
        builder = reader.table.new_read_builder().with_projection(reader.read_columns)
        return reader._stream(builder.new_read(), [pickle.loads(split) for split in splits])

    def _reader(self) -> _Reader:
        return _Reader(
            self.lake, self.table, self.columns, self.snapshot_id, None, None, None, True
        )


def plan_splits(lake: Lake, table: str, columns: Sequence[str] | None = None) -> SplitPlan:
    """Plan the splits of the newest snapshot of a table; none for an empty table.

    Raises
    ------
    UnknownNameError
        For a column that the table does not have.
    """
    chosen = None if columns is None else tuple(columns)
    reader = _Reader(lake, table, chosen, None, None, None, None, True)
    if reader.table is None:
        return SplitPlan(lake, table, chosen, None, (), ())
    # splits of the native plan cannot be pickled
    planned = reader.table.copy(_PYTHON_ROUTE)
    splits = planned.new_read_builder().with_projection(reader.read_columns).new_scan().plan()
    largest_first = sorted(splits.splits(), key=lambda split: (-int(split.row_count), split.bucket))
    return SplitPlan(
        lake,
        table,
        chosen,
        reader.snapshot_id,
        tuple(pickle.dumps(split) for split in largest_first),
        tuple(int(split.row_count) for split in largest_first),
    )
