"""Parquet files in batches of bounded size, whatever a few bytes of them stand for.

A dictionary stores a long text once for any number of rows, and a run any number of items of a
list. So texts are read as dictionaries, and a batch whose texts would be large is divided.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

BATCH_BYTES = 256 << 20
"""Bytes of the texts of a batch, at most, if it has more than one row."""
MOST_ITEMS_BYTES = 2 << 30
"""Bytes of the items of one column of lists in a row group, if they are not stored as such."""
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT96": 12}
"""Bytes of a decoded value; 8 where it is not here."""


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a file so that texts which it stores as dictionaries are read as such.

    Raises
    ------
    pyarrow.ArrowException, OSError
        If it is no Parquet file.
    """
    metadata = pq.read_metadata(path)
    texts = {
        chunk.path_in_schema
        for group in map(metadata.row_group, range(metadata.num_row_groups))
        for chunk in map(group.column, range(group.num_columns))
        if chunk.physical_type == "BYTE_ARRAY" and "DICTIONARY" in str(chunk.encodings)
    }
    # nanoseconds since 1970 end in 2262
    return pq.ParquetFile(
        path, metadata=metadata, read_dictionary=sorted(texts), coerce_int96_timestamp_unit="us"
    )


def bounded_batches(
    file: pq.ParquetFile, rows: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Batches of at most ``rows`` rows, and of at most ``BATCH_BYTES`` of texts.

    Raises
    ------
    pyarrow.ArrowException, OSError
        If the file cannot be read, or its lists have more items than its bytes allow.
    """
    _check_items(file.metadata, columns)
    for batch in file.iter_batches(rows, columns=columns):
        yield from _divided(batch)


def _divided(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows < 2 or _text_bytes(batch) <= BATCH_BYTES:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from _divided(batch.slice(0, middle))
    yield from _divided(batch.slice(middle))


def _text_bytes(batch: pa.RecordBatch) -> int:
    """The bytes of the dictionaries' texts when they are decoded."""
    size = 0
    for column in batch.columns:
        if not pa.types.is_dictionary(column.type) or not len(column.dictionary):
            continue
        lengths = pc.binary_length(column.dictionary).cast(pa.int64())
        longest = pc.max(lengths).as_py() or 0
        if longest * batch.num_rows <= BATCH_BYTES // max(1, batch.num_columns):
            continue
        size += pc.sum(lengths.take(column.indices)).as_py() or 0
    return size


def _check_items(metadata: pq.FileMetaData, columns: Sequence[str] | None) -> None:
    """Raise ArrowInvalid if a list has far more items than bytes: a run stands for them."""
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            name = chunk.path_in_schema.split(".")[0]
            if chunk.path_in_schema == name or (columns is not None and name not in columns):
                continue
            size = chunk.num_values * _WIDTHS.get(chunk.physical_type, 8)
            if size > max(MOST_ITEMS_BYTES, 16 * chunk.total_uncompressed_size):
                raise pa.ArrowInvalid(
                    f"{chunk.num_values:,} items of column {name!r} are stored in "
                    f"{chunk.total_compressed_size:,} bytes, and need {size:,} bytes of memory"
                )
