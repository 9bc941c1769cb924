"""Files and tables of any form as streams of Arrow batches, through the libraries for each.

Text files are read as texts, so that the rules of ``ingest`` decide what is a value; files with
types in these types.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.orc

from paimon_features.core.configuration.input_settings import InputSettings
from paimon_features.core.errors import ConfigurationError, MissingExtraError, PaimonFeaturesError
from paimon_features.core.repeated_items import duplicates
from paimon_features.core.types.foreign_types import plain_batches, plain_schema
from paimon_features.ingest.cells.bounded_parquet import bounded_batches, open_parquet
from paimon_features.ingest.cells.parquet_cells import valid_texts
from paimon_features.ingest.inputs.avro_rows import avro_batches, avro_columns
from paimon_features.ingest.inputs.csv_rows import CsvRows
from paimon_features.ingest.inputs.json_objects import ObjectBatches, read_objects
from paimon_features.ingest.inputs.reading_process import progressed
from paimon_features.lake.events.rejects import UNREADABLE

BATCH_ROWS = 1 << 16

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
    nested: dict[str, str] = field(default_factory=dict)
    """Keys of JSON whose values were lists or objects; they are texts here."""

    def reject(self, reason: str, detail: str, text: str) -> None:
        """Add a row that could not be split; of a long one its beginning."""
        self.unreadable.append(UnreadableRow(reason, detail, text[:100_000]))

    def take_unreadable(self) -> list[UnreadableRow]:
        """Return the rows that could not be split since the last call."""
        rows, self.unreadable = self.unreadable, []
        return rows


def form_of(path: Path) -> str | None:
    """Return the form of a file or of a folder that is a table; None if it is none of them.

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
    """Return the form of an input that exists; ConfigurationError otherwise."""
    if not path.exists():
        near = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
        from paimon_features.core.suggestions import did_you_mean

        raise ConfigurationError(
            f"{path}: no such file or folder{did_you_mean(path.name, near[:1000])}"
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
                    yield plain if form in ("CSV", "JSON") else _readable(plain, opened)

    opened.batches = guarded()
    doubled = duplicates(opened.schema.names)
    if doubled:
        raise ConfigurationError(
            f"{path}: the column {doubled[0]!r} occurs twice; rename one, or give all names by "
            "header = false, skip = 1 and names = [...]"
        )
    return opened


def _readable(batch: pa.RecordBatch, opened: OpenedInput) -> pa.RecordBatch:
    """Return the rows whose texts are UTF-8.

    The others are unreadable, as ``ingest`` rejects them.
    """
    texts = {
        name: column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if pa.types.is_string(column.type)
    }
    valid = valid_texts(list(texts.values()), batch.num_rows)
    if valid.all():
        return batch
    bad = pa.array(np.flatnonzero(~valid))
    shown = {name: column.take(bad).cast(pa.binary()).to_pylist() for name, column in texts.items()}
    for row in range(len(bad)):
        cells = {name: cells[row] for name, cells in shown.items()}
        text = {name: c if c is None else c.decode(errors="replace") for name, c in cells.items()}
        opened.reject(UNREADABLE, "a text is not UTF-8", json.dumps(text, ensure_ascii=False))
    return batch.filter(pa.array(valid))


@contextmanager
def reported(path: Path, form: str) -> Iterator[None]:
    """Raise errors of the libraries as ConfigurationError."""
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
    """Open the bytes of a file, decompressed by the ending of its name."""
    kind = _COMPRESSED.get(path.suffix.lower())
    if kind == "zstd":
        with pa.OSFile(str(path)) as file, pa.CompressedInputStream(file, "zstd") as stream:
            yield stream
        return
    openers: dict[str | None, Any]
    openers = {"gzip": gzip.open, "bz2": bz2.open, "xz": lzma.open, None: open}
    with openers[kind](path, "rb") as file:
        yield file


def identity_of(path: Path) -> str:
    """Return what ``ingest`` remembers an input by: the hash of a file, the version of a table."""
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
    """Return the bytes of a file, or of all files of a table's folder."""
    if path.is_dir():
        return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
    return path.stat().st_size


# -- text -----------------------------------------------------------------------------------


def csv_header(path: Path, settings: InputSettings) -> list[str]:
    """Return the names of the columns of a CSV file: its header, ``names``, or column_1, column_2,
    ..."""
    if settings.names:
        return list(settings.names)
    with text_bytes(path) as file:
        head = file.read(4 << 20)
    text = head.decode(_decoding(settings.encoding), "replace").removeprefix("\ufeff")
    import csv

    lines = text.splitlines(keepends=True)[settings.skip :]
    csv.field_size_limit(max(csv.field_size_limit(), 4 << 20))
    rows = csv.reader(
        lines,
        delimiter=settings.delimiter,
        quotechar=settings.quote,
        escapechar=settings.escape or None,
    )
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

    def batches() -> Iterator[pa.RecordBatch]:
        rows = CsvRows(settings, len(names), opened.reject)
        for table in rows.batches(path, text_bytes, settings):
            yield from table.rename_columns(names).cast(schema).to_batches()

    opened.batches = batches()
    return opened


def _open_json(path: Path, settings: InputSettings) -> OpenedInput:
    """Open JSON objects, in an array or one a line; numbers and texts stay as written."""
    opened = OpenedInput("JSON", pa.schema([]), iter(()))
    objects = ObjectBatches(path, read_objects(path, text_bytes, opened.reject), opened.reject)
    if not objects.peek(1_000):
        first = next(iter(opened.unreadable), None)
        hint = "" if first is None else f"; found {first.text[:40]!r}: {first.detail}"
        raise ConfigurationError(
            f"{path}: no JSON object in it; expected an array of objects or one a line{hint}"
        )
    opened.schema = pa.schema([(name, pa.string()) for name in objects.names])
    opened.batches, opened.nested = objects.batches(BATCH_ROWS), objects.nested
    return opened


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
    """Yield the batches in parts: Arrow files may say anything of their rows, offsets and views."""
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
        schema = avro_columns(fastavro.reader(file).writer_schema)
    return OpenedInput("Avro", schema, avro_batches(records(), schema, BATCH_ROWS))


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
    from paimon_features.ingest.inputs.iceberg import open_iceberg

    reader = open_iceberg(path)
    return OpenedInput("Iceberg", reader.schema, iter(reader))


def _open_paimon(path: Path, settings: InputSettings) -> OpenedInput:
    from paimon_features.lake import Lake, iter_batches

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
