"""The blocks of a snapshot: what is read in one go, and how it is decoded.

A block is a run of whole Parquet row groups, the least that can be decoded. Small row
groups, of one file or of several, are joined up to ``block_rows``; a larger one is a
block of its own. Rows are numbered through the blocks in their order: that number is
what the global order permutes, and what a sampler draws.

Rows that others have replaced, that are deleted, or that fail the condition of the read
have no number: which they are is known before the first block is decoded (``opening``).
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from paimon_features.array_types import Bools
from paimon_features.errors import (
    ConfigurationError,
    SnapshotExpiredError,
    TableError,
    UnknownNameError,
)
from paimon_features.tables.catalog import Lake
from paimon_features.tables.content import Content, ContentFile, content_of, read_content
from paimon_features.tables.deltas import DataFile
from paimon_features.tables.storage import Storage
from paimon_features.tables.storage.retries import is_passing
from trainer_bridge.blocks.mask_cache import load_masks, mask_key, save_masks
from trainer_bridge.blocks.merge import unpack
from trainer_bridge.blocks.opening import (
    Opened,
    Opener,
    Unit,
    find_bad_files,
    fold_path,
    in_threads,
)
from trainer_bridge.blocks.predicates import RowFilter
from trainer_bridge.blocks.spans import Source, Span

OnBadFile = Literal["error", "skip"]

_FOOTER_THREADS = 8
_FOOTERS_A_THREAD = 64
_MERGE_THREADS = 4

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fold:
    """Files whose rows of one key become one row; ``path`` names its mask."""

    spans: tuple[Span, ...]
    rows: int
    path: str
    masked: bool = False


Part = Span | Fold


@dataclass(frozen=True, slots=True)
class Block:
    """Rows ``[first_row, first_row + rows)`` of the snapshot; ``size`` is in file bytes."""

    first_row: int
    rows: int
    size: int
    parts: tuple[Part, ...]

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

    ``opened`` says what was left out, and why. ``left_out`` are the files that were bad when
    the snapshot was opened, with what is wrong, ``replaced`` the rows of each block that
    turned out to be bad later (``on_bad_file="skip"``).
    """

    table: str
    snapshot_id: int
    blocks: tuple[Block, ...]
    opener: Opener
    opened: Opened
    on_bad_file: OnBadFile = "error"
    left_out: Mapping[str, str] = field(default_factory=dict)
    replaced: dict[int, str] = field(default_factory=dict)

    @property
    def storage(self) -> Storage:
        """Where the files are."""
        return self.opener.source.lake.storage

    @property
    def num_rows(self) -> int:
        return self.blocks[-1].first_row + self.blocks[-1].rows if self.blocks else 0

    @property
    def where(self) -> str | None:
        """The canonical text of the condition on the rows."""
        return None if self.opener.filter is None else self.opener.filter.text

    @cached_property
    def files(self) -> str:
        """A short hash of the files and row groups: a rolled-back table has others.

        Their names are unique, so snapshots of one id that hold other rows are told apart.
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
        """The rows of a block, with the columns and types of ``schema``.

        A column that the table got later than a file is null in its rows. Where the block is
        bad and ``on_bad_file`` is ``"skip"``, the rows of the next good block come in their
        place, repeated or cut to their number: batches stay as they are on every rank.

        Raises
        ------
        TableError
            If a file is not there, is damaged, has another number of rows than the
            manifest says, or lacks a column; names table, snapshot, block, split and file.
        """
        for other in (*range(number, len(self.blocks)), *range(number)):
            if other != number and other in self.replaced:
                continue
            try:
                found = self._decode(other, schema)
            except TableError as error:
                if self.on_bad_file == "error" or is_passing(error):
                    raise
                if other not in self.replaced:
                    _log.warning("%s; other rows come in place of its rows", error)
                self.replaced[other] = str(error)
                continue
            rows = self.blocks[number].rows
            return found if other == number else found.take(np.arange(rows) % found.num_rows)
        raise TableError(
            f"table {self.table!r}, snapshot {self.snapshot_id}: no block of it can be read; "
            f"the first: {self.replaced[number]}"
        )

    def _decode(self, number: int, schema: pa.Schema) -> pa.Table:
        source, tables = self.opener.source, []
        for part in self.blocks[number].parts:
            spans = part.spans if isinstance(part, Fold) else (part,)
            try:
                if isinstance(part, Fold):
                    files = [source.files[span.path] for span in spans]
                    table = self.opener.fold(files, schema, self.opened)
                    tables.append(self._kept(table, part.path, 0) if part.masked else table)
                else:
                    table = source.read(part, schema)
                    masked = part.stored is not None
                    tables.append(self._kept(table, part.path, part.skip) if masked else table)
            except (OSError, pa.ArrowException, TableError) as error:
                raise self._bad(number, spans, error) from error
        return pa.concat_tables(tables)

    def _kept(self, table: pa.Table, path: str, skip: int) -> pa.Table:
        bits = pa.py_buffer(self.opened.masks[path])
        return table.filter(
            pa.Array.from_buffers(pa.bool_(), table.num_rows, [None, bits], offset=skip)
        )

    def _bad(self, number: int, spans: Sequence[Span], error: Exception) -> TableError:
        files = [self.opener.source.files[span.path] for span in spans]
        return _bad_files(self.opener.source.content, files, error, f"block {number}, ")


def _bad_files(
    content: Content, files: Sequence[ContentFile], error: BaseException, where: str = ""
) -> TableError:
    """The error for files of which one cannot be read: what, where, why, what to do."""
    names = ", ".join(f"{file.path} ({file.split})" for file in files)
    gone = isinstance(error, FileNotFoundError)
    text = (
        "it is gone. If its snapshot has expired: read a newer one, or hold it by consumer=. "
        "If the file was lost: restore it"
        if gone
        else " ".join(str(error).split())  # Arrow's come in several lines
    )
    return (SnapshotExpiredError if gone else TableError)(
        f"table {content.table!r}, snapshot {content.snapshot_id}, {where}file {names}: {text}; "
        "or read without it by on_bad_file='skip'"
    )


def read_layout(
    lake: Lake,
    name: str,
    snapshot_id: int,
    block_rows: int,
    *,
    where: str | None = None,
    on_bad_file: OnBadFile = "error",
    cache: Path | None = None,
) -> Layout:
    """The blocks of a table at a snapshot.

    Of an append table without a condition it reads the footers of large files only. Keys
    that several files can hold, and the columns of ``where``, are read once; what comes of
    it is kept in the folder ``cache``.

    Files come by partition, bucket and name (numbers in names as numbers), files that merge
    together where the first of them is, so the row numbers of one snapshot never change.

    Raises
    ------
    TableError
        For a merge engine, option or file format that cannot be read, and for a bad file
        (unless ``on_bad_file`` is ``"skip"``: then it is left out, with the files that hold
        other rows of its keys).
    SnapshotExpiredError, UnknownNameError
        If the snapshot or the table is not there.
    RequestError
        If ``where`` is no condition on the table's columns.
    """
    condition = None if where is None else RowFilter(where, lake.schema(name), table=name)
    content = read_content(lake, name, snapshot_id, () if condition is None else condition.columns)
    opener = Opener(Source.of(lake, content), condition)
    opened, units = Opened(), list[Unit]()
    for unit in _units(content):
        reason = opener.prune(unit)
        if reason is None:
            units.append(unit)
        else:
            opened.count(reason, len(unit))
    left_out: dict[str, str] = {}
    if on_bad_file == "skip":
        bad = find_bad_files(
            opener.source, [file for unit in units for file in unit], _FOOTER_THREADS
        )
        units = _without(units, bad, left_out)
    units = _look(opener, units, opened, left_out, cache, on_bad_file)
    for path, wrong in left_out.items():
        _log.warning("table %r, snapshot %d: left out %s: %s", name, snapshot_id, path, wrong)
    blocks = tuple(join_groups(_groups(opener, units, opened, block_rows), block_rows))
    return Layout(name, snapshot_id, blocks, opener, opened, on_bad_file, left_out)


def layout_of(
    lake: Lake, name: str, snapshot_id: int, files: Iterable[DataFile], block_rows: int
) -> Layout:
    """The blocks of some files of an append table, as they would lie in a layout of its own.

    Raises
    ------
    TableError
        For a table with a primary key, or a file that is no Parquet.
    """
    content = content_of(lake, name, snapshot_id, files)
    opener, opened = Opener(Source.of(lake, content), None), Opened()
    groups = _groups(opener, _units(content), opened, block_rows)
    return Layout(name, snapshot_id, tuple(join_groups(groups, block_rows)), opener, opened)


def join_groups(groups: Iterable[tuple[Part, int]], block_rows: int) -> list[Block]:
    """Blocks of at most ``block_rows`` rows, or of one larger group; groups are (part, bytes).

    >>> spans = [(Span("a", 3), 9), (Span("b", 4), 9), (Span("c", 9), 9), (Span("d", 1), 9)]
    >>> [(block.first_row, block.rows) for block in join_groups(spans, block_rows=8)]
    [(0, 7), (7, 9), (16, 1)]
    """
    blocks: list[Block] = []
    held: list[tuple[Part, int]] = []

    def close() -> None:
        if held:
            first = blocks[-1].first_row + blocks[-1].rows if blocks else 0
            parts = tuple(_joined([part for part, _ in held]))
            rows, size = sum(part.rows for part in parts), sum(size for _, size in held)
            blocks.append(Block(first, rows, size, parts))
            held.clear()

    for part, size in groups:
        if sum(other.rows for other, _ in held) + part.rows > block_rows:
            close()
        if part.rows:
            held.append((part, size))
    close()
    return blocks


def select_schema(schema: pa.Schema, columns: Sequence[str] | None, table: str) -> pa.Schema:
    """The schema of the columns to read, in the order asked for (all by default)."""
    for column in columns or ():
        if column not in schema.names:
            raise UnknownNameError.of(f"column of table {table!r}", column, schema.names)
    names = list(columns or ())
    twice = [name for number, name in enumerate(names) if name in names[:number]]
    if twice:
        raise ConfigurationError(f"table {table!r}: column {twice[0]!r} is asked for twice")
    return pa.schema([schema.field(name) for name in (columns or schema.names)])


def _units(content: Content) -> list[Unit]:
    """Files that merge together as one unit, every other file by itself; in reading order."""
    sections: dict[int, list[ContentFile]] = {}
    for file in sorted(content.files, key=_place):
        if not file.path.endswith(".parquet"):
            raise TableError(
                f"table {content.table!r}, file {file.path}: the reader takes Parquet files; "
                "write the table with file.format=parquet"
            )
        sections.setdefault(file.section, []).append(file)
    units: list[Unit] = []
    for files in sections.values():
        units += [tuple(files)] if files[0].merges else [(file,) for file in files]
    return units


def _look(
    opener: Opener,
    units: list[Unit],
    opened: Opened,
    left_out: dict[str, str],
    cache: Path | None,
    on_bad_file: OnBadFile,
) -> list[Unit]:
    """Find out which rows come out, from the cache or the files; the units that can be read."""
    unknown = [unit for unit in units if opener.needs_reading(unit)]
    if not unknown:
        return units
    where = None if opener.filter is None else opener.filter.text
    key = mask_key(opener.source, where)
    known = load_masks(cache, key) if cache is not None and not left_out else None
    if known is not None:
        opened.add(known)
        return units
    found, bad = Opened(), {}
    storage = opener.source.lake.storage
    # threads that wait for a processor cost more pages than they save time
    threads = min(_MERGE_THREADS, _MERGE_THREADS if storage.is_remote else os.cpu_count() or 1)
    results = in_threads(storage, opener.look, unknown, threads)
    for unit, result in zip(unknown, results, strict=True):
        if isinstance(result, Opened):
            found.add(result)
            continue
        if on_bad_file == "error":
            raise _bad_files(opener.source.content, unit, result) from result
        bad[unit[0].path] = " ".join(str(result).split())
    opened.add(found)
    if not bad and not left_out and cache is not None:
        save_masks(cache, key, found)
    return _without(units, bad, left_out)


def _without(units: list[Unit], bad: Mapping[str, str], left_out: dict[str, str]) -> list[Unit]:
    """The units without those that have a bad file: of a key's rows either all count or none."""
    kept = []
    for unit in units:
        wrong = [file for file in unit if file.path in bad]
        for file in unit if wrong else ():
            left_out[file.path] = bad.get(file.path, f"it merges with {wrong[0].path}")
        if not wrong:
            kept.append(unit)
    return kept


def _place(file: ContentFile) -> tuple[object, ...]:
    # every value as (is text, number, text): null partitions and mixed types still compare
    values = [
        (1, 0, str(value)) if not isinstance(value, int) else (0, int(value), "")
        for value in file.partition.values()
    ]
    pieces = [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in re.split(r"(\d+)", file.name)]
    return (values, file.bucket, pieces, file.path)


def _groups(
    opener: Opener, units: Sequence[Unit], opened: Opened, block_rows: int
) -> Iterator[tuple[Part, int]]:
    """What is read in one piece, with its bytes: whole small files, groups of large ones, folds."""
    large = [file for unit in units for file in unit if file.rows > block_rows]
    # a footer on this machine takes less than to start a thread for it, a remote one is a request
    each = 1 if opener.source.lake.storage.is_remote else _FOOTERS_A_THREAD
    with ThreadPoolExecutor(min(_FOOTER_THREADS, len(large) // each + 1)) as pool:
        read = partial(_group_rows, opener.source)
        footers = dict(zip([f.path for f in large], pool.map(read, large), strict=True))
    for unit in units:
        path = fold_path(unit)
        if path in opened.folded:
            spans = tuple(Span(file.path, file.rows) for file in unit)
            kept = rows = opened.folded[path]
            if path in opened.masks:
                kept = int(unpack(opened.masks[path], rows).sum())
            yield Fold(spans, kept, path, kept != rows), sum(file.size for file in unit)
            continue
        for file in unit:
            bits = opened.masks.get(file.path)
            mask = None if bits is None else unpack(bits, file.rows)
            if file.path not in footers:
                yield _span(file, 0, None, 0, file.rows, mask), file.size
                continue
            start = 0
            for number, count in enumerate(footers[file.path]):
                share = file.size * count // max(file.rows, 1)
                yield _span(file, number, number + 1, start, count, mask), share
                start += count


def _span(
    file: ContentFile,
    first: int,
    stop: int | None,
    skip: int,
    stored: int,
    mask: Bools | None,
) -> Span:
    kept = stored if mask is None else int(mask[skip : skip + stored].sum())
    return Span(file.path, kept, first, stop, skip, None if kept == stored else stored)


def _group_rows(source: Source, file: ContentFile) -> list[int]:
    try:
        metadata = source.metadata(file.path)
    except (OSError, pa.ArrowException) as error:
        raise _bad_files(source.content, [file], error) from error
    return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]


def _joined(parts: Sequence[Part]) -> Iterable[Part]:
    """Neighbouring row groups of one file as one span, so that a file is opened once."""
    held = parts[0]
    for part in parts[1:]:
        if _follows(held, part):
            assert isinstance(held, Span)
            assert isinstance(part, Span)
            rows, stored = held.rows + part.rows, held.stored_rows + part.stored_rows
            masked = None if rows == stored else stored
            held = Span(held.path, rows, held.first, part.stop, held.skip, masked)
        else:
            yield held
            held = part
    yield held


def _follows(held: Part, part: Part) -> bool:
    both = isinstance(held, Span) and isinstance(part, Span)
    return both and part.path == held.path and part.first == held.stop  # type: ignore[union-attr]
