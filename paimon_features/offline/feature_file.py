"""Rows with their features as one file, there as a whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from paimon_features.core.errors import RequestError
from paimon_features.core.process.output_files import check_output_file
from paimon_features.offline.feature_result import FeatureResult
from paimon_features.offline.inputs.row_source import in_pieces
from paimon_features.offline.reading.pinning import Pin

ROW_GROUP_ROWS = 1 << 17


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file of rows with their features, and what was read for it."""

    path: Path
    rows: int
    features: tuple[str, ...]
    sources: tuple[Pin, ...]
    commits_not_included: Mapping[str, int] = field(default_factory=dict)
    """Commits of events that the tiles of a view do not contain yet, by view."""

    def to_document(self) -> dict[str, object]:
        """Return as JSON, for a program."""
        return {
            "path": str(self.path),
            "rows": self.rows,
            "features": list(self.features),
            "sources": [pin.to_document() for pin in self.sources],
            "commits_not_included": dict(self.commits_not_included),
        }


@contextmanager
def _parquet(path: Path, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
    with pq.ParquetWriter(path, schema, write_page_checksum=True) as writer:
        # one chunk: where it was cut before has no say in how pages are filled
        yield lambda piece: writer.write_table(piece.combine_chunks(), ROW_GROUP_ROWS)


@contextmanager
def _arrow(path: Path, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
    # a file has one dictionary per column, and pieces may have their own
    with pa.ipc.new_file(path, _plain(schema)) as writer:
        yield lambda piece: writer.write_table(piece.cast(_plain(schema)).combine_chunks())


@contextmanager
def _csv(path: Path, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
    with pa.csv.CSVWriter(path, _plain(schema)) as writer:
        yield lambda piece: writer.write_table(piece.cast(_plain(schema)))


@contextmanager
def _csv_gz(path: Path, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
    with (
        pa.CompressedOutputStream(str(path), "gzip") as file,
        pa.csv.CSVWriter(file, _plain(schema)) as writer,
    ):
        yield lambda piece: writer.write_table(piece.cast(_plain(schema)))


FORMATS: Mapping[str, Any] = {
    ".parquet": _parquet,
    ".pq": _parquet,
    ".csv": _csv,
    ".csv.gz": _csv_gz,
    ".arrow": _arrow,
    ".feather": _arrow,
}
"""Formats by the suffix of the file's name: Parquet, CSV, the Arrow file format (Feather 2)."""


def check_output(path: Path) -> None:
    """Check that a file can be written at ``path``.

    Raises
    ------
    RequestError
        If its folder is missing, something else than a file is there, or its suffix names no
        format.
    """
    check_output_file(path)
    _format(path)


def write_result(result: FeatureResult, path: Path) -> int:
    """Write the rows with their features, and return their number.

    The file appears under its name when it is complete, in the place of another one of that
    name. The same rows and values give the same bytes, whatever the memory they were made in.

    Raises
    ------
    RequestError
        If the file cannot be written, or its format cannot contain the columns.
    """
    with result:
        return write_tables(result.schema, result.tables(), path)


def write_tables(schema: pa.Schema, tables: Iterator[pa.Table], path: Path) -> int:
    """Write the rows of tables by the rules of ``write_result``, and return their number."""
    check_output(path)
    open_file = _format(path)
    if open_file in (_csv, _csv_gz):
        _check_cells(schema, path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    rows = 0
    try:
        with open_file(temporary, schema) as write:
            for piece in in_pieces(schema, tables, ROW_GROUP_ROWS):
                write(piece)
                rows += piece.num_rows
        os.replace(temporary, path)
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
    return rows


def _format(path: Path) -> Any:
    # the longest suffix first: .csv.gz before .gz
    for suffix in (*path.suffixes[-2:-1], *path.suffixes[-1:]):
        name = path.name[path.name.rindex(suffix) :].lower()
        if name in FORMATS:
            return FORMATS[name]
    raise RequestError(
        f"cannot write {path}: its suffix names no format; expected one of {', '.join(FORMATS)}"
    )


def _plain(schema: pa.Schema) -> pa.Schema:
    """Return the schema with the values of dictionaries instead of dictionaries."""
    plain = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in schema
    ]
    return pa.schema(plain, schema.metadata)


def _check_cells(schema: pa.Schema, path: Path) -> None:
    nested = [field.name for field in schema if pa.types.is_nested(field.type)]
    if nested:
        raise RequestError(
            f"cannot write {path}: CSV has no lists, and {', '.join(nested)} are lists; write "
            ".parquet or .arrow"
        )
