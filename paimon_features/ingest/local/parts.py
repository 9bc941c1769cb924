"""The parts of files in which they are read, by format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa

from paimon_features.core.errors import JobError
from paimon_features.core.process.supervision import reading
from paimon_features.ingest.cells.cells import CellBatch
from paimon_features.ingest.cells.csv_cells import csv_batches
from paimon_features.ingest.cells.json_cells import json_batches
from paimon_features.ingest.cells.lines import read_blocks
from paimon_features.ingest.cells.parquet_cells import parquet_batches
from paimon_features.ingest.input_columns import FileGroup
from paimon_features.ingest.input_files import InputFile

ReadPart = Callable[[], list[CellBatch]]


def parts_of(groups: Sequence[FileGroup], doing: str) -> Iterator[tuple[ReadPart, FileGroup]]:
    """Yield functions that read a part of a file each, in order, with the group of the file.

    Raises
    ------
    JobError
        If a file cannot be read; ``doing`` says for what.
    """
    for group in groups:
        for file in group.files:
            try:
                with reading(str(file.path)):
                    for part in _parts(group, file):
                        yield part, group
            except MemoryError:
                raise
            except (OSError, pa.ArrowException) as error:
                raise JobError(f"{doing}: {file.path}: {error}") from error


def _parts(group: FileGroup, file: InputFile) -> Iterator[ReadPart]:
    if group.format == "parquet":
        return parquet_batches(group, file)
    batches = csv_batches if group.format == "csv" else json_batches
    return (partial(batches, data, group, file) for data in read_blocks(file.read_path))
