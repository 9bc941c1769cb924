"""What Python's data files need beyond their rows: CRC32s of their pages, and statistics.

pyarrow writes them on request, pypaimon's native writer cannot. Append tables are therefore
written by pyarrow, which takes as long as the native writer. For a table with a primary key the
native writer is fifteen times as fast at merging, so its files are written again with the
checksums, at a seventh of the time of writing them.

pyarrow's route in pypaimon leaves out the statistics in the manifest, by which readers skip files
of append tables; they are added from the footers.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow.parquet as pq

_TRUNCATED = "truncate(16)"
"""Paimon's default: bounds of texts are cut to 16 characters. Here longer ones are left out."""
_MOST = 40
_BOUNDED = (bool, int, str, dt.date)
"""Types of bounds; floats are not, because NaN has no place in them."""


def write_checksums(file_io: Any) -> None:
    """Make a file IO of pypaimon write page checksums."""
    write = file_io.write_parquet
    if not isinstance(write, partial):
        file_io.write_parquet = partial(write, write_page_checksum=True)


def complete_files(table: Any, messages: Iterable[Any]) -> None:
    """Add checksums to the files of commit messages, or statistics to the messages.

    Files that the native writer wrote are written again with checksums: rows, their order and
    the statistics stay, the messages get the new sizes.
    """
    native = table.options.options.to_map().get("write.native.enabled") == "true"
    for message in messages:
        for file in message.new_files:
            if not file.file_path.endswith(".parquet"):
                continue
            if table.primary_keys and native:
                file.file_size = _rewrite(table, file.file_path)
            elif not table.primary_keys:
                _add_statistics(table, file)


def _add_statistics(table: Any, file: Any) -> None:
    """Set least and greatest values of a file's columns, from its footer; texts only if short."""
    from pypaimon.manifest.schema.simple_stats import SimpleStats
    from pypaimon.table.row.generic_row import GenericRow

    mode = table.table_schema.options.get("metadata.stats-mode", _TRUNCATED)
    if mode in ("none", "full", "counts") or "://" in file.file_path:
        return  # full ones are there already
    footer = pq.read_metadata(file.file_path)
    schema = pq.ParquetSchema(footer)  # not a cycle, see verify_pages
    numbers = {schema.column(number).path: number for number in range(footer.num_columns)}
    bounds = {f.name: _bounds(footer, numbers.get(f.name)) for f in table.fields}
    fields = [f for f in table.fields if bounds[f.name] is not None]
    column_bounds = [bounds[f.name] or (None, None, 0) for f in fields]
    file.value_stats = SimpleStats(
        GenericRow([least for least, _, _ in column_bounds], fields),
        GenericRow([greatest for _, greatest, _ in column_bounds], fields),
        [nulls for _, _, nulls in column_bounds],
    )
    file.value_stats_cols = [f.name for f in fields]


def _bounds(footer: pq.FileMetaData, number: int | None) -> tuple[Any, Any, int] | None:
    """Return least, greatest and null count of a column; None if they are not known exactly."""
    if number is None:
        return None
    groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
    statistics = [group.column(number).statistics for group in groups]
    if not statistics or any(
        s is None or not s.has_min_max or not s.has_null_count for s in statistics
    ):
        return None
    try:
        least, greatest = min(s.min for s in statistics), max(s.max for s in statistics)
    except (OverflowError, ValueError):  # a year that Python's dates do not have
        return None
    if not isinstance(least, _BOUNDED) or len(f"{least}{greatest}") > _MOST:
        return None
    return least, greatest, sum(s.null_count for s in statistics)


def _rewrite(table: Any, path: str) -> int:
    codec = table.options.file_compression()
    # hidden: not a data file for whoever lists the folder
    folder, _, name = path.rpartition("/")
    temporary = f"{folder}/.{name}.tmp"
    try:
        with (
            pq.ParquetFile(path, memory_map=True) as file,
            pq.ParquetWriter(
                temporary,
                file.schema_arrow,
                compression=codec,
                compression_level=(
                    table.options.file_compression_zstd_level() if codec == "zstd" else None
                ),
                use_dictionary=_has_dictionaries(file.metadata),
                write_page_index=True,
                write_page_checksum=True,
            ) as writer,
        ):
            for group in range(file.metadata.num_row_groups):
                rows = file.read_row_group(group, use_threads=False)
                writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
    return os.stat(path).st_size


def _has_dictionaries(footer: pq.FileMetaData) -> list[str]:
    """Return the columns that the file has dictionaries of."""
    if not footer.num_row_groups:
        return []
    group = footer.row_group(0)
    chunks = [group.column(number) for number in range(group.num_columns)]
    return [c.path_in_schema for c in chunks if c.has_dictionary_page]
