"""Which files and row groups cannot contain rows of a read, by their manifest and statistics."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paimon_features.lake.reading.snapshot_content import Bounds, ContentFile
from trainer_bridge.blocks.data_files import DataFiles
from trainer_bridge.blocks.predicates import RowFilter
from trainer_bridge.blocks.row_selection import MergeUnit


@dataclass(frozen=True)
class Pruning:
    """Compares the condition of a read with what is known about files without reading rows."""

    data_files: DataFiles
    filter: RowFilter | None

    def prune(self, unit: MergeUnit) -> str | None:
        """Why no row of these files can be in the result, by their manifest; None if one may."""
        if self.filter is None:
            return None
        if not self.filter.can_hold(partition_bounds(unit[0])):
            return "files_outside_partitions"
        keys = self.data_files.content.rules.keys
        for file in unit:
            # a newer row may fail the condition and still hide an older one: files that merge
            # are ruled out only by what is true for every row of a key
            bounds = {
                name: limits
                for name, limits in file.bounds.items()
                if not file.merges or name in keys
            }
            if self.filter.can_hold({**bounds, **partition_bounds(file)}):
                return None
        return "files_outside_statistics"

    def needs_reading(self, unit: MergeUnit) -> bool:
        """Return True if rows have to be read to know which of them are in the result."""
        if any(file.merges or file.has_deletes or file.deletion is not None for file in unit):
            return True
        return self.filters(unit[0])

    def filters(self, file: ContentFile) -> bool:
        """Return True if the condition can be false for some row of a file."""
        if self.filter is None:
            return False
        edges = partition_bounds(file) if file.merges else {**file.bounds, **partition_bounds(file)}
        return not self.filter.must_hold(edges)

    def row_groups(self, file: ContentFile) -> Iterator[tuple[int, int, int, Mapping[str, Bounds]]]:
        """For each row group its number, its first row, its rows and the bounds of its columns."""
        assert self.filter is not None
        content = self.data_files.content
        stored = content.schemas[file.schema_id]
        names = {}
        for column in self.filter.columns:
            stored_field = stored.get(content.fields[column].id)
            if stored_field is not None and stored_field.type == content.fields[column].type:
                names[stored_field.name] = column
        metadata = self.data_files.metadata(file.path)
        start = 0
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            bounds = {}
            for place in range(group.num_columns):
                column = group.column(place)
                if column.path_in_schema in names:
                    limits = _group_bounds(column, group.num_rows)
                    if limits is not None:
                        bounds[names[column.path_in_schema]] = limits
            yield number, start, group.num_rows, bounds
            start += group.num_rows


def partition_bounds(file: ContentFile) -> dict[str, Bounds]:
    """Return the bounds of the partition columns: one value."""
    return {
        name: Bounds(nulls=file.rows) if value is None else Bounds(value, value, 0)
        for name, value in file.partition.items()
    }


def _group_bounds(column: Any, rows: int) -> Bounds | None:
    """Return the statistics of a column of a row group; None where they are unusable."""
    statistics = column.statistics
    if statistics is None or "DECIMAL" in str(statistics.logical_type).upper():
        return None  # pyarrow compares statistics of decimals wrongly
    nulls = statistics.null_count if statistics.has_null_count else None
    if not statistics.has_min_max:
        return Bounds(nulls=nulls) if nulls == rows else None
    least, greatest = statistics.min, statistics.max
    usable = (bool, int, float, str, bytes, dt.date)
    return Bounds(least, greatest, nulls) if isinstance(least, usable) else None
