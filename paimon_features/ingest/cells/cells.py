"""Rows of an input, split into the cells of the source's columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from paimon_features.core.times.utc_ms import finer_than_ms
from paimon_features.core.types.array_types import Bools
from paimon_features.core.types.schema import DataType
from paimon_features.ingest.cells.converted import Converted
from paimon_features.ingest.cells.text_values import text_values


@dataclass(frozen=True, slots=True)
class CellColumn:
    """The cells of one column of the source.

    ``convert(kind, is_time)`` makes values of them, ``texts(rows)`` is how some of them are shown,
    ``finer()`` is where they are times with digits after the milliseconds.
    """

    convert: Callable[[DataType, bool], Converted]
    texts: Callable[[Sequence[int]], Sequence[str | None]]
    finer: Callable[[], Bools]


@dataclass(frozen=True, slots=True)
class CellBatch:
    """Rows with their cells; those that cannot be split are in ``broken``.

    Attributes
    ----------
    rows
        The number of rows that could be split.
    columns
        Source column -> its cells, one for each of these rows.
    raw
        The text of some of these rows, as the rejected table stores it.
    origin
        The file.
    broken
        (reason, detail, raw) of each row that could not be split, or has no cells.
    """

    rows: int
    columns: Mapping[str, CellColumn]
    raw: Callable[[Sequence[int]], Sequence[str]]
    origin: str
    broken: Sequence[tuple[str, str, str | None]] = field(default=())


def text_column(cells: pa.Array, bare: bool) -> CellColumn:
    """Return a column of texts; ``bare`` ignores surrounding blanks, also where a cell is shown."""

    def convert(kind: DataType, is_time: bool) -> Converted:
        return text_values(cells, kind, is_time)

    def texts(rows: Sequence[int]) -> Sequence[str | None]:
        cell_texts: list[str | None] = cells.take(pa.array(rows, pa.int64())).to_pylist()
        return [text.strip(" ") if bare and text is not None else text for text in cell_texts]

    return CellColumn(convert, texts, lambda: finer_than_ms(cells))
