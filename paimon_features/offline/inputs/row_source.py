"""Where entity rows come from: tables, streams, files and tables of the lake, as Arrow chunks."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from paimon_features.core.errors import PaimonFeaturesError, RequestError
from paimon_features.core.repeated_items import duplicates
from paimon_features.core.times.utc_ms import conform
from paimon_features.core.types.foreign_types import check_foreign_types, plain_schema, plain_table
from paimon_features.definitions.own_events import EventReads
from paimon_features.lake import Lake, iter_batches
from paimon_features.lake.metadata.snapshots import pinned

BATCH_ROWS = 1 << 16
_TABLE_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:@(\d+(?:@[0-9a-f]+)?))?")


class RowSource:
    """Entity rows in chunks of a chosen size; ``table`` is set where all are in memory already.

    ``event_reads`` is set where the rows are events, each of which counts itself (``event_rows``).
    """

    def __init__(
        self,
        schema: pa.Schema,
        batches: Callable[[], Iterator[pa.Table]],
        table: pa.Table | None = None,
        event_reads: EventReads | None = None,
    ) -> None:
        self.event_reads = event_reads
        double = sorted(duplicates(schema.names))
        if double:
            raise RequestError(f"entity rows have two columns {double[0]!r}; rename one of them")
        # kernels that rows pass on their way have neither views nor unions
        schema = plain_schema(schema, only_views=True)
        try:
            schema.empty_table()
        except pa.ArrowNotImplementedError:
            check_foreign_types(schema)
            raise
        # pandas and Polars leave notes about themselves, which would make equal rows differ
        self.schema = pa.schema([field.remove_metadata() for field in schema])
        self.table = None if table is None else _conform(table, self.schema)
        self._batches = batches

    def chunks(self) -> Chunks:
        """Return the rows from the first one on; where they come from a stream, once."""
        return Chunks(self.schema, self._batches() if self.table is None else iter([self.table]))


class Chunks:
    """Rows that are taken a piece at a time."""

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.Table]) -> None:
        self._schema, self._batches = schema, batches
        self._held: pa.Table = schema.empty_table()

    def take(self, rows: int, memory_bytes: int | None = None) -> pa.Table:
        """Return the next ``rows`` rows.

        Fewer where they end, or take more than ``memory_bytes``.
        """
        pieces = [self._held]
        count, size = self._held.num_rows, self._held.nbytes
        while count < rows and (memory_bytes is None or size < memory_bytes):
            table = next(self._batches, None)
            if table is None:
                break
            pieces.append(_conform(table, self._schema))
            count += table.num_rows
            size += table.nbytes
        together = pa.concat_tables([piece for piece in pieces if piece.num_rows] or pieces[:1])
        self._held = together.slice(rows)
        return together.slice(0, rows)

    def give_back(self, rows: pa.Table) -> None:
        """Put rows back, to be taken again before all others."""
        self._held = pa.concat_tables([rows, self._held])


def in_pieces(schema: pa.Schema, tables: Iterator[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Yield the rows of tables in pieces of ``rows``, the last one perhaps smaller.

    >>> tables = iter([pa.table({"x": [1, 2, 3]}), pa.table({"x": [4]})])
    >>> [len(piece) for piece in in_pieces(pa.schema({"x": pa.int64()}), tables, 2)]
    [2, 2]
    """
    chunks = Chunks(schema, tables)
    piece = chunks.take(rows)
    while piece.num_rows:
        yield piece
        piece = chunks.take(rows)


def row_source(rows: Any, lake: Lake | None = None) -> RowSource:
    """Return entity rows of any kind that a user has them in.

    An Arrow table, batch, reader or dataset; a pandas or Polars DataFrame, a Polars LazyFrame, a
    DuckDB relation, anything with an Arrow stream; a mapping of columns; a list of dicts; a
    ``Path`` (or a text that is no plain name) of a Parquet or CSV file, a folder of Parquet files,
    or a pattern with ``*``; the name of a table of the lake, with ``@number`` or
    ``@number@commit`` at that snapshot. Tables and DataFrames are in memory already; all else but
    CSV is read batch by batch.

    >>> row_source({"user": [1], "event_time_ms": [0]}).table.num_rows
    1

    Raises
    ------
    RequestError
        For anything else, a file that is not there or not Parquet, two columns of one name.
    UnknownNameError, SnapshotExpiredError
        For a table or snapshot that the lake does not have.
    """
    try:
        return _source(rows, lake)
    except PaimonFeaturesError:
        raise
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise RequestError(f"entity rows cannot be read as Arrow: {error}") from error


def arrow_table(rows: Any) -> pa.Table:
    """Return rows of any kind that ``row_source`` takes, all of them in memory.

    >>> arrow_table({"user": [1, 2]}).num_rows
    2
    """
    source = row_source(rows)
    return source.chunks().take(1 << 62) if source.table is None else source.table


def _source(rows: Any, lake: Lake | None) -> RowSource:
    package = type(rows).__module__.partition(".")[0]
    if isinstance(rows, RowSource):
        return rows
    if isinstance(rows, str | os.PathLike):
        return _named(rows, lake)
    if isinstance(rows, pa.Table):
        return _of_table(rows)
    if isinstance(rows, pa.RecordBatch):
        return _of_table(pa.Table.from_batches([rows]))
    if isinstance(rows, pa.RecordBatchReader):
        return _of_reader(rows)
    if package == "pandas" and hasattr(rows, "columns"):
        return _of_table(pa.Table.from_pandas(rows, preserve_index=False))
    if package == "polars" and hasattr(rows, "collect_schema") and hasattr(rows, "collect"):
        return _of_lazy_frame(rows)
    if package == "polars" and hasattr(rows, "to_arrow"):
        return _of_table(rows.to_arrow())
    if package in ("duckdb", "_duckdb"):
        read = getattr(rows, "to_arrow_reader", None) or rows.fetch_arrow_reader
        return _of_reader(read(BATCH_ROWS))
    if hasattr(rows, "__arrow_c_stream__"):
        return _of_reader(pa.RecordBatchReader.from_stream(rows))
    if hasattr(rows, "scanner"):  # pyarrow.dataset
        return _of_reader(rows.scanner(batch_size=BATCH_ROWS).to_reader())
    if isinstance(rows, dict):
        return _of_table(pa.table(rows))
    if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
        return _of_table(pa.Table.from_pylist(rows))
    raise RequestError(
        f"entity rows of type {type(rows).__name__}; expected an Arrow table or reader, a mapping "
        "of columns, a list of dicts, a pandas or Polars DataFrame, a DuckDB relation, a path of "
        "Parquet files, or a table's name"
    )


def _of_table(table: pa.Table) -> RowSource:
    return RowSource(table.schema, lambda: iter([table]), table)


def _of_reader(reader: pa.RecordBatchReader) -> RowSource:
    return RowSource(reader.schema, lambda: (pa.Table.from_batches([batch]) for batch in reader))


def _of_lazy_frame(frame: Any) -> RowSource:
    if not hasattr(frame, "collect_batches"):  # Polars before 1.34
        return _of_table(frame.collect().to_arrow())
    empty = frame.head(0).collect().to_arrow()
    return RowSource(
        empty.schema,
        lambda: (part.to_arrow() for part in frame.collect_batches(chunk_size=BATCH_ROWS)),
    )


def _named(rows: str | os.PathLike[str], lake: Lake | None) -> RowSource:
    text = os.fspath(rows)
    name = _TABLE_NAME.fullmatch(text) if isinstance(rows, str) else None
    if name is None or (os.path.exists(text) and not (lake and lake.exists(name[1]))):
        return _of_files(text)
    if lake is None:
        raise RequestError(
            f"entity rows {text!r}: a plain name is a table of a lake, which this call does not "
            "have; for a file, pass a pathlib.Path, or './' before its name"
        )
    table = name[1]
    ref = None if name[2] is None else pinned(lake, table, name[2]).ref
    schema = lake.schema(table)
    return RowSource(
        schema,
        lambda: (pa.Table.from_batches([batch]) for batch in iter_batches(lake, table, None, ref)),
    )


def _of_files(path: str) -> RowSource:
    files = _files(path)
    if all(file.endswith((".csv", ".csv.gz")) for file in files):
        try:
            tables = [pyarrow.csv.read_csv(file) for file in files]
        except (pa.ArrowException, OSError) as error:
            raise RequestError(f"entity rows {path}: {error}") from error
        return _of_table(pa.concat_tables(tables))
    try:
        schema = pq.read_schema(files[0])
    except (pa.ArrowException, OSError) as error:
        raise RequestError(f"entity rows {files[0]}: {error}; expected Parquet or CSV") from error
    return RowSource(schema, lambda: _parquet(files, schema))


def _files(path: str) -> Sequence[str]:
    """Return the files that a path names, in the order of their names."""
    if os.path.isdir(path):
        inside = (p for p in Path(path).rglob("*.parquet") if p.is_file())
        # temporary files of Spark and others begin with _ or .
        files = [str(p) for p in inside if not p.name.startswith(("_", "."))]
    elif os.path.exists(path):
        files = [path]
    else:
        files = glob.glob(path, recursive=True) if glob.has_magic(path) else []
    if not files:
        raise RequestError(
            f"entity rows {path!r}: no such file; expected a file, a folder with Parquet files, "
            "or a pattern that matches files"
        )
    return sorted(files)


def _parquet(files: Sequence[str], schema: pa.Schema) -> Iterator[pa.Table]:
    for file in files:
        try:
            with pq.ParquetFile(file, memory_map=True) as parquet:
                for batch in parquet.iter_batches(BATCH_ROWS):
                    yield _conform(pa.Table.from_batches([batch]), schema)
        except (pa.ArrowException, OSError) as error:
            raise RequestError(f"entity rows {file}: {error}") from error


def _conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a batch in the columns of all.

    Batches of one source may differ in what may be null.
    """
    table = plain_table(table, only_views=True)
    if table.schema.equals(schema, check_metadata=False):
        return table.replace_schema_metadata(None)
    missing = [name for name in schema.names if name not in table.column_names]
    if missing or table.num_columns != len(schema):
        raise RequestError(
            f"entity rows: one part has the columns {', '.join(table.column_names)}, another "
            f"{', '.join(schema.names)}; all have to have the same"
        )
    # parts of one source can have times of other units, whose ticks a cast would take as they are
    columns = [
        column
        if column.type == field.type
        else pa.chunked_array(
            [conform(part, field.type, event_time=True) for part in column.chunks], field.type
        )
        for column, field in zip(table.select(schema.names).columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)
