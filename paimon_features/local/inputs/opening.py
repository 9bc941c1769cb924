"""Files and tables of any form as streams of Arrow batches, through the libraries for each.

Text files are read as texts, so that the rules of ``ingest`` decide what is a value; files with
types in these types.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.feather
import pyarrow.ipc
import pyarrow.orc

from paimon_features.duplicates import duplicates
from paimon_features.errors import ConfigurationError, MissingExtraError, PaimonFeaturesError
from paimon_features.foreign_types import plain_batches, plain_schema
from paimon_features.input_settings import InputSettings
from paimon_features.local.ingest.bounded_parquet import bounded_batches, open_parquet
from paimon_features.local.inputs.avro_schema import avro_fields
from paimon_features.local.inputs.reading_process import progressed
from paimon_features.tables.rejects import TOO_FEW_COLUMNS, TOO_MANY_COLUMNS

BATCH_ROWS = 1 << 16
_BETWEEN_ITEMS, _BETWEEN_LINES = re.compile(r"[ \t\r\n,]*"), re.compile(r"\s*")
_BLOCK_BYTES = 8 << 20
"""Bytes of a text file that are parsed together."""
_PIECE_BYTES = 64 << 20
LONGEST_OBJECT = 16 << 20
"""Bytes of one object of a JSON array."""

FORMS: Mapping[str, str] = {
    ".csv": "CSV",
    ".tsv": "CSV",
    ".txt": "CSV",
    ".json": "JSON",
    ".jsonl": "JSON",
    ".ndjson": "JSON",
    ".parquet": "Parquet",
    ".avro": "Avro",
    ".orc": "ORC",
    ".arrow": "Arrow",
    ".ipc": "Arrow",
    ".feather": "Arrow",
}
"""The form of a file by the ending of its name, before that of a compression."""
_COMPRESSED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}
TABLES = ("Delta", "Iceberg", "Paimon")


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A row that could not be split: the reason of the rejected table, a detail, its text."""

    reason: str
    detail: str
    text: str


@dataclass(slots=True)
class OpenedInput:
    """The rows of an input, once: ``batches`` ends with the last, ``unreadable`` grows meanwhile.

    ``rows`` is their number where the form knows it.
    """

    form: str
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    rows: int | None = None
    unreadable: list[UnreadableRow] = field(default_factory=list)


def form_of(path: Path) -> str | None:
    """The form of a file or of a folder that is a table; None if it is none of them.

    >>> form_of(Path("a.csv.gz")), form_of(Path("b.PARQUET")), form_of(Path("c.xlsx"))
    ('CSV', 'Parquet', None)
    """
    if path.is_dir():
        if (path / "_delta_log").is_dir():
            return "Delta"
        if any((path / "metadata").glob("*.metadata.json")):
            return "Iceberg"
        if (path / "schema").is_dir() and (path / "snapshot").is_dir():
            return "Paimon"
        return None
    endings = [ending.lower() for ending in path.suffixes]
    if endings and endings[-1] in _COMPRESSED:
        endings.pop()
        form = FORMS.get(endings[-1]) if endings else None
        return form if form in ("CSV", "JSON") else None
    return FORMS.get(endings[-1]) if endings else None


def expected_forms() -> str:
    return (
        f"expected a file {', '.join(FORMS)} (text also {', '.join(_COMPRESSED)}), or the folder "
        f"of a table of {', '.join(TABLES[:-1])} or {TABLES[-1]}"
    )


def checked_form(path: Path) -> str:
    """The form of an input that exists; ConfigurationError otherwise."""
    if not path.exists():
        near = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
        from paimon_features.suggestions import did_you_mean

        raise ConfigurationError(
            f"{path}: there is no such file or folder{did_you_mean(path.name, near[:1000])}"
        )
    form = form_of(path)
    if form is None:
        raise ConfigurationError(f"{path}: unknown form of data; {expected_forms()}")
    return form


def open_input(path: Path, settings: InputSettings) -> OpenedInput:
    """Open a file or table; rows are read when they are taken.

    Raises
    ------
    ConfigurationError
        If it does not exist, is of no known form, or is not what its name says.
    MissingExtraError
        If the library of its form is not installed.
    """
    form = checked_form(path)
    with reported(path, form):
        opened = _OPENERS[form](path, settings)
        opened.schema = plain_schema(opened.schema)
    batches = opened.batches

    def guarded() -> Iterator[pa.RecordBatch]:
        with reported(path, form), closing_of(batches):
            for batch in batches:
                for plain in plain_batches(batch):
                    progressed()
                    yield plain

    opened.batches = guarded()
    doubled = duplicates(opened.schema.names)
    if doubled:
        raise ConfigurationError(
            f"{path}: the column {doubled[0]!r} occurs twice; rename one, or give all names by "
            "header = false, skip = 1 and names = [...]"
        )
    return opened


@contextmanager
def reported(path: Path, form: str) -> Iterator[None]:
    """Errors of the libraries as ours."""
    try:
        yield
    except (PaimonFeaturesError, MemoryError):
        raise
    except RecursionError as error:
        raise ConfigurationError(
            f"{path}: values are nested in each other too deeply; flatten them"
        ) from error
    except Exception as error:
        # libraries raise what their parsers meet in a damaged file: KeyError, struct.error, ...
        line = str(error).partition("\n")[0] or type(error).__name__
        if "straddl" in line:
            line = f"a row has more than {_BLOCK_BYTES >> 20} MiB, or its quotes do not end"
        raise ConfigurationError(f"{path}: it cannot be read as {form}: {line}") from error


@contextmanager
def closing_of(batches: Iterator[Any]) -> Iterator[None]:
    """Close a reader at the end, if it can be: one left open ends the interpreter by an abort."""
    try:
        yield
    finally:
        close = getattr(batches, "close", None)
        if close is not None:
            close()


@contextmanager
def text_bytes(path: Path) -> Iterator[Any]:
    """The bytes of a file, decompressed by the ending of its name."""
    kind = _COMPRESSED.get(path.suffix.lower())
    if kind == "zstd":
        with pa.OSFile(str(path)) as file, pa.CompressedInputStream(file, "zstd") as stream:
            yield stream
        return
    openers: dict[str | None, Any] = {
        "gzip": gzip.open, "bz2": bz2.open, "xz": lzma.open, None: open
    }  # fmt: skip
    with openers[kind](path, "rb") as file:
        yield file


def identity_of(path: Path) -> str:
    """What ``ingest`` remembers an input by: the hash of a file, the version of a table."""
    form = checked_form(path)
    if form not in TABLES:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    folder = {"Delta": "_delta_log", "Iceberg": "metadata", "Paimon": "snapshot"}[form]
    # the files of its versions: a table with another one is another input
    names = sorted(p.name for p in (path / folder).iterdir())
    text = "\n".join([form, str(path.resolve()), *names])
    return hashlib.sha256(text.encode()).hexdigest()


def size_of(path: Path) -> int:
    """The bytes of a file, or of all files of a table's folder."""
    if path.is_dir():
        return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
    return path.stat().st_size


# -- text -----------------------------------------------------------------------------------


def csv_header(path: Path, settings: InputSettings) -> list[str]:
    """The names of the columns of a CSV file: its header, ``names``, or column_1, column_2, ..."""
    if settings.names:
        return list(settings.names)
    with text_bytes(path) as file:
        head = file.read(4 << 20)
    text = head.decode(_decoding(settings.encoding), "replace").removeprefix("\ufeff")
    import csv

    lines = text.splitlines(keepends=True)[settings.skip :]
    csv.field_size_limit(max(csv.field_size_limit(), 4 << 20))
    rows = csv.reader(lines, delimiter=settings.delimiter, quotechar=settings.quote)
    first = next((row for row in rows if row), None)
    if first is None:
        raise ConfigurationError(f"{path}: it is empty; expected a header with names of columns")
    if settings.header:
        return [name.strip() for name in first]
    return [f"column_{number}" for number in range(1, len(first) + 1)]


def _decoding(encoding: str) -> str:
    return "utf-8-sig" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else encoding


def _open_csv(path: Path, settings: InputSettings) -> OpenedInput:
    names = csv_header(path, settings)
    schema = pa.schema([(name, pa.string()) for name in names])
    opened = OpenedInput("CSV", schema, iter(()))

    def unreadable(row: Any) -> str:
        few = row.actual_columns < row.expected_columns
        opened.unreadable.append(
            UnreadableRow(
                TOO_FEW_COLUMNS if few else TOO_MANY_COLUMNS,
                f"expected {row.expected_columns} columns, got {row.actual_columns}",
                row.text[:100_000],
            )
        )
        return "skip"

    # UTF-16 and UTF-32 have more bytes, and a mark of their own
    has_byte_line_ends = "x\n".encode(settings.encoding).endswith(b"x\n")

    def batches() -> Iterator[pa.RecordBatch]:
        with text_bytes(path) as file:
            reader = pc_csv.open_csv(
                _EndedLines(file) if has_byte_line_ends else file,
                pc_csv.ReadOptions(
                    column_names=names,
                    skip_rows=settings.skip + settings.header,
                    encoding=settings.encoding,
                    block_size=_BLOCK_BYTES,
                    use_threads=False,
                ),
                pc_csv.ParseOptions(
                    delimiter=settings.delimiter,
                    quote_char=settings.quote,
                    newlines_in_values=settings.line_breaks,
                    invalid_row_handler=unreadable,
                ),
                pc_csv.ConvertOptions(
                    column_types={name: pa.string() for name in names},
                    null_values=["", *settings.nulls],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
            with reader:
                yield from reader

    opened.batches = batches()
    return opened


def _open_json(path: Path, settings: InputSettings) -> OpenedInput:
    """Objects, an array of them or one a line; numbers and texts as they are written."""
    objects = json_objects(path)
    first = next(_pieces(objects, 1_000), [])
    if not first:
        raise ConfigurationError(
            f"{path}: there is no JSON object in it; expected an array of objects or one a line"
        )
    names = list(dict.fromkeys(name for row in first for name in row))
    kinds = {n: _json_column(path, n, [row.get(n) for row in first]).type for n in names}
    # a key that has its first value later: any value is a text
    schema = pa.schema(
        [(n, pa.string() if pa.types.is_null(kind) else kind) for n, kind in kinds.items()]
    )

    def batches() -> Iterator[pa.RecordBatch]:
        for piece in _pieces(chain(first, objects)):
            columns = [
                _json_column(path, f.name, [row.get(f.name) for row in piece], f.type)
                for f in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return OpenedInput("JSON", schema, batches())


def _pieces(
    rows: Iterator[dict[str, Any]], most: int = BATCH_ROWS
) -> Iterator[list[dict[str, Any]]]:
    """The rows in lists of at most ``most`` rows, and about 64 MiB of texts."""
    piece: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        piece.append(row)
        size += sum(len(v) for v in row.values() if isinstance(v, str | bytes | list | dict))
        if len(piece) >= most or size >= _PIECE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _json_column(
    path: Path, name: str, values: list[Any], kind: pa.DataType | None = None
) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise ConfigurationError(
            f"{path}: values of the key {name!r} differ in type, or are too large: "
            f"{str(error).splitlines()[0]}; write numbers and texts of a key alike, or one object "
            "a line in a .jsonl file, which ingest reads row by row"
        ) from error


def json_objects(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON array, or of JSON lines, in bounded memory."""
    decoder = json.JSONDecoder()
    with (
        text_bytes(path) as file,
        io.TextIOWrapper(io.BufferedReader(_Readable(file)), "utf-8-sig") as text,
    ):
        held = text.read(1 << 16).lstrip()
        is_array = held.startswith("[")
        between = _BETWEEN_ITEMS if is_array else _BETWEEN_LINES
        # the next object begins there: to cut off each that was read would copy the rest each time
        at = 1 if is_array else 0
        while True:
            at = _end_of(between, held, at)
            if is_array and held.startswith("]", at):
                return
            try:
                value, end = decoder.raw_decode(held, at)
            except ValueError as error:
                if not isinstance(error, json.JSONDecodeError):  # a number of too many digits
                    raise
                held, at = held[at:], 0
                more = text.read(max(1 << 16, len(held)))
                if not more:
                    if held:
                        raise
                    if is_array:
                        raise ConfigurationError(
                            f"{path}: its array does not end with ']': the file is cut off; write "
                            "it again"
                        ) from None
                    return
                if len(held) > LONGEST_OBJECT:
                    raise ConfigurationError(
                        f"{path}: an object of more than {LONGEST_OBJECT:,} characters"
                    ) from None
                held += more
                continue
            if not isinstance(value, dict):
                raise ConfigurationError(
                    f"{path}: expected JSON objects, got {type(value).__name__}: "
                    f"{held[at : at + 40]!r}"
                )
            yield value
            at = end
            if len(held) - at < 1 << 12:
                held, at = held[at:] + text.read(1 << 20), 0


def _end_of(between: re.Pattern[str], text: str, at: int) -> int:
    found = between.match(text, at)
    assert found is not None, "it matches nothing, too"
    return found.end()


class _Readable(io.RawIOBase):
    """A stream of Arrow or of a decompressor as a raw file."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _EndedLines(_Readable):
    """The same with an end of the last line: without one, Arrow reads an empty cell there that
    follows a quoted one as an empty text, and not as null."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self._last = b""

    def readinto(self, buffer: Any) -> int:
        if size := super().readinto(buffer):
            self._last = bytes(buffer[size - 1 : size])
            return size
        if self._last in (b"", b"\n", b"\r"):
            return 0
        self._last = buffer[:1] = b"\n"
        return 1


# -- with types -----------------------------------------------------------------------------


def _open_parquet(path: Path, settings: InputSettings) -> OpenedInput:
    with open_parquet(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
    return OpenedInput("Parquet", schema, bounded_batches(path, BATCH_ROWS), rows)


def _open_orc(path: Path, settings: InputSettings) -> OpenedInput:
    file = pyarrow.orc.ORCFile(path)

    def batches() -> Iterator[pa.RecordBatch]:
        for stripe in range(file.nstripes):
            yield from pa.Table.from_batches([file.read_stripe(stripe)]).to_batches(BATCH_ROWS)

    return OpenedInput("ORC", file.schema, batches(), file.nrows)


def _open_arrow(path: Path, settings: InputSettings) -> OpenedInput:
    source = pa.memory_map(str(path))
    try:
        file = pyarrow.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        if source.read(4) == b"FEA1":  # Feather's first version
            table = pyarrow.feather.read_table(path)
            return OpenedInput("Arrow", table.schema, iter(table.to_batches()), table.num_rows)
        source.seek(0)
        stream = pyarrow.ipc.open_stream(source)
        return OpenedInput("Arrow", stream.schema, _checked(stream))
    whole = (file.get_batch(number) for number in range(file.num_record_batches))
    return OpenedInput("Arrow", file.schema, _checked(whole))


def _checked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches in parts: Arrow files may say anything of their rows, offsets and views."""
    for batch in batches:
        batch.validate()
        if batch.num_rows >= 1 << 31:
            raise pa.ArrowInvalid(f"it has a batch of {batch.num_rows:,} rows")
        for start in range(0, batch.num_rows, BATCH_ROWS):
            part = batch.slice(start, BATCH_ROWS)
            part.validate(full=True)
            yield part


def _open_avro(path: Path, settings: InputSettings) -> OpenedInput:
    try:
        import fastavro
    except ImportError as error:
        raise MissingExtraError.of("fastavro", "formats", "reading Avro files") from error

    def records() -> Iterator[Any]:
        with path.open("rb") as file:
            yield from fastavro.reader(file)

    with path.open("rb") as file:
        names = avro_fields(fastavro.reader(file).writer_schema)
    rows = records()
    first: list[Any] = next(_pieces(rows, 10_000), [])
    inferred = pa.Table.from_pylist([{n: row[n] for n in names} for row in first] or [{}])
    schema = inferred.select(names).schema if first else pa.schema([(n, pa.null()) for n in names])

    def batches() -> Iterator[pa.RecordBatch]:
        for piece in _pieces(chain(first, rows)):
            yield pa.RecordBatch.from_pylist(piece, schema)

    return OpenedInput("Avro", schema, batches())


# -- tables ---------------------------------------------------------------------------------


def _open_delta(path: Path, settings: InputSettings) -> OpenedInput:
    try:
        import deltalake
    except ImportError as error:
        raise MissingExtraError.of("deltalake", "formats", "reading Delta tables") from error
    table = deltalake.DeltaTable(str(path))
    _check_inside(path, table.file_uris())
    data = table.to_pyarrow_dataset()
    return OpenedInput("Delta", data.schema, data.to_batches(batch_size=BATCH_ROWS))


def _check_inside(folder: Path, files: Iterable[str]) -> None:
    """Check that a table's files are in its folder, symbolic links followed."""
    root = folder.resolve()
    for name in files:
        if not Path(name).resolve().is_relative_to(root):
            raise ConfigurationError(
                f"{folder}: its log names {name[:200]!r}, which is not in this folder; only a "
                "table whose files are all in its folder is read. Copy the table, with its data, "
                "and name the copy"
            )


def _open_iceberg(path: Path, settings: InputSettings) -> OpenedInput:
    from paimon_features.local.inputs.iceberg import open_iceberg

    reader = open_iceberg(path)
    return OpenedInput("Iceberg", reader.schema, iter(reader))


def _open_paimon(path: Path, settings: InputSettings) -> OpenedInput:
    from paimon_features.tables import Lake, iter_batches

    database = path.resolve().parent
    if database.suffix != ".db":
        raise ConfigurationError(
            f"{path}: expected a table of a Paimon warehouse, WAREHOUSE/DATABASE.db/TABLE"
        )
    lake = Lake.open(str(database.parent), database.stem)
    return OpenedInput("Paimon", lake.schema(path.name), iter_batches(lake, path.name))


_OPENERS: Mapping[str, Callable[[Path, InputSettings], OpenedInput]] = {
    "CSV": _open_csv,
    "JSON": _open_json,
    "Parquet": _open_parquet,
    "ORC": _open_orc,
    "Arrow": _open_arrow,
    "Avro": _open_avro,
    "Delta": _open_delta,
    "Iceberg": _open_iceberg,
    "Paimon": _open_paimon,
}
