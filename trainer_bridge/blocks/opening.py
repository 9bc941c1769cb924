"""What of a snapshot's files comes out of a read: pruned, merged, filtered, before it begins.

The global order needs the exact number of rows of each block, so keys are merged and
conditions are evaluated once, when a snapshot is opened. What stays is a bit for each stored
row of a file (or of a fold), which a disk cache keeps for the next time: decoding a block
then reads its columns and drops rows, and never looks at another block.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paimon_features.array_types import Bools, Ints
from paimon_features.errors import TableError
from paimon_features.tables.content import (
    KEY_PREFIX,
    SEQUENCE_NUMBER,
    Bounds,
    ContentFile,
    MergeRules,
    deleted_rows,
)
from paimon_features.tables.deltas import VALUE_KIND
from paimon_features.tables.storage import Storage
from trainer_bridge.blocks.folds import fold, take
from trainer_bridge.blocks.layers import Layers
from trainer_bridge.blocks.merge import (
    Groups,
    adds,
    group_rows,
    integers,
    is_number,
    newest_rows,
    numbers,
    pack,
    ranks,
)
from trainer_bridge.blocks.predicates import RowFilter
from trainer_bridge.blocks.spans import Source, Span

Unit = tuple[ContentFile, ...]
"""Files that have to be looked at together, since they can hold the same key."""


@dataclass
class Opened:
    """What was found out about the files of a snapshot.

    ``masks`` has a bit (least first) for each stored row of a file of which some rows do not
    come out, and of each row of a fold of which some do not; by path. ``folded`` are the rows
    of each fold before such a mask, and ``layers`` tells for each file of a fold which of them
    its rows go into, as :class:`Layers` packs it; where that takes more, the keys are read
    again. The counts are of what was not read, and why.
    """

    masks: dict[str, bytes] = field(default_factory=dict)
    folded: dict[str, int] = field(default_factory=dict)
    layers: dict[str, bytes] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, what: str, number: int = 1) -> None:
        if number:
            self.counts[what] = self.counts.get(what, 0) + number

    def add(self, other: Opened) -> None:
        self.masks.update(other.masks)
        self.folded.update(other.folded)
        self.layers.update(other.layers)
        for what, number in other.counts.items():
            self.count(what, number)


@dataclass(frozen=True)
class Opener:
    """Looks into the files of a snapshot."""

    source: Source
    filter: RowFilter | None

    # --- which files need not be read ---

    def prune(self, unit: Unit) -> str | None:
        """Why no row of these files comes out, as their manifest shows; None if one may."""
        if self.filter is None:
            return None
        if not self.filter.can_hold(_partition_bounds(unit[0])):
            return "files_outside_partitions"
        keys = self.source.content.rules.keys
        for file in unit:
            # a newer row may fail the condition and still hide an older one: of files that
            # merge, only what holds for every row of a key rules anything out
            bounds = {
                name: found
                for name, found in file.bounds.items()
                if not file.merges or name in keys
            }
            if self.filter.can_hold({**bounds, **_partition_bounds(file)}):
                return None
        return "files_outside_statistics"

    def needs_reading(self, unit: Unit) -> bool:
        """Whether rows have to be looked at to know which of them come out."""
        if any(file.merges or file.has_deletes or file.deletion is not None for file in unit):
            return True
        return self._filters(unit[0])

    def _filters(self, file: ContentFile) -> bool:
        if self.filter is None:
            return False
        known = (
            _partition_bounds(file) if file.merges else {**file.bounds, **_partition_bounds(file)}
        )
        return not self.filter.must_hold(known)

    # --- which rows come out ---

    def look(self, unit: Unit) -> Opened:
        """Merge the keys of a unit, apply deletion vectors and the condition."""
        if self.source.content.rules.folds and unit[0].merges:
            return self._fold(unit)
        opened = Opened()
        masks = self._merged(unit) if unit[0].merges else [self._inserted(unit[0])]
        for file, merged in zip(unit, masks, strict=True):
            mask = np.ones(file.rows, np.bool_) if merged is None else merged
            if file.deletion is not None:
                mask = mask & self._not_deleted(file)
            opened.count("rows_merged_away", file.rows - int(mask.sum()))
            if self._filters(file):
                before = int(mask.sum())
                mask = self._filtered(file, mask, opened)
                opened.count("rows_filtered", before - int(mask.sum()))
            if not mask.all():
                opened.masks[file.path] = pack(mask)
        return opened

    def _inserted(self, file: ContentFile) -> Bools | None:
        """Without the deletes of a file that holds each key once."""
        if not file.has_deletes:
            return None
        kinds = self._kinds(file)
        if kinds is None:
            return None
        self._check_kinds(file, kinds)
        return adds(kinds)

    def _merged(self, unit: Unit) -> list[Bools]:
        """The newest row of each key, if it was not deleted; of first-row the oldest."""
        found = self._grouped(unit, None)
        keep = None
        if found.plain is not None and self._rules.engine == "deduplicate":
            keep = newest_rows(found.plain)
        if keep is None:
            keep = np.zeros(sum(file.rows for file in found.files), np.bool_)
            rows = found.groups.first if self._rules.engine == "first-row" else found.groups.last
            keep[rows if found.taken is None else found.taken[rows]] = True
        if found.kinds is not None:
            keep &= adds(found.kinds)
        ends = np.cumsum([file.rows for file in found.files])
        names = [file.path for file in found.files]
        parts = dict(zip(names, np.split(keep, ends[:-1]), strict=True))
        return [parts[file.path] for file in unit]

    def _counted(self, files: Sequence[ContentFile], kinds: Any) -> Bools | None:
        """Rows that take part in the merge; None if all do."""
        mask = None
        if any(file.deletion is not None for file in files):
            mask = np.concatenate([self._not_deleted(file) for file in files])
        rules = self._rules
        if kinds is not None:
            if rules.ignore_delete:
                mask = adds(kinds) if mask is None else mask & adds(kinds)
            elif rules.folds or rules.engine == "first-row":
                at = 0
                for file in files:
                    self._check_kinds(file, kinds[at : at + file.rows])
                    at += file.rows
        return None if mask is None or mask.all() else mask

    def _check_kinds(self, file: ContentFile, kinds: npt.NDArray[Any]) -> None:
        rules = self._rules
        if rules.ignore_delete or rules.engine == "deduplicate":
            return
        wrong = np.flatnonzero(~adds(kinds))
        if len(wrong):
            name = {1: "UPDATE_BEFORE", 3: "DELETE"}.get(int(kinds[wrong[0]]), "another kind")
            raise TableError(
                f"row {wrong[0]} of {file.path} ({file.split}) is a {name}; what that means with "
                f"merge-engine={rules.engine} only Flink knows: compact the table, or write it "
                "with 'ignore-delete'='true'"
            )

    def _not_deleted(self, file: ContentFile) -> Bools:
        mask = np.ones(file.rows, np.bool_)
        mask[deleted_rows(self.source.lake, self.source.content.table, file)] = False
        return mask

    def _filtered(self, file: ContentFile, mask: Bools, opened: Opened) -> Bools:
        """The condition on the rows that are left, row group by row group."""
        assert self.filter is not None
        schema = self._schema(self.filter.columns)
        out = np.zeros(len(mask), np.bool_)
        fixed = _partition_bounds(file)
        for group, start, rows, bounds in self._row_groups(file):
            part = mask[start : start + rows]
            if not part.any():
                continue
            if not self.filter.can_hold({**bounds, **fixed}):
                opened.count("row_groups_outside_statistics")
                continue
            span = Span(file.path, rows, group, group + 1, start)
            out[start : start + rows] = part & self.filter.mask(self.source.read(span, schema))
        return out

    def _row_groups(
        self, file: ContentFile
    ) -> Iterator[tuple[int, int, int, Mapping[str, Bounds]]]:
        """Each row group: its number, its first row, its rows, its bounds."""
        assert self.filter is not None
        content = self.source.content
        stored = content.schemas[file.schema_id]
        names = {}
        for column in self.filter.columns:
            own = stored.get(content.fields[column].id)
            if own is not None and own.type == content.fields[column].type:
                names[own.name] = column
        metadata = self.source.metadata(file.path)
        start = 0
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            bounds = {}
            for place in range(group.num_columns):
                column = group.column(place)
                if column.path_in_schema in names:
                    found = _group_bounds(column, group.num_rows)
                    if found is not None:
                        bounds[names[column.path_in_schema]] = found
            yield number, start, group.num_rows, bounds
            start += group.num_rows

    # --- folds ---

    def _fold(self, unit: Unit) -> Opened:
        opened = Opened()
        path = fold_path(unit)
        filters = self._filters(unit[0])
        schema = self._schema(self.filter.columns) if self.filter and filters else None
        found = self._grouped(unit, schema)
        opened.folded[path] = len(found.groups)
        layers = found.layers
        if layers is not None:
            packed = zip(found.files, layers.pack(), strict=True)
            opened.layers.update((file.path, steps) for file, steps in packed)
        if schema is not None:
            assert self.filter is not None
            mask = self.filter.mask(self._folded(found, schema))
            opened.count("rows_filtered", len(mask) - int(mask.sum()))
            if not mask.all():
                opened.masks[path] = pack(mask)
        stored = sum(file.rows for file in unit)
        opened.count("rows_merged_away", stored - opened.folded[path])
        return opened

    def fold(self, unit: Sequence[ContentFile], schema: pa.Schema, opened: Opened) -> pa.Table:
        """The rows of files that merge into others, one for each key; before the condition."""
        if unit[0].path not in opened.layers:
            return self._folded(self._grouped(unit, schema), schema)
        files = _in_order(unit)
        packed = [opened.layers[file.path] for file in files]
        sizes = [file.rows for file in files]
        layers = Layers.unpack(opened.folded[fold_path(unit)], sizes, packed)
        columns = []
        for tables in self.source.read_parts(files, schema):
            for name in tables[0].column_names:
                function, delimiter = self._rule(name)
                values = [table.column(name) for table in tables]
                with _naming(files[0], name):
                    columns.append(
                        layers.take(values)
                        if function is None
                        else layers.fold(values, function, delimiter)
                    )
            del tables, values  # before the next ones are read into their memory
        return pa.Table.from_arrays(columns, schema=schema)

    def _folded(self, found: _Grouped, schema: pa.Schema) -> pa.Table:
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
        """The function of a column, None for one of the key; and what stands between texts."""
        return self._rules.functions.get(name), self._rules.delimiters.get(name, "")

    # --- reading ---

    def _grouped(self, unit: Sequence[ContentFile], schema: pa.Schema | None) -> _Grouped:
        """The rows of files (the columns of ``schema``), by key and in the order of writes."""
        content, rules = self.source.content, self._rules
        files = _in_order(unit)
        apart = all(a.sequence[1] < b.sequence[0] for a, b in pairwise(files))
        has_kinds = any(file.has_deletes for file in files)
        own = {f.name: f for f in schema or ()}
        keys = [pa.field(KEY_PREFIX + name, content.fields[name].type) for name in rules.keys]
        extra = [f for f in self._schema(rules.sequence) if f.name not in own]
        if not apart or rules.sequence:
            extra.append(pa.field(SEQUENCE_NUMBER, pa.int64()))
        if has_kinds:
            extra.append(pa.field(VALUE_KIND, pa.int8()))
        wanted = pa.schema([*keys, *extra, *own.values()])
        tables = [self.source.read(Span(file.path, file.rows), wanted) for file in files]
        rows = pa.concat_tables(tables)
        kinds = numbers(rows.column(VALUE_KIND)) if has_kinds else None
        kinds = kinds if kinds is not None and kinds.any() else None
        counted = self._counted(files, kinds)
        taken = None if counted is None else np.flatnonzero(counted)
        if counted is not None:
            rows = rows.filter(pa.array(counted))
        writes = []
        for name in rules.sequence:
            places = ranks(rows.column(name))
            writes.append(
                places if rules.ascending else np.where(places < 0, places - len(places), -places)
            )
        if SEQUENCE_NUMBER in wanted.names:
            writes.append(numbers(rows.column(SEQUENCE_NUMBER)))
        by_key = [rows.column(field.name) for field in keys]
        plain = None
        is_plain = len(keys) == 1 and is_number(keys[0].type) and not by_key[0].null_count
        if is_plain and not writes and counted is None:
            plain = [integers(table.column(keys[0].name)) for table in tables]
        return _Grouped(files, rows, by_key, writes, plain, kinds, taken)

    def _kinds(self, file: ContentFile) -> npt.NDArray[Any] | None:
        """The row kinds of a file, None if all rows are inserts."""
        schema = pa.schema([(VALUE_KIND, pa.int8())])
        kinds = numbers(self.source.read(Span(file.path, file.rows), schema).column(0))
        return kinds if kinds.any() else None

    @property
    def _rules(self) -> MergeRules:
        return self.source.content.rules

    def _schema(self, names: Iterable[str]) -> pa.Schema:
        fields = self.source.content.fields
        return pa.schema([(name, fields[name].type) for name in names])


@dataclass(frozen=True)
class _Grouped:
    """Rows of several files, the oldest file first, and the rows of each key.

    ``kinds`` are those of all rows (None: inserts); where some take no part in the merge,
    ``rows`` and ``groups`` are without them and ``taken`` are the numbers of the others.
    ``writes`` order the rows of a key; none if a row is younger than every row before it that has
    its key. ``plain`` are the keys of each file, where they are one number and all that counts.
    """

    files: list[ContentFile]
    rows: pa.Table
    keys: list[pa.ChunkedArray]
    writes: list[npt.NDArray[Any]]
    plain: list[Ints] | None
    kinds: npt.NDArray[Any] | None
    taken: Ints | None

    @cached_property
    def groups(self) -> Groups | Layers:
        layers = None if self.plain is None else Layers.of_keys(self.plain)
        return group_rows(self.keys, self.writes) if layers is None else layers

    @property
    def layers(self) -> Layers | None:
        """The files as layers; None where their rows do not all come in their order."""
        if isinstance(self.groups, Layers):
            return self.groups
        if self.taken is not None or self.writes:
            return None
        return Layers.of(self.groups, [file.rows for file in self.files])


@contextmanager
def _naming(file: ContentFile, column: str) -> Iterator[None]:
    try:
        yield
    except TableError as error:
        raise TableError(f"{file.split}, column {column!r}: {error}") from error


def _in_order(unit: Sequence[ContentFile]) -> list[ContentFile]:
    # the number of the write decides; where two files have one, the deeper is older
    return sorted(unit, key=lambda file: (file.sequence, -file.level, file.path))


def fold_path(unit: Sequence[ContentFile]) -> str:
    """The name under which the mask of a fold is kept: its first file stands for all."""
    return f"fold:{unit[0].path}"


def find_bad_files(source: Source, files: Sequence[ContentFile], threads: int) -> dict[str, str]:
    """What is wrong with files, by path: those missing, cut off, or of another footer."""
    with ThreadPoolExecutor(threads) as pool:
        found = pool.map(partial(_what_is_wrong, source), files)
        return {f.path: wrong for f, wrong in zip(files, found, strict=True) if wrong is not None}


def _what_is_wrong(source: Source, file: ContentFile) -> str | None:
    try:
        rows = source.metadata(file.path).num_rows
    except FileNotFoundError:
        return "it is not there"
    except (OSError, pa.ArrowException) as error:
        return f"it cannot be opened: {' '.join(str(error).split())}"
    return None if rows == file.rows else f"it has {rows} rows; its manifest says {file.rows}"


def _partition_bounds(file: ContentFile) -> dict[str, Bounds]:
    return {
        name: Bounds(nulls=file.rows) if value is None else Bounds(value, value, 0)
        for name, value in file.partition.items()
    }


def _group_bounds(column: Any, rows: int) -> Bounds | None:
    """The statistics of a column of a row group; None where they are of no use."""
    statistics = column.statistics
    if statistics is None or "DECIMAL" in str(statistics.logical_type).upper():
        return None  # pyarrow compares statistics of decimals wrongly
    nulls = statistics.null_count if statistics.has_null_count else None
    if not statistics.has_min_max:
        return Bounds(nulls=nulls) if nulls == rows else None
    least, greatest = statistics.min, statistics.max
    usable = (bool, int, float, str, bytes, dt.date)
    return Bounds(least, greatest, nulls) if isinstance(least, usable) else None


def in_threads(
    storage: Storage, work: Callable[[Unit], Opened], units: Sequence[Unit], threads: int
) -> Iterator[Opened | BaseException]:
    """The result or the error of each unit, in their order."""

    def guarded(unit: Unit) -> Opened | BaseException:
        try:
            return storage.repeated(lambda: work(unit))
        except (OSError, pa.ArrowException, TableError) as error:
            return error

    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(guarded, units)
