"""The blocks of a snapshot: what is read in one go, and how it is decoded.

A block is a run of complete Parquet row groups, the smallest unit that can be decoded. Small row
groups, of one file or of several, are joined up to ``block_rows``; a larger one is a
block of its own. Rows are numbered through the blocks in their order: that number is
what the global order permutes, and what a sampler draws.

Rows that others have replaced, that are deleted, or that fail the condition of the read
have no number: which they are is known before the first block is decoded
(:mod:`trainer_bridge.blocks.row_selector`).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa

from paimon_features.core.errors import ConfigurationError, TableError, UnknownNameError
from paimon_features.lake.storage import Storage
from paimon_features.lake.storage.retries import is_passing
from trainer_bridge.blocks.bad_files import bad_files_error
from trainer_bridge.blocks.data_files import Span
from trainer_bridge.blocks.row_selection import RowSelection
from trainer_bridge.blocks.row_selector import RowSelector

OnBadFile = Literal["error", "skip"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fold:
    """Files whose rows of one key become one row; ``path`` names its mask."""

    spans: tuple[Span, ...]
    rows: int
    path: str
    masked: bool = False


BlockPart = Span | Fold


@dataclass(frozen=True, slots=True)
class Block:
    """Rows ``[first_row, first_row + rows)`` of the snapshot; ``size`` is in file bytes."""

    first_row: int
    rows: int
    size: int
    parts: tuple[BlockPart, ...]

    @property
    def spans(self) -> tuple[Span, ...]:
        """What is read of which file."""
        return tuple(
            span
            for part in self.parts
            for span in (part.spans if isinstance(part, Fold) else (part,))
        )


@dataclass(frozen=True)
class Layout:
    """All blocks of one snapshot of a table, in the order of the row numbers.

    ``selection`` says which rows are read, and counts those that are not, by reason. With
    ``on_bad_file="skip"``, ``left_out`` maps the files that were bad when the snapshot was opened
    to what is wrong with them, and ``replaced`` maps the blocks that turned out to be bad later to
    the error.
    """

    table: str
    snapshot_id: int
    blocks: tuple[Block, ...]
    selector: RowSelector
    selection: RowSelection
    on_bad_file: OnBadFile = "error"
    left_out: Mapping[str, str] = field(default_factory=dict)
    replaced: dict[int, str] = field(default_factory=dict)

    @property
    def storage(self) -> Storage:
        """Where the files are."""
        return self.selector.data_files.lake.storage

    @property
    def num_rows(self) -> int:
        return self.blocks[-1].first_row + self.blocks[-1].rows if self.blocks else 0

    @property
    def where(self) -> str | None:
        """The canonical text of the condition on the rows."""
        return None if self.selector.filter is None else self.selector.filter.text

    @cached_property
    def files(self) -> str:
        """A short hash of the files and row groups: a rolled-back table has others.

        Their names are unique, so it differs for snapshots of one id with different rows.
        """
        digest = hashlib.blake2b(digest_size=8)
        for block in self.blocks:
            for part in block.parts:
                for span in part.spans if isinstance(part, Fold) else (part,):
                    name = span.path.rsplit("/", 1)[-1]
                    digest.update(f"{name} {span.first} {span.stop} {span.rows}\n".encode())
                if isinstance(part, Fold):
                    digest.update(f"fold {part.rows}\n".encode())
        return digest.hexdigest()

    def decode(self, number: int, schema: pa.Schema) -> pa.Table:
        """Return the rows of a block, with the columns and types of ``schema``.

        A column that was added to the table after a file was written is null in its rows. If the
        block is bad and ``on_bad_file`` is ``"skip"``, the rows of the next good block take their
        place, repeated or cut to their number: batch sizes stay the same on every rank.

        Raises
        ------
        TableError
            If a file is missing or damaged, has another number of rows than its manifest
            says, or lacks a column; names table, snapshot, block, split and file.
        """
        for other in (*range(number, len(self.blocks)), *range(number)):
            if other != number and other in self.replaced:
                continue
            try:
                decoded = self._decode(other, schema)
            except TableError as error:
                if self.on_bad_file == "error" or is_passing(error):
                    raise
                if other not in self.replaced:
                    _log.warning("%s; its rows are replaced by others", error)
                self.replaced[other] = str(error)
                continue
            rows = self.blocks[number].rows
            return decoded if other == number else decoded.take(np.arange(rows) % decoded.num_rows)
        raise TableError(
            f"table {self.table!r}, snapshot {self.snapshot_id}: no block of it can be read; "
            f"the first: {self.replaced[number]}"
        )

    def has_groups(self, number: int) -> bool:
        """Return True if a block can be read by :meth:`decode_groups`: whole row groups of local
        files."""
        return (
            self.on_bad_file == "error"
            and not self.storage.is_remote
            and all(
                isinstance(part, Span) and part.stored is None for part in self.blocks[number].parts
            )
        )

    def decode_groups(
        self, number: int, groups: Sequence[pa.Schema]
    ) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rows of a block by groups of columns: of each file each group, with its first
        row.

        Raises as :meth:`decode` does.
        """
        start = 0
        for span in self.blocks[number].spans:
            try:
                for table in self.selector.data_files.read_groups(span, groups):
                    yield start, table
            except (OSError, pa.ArrowException, TableError) as error:
                raise self._bad(number, [span], error) from error
            start += span.rows

    def _decode(self, number: int, schema: pa.Schema) -> pa.Table:
        source, tables = self.selector.data_files, []
        for part in self.blocks[number].parts:
            spans = part.spans if isinstance(part, Fold) else (part,)
            try:
                if isinstance(part, Fold):
                    files = [source.files[span.path] for span in spans]
                    table = self.selector.fold(files, schema, self.selection)
                    tables.append(self._kept(table, part.path, 0) if part.masked else table)
                else:
                    table = source.read(part, schema)
                    masked = part.stored is not None
                    tables.append(self._kept(table, part.path, part.skip) if masked else table)
            except (OSError, pa.ArrowException, TableError) as error:
                raise self._bad(number, spans, error) from error
        return pa.concat_tables(tables)

    def _kept(self, table: pa.Table, path: str, skip: int) -> pa.Table:
        bits = pa.py_buffer(self.selection.masks[path])
        return table.filter(
            pa.Array.from_buffers(pa.bool_(), table.num_rows, [None, bits], offset=skip)
        )

    def _bad(self, number: int, spans: Sequence[Span], error: Exception) -> TableError:
        files = [self.selector.data_files.files[span.path] for span in spans]
        return bad_files_error(self.selector.data_files.content, files, error, f"block {number}, ")


def select_schema(schema: pa.Schema, columns: Sequence[str] | None, table: str) -> pa.Schema:
    """Return the schema of the columns to read, in the given order (all by default)."""
    for column in columns or ():
        if column not in schema.names:
            raise UnknownNameError.of("column", column, schema.names, f"table {table!r}")
    names = list(columns or ())
    twice = [name for number, name in enumerate(names) if name in names[:number]]
    if twice:
        raise ConfigurationError(f"table {table!r}: column {twice[0]!r} is requested twice")
    return pa.schema([schema.field(name) for name in (columns or schema.names)])
