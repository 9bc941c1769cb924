"""Parquet files in batches of bounded size, with all of their rows or an error.

A dictionary stores a long text once for any number of rows, and a run any number of items of a
list. So a batch has fewer rows where the texts of a dictionary are long.

Arrow ends without an error where some pages are damaged. So the checksums of pages are verified,
and the rows are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

BATCH_BYTES = 256 << 20
"""Bytes of the texts of a batch that come from dictionaries, at most, if it has several rows."""
MOST_ITEMS_BYTES = 2 << 30
"""Bytes of the items of one column of lists in a row group, if they are not stored as such."""
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT96": 12}
"""Bytes of a decoded value; 8 where it is not here."""


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a file; nanoseconds since 1970 end in 2262, so older INT96 times are microseconds.

    Raises
    ------
    pyarrow.ArrowException, OSError
        If it is no Parquet file.
    """
    return pq.ParquetFile(path, coerce_int96_timestamp_unit="us", page_checksum_verification=True)


def bounded_batches(
    path: Path, rows: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield batches of at most ``rows`` rows, and of at most ``BATCH_BYTES`` of texts of
    dictionaries.

    Raises
    ------
    pyarrow.ArrowException, OSError
        If the file cannot be read, has fewer or more rows than its footer counts, or its lists
        have more items than its bytes allow.
    """
    count = 0
    with open_parquet(path) as file:
        texts = _dictionary_texts(file.metadata, columns)
        with pq.ParquetFile(path, metadata=file.metadata, read_dictionary=texts) as coded:
            for number in range(file.metadata.num_row_groups):
                _check_items(file.metadata.row_group(number), columns)
                fitting = max(1, min(rows, BATCH_BYTES // _longest_row(coded, number, texts)))
                for batch in file.iter_batches(fitting, row_groups=[number], columns=columns):
                    count += batch.num_rows
                    yield batch
        if count != file.metadata.num_rows:
            raise pa.ArrowInvalid(
                f"its footer counts {file.metadata.num_rows:,} rows, and {count:,} can be read: "
                "the file is damaged; copy or write it again"
            )


def _dictionary_texts(metadata: pq.FileMetaData, columns: Sequence[str] | None) -> list[str]:
    """Return the columns whose texts are in dictionaries."""
    names = {
        chunk.path_in_schema
        for group in map(metadata.row_group, range(metadata.num_row_groups))
        for chunk in map(group.column, range(group.num_columns))
        if chunk.physical_type == "BYTE_ARRAY" and "DICTIONARY" in str(chunk.encodings)
    }
    return sorted(names if columns is None else names & set(columns))


def _longest_row(coded: pq.ParquetFile, number: int, texts: Sequence[str]) -> int:
    """Return the bytes of the longest texts of a row group's dictionaries, together."""
    if not texts:
        return 1
    # the dictionary comes with the first row
    first = next(coded.iter_batches(1, row_groups=[number], columns=texts), None)
    longest = 1
    for column in () if first is None else first.columns:
        if pa.types.is_dictionary(column.type) and len(column.dictionary):
            longest += pc.max(pc.binary_length(column.dictionary)).as_py() or 0
    return longest


def _check_items(group: pq.RowGroupMetaData, columns: Sequence[str] | None) -> None:
    """Raise ArrowInvalid if a list has far more items than bytes: a run stands for them."""
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
