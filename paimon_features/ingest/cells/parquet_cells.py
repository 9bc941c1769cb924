"""Parquet rows as cells, in the types in which they are stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.times.utc_ms import finer_than_ms
from paimon_features.core.types.array_types import Bools
from paimon_features.core.types.foreign_types import plain_array
from paimon_features.core.types.schema import DataType
from paimon_features.ingest.cells.bounded_parquet import bounded_batches
from paimon_features.ingest.cells.cells import CellBatch, CellColumn
from paimon_features.ingest.cells.converted import Converted
from paimon_features.ingest.cells.java_text import json_object, texts_of
from paimon_features.ingest.cells.lines import decoded, is_utf8
from paimon_features.ingest.cells.stored_values import stored_values
from paimon_features.ingest.input_columns import FileGroup, InputColumn
from paimon_features.ingest.input_files import InputFile
from paimon_features.lake.events.rejects import UNREADABLE

BATCH_ROWS = 1 << 17


def parquet_batches(group: FileGroup, file: InputFile) -> Iterator[Callable[[], list[CellBatch]]]:
    """Yield the rows of a Parquet file, in parts to compute.

    Raises
    ------
    OSError, pyarrow.ArrowException
        If the file cannot be read.
    """
    fields = list(dict.fromkeys(column.field for column in group.columns))
    if file.unreadable is not None:
        yield partial(_unreadable, file.unreadable, str(file.path))
    for batch in bounded_batches(file.read_path, BATCH_ROWS, fields):
        yield partial(cell_batches, batch, group.columns, str(file.path))


def _unreadable(path: Path, origin: str) -> list[CellBatch]:
    """Return the rows that could not be split when the file was converted."""
    rows = [tuple(json.loads(line)) for line in path.read_text("utf-8").splitlines()]
    return [CellBatch(0, {}, lambda _: [], origin, rows)]


def cell_batches(
    batch: pa.RecordBatch, columns: Sequence[InputColumn], origin: str
) -> list[CellBatch]:
    """Return rows of a Parquet file, whose fields are stored as ``columns`` say, as cells."""
    cells = {name: plain_array(batch.column(name)) for name in batch.schema.names}
    texts = {column.field for column in columns if column.physical.kind == "text"}
    valid = valid_texts([cells[field] for field in sorted(texts)], batch.num_rows)
    broken: list[tuple[str, str, str | None]] = []
    if not valid.all():
        bad = np.flatnonzero(~valid)
        raws = _raw({name: array.take(pa.array(bad)) for name, array in cells.items()}, columns)
        broken = [(UNREADABLE, "a text is not UTF-8", raw) for raw in raws(list(range(len(bad))))]
        cells = {name: array.filter(pa.array(valid)) for name, array in cells.items()}
    cell_columns = {column.name: _column(cells[column.field], column) for column in columns}
    return [CellBatch(int(valid.sum()), cell_columns, _raw(cells, columns), origin, broken)]


def valid_texts(texts: Sequence[pa.Array], rows: int) -> Bools:
    """Return which rows have only texts that are UTF-8."""
    valid = np.ones(rows, np.bool_)
    for array in texts:
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            for row, text in enumerate(array.cast(pa.binary()).to_pylist()):
                if text is not None and not is_utf8(text):
                    valid[row] = False
    return valid


def _column(cells: pa.Array, column: InputColumn) -> CellColumn:
    def convert(kind: DataType, is_time: bool) -> Converted:
        return stored_values(cells, column.physical, kind, is_time)

    def texts(rows: Sequence[int]) -> Sequence[str | None]:
        shown = texts_of(_as_declared(cells.take(pa.array(rows, pa.int64())), column))
        return [t.strip(" ") if column.bare and t is not None else t for t in shown]

    return CellColumn(convert, texts, lambda: finer_than_ms(cells))


def _as_declared(cells: pa.Array, column: InputColumn) -> pa.Array:
    """Return cells as the Flink job declares them: timestamps as the integers in the file."""
    if column.physical.kind == "timestamp[int96]":
        # with nine digits after the second
        texts = [
            None if t is None else f"{t}000000"
            for t in texts_of(cells.cast(pa.timestamp("ms"), safe=False))
        ]
        return pa.array(texts, pa.string())
    if pa.types.is_timestamp(cells.type):
        return cells.view(pa.int64())
    return cells


def _raw(
    cells: dict[str, pa.Array], columns: Sequence[InputColumn]
) -> Callable[[Sequence[int]], list[str]]:
    """Return rows as JSON of their cells."""

    def raw(rows: Sequence[int]) -> list[str]:
        chosen = pa.array(rows, pa.int64())
        values: dict[str, list[Any]] = {}
        for column in columns:
            values[column.field] = _json_values(cells[column.field].take(chosen), column)
        return [
            json_object({field: values[field][row] for field in values}) for row in range(len(rows))
        ]

    return raw


def _json_values(cells: pa.Array, column: InputColumn) -> list[Any]:
    declared = _as_declared(cells, column)
    if pa.types.is_date(declared.type):
        return texts_of(declared)
    if pa.types.is_string(declared.type):
        # bytes that are not UTF-8 are shown as U+FFFD
        plain = declared.cast(pa.binary()).to_pylist()
        texts = [None if text is None else decoded(text) for text in plain]
        return [text.strip(" ") if column.bare and text is not None else text for text in texts]
    values: list[Any] = declared.to_pylist()
    return values
