"""Rows with their features as one Parquet file, there as a whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from paimon_features.errors import RequestError
from paimon_features.offline.feature_result import FeatureResult
from paimon_features.offline.inputs.row_source import in_pieces
from paimon_features.offline.reading.pinning import Pin

ROW_GROUP_ROWS = 1 << 17


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A Parquet file of rows with their features, and what was read for it."""

    path: Path
    rows: int
    features: tuple[str, ...]
    sources: tuple[Pin, ...]

    def to_document(self) -> dict[str, object]:
        """As JSON, for a program."""
        return {
            "path": str(self.path),
            "rows": self.rows,
            "features": list(self.features),
            "sources": [pin.to_document() for pin in self.sources],
        }


def write_parquet(result: FeatureResult, path: Path) -> int:
    """Write the rows with their features, and give their number.

    The file appears under its name when it is complete, in the place of another one of that
    name. The same rows and values give the same bytes, whatever the memory they were made in.

    Raises
    ------
    RequestError
        If the file cannot be written.
    """
    with result:
        return write_tables(result.schema, result.tables(), path)


def write_tables(schema: pa.Schema, tables: Iterator[pa.Table], path: Path) -> int:
    """Write the rows of tables by the rules of ``write_parquet``, and give their number."""
    if path.exists() and not path.is_file():
        # a folder, or a device: putting a file in its place would do harm
        raise RequestError(f"cannot write {path}: what is there is no file; name another path")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    rows = 0
    try:
        with pq.ParquetWriter(temporary, schema) as writer:
            for piece in in_pieces(schema, tables, ROW_GROUP_ROWS):
                # one chunk: where it was cut before has no say in how pages are filled
                writer.write_table(piece.combine_chunks(), ROW_GROUP_ROWS)
                rows += piece.num_rows
        os.replace(temporary, path)
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
    return rows
