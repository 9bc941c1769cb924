"""Inputs of any form as files that ``ingest`` reads: copies in Parquet, with the same rows.

A copy has the columns of the source, converted by its settings, and is deleted after its run.
Rows that cannot be split are in a file next to it, for the rejected table.

Libraries in C and C++ decode what has types (ORC, Avro, Arrow, tables). ``InputCopiesApart`` reads
these in a process that a damaged file may bring down: the crash is an error that names the file.
Text is converted in this process: nothing in it is a length or an address.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from paimon_features.core.configuration.input_settings import InputSettings
from paimon_features.core.errors import TableError
from paimon_features.core.process.supervision import reading
from paimon_features.core.types.schema import String
from paimon_features.definitions import EventSource
from paimon_features.ingest.input_columns import candidates_of
from paimon_features.ingest.input_files import (
    FORMATS,
    InputFile,
    files_below,
    find_files,
    parquet_columns,
)
from paimon_features.ingest.inputs.conversion import CellConverter
from paimon_features.ingest.inputs.csv_rows import has_only_returns
from paimon_features.ingest.inputs.opening import (
    OpenedInput,
    checked_form,
    closing_of,
    expected_forms,
    form_of,
    identity_of,
    open_input,
    reported,
    size_of,
    text_bytes,
)
from paimon_features.ingest.inputs.reading_process import (
    LIMITS,
    ReadingLimits,
    progressed,
    read_apart,
)

OnRows = Callable[[int], None]
"""Receives the rows that were copied since the last call."""


class InputCopies:
    """The inputs of one source, and copies of those that ``ingest`` cannot read as they are."""

    def __init__(
        self, source: EventSource, settings: InputSettings, on_rows: OnRows = lambda _: None
    ) -> None:
        self.source, self.settings, self.on_rows = source, settings, on_rows
        self._odd: dict[Path, bool] = {}

    def find(self, paths: Iterable[Path]) -> list[Path]:
        """Return the files and tables at ``paths``; of folders all that are of a known form.

        Raises
        ------
        ConfigurationError
            For a missing path, one of an unknown form, and a folder without any.
        """
        inputs: dict[Path, None] = {}
        for given in paths:
            path = given.expanduser().resolve()
            if not path.exists():
                checked_form(path)  # says which file may be meant
            if self.handles(path):
                inputs[path] = None
            elif path.is_dir() and form_of(path) is None:
                inside = files_below(given, path, form_of, expected_forms())
                inputs.update(dict.fromkeys(inside))
            else:
                inputs.update(dict.fromkeys(find_files([given])))
        return list(inputs)

    def handles(self, path: Path) -> bool:
        """Return True if an input is read from a copy."""
        form = form_of(path) if path.exists() else None
        if form is None:
            return False
        has_known_ending = any(path.name.lower().endswith(ending) for ending in FORMATS)
        if not has_known_ending or not self.settings.is_default:
            return True
        if path not in self._odd:  # reads a footer, and each file comes by twice
            self._odd[path] = (form == "Parquet" and self._has_odd_numbers(path)) or (
                form == "CSV" and _has_odd_lines(path)
            )
        return self._odd[path]

    def _has_odd_numbers(self, path: Path) -> bool:
        """Return True if a Parquet file has numbers that only a copy has in a type ``ingest``
        reads."""
        try:
            with reading(str(path)):
                schema = pq.read_schema(path)
        except (pa.ArrowException, OSError):
            return False  # inspecting it says what it is
        names = self.columns_of(OpenedInput("Parquet", schema, iter(()))).values()
        kinds = [schema.field(name).type for name in names]
        return any(pa.types.is_unsigned_integer(k) or pa.types.is_float16(k) for k in kinds)

    def inspect(self, path: Path) -> InputFile:
        """Return the columns of an input as its copy has them.

        Raises
        ------
        ConfigurationError, MissingExtraError
            As ``open_input``.
        """
        opened = open_input(path, self.settings)
        names = self.columns_of(opened)
        with closing_of(opened.batches), self._converter(opened, names) as converter:
            schema = converter.convert(_no_rows(opened.schema)).schema
        # as Arrow writes them: the storage decides what ingest declares
        file = io.BytesIO()
        pq.write_table(schema.empty_table(), file)
        file.seek(0)
        columns, physical = parquet_columns(path, file)
        return InputFile(
            path, "parquet", size_of(path), identity_of(path), "", columns, physical, None, True
        )

    @contextmanager
    def copied(self, files: Iterable[InputFile], folder: Path) -> Iterator[tuple[InputFile, ...]]:
        """Yield the files; those that are read from a copy get one below ``folder`` for the
        block."""
        import shutil

        out = list(files)
        places = [place for place, file in enumerate(out) if file.converted]
        copies = [folder / f"converted-{number}" / "rows.parquet" for number in range(len(places))]
        try:
            paths = [out[place].path for place in places]
            unreadable = self.copy_all(list(zip(paths, copies, strict=True)))
            for place, copy, bad in zip(places, copies, unreadable, strict=True):
                out[place] = replace(out[place], copy=copy, unreadable=bad)
            yield tuple(out)
        finally:
            for copy in copies:
                shutil.rmtree(copy.parent, ignore_errors=True)

    def columns_of(self, opened: OpenedInput) -> dict[str, str]:
        """Return the name in an input of each column of the source; missing ones are left out."""
        wanted = self.settings.columns
        fields = {}
        for name in self.source.schema:
            candidates = candidates_of(name, wanted.get(name), opened.schema.names)
            if len(candidates) == 1:
                fields[name] = candidates[0]
            elif opened.form == "JSON" and not candidates and name != self.source.event_time:
                fields[name] = wanted.get(name, name)  # a later object may have the key
        return fields

    def _converter(self, opened: OpenedInput, names: dict[str, str]) -> CellConverter:
        converter = CellConverter.of_source(self.settings, self.source, names)
        # others are shown in errors, and counted as ignored
        others = {n: (n, String) for n in opened.schema.names if n not in converter.columns}
        converter.columns = {**converter.columns, **others}
        return converter

    def copy_all(self, paths: Iterable[tuple[Path, Path]]) -> Iterator[Path | None]:
        """Copy inputs: the file of the rows of each that could not be split, if there are any."""
        for path, copy in paths:
            yield self._copy(path, copy)

    def _copy(self, path: Path, copy: Path) -> Path | None:
        opened = open_input(path, self.settings)
        with closing_of(opened.batches):
            names = self.columns_of(opened)
            with CellConverter.of_source(self.settings, self.source, names) as converter:
                unreadable = self._write(opened, converter, path, copy)
                if converter.has_two_orders:
                    converter.use_orders()
                    opened = open_input(path, self.settings)
                    with closing_of(opened.batches):
                        unreadable = self._write(opened, converter, path, copy)
        return unreadable

    def _write(
        self, opened: OpenedInput, converter: CellConverter, path: Path, copy: Path
    ) -> Path | None:
        bad = copy.with_name("unreadable.jsonl")
        schema = converter.convert(_no_rows(opened.schema)).schema
        try:
            copy.parent.mkdir(parents=True, exist_ok=True)
            writer = pq.ParquetWriter(copy, schema, compression="zstd")
            with writer, bad.open("w", encoding="utf-8") as unreadable:
                for batch in opened.batches:
                    writer.write_batch(converter.convert(batch).cast(schema))
                    self.on_rows(batch.num_rows)
                    _keep(opened, unreadable)
                _keep(opened, unreadable)  # those after the last batch
        except OSError as error:
            raise TableError(
                f"{path}: its copy for ingestion cannot be written: {error}; free space"
            ) from error
        return bad if bad.stat().st_size else None


def _keep(opened: OpenedInput, file: TextIO) -> None:
    for row in opened.take_unreadable():
        file.write(json.dumps([row.reason, row.detail, row.text]) + "\n")


def _has_odd_lines(path: Path) -> bool:
    """Return True if only a copy has lines that end as ``ingest`` reads them."""
    with reported(path, "CSV"), text_bytes(path) as file:
        return has_only_returns(file.read(1 << 16))


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows; Arrow makes none of a schema with unions."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)


_TEXT = ("CSV", "JSON")


def _limits() -> ReadingLimits:
    """Return limits for inputs of any size: half of the memory, and a week."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return ReadingLimits(max(LIMITS.memory_bytes, memory // 2), total_s=7 * 86_400)


class InputCopiesApart(InputCopies):
    """``InputCopies`` that reads inputs with types in one process for all of them."""

    def __init__(
        self, source: EventSource, settings: InputSettings, on_rows: OnRows = lambda _: None
    ) -> None:
        super().__init__(source, settings, on_rows)
        self._inspected: dict[Path, InputFile] = {}
        self._found: list[Path] = []

    def find(self, paths: Iterable[Path]) -> list[Path]:
        inputs = super().find(paths)
        self._found = [path for path in inputs if self.handles(path) and _has_types(path)]
        return inputs

    def inspect(self, path: Path) -> InputFile:
        if not _has_types(path):
            return super().inspect(path)
        if path not in self._inspected:
            # the first one reads all that were found
            together = self._found if path in self._found else [path]
            self._found = []
            files = read_apart(
                path, _inspections, self.source, self.settings, together, limits=_limits()
            )
            self._inspected.update(zip(together, files, strict=True))
        return self._inspected.pop(path)

    def copy_all(self, paths: Iterable[tuple[Path, Path]]) -> Iterator[Path | None]:
        pairs = list(paths)
        apart = [pair for pair in pairs if _has_types(pair[0])]
        copies = iter(()) if not apart else read_apart(
            apart[0][0], _copies, self.source, self.settings, apart,
            on_rows=self.on_rows, limits=_limits(),
        )  # fmt: skip
        for path, copy in pairs:
            yield next(copies) if _has_types(path) else self._copy(path, copy)


def _has_types(path: Path) -> bool:
    return form_of(path) not in _TEXT


def _inspections(
    source: EventSource, settings: InputSettings, paths: Sequence[Path]
) -> Iterator[InputFile]:
    copies = InputCopies(source, settings)
    for path in paths:
        with reading(str(path)):
            yield copies.inspect(path)


def _copies(
    source: EventSource, settings: InputSettings, paths: Sequence[tuple[Path, Path]]
) -> Iterator[Path | None]:
    copies = InputCopies(source, settings, progressed)
    for path, copy in paths:
        with reading(str(path)):
            yield from copies.copy_all([(path, copy)])
