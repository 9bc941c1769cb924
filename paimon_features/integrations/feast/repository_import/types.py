"""Converts names, types and durations of Feast."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from paimon_features.core.types.schema import NAME
from paimon_features.core.windows import format_duration
from paimon_features.integrations.feast.repository_import.recording import FeastName, Recorded

TYPES: Mapping[str, str] = {
    "Bool": "pf.Bool", "Int32": "pf.Int32", "Int64": "pf.Int64", "Float32": "pf.Float32",
    "Float64": "pf.Float64", "String": "pf.String", "Bytes": "pf.Bytes",
    "UnixTimestamp": "pf.Timestamp",
    # of feast.value_type
    "BOOL": "pf.Bool", "INT32": "pf.Int32", "INT64": "pf.Int64", "FLOAT": "pf.Float32",
    "DOUBLE": "pf.Float64", "STRING": "pf.String", "BYTES": "pf.Bytes",
    "UNIX_TIMESTAMP": "pf.Timestamp",
}  # fmt: skip
"""Feast's scalar types and their names in a definitions file."""

_OF_ARROW: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_boolean, "pf.Bool"),
    (pa.types.is_int64, "pf.Int64"),
    (pa.types.is_integer, "pf.Int32"),
    (pa.types.is_float32, "pf.Float32"),
    (pa.types.is_floating, "pf.Float64"),
    (pa.types.is_string, "pf.String"),
    (pa.types.is_large_string, "pf.String"),
    (pa.types.is_binary, "pf.Bytes"),
    (pa.types.is_date, "pf.Date"),
    (pa.types.is_timestamp, "pf.Timestamp"),
)


def type_text(kind: Any) -> str | None:
    """Return the name of a Feast type in a definitions file; None without an equivalent.

    >>> type_text(FeastName("types.Float32")), type_text(Recorded("Array", (FeastName("Int64"),)))
    ('pf.Float32', 'pf.List(pf.Int64)')
    """
    if isinstance(kind, FeastName):
        return TYPES.get(repr(kind))
    if isinstance(kind, Recorded) and kind.kind == "Array" and len(kind.args) == 1:
        item = type_text(kind.args[0])
        return None if item is None else f"pf.List({item})"
    return None


def arrow_type_text(kind: pa.DataType) -> str | None:
    """Return the name of an Arrow type in a definitions file.

    >>> arrow_type_text(pa.float64())
    'pf.Float64'
    """
    return next((text for fits, text in _OF_ARROW if fits(kind)), None)


def file_schema(path: str | None, root: Path) -> Mapping[str, pa.DataType]:
    """Return columns of a Parquet file that can be read from here; empty otherwise.

    A relative path counts from the repository's folder, as in Feast.
    """
    if not path:
        return {}
    parts = urlsplit(path)
    if parts.scheme not in ("", "file"):
        return {}
    file = root / (unquote(parts.path) if parts.scheme else path)
    if file.is_dir():
        file = next(iter(sorted(file.rglob("*.parquet"))), file)
    try:
        return {field.name: field.type for field in pq.read_schema(file)}
    except (OSError, pa.ArrowException, UnicodeEncodeError):
        return {}


def duration_text(duration: timedelta | None) -> str | None:
    """Return a duration as text; None for none or zero, which are unlimited in Feast.

    >>> duration_text(timedelta(hours=36)), duration_text(timedelta(0))
    ('36h', None)
    """
    milliseconds = 0 if duration is None else round(duration / timedelta(milliseconds=1))
    return format_duration(milliseconds) if milliseconds > 0 else None


def our_name(name: str) -> str:
    """Return a name that a definition or column can have.

    >>> our_name("Driver-Stats v2"), our_name("7days")
    ('driver_stats_v2', 'n7days')
    """
    if NAME.fullmatch(name):
        return name
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "unnamed"
    return plain if plain[0].isalpha() else f"n{plain}"
