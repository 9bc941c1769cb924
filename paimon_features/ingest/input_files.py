"""The files to ingest: discovered, and inspected before the job starts.

Their columns are the header of a CSV file, the schema of a Parquet file, or the keys of the first
rows of a JSON file; ``paimon_features.ingest.input_columns`` maps them to those of the source.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from paimon_features.core.errors import ConfigurationError
from paimon_features.core.process.supervision import reading
from paimon_features.core.repeated_items import duplicates
from paimon_features.ingest.physical import Physical, physical_type

FORMATS: Mapping[str, str] = {
    ".csv": "csv",
    ".csv.gz": "csv",
    ".parquet": "parquet",
    ".jsonl": "json",
    ".jsonl.gz": "json",
    ".ndjson": "json",
    ".ndjson.gz": "json",
}
_HEAD_BYTES = 1 << 20
"""Bytes that are inspected: the longest CSV header, the JSON rows whose keys are collected."""

FIELD = r'"[^"]*+(?:""[^"]*+)*+"|[^",][^,]*+|'
"""One field of a CSV line, in the regular expressions of Java and of Python 3.11: quoted with
doubled quotes inside, or bare (a quote inside a bare field is a character), or empty. The
quantifiers are possessive: a long field takes no stack and a broken one no time."""
_LINE = re.compile(rf"(?:{FIELD})(?:,(?:{FIELD}))*+")
_FIELDS = re.compile(rf",({FIELD})")


@dataclass(frozen=True, slots=True)
class InputFile:
    """An inspected file; ``columns`` are its column names, for JSON the keys of its first rows.

    ``copy`` is what the job reads instead of it, if it has lines that are too long, or if it is
    ``converted`` before; ``unreadable`` then has the rows that could not be split.
    """

    path: Path
    format: str
    size: int
    sha256: str
    header: str = ""
    columns: tuple[str, ...] = ()
    physical: tuple[Physical, ...] = ()
    copy: Path | None = None
    converted: bool = False
    unreadable: Path | None = None

    @property
    def read_path(self) -> Path:
        """The file that the job reads."""
        return self.copy or self.path


def find_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files at ``paths``, for folders all files below them, sorted.

    Raises
    ------
    ConfigurationError
        For a missing path, a folder without a file of a known format, and a named file that
        Flink would not read or not decompress.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("b.csv", "a.jsonl.gz", "notes.txt", "_done.csv"):
    ...         _ = Path(folder, name).touch()
    ...     [path.name for path in find_files([Path(folder)])]
    ['a.jsonl.gz', 'b.csv']
    """
    files: dict[Path, None] = {}
    for given in paths:
        path = given.expanduser().resolve()
        if path.is_dir():
            inside = files_below(given, path, _format_of, _expected())
            files.update((_unpackable(p), None) for p in inside)
        elif not path.is_file():
            raise ConfigurationError(f"{given}: no such file or folder")
        elif not _format_of(path):
            raise ConfigurationError(f"{given}: unknown format; {_expected()}")
        elif path.name[0] in "._":
            raise ConfigurationError(
                f"{given}: Flink ignores files whose names begin with a dot or an underscore; "
                "rename it"
            )
        else:
            files[_unpackable(path)] = None
    return list(files)


def files_below(
    given: Path, folder: Path, form: Callable[[Path], str | None], expected: str
) -> list[Path]:
    """Return the files below a folder that have a form, sorted; ConfigurationError without any."""
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and form(p) is not None]
    # by convention not data: unfinished files, and markers of other programs
    files = [p for p in files if not any(n[0] in "._" for n in p.relative_to(folder).parts)]
    if not files:
        raise ConfigurationError(f"{given}: no file to ingest in this folder; {expected}")
    return files


def inspect_file(path: Path) -> InputFile:
    """Read a file's columns and its hash.

    Raises
    ------
    ConfigurationError
        For a CSV file with a missing or invalid header, a file that cannot be decompressed, and
        an invalid Parquet file.
    """
    form = _format_of(path)
    assert form is not None
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    header = ""
    physical: tuple[Physical, ...] = ()
    if form == "csv":
        header = _first_line(path)
        columns = _header_fields(path, header)
    elif form == "json":
        columns = _first_keys(path)
    else:
        columns, physical = parquet_columns(path)
    doubled = duplicates(columns)
    if doubled:
        raise ConfigurationError(f"{path}: the column {doubled[0]!r} occurs twice")
    return InputFile(path, form, path.stat().st_size, digest, header, columns, physical)


def _expected() -> str:
    return f"expected a name that ends with {', '.join(FORMATS)}"


def _format_of(path: Path) -> str | None:
    name = path.name.lower()
    return next((form for ending, form in FORMATS.items() if name.endswith(ending)), None)


def _unpackable(path: Path) -> Path:
    if path.suffix != ".gz" and path.suffix.lower() == ".gz":
        raise ConfigurationError(
            f"{path}: Flink decompresses only files that end with .gz; rename it"
        )
    return path


def _head(path: Path) -> bytes:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            return file.read(_HEAD_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigurationError(f"{path}: it cannot be read: {error}") from error


def _first_line(path: Path) -> str:
    line = _head(path).partition(b"\n")[0]
    try:
        return line.decode("utf-8").rstrip("\r")
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{path}: its first line is not UTF-8 ({error}); convert the file"
        ) from error


def _first_keys(path: Path) -> tuple[str, ...]:
    """Return the keys of the JSON objects at the beginning of a file, in the order of their first
    use."""
    head = _head(path)
    # the last line may be incomplete
    lines = head.splitlines() if len(head) < _HEAD_BYTES else head.splitlines()[:-1]
    keys: dict[str, None] = {}
    for line in lines:
        try:
            row = json.loads(line, parse_constant=_no_json)
        except (ValueError, RecursionError):
            continue  # the job rejects it, with the reason
        if isinstance(row, dict):
            keys.update(dict.fromkeys(row))
    return tuple(keys)


def _no_json(name: str) -> None:
    raise ValueError(f"{name} is valid in Python, but not in JSON")


def _header_fields(path: Path, header: str) -> tuple[str, ...]:
    text = header.removeprefix("\ufeff")
    if not text or not _LINE.fullmatch(text):
        raise ConfigurationError(
            f"{path}: its first line is not a CSV header with the names of the columns: "
            f"{text[:100]!r}"
        )
    fields = (match[1].strip() for match in _FIELDS.finditer("," + text))
    return tuple(f[1:-1].replace('""', '"') if f[:1] == '"' else f for f in fields)


def parquet_columns(
    path: Path, file: BinaryIO | None = None
) -> tuple[tuple[str, ...], tuple[Physical, ...]]:
    try:
        with reading(str(path)), pq.ParquetFile(path if file is None else file) as opened:
            arrow = opened.schema_arrow
            leaves = [opened.schema.column(number) for number in range(len(opened.schema))]
    except (pa.ArrowInvalid, OSError) as error:
        raise ConfigurationError(f"{path}: it is not a Parquet file: {error}") from error
    stored = {leaf.path: leaf for leaf in leaves}
    return tuple(arrow.names), tuple(_physical(field, stored) for field in arrow)


def _physical(field: pa.Field, columns: Mapping[str, pq.ColumnSchema]) -> Physical:
    """Return the declaration of a column for Flink that reads the values as stored."""
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    stored = columns.get(field.name)
    if stored is None:
        return Physical("unsupported", "STRING")
    if pa.types.is_timestamp(kind) and stored.physical_type == "INT64":
        unit = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
        match = re.search("milliseconds|microseconds|nanoseconds", str(stored.logical_type))
        return Physical(f"timestamp[{unit[match[0]] if match else kind.unit}]", "BIGINT")
    if pa.types.is_timestamp(kind):
        return Physical("timestamp[int96]", "TIMESTAMP(9)")
    if pa.types.is_decimal(kind):
        # Flink infers the storage from the declared precision, but writers choose it freely
        least = {"INT32": 1, "INT64": 10}.get(stored.physical_type, 19)
        return Physical("decimal", f"DECIMAL({max(kind.precision, least)}, {kind.scale})")
    if pa.types.is_null(kind):
        return Physical("integer", "INT")
    return physical_type(kind)
