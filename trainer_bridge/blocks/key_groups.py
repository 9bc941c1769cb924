"""Rows of several files by key, in the order of their writes: the input of a merge engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.errors import TableError
from paimon_features.core.types.array_types import Array, Bools, Ints
from paimon_features.lake.reading.deltas import VALUE_KIND
from paimon_features.lake.reading.snapshot_content import (
    KEY_PREFIX,
    SEQUENCE_NUMBER,
    ContentFile,
    MergeRules,
    deleted_rows,
)
from trainer_bridge.blocks.data_files import DataFiles, Span
from trainer_bridge.blocks.layers import Layers
from trainer_bridge.blocks.merge import (
    KeyGroups,
    adds,
    group_rows,
    integers,
    is_number,
    numbers,
    ranks,
)


@dataclass(frozen=True)
class MergedRows:
    """Rows of several files, the oldest file first, and the rows of each key.

    Attributes
    ----------
    kinds
        Row kinds of all rows; None if all are inserts.
    taken
        Where some rows take no part in the merge: the numbers of those that do, which are the
        only ones in ``rows`` and ``groups``.
    writes
        Columns that order the rows of a key; empty if each row is newer than all rows of its key
        before it.
    plain
        The keys of each file, if a key is one number and nothing else matters.
    """

    files: list[ContentFile]
    rows: pa.Table
    keys: list[pa.ChunkedArray]
    writes: list[Array]
    plain: list[Ints] | None
    kinds: Array | None
    taken: Ints | None

    @cached_property
    def groups(self) -> KeyGroups | Layers:
        layers = None if self.plain is None else Layers.of_keys(self.plain)
        return group_rows(self.keys, self.writes) if layers is None else layers

    @property
    def layers(self) -> Layers | None:
        """The files as layers; None if rows are missing or have an order of their own."""
        if isinstance(self.groups, Layers):
            return self.groups
        if self.taken is not None or self.writes:
            return None
        return Layers.of(self.groups, [file.rows for file in self.files])


@dataclass(frozen=True)
class KeyedFiles:
    """Reads the keys, row kinds and deletion vectors of files, and groups their rows by key."""

    data_files: DataFiles

    @property
    def rules(self) -> MergeRules:
        return self.data_files.content.rules

    def columns(self, names: Iterable[str]) -> pa.Schema:
        """Return the schema of some columns of the table."""
        fields = self.data_files.content.fields
        return pa.schema([(name, fields[name].type) for name in names])

    def group(
        self, unit: Sequence[ContentFile], schema: pa.Schema | None, *, keep: bool = False
    ) -> MergedRows:
        """Read the columns of ``schema`` and group the rows by key, in the order of writes.

        ``keep`` the keys for the first read of the rows.
        """
        content, rules = self.data_files.content, self.rules
        files = in_write_order(unit)
        apart = all(a.sequence[1] < b.sequence[0] for a, b in pairwise(files))
        has_kinds = any(file.has_deletes for file in files)
        fields = {f.name: f for f in schema or ()}
        keys = [pa.field(KEY_PREFIX + name, content.fields[name].type) for name in rules.keys]
        extra = [f for f in self.columns(rules.sequence) if f.name not in fields]
        if not apart or rules.sequence:
            extra.append(pa.field(SEQUENCE_NUMBER, pa.int64()))
        if has_kinds:
            extra.append(pa.field(VALUE_KIND, pa.int8()))
        wanted = pa.schema([*keys, *extra, *fields.values()])
        tables = [self.data_files.read(Span(file.path, file.rows), wanted) for file in files]
        for file, table in zip(files, tables, strict=True) if keep else ():
            for name in rules.keys:
                self.data_files.kept.keep(file.path, name, table.column(KEY_PREFIX + name))
        rows = pa.concat_tables(tables)
        kinds = numbers(rows.column(VALUE_KIND)) if has_kinds else None
        kinds = kinds if kinds is not None and kinds.any() else None
        counted = self._counted(files, kinds)
        added = None if counted is None else np.flatnonzero(counted)
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
        return MergedRows(files, rows, by_key, writes, plain, kinds, added)

    def kinds(self, file: ContentFile) -> Array | None:
        """Return the row kinds of a file, None if all rows are inserts."""
        schema = pa.schema([(VALUE_KIND, pa.int8())])
        kinds = numbers(self.data_files.read(Span(file.path, file.rows), schema).column(0))
        return kinds if kinds.any() else None

    def not_deleted(self, file: ContentFile) -> Bools:
        """Return the rows that the deletion vector of a file leaves."""
        mask = np.ones(file.rows, np.bool_)
        mask[deleted_rows(self.data_files.lake, self.data_files.content.table, file)] = False
        return mask

    def check_kinds(self, file: ContentFile, kinds: Array) -> None:
        """Raise TableError for row kinds whose meaning depends on Flink's merge engine."""
        rules = self.rules
        if rules.ignore_delete or rules.engine == "deduplicate":
            return
        wrong = np.flatnonzero(~adds(kinds))
        if len(wrong):
            name = {1: "UPDATE_BEFORE", 3: "DELETE"}.get(int(kinds[wrong[0]]), "another kind")
            raise TableError(
                f"row {wrong[0]} of {file.path} ({file.split}) is a {name}; what that means with "
                f"merge-engine={rules.engine} is known to Flink only: compact the table, or write "
                "it with 'ignore-delete'='true'"
            )

    def _counted(self, files: Sequence[ContentFile], kinds: Any) -> Bools | None:
        """Return the rows that take part in the merge; None if all do."""
        mask = None
        if any(file.deletion is not None for file in files):
            mask = np.concatenate([self.not_deleted(file) for file in files])
        rules = self.rules
        if kinds is not None:
            if rules.ignore_delete:
                mask = adds(kinds) if mask is None else mask & adds(kinds)
            elif rules.folds or rules.engine == "first-row":
                at = 0
                for file in files:
                    self.check_kinds(file, kinds[at : at + file.rows])
                    at += file.rows
        return None if mask is None or mask.all() else mask


def in_write_order(unit: Sequence[ContentFile]) -> list[ContentFile]:
    """Return the files by sequence number.

    Of two with the same, the one at the deeper level is older.
    """
    return sorted(unit, key=lambda file: (file.sequence, -file.level, file.place))
