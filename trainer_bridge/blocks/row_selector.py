"""Which rows of a snapshot's files are read: merged and filtered before the first block.

The global order needs the exact number of rows of each block, so keys are merged and
conditions are evaluated once, when a snapshot is opened. The result is a bit for each stored
row of a file (or of a fold), which a disk cache keeps for the next time: decoding a block
then reads its columns and drops rows, and never needs another block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from paimon_features.core.errors import TableError
from paimon_features.core.types.array_types import Bools
from paimon_features.lake.reading.snapshot_content import ContentFile
from trainer_bridge.blocks.data_files import DataFiles, Span
from trainer_bridge.blocks.folds import fold, take
from trainer_bridge.blocks.key_groups import KeyedFiles, MergedRows, in_write_order
from trainer_bridge.blocks.layers import Layers
from trainer_bridge.blocks.merge import adds, newest_rows, pack
from trainer_bridge.blocks.predicates import RowFilter
from trainer_bridge.blocks.pruning import Pruning, partition_bounds
from trainer_bridge.blocks.row_selection import MergeUnit, RowSelection, fold_path


@dataclass(frozen=True)
class RowSelector:
    """Decides which rows of the files of a snapshot are read."""

    data_files: DataFiles
    filter: RowFilter | None

    @cached_property
    def pruning(self) -> Pruning:
        return Pruning(self.data_files, self.filter)

    @cached_property
    def _keyed(self) -> KeyedFiles:
        return KeyedFiles(self.data_files)

    def select(self, unit: MergeUnit) -> RowSelection:
        """Merge the keys of a unit, apply deletion vectors and the condition."""
        if self._keyed.rules.folds and unit[0].merges:
            return self._fold(unit)
        selection = RowSelection()
        masks = self._merged(unit) if unit[0].merges else [self._inserted(unit[0])]
        for file, merged in zip(unit, masks, strict=True):
            mask = np.ones(file.rows, np.bool_) if merged is None else merged
            if file.deletion is not None:
                mask = mask & self._keyed.not_deleted(file)
            selection.count("rows_merged_away", file.rows - int(mask.sum()))
            if self.pruning.filters(file):
                before = int(mask.sum())
                mask = self._filtered(file, mask, selection)
                selection.count("rows_filtered", before - int(mask.sum()))
            _add(selection, file.path, mask)
        return selection

    def _inserted(self, file: ContentFile) -> Bools | None:
        """Return the rows of a file with unique keys that are not deletes; None if all are."""
        if not file.has_deletes:
            return None
        kinds = self._keyed.kinds(file)
        if kinds is None:
            return None
        self._keyed.check_kinds(file, kinds)
        return adds(kinds)

    def _merged(self, unit: MergeUnit) -> list[Bools]:
        """For each file, the newest rows of the keys (first-row: the oldest), except deletes."""
        keyed = self._keyed.group(unit, None, keep=True)
        keep = None
        if keyed.plain is not None and self._keyed.rules.engine == "deduplicate":
            keep = newest_rows(keyed.plain)
        if keep is None:
            keep = np.zeros(sum(file.rows for file in keyed.files), np.bool_)
            rows = (
                keyed.groups.first if self._keyed.rules.engine == "first-row" else keyed.groups.last
            )
            keep[rows if keyed.taken is None else keyed.taken[rows]] = True
        if keyed.kinds is not None:
            keep &= adds(keyed.kinds)
        ends = np.cumsum([file.rows for file in keyed.files])
        names = [file.path for file in keyed.files]
        parts = dict(zip(names, np.split(keep, ends[:-1]), strict=True))
        return [parts[file.path] for file in unit]

    def _filtered(self, file: ContentFile, mask: Bools, selection: RowSelection) -> Bools:
        """Return the rows of ``mask`` that fulfil the condition, row group by row group."""
        assert self.filter is not None
        schema = self._keyed.columns(self.filter.columns)
        out = np.zeros(len(mask), np.bool_)
        fixed = partition_bounds(file)
        for group, start, rows, bounds in self.pruning.row_groups(file):
            part = mask[start : start + rows]
            if not part.any():
                continue
            if not self.filter.can_hold({**bounds, **fixed}):
                selection.count("row_groups_outside_statistics")
                continue
            span = Span(file.path, rows, group, group + 1, start)
            out[start : start + rows] = part & self.filter.mask(self.data_files.read(span, schema))
        return out

    # --- folds ---

    def _fold(self, unit: MergeUnit) -> RowSelection:
        selection = RowSelection()
        path = fold_path(unit)
        filters = self.pruning.filters(unit[0])
        schema = self._keyed.columns(self.filter.columns) if self.filter and filters else None
        merged = self._keyed.group(unit, schema, keep=True)
        selection.folded[path] = len(merged.groups)
        layers = merged.layers
        if layers is not None:
            packed = zip(merged.files, layers.pack(), strict=True)
            selection.layers.update((file.path, steps) for file, steps in packed)
        if schema is None:
            selection.complete.add(path)
        else:
            assert self.filter is not None
            mask = self.filter.mask(self._folded(merged, schema))
            selection.count("rows_filtered", len(mask) - int(mask.sum()))
            _add(selection, path, mask)
        stored = sum(file.rows for file in unit)
        selection.count("rows_merged_away", stored - selection.folded[path])
        return selection

    def fold(
        self, unit: Sequence[ContentFile], schema: pa.Schema, selection: RowSelection
    ) -> pa.Table:
        """Return the rows of files that merge, one for each key, before the condition."""
        if unit[0].path not in selection.layers:
            return self._folded(self._keyed.group(unit, schema), schema)
        files = in_write_order(unit)
        packed = [selection.layers[file.path] for file in files]
        sizes = [file.rows for file in files]
        layers = Layers.unpack(selection.folded[fold_path(unit)], sizes, packed)
        columns = []
        for tables in self.data_files.read_parts(files, schema):
            for name in tables[0].column_names:
                function, delimiter = self._rule(name)
                values = [table.column(name) for table in tables]
                with _naming(files[0], name):
                    columns.append(
                        layers.take(values)
                        if function is None
                        else layers.fold(values, function, delimiter)
                    )
            del tables, values  # so that the next ones are read into their memory
        return pa.Table.from_arrays(columns, schema=schema)

    def _folded(self, found: MergedRows, schema: pa.Schema) -> pa.Table:
        groups = found.groups.groups if isinstance(found.groups, Layers) else found.groups
        columns = []
        for name in schema.names:
            function, delimiter = self._rule(name)
            values = found.rows.column(name)
            with _naming(found.files[0], name):
                columns.append(
                    take(values, groups.last)
                    if function is None
                    else fold(groups, values, function, delimiter)
                )
        return pa.Table.from_arrays(columns, schema=schema)

    def _rule(self, name: str) -> tuple[str | None, str]:
        """Return the aggregate function of a column (None for a key), and the delimiter of
        texts."""
        return self._keyed.rules.functions.get(name), self._keyed.rules.delimiters.get(name, "")


def _add(selection: RowSelection, path: str, mask: Bools) -> None:
    if mask.all():
        selection.complete.add(path)
    else:
        selection.masks[path] = pack(mask)


@contextmanager
def _naming(file: ContentFile, column: str) -> Iterator[None]:
    try:
        yield
    except TableError as error:
        raise TableError(f"{file.split}, column {column!r}: {error}") from error
