"""Copies of inputs for ``ingest``, made in a process that a damaged file may bring down.

Libraries in C and C++ decode what has types (ORC, Avro, Arrow, tables). Their crash is an error
that names the file. Text is converted in this process: nothing in it is a length or an address.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from paimon_features.core.configuration.input_settings import InputSettings
from paimon_features.core.process.supervision import reading
from paimon_features.definitions import EventSource
from paimon_features.ingest.input_files import InputFile
from paimon_features.ingest.inputs.copies import InputCopies, OnRows
from paimon_features.ingest.inputs.opening import form_of
from paimon_features.ingest.inputs.reading_process import (
    LIMITS,
    ReadingLimits,
    progressed,
    read_apart,
)

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
