"""The stored type of a column of an input, and which types of the source it can be read into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from paimon_features.core.errors import ConfigurationError
from paimon_features.core.types.schema import DataType, ListType


@dataclass(frozen=True, slots=True)
class Physical:
    """The stored type of a column: ``kind`` is text, integer, float, boolean, date, bytes, decimal,
    timestamp[ms], timestamp[us], timestamp[ns], timestamp[int96] or unsupported; ``flink`` the
    type to declare.

    Timestamps are declared as the BIGINT in the file, and converted here: exact, and independent
    of a reader's handling of units. INT96 timestamps and decimals are converted from their text.
    """

    kind: str
    flink: str


TEXT = Physical("text", "STRING")

FLINK_NUMBERS: Mapping[pa.DataType, str] = {
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
}
"""The types of numbers in Flink SQL."""


def physical_type(kind: pa.DataType) -> Physical:
    """Return the declaration of a column of texts, booleans, days, decimals, bytes or numbers."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return TEXT
    if pa.types.is_boolean(kind):
        return Physical("boolean", "BOOLEAN")
    if pa.types.is_date32(kind):
        return Physical("date", "DATE")
    if pa.types.is_decimal(kind):
        return Physical("decimal", f"DECIMAL({kind.precision}, {kind.scale})")
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return Physical("bytes", "BYTES")
    if kind in FLINK_NUMBERS:
        return Physical("float" if pa.types.is_floating(kind) else "integer", FLINK_NUMBERS[kind])
    return Physical("unsupported", "STRING")


def check_readable(name: str, source: Physical, kind: DataType) -> None:
    """Raise ConfigurationError if values of ``source`` can never be of type ``kind``."""
    if isinstance(kind, ListType):
        raise ConfigurationError(
            f"column {name!r} is {kind!r}, which ingest cannot read from files or topics; "
            "write such events by paimon_features.lake.EventWriter"
        )
    if source.kind == "unsupported":
        raise ConfigurationError(
            f"column {name!r}: the file contains lists, structs, unions, intervals, unsigned or "
            "half-precision numbers or times of day, which ingest does not read; convert the column"
        )
    if (kind.text == "bytes") != (source.kind == "bytes"):
        raise ConfigurationError(
            f"column {name!r} is {kind!r} and the file contains {source.kind}; bytes are read from "
            "binary Parquet columns only, and binary columns are read as bytes only"
        )
    if source.kind.startswith("timestamp") and kind.text not in ("int64", "timestamp"):
        raise ConfigurationError(
            f"column {name!r} is {kind!r} and the file contains times; they are read into Int64 "
            "(milliseconds since 1970) or Timestamp columns"
        )
