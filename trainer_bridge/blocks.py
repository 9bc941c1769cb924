"""The blocks of a snapshot: what is read in one go, and how it is decoded.

A block is a run of whole Parquet row groups, the least that can be decoded. Small row
groups, of one file or of several, are joined up to ``block_rows``; a larger one is a
block of its own. Rows are numbered through the blocks in their order: that number is
what the global order permutes, and what a sampler draws.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.parquet as pq

from paimon_features.errors import SnapshotExpiredError, TableError, UnknownNameError
from paimon_features.tables.catalog import Lake
from paimon_features.tables.deltas import DataFile, live_files

_FOOTER_THREADS = 8


@dataclass(frozen=True, slots=True)
class Span:
    """Row groups ``[first, stop)`` of one file; ``stop`` None is the whole file."""

    path: str
    rows: int
    first: int = 0
    stop: int | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """Rows ``[first_row, first_row + rows)`` of the snapshot; ``size`` is in file bytes."""

    first_row: int
    rows: int
    size: int
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Layout:
    """All blocks of one snapshot of a table, in the order of the row numbers."""

    table: str
    snapshot_id: int
    blocks: tuple[Block, ...]

    @property
    def num_rows(self) -> int:
        return self.blocks[-1].first_row + self.blocks[-1].rows if self.blocks else 0

    @cached_property
    def files(self) -> str:
        """A short hash of the files and row groups: a rolled-back table has others.

        Their names are unique, so snapshots of one id that hold other rows are told apart.
        """
        digest = hashlib.blake2b(digest_size=8)
        for block in self.blocks:
            for span in block.spans:
                name = span.path.rsplit("/", 1)[-1]
                digest.update(f"{name} {span.first} {span.stop} {span.rows}\n".encode())
        return digest.hexdigest()

    def decode(self, number: int, schema: pa.Schema) -> pa.Table:
        """The rows of a block, with the columns and types of ``schema``.

        Raises
        ------
        TableError
            If a file is not there, is damaged, has another number of rows than the
            manifest says, or lacks a column; names table, snapshot, block and file.
        """
        parts = []
        for span in self.blocks[number].spans:
            try:
                parts.append(_read(span, schema))
            except (OSError, pa.ArrowException, TableError) as error:
                gone = isinstance(error, FileNotFoundError)
                kind = SnapshotExpiredError if gone else TableError
                hint = (
                    "its snapshot has expired: read a newer one, or hold it by consumer="
                    if gone
                    else str(error)
                )
                raise kind(
                    f"table {self.table!r}, snapshot {self.snapshot_id}, block {number}, "
                    f"file {span.path}: {hint}"
                ) from error
        return pa.concat_tables(parts)


def read_layout(lake: Lake, name: str, snapshot_id: int, block_rows: int) -> Layout:
    """The blocks of an append table at a snapshot; reads the footers of large files only.

    Files come by partition, bucket and name (numbers in names as numbers), so the row
    numbers of one snapshot never change.

    Raises
    ------
    TableError
        For a primary-key table, and one whose rows are not simply those of its files.
    SnapshotExpiredError, UnknownNameError
        If the snapshot or the table is not there.
    """
    table = lake.table(name)
    if table.primary_keys:
        raise TableError(
            f"table {name!r} has the primary key ({', '.join(table.primary_keys)}); the reader "
            "takes append tables so far: write the merged rows with build_training_set"
        )
    for option in ("deletion-vectors.enabled", "data-evolution.enabled"):
        if str(table.table_schema.options.get(option, "false")).lower() == "true":
            raise TableError(
                f"table {name!r} has {option}=true, so that files alone are not its rows; "
                "the reader takes plain append tables so far"
            )
    files = sorted(live_files(lake, name, snapshot_id), key=_place)
    for file in files:
        if not file.path.endswith(".parquet"):
            raise TableError(
                f"table {name!r}, file {file.path}: the reader takes Parquet files; write the "
                "table with file.format=parquet"
            )
    return Layout(name, snapshot_id, tuple(join_groups(_groups(files, block_rows), block_rows)))


def join_groups(groups: Iterable[tuple[Span, int]], block_rows: int) -> list[Block]:
    """Blocks of at most ``block_rows`` rows, or of one larger group; groups are (span, bytes).

    >>> spans = [(Span("a", 3), 9), (Span("b", 4), 9), (Span("c", 9), 9), (Span("d", 1), 9)]
    >>> [(block.first_row, block.rows) for block in join_groups(spans, block_rows=8)]
    [(0, 7), (7, 9), (16, 1)]
    """
    blocks: list[Block] = []
    held: list[tuple[Span, int]] = []

    def close() -> None:
        if held:
            first = blocks[-1].first_row + blocks[-1].rows if blocks else 0
            spans = tuple(_joined([span for span, _ in held]))
            rows, size = sum(span.rows for span in spans), sum(size for _, size in held)
            blocks.append(Block(first, rows, size, spans))
            held.clear()

    for span, size in groups:
        if sum(other.rows for other, _ in held) + span.rows > block_rows:
            close()
        if span.rows:
            held.append((span, size))
    close()
    return blocks


def select_schema(schema: pa.Schema, columns: Sequence[str] | None, table: str) -> pa.Schema:
    """The schema of the columns to read, in the order asked for (all by default)."""
    for column in columns or ():
        if column not in schema.names:
            raise UnknownNameError.of(f"column of table {table!r}", column, schema.names)
    return pa.schema([schema.field(name) for name in (columns or schema.names)])


def _place(file: DataFile) -> tuple[object, ...]:
    # every value as (is text, number, text): null partitions and mixed types still compare
    values = [
        (1, 0, str(value)) if not isinstance(value, int) else (0, int(value), "")
        for value in file.partition.values()
    ]
    name = file.path.rsplit("/", 1)[-1]
    pieces = [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in re.split(r"(\d+)", name)]
    return (values, file.bucket, pieces, file.path)


def _groups(files: Sequence[DataFile], block_rows: int) -> Iterable[tuple[Span, int]]:
    large = [file.path for file in files if file.rows > block_rows]
    with ThreadPoolExecutor(_FOOTER_THREADS) as pool:
        footers = dict(zip(large, pool.map(_group_rows, large), strict=True))
    for file in files:
        rows = footers.get(file.path)
        if rows is None:
            yield Span(file.path, file.rows), file.size
            continue
        for number, count in enumerate(rows):
            share = file.size * count // max(file.rows, 1)
            yield Span(file.path, count, number, number + 1), share


def _group_rows(path: str) -> list[int]:
    try:
        metadata = pq.read_metadata(path, memory_map=True)
    except FileNotFoundError as error:
        raise SnapshotExpiredError(
            f"data file {path} is gone: the snapshots that held it have expired"
        ) from error
    except (OSError, pa.ArrowException) as error:
        raise TableError(f"data file {path} cannot be read: {error}") from error
    return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]


def _joined(spans: Sequence[Span]) -> Iterable[Span]:
    """Neighbouring row groups of one file as one span, so that a file is opened once."""
    held = spans[0]
    for span in spans[1:]:
        if span.path == held.path and span.first == held.stop:
            held = Span(held.path, held.rows + span.rows, held.first, span.stop)
        else:
            yield held
            held = span
    yield held


def _read(span: Span, schema: pa.Schema) -> pa.Table:
    with pq.ParquetFile(span.path, memory_map=True) as file:
        there = set(file.schema_arrow.names)
        missing = [name for name in schema.names if name not in there]
        if missing:
            raise TableError(
                f"it has no column {missing[0]!r}, because it was written before the table had "
                "one; leave the column out by columns=, or rewrite the table"
            )
        if span.stop is None:
            table = file.read(schema.names, use_threads=False)
        else:
            groups = range(span.first, span.stop)
            table = file.read_row_groups(list(groups), schema.names, use_threads=False)
    if table.num_rows != span.rows:
        raise TableError(f"it has {table.num_rows} rows; its manifest says {span.rows}")
    # a file may hold "not null" or nanoseconds where the table has neither
    table = table.select(schema.names)
    return table if table.schema.equals(schema) else table.cast(schema)
