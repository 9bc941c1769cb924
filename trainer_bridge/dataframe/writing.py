"""Writing columns deduplicated per user: ``deduplicate``, to Parquet and to tables.

The output equals that of HybridBackend's ``deduplicate.py`` row by row: rows are taken
``deduplicated_block_size`` at a time, and a stored row is one such block.

>>> rows = pa.table({"user": [7, 8, 7], "tags": [[1], None, [1]], "item": [1, 2, 3]})
>>> for block in deduplicate(rows, 1000, ["user", "tags"]).to_pylist():
...     print(block)
{'user': [7, 8], 'tags': [[1], None], 'user_index': [0, 1, 0], 'item': [1, 2, 3]}
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from paimon_features.core.errors import ConfigurationError, UnknownNameError
from paimon_features.core.repeated_items import duplicates
from paimon_features.core.types.array_types import Ints
from paimon_features.core.types.foreign_types import check_foreign_types, plain_table
from paimon_features.lake.catalog import Lake
from paimon_features.lake.writing.table_writer import append_stream
from trainer_bridge.batches.arrow_values import opened
from trainer_bridge.batches.ragged import ends

INDEX_SUFFIX = "_index"


def deduplicate(
    rows: pa.Table,
    block_size: int,
    user_cols: Sequence[str] | Sequence[Sequence[str]],
    non_user_cols: Sequence[str] | None = None,
    index_suffix: str = INDEX_SUFFIX,
) -> pa.Table:
    """Deduplicate user columns: rows in blocks, with user columns once per user and block.

    Parameters
    ----------
    block_size
        Rows per block; the last one may have fewer.
    user_cols
        The user's key and the columns that depend on it; or several such groups. Rows share an
        entry if they are equal in all columns of the group, so nothing is lost if a user's
        columns change within a block.
    non_user_cols
        Columns stored as lists of all values of a block; by default all others.
    index_suffix
        The index column of a group is named by its key and this suffix.

    Returns
    -------
    pa.Table
        One row per block. For each group the unique values in order of first occurrence, and
        the index; every column is a list.

    Raises
    ------
    ConfigurationError, UnknownNameError
        If a column does not exist or is named twice, or ``block_size`` is below 1.
    """
    groups = _groups(user_cols)
    if block_size < 1:
        raise ConfigurationError(f"block_size={block_size}: expected at least 1")
    named = [name for group in groups for name in group]
    others = [name for name in rows.column_names if name not in named]
    others = others if non_user_cols is None else list(non_user_cols)
    for name in (*named, *others):
        if name not in rows.column_names:
            raise UnknownNameError.of("column to deduplicate", name, rows.column_names)
    indices = [group[0] + index_suffix for group in groups]
    every = [*named, *indices, *others]
    if twice := duplicates(every):
        raise ConfigurationError(
            f"column {min(twice)!r} would be duplicated: name each column once, or choose another "
            "index_suffix"
        )
    try:
        check_foreign_types(rows.schema)
    except pa.ArrowInvalid as error:
        raise ConfigurationError(str(error)) from error
    rows = plain_table(rows, only_views=True).combine_chunks()
    block = np.arange(rows.num_rows) // block_size
    borders = np.append(np.arange(0, rows.num_rows, block_size), rows.num_rows)
    columns: dict[str, pa.Array] = {}
    for group, index in zip(groups, indices, strict=True):
        entry, first = _entries(block, [_flat(rows, name) for name in group])
        # entries of a block are contiguous, because the block number is part of the key
        splits = ends(np.bincount(block[first], minlength=len(borders) - 1))
        for name in group:
            columns[name] = _lists(splits, _flat(rows, name).take(pa.array(first)))
        columns[index] = _lists(borders, pa.array(entry - splits[block]))
    for name in others:
        columns[name] = _lists(borders, _flat(rows, name))
    return pa.table(columns)


def write_deduplicated_parquet(
    rows: pa.Table | Iterable[pa.Table],
    path: str | os.PathLike[str],
    block_size: int,
    user_cols: Sequence[str] | Sequence[Sequence[str]],
    non_user_cols: Sequence[str] | None = None,
    index_suffix: str = INDEX_SUFFIX,
    compression: str = "zstd",
) -> int:
    """Write tables of any size to a deduplicated Parquet file; return the number of blocks.

    Raises as :func:`deduplicate`, and ConfigurationError if there are no rows.
    """
    writer: pq.ParquetWriter | None = None
    blocks = 0
    try:
        for table in _whole_blocks(rows, block_size):
            stored = deduplicate(table, block_size, user_cols, non_user_cols, index_suffix)
            if writer is None:
                writer = pq.ParquetWriter(path, stored.schema, compression=compression)
            writer.write_table(stored)
            blocks += stored.num_rows
    finally:
        if writer is not None:
            writer.close()
    if writer is None:
        raise ConfigurationError("no rows to deduplicate")
    return blocks


def write_deduplicated_table(
    rows: pa.Table | Iterable[pa.Table],
    lake: Lake,
    table: str,
    block_size: int,
    user_cols: Sequence[str] | Sequence[Sequence[str]],
    non_user_cols: Sequence[str] | None = None,
    index_suffix: str = INDEX_SUFFIX,
    options: Mapping[str, str] | None = None,
) -> int:
    """Write tables of any size to an append table, which is created if needed.

    One atomic commit; returns its snapshot id. ``options`` are additional table options.

    Raises as :func:`deduplicate`; TableError if the table exists with different columns, or
    another process commits to it.
    """
    stored = (
        deduplicate(part, block_size, user_cols, non_user_cols, index_suffix)
        for part in _whole_blocks(rows, block_size)
    )
    first = next(stored, None)
    if first is None:
        raise ConfigurationError("no rows to deduplicate")
    lake.create_like(table, first.schema, options)

    def every() -> Iterator[pa.Table]:
        yield first
        yield from stored

    return append_stream(lake, table, every())


def _groups(user_cols: Sequence[str] | Sequence[Sequence[str]]) -> list[list[str]]:
    names = [group for group in user_cols if isinstance(group, str)]
    groups = [list(group) for group in user_cols if not isinstance(group, str)]
    column_groups = [names] if names else groups
    if not column_groups or not all(column_groups) or (names and groups):
        raise ConfigurationError(
            f"user_cols={user_cols!r}: expected one or several lists of columns, each with its key "
            "first"
        )
    return column_groups


def _flat(rows: pa.Table, name: str) -> pa.Array:
    column = rows.column(name)
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _lists(splits: Ints, values: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(splits, pa.int32()), values)


def _entries(block: Ints, columns: Sequence[pa.Array]) -> tuple[Ints, Ints]:
    """Return the entry number of each row, by first occurrence, and the first rows."""
    entry = block
    for column in columns:
        codes = _identity(column)
        # dense numbers of pairs, in order of first occurrence
        width = int(codes.max(initial=-1)) + 2
        pairs = pa.array(entry * width + codes + 1)
        entry = pairs.dictionary_encode().indices.to_numpy().astype(np.int64)
    first = np.empty(int(entry.max(initial=-1)) + 1, dtype=np.int64)
    first[entry[::-1]] = np.arange(len(entry) - 1, -1, -1)
    return entry, first


def _identity(column: pa.Array) -> Ints:
    """Return an integer code per row, equal for bit-identical values; -1 for nulls."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _identity(column.dictionary_decode())
    if pa.types.is_struct(kind):
        fields = [_identity(column.field(i)) for i in range(kind.num_fields)]
        codes = np.stack(fields, axis=1) if fields else np.zeros((len(column), 1), np.int64)
        identities = _of_bytes(codes, np.arange(len(column) + 1) * codes.shape[1])
        return np.where(column.is_valid().to_numpy(zero_copy_only=False), identities, -1)
    if pa.types.is_map(kind):
        plain = pa.list_(pa.struct([kind.key_field, kind.item_field]))
        return _identity(column.cast(plain))
    if pa.types.is_nested(kind):
        lengths, child, mask = opened(column)
        splits = ends(lengths)
        codes = _identity(child)
        identities = _of_bytes(codes.reshape(-1, 1), splits)
        return identities if mask is None else np.where(mask, identities, -1)
    if pa.types.is_floating(kind):
        # -0.0 differs from 0.0, and NaN equals itself
        bits = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[kind.bit_width]
        column = pa.Array.from_buffers(bits, len(column), column.buffers(), offset=column.offset)
    codes = column.dictionary_encode().indices
    return pc.fill_null(codes, -1).to_numpy().astype(np.int64)


def _of_bytes(codes: Ints, splits: Ints) -> Ints:
    """Return an integer per run of codes, equal for equal runs."""
    data = np.ascontiguousarray(codes, dtype="<i8")
    offsets = pa.py_buffer(np.asarray(splits * 8, dtype=np.int64))
    texts = pa.Array.from_buffers(
        pa.large_binary(), len(splits) - 1, [None, offsets, pa.py_buffer(data)]
    )
    return texts.dictionary_encode().indices.to_numpy().astype(np.int64)


def _whole_blocks(rows: pa.Table | Iterable[pa.Table], block_size: int) -> Iterator[pa.Table]:
    """Regroup the rows into tables of complete blocks; only the last one may be partial."""
    held: list[pa.Table] = []
    count = 0
    for table in [rows] if isinstance(rows, pa.Table) else rows:
        if table.num_rows:
            held.append(table)
            count += table.num_rows
        if count >= block_size > 0:
            whole = pa.concat_tables(held)
            cut = count // block_size * block_size
            yield whole.slice(0, cut)
            count -= cut
            held = [whole.slice(cut)] if count else []
    if held:
        yield pa.concat_tables(held)
