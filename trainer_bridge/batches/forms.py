"""Batches, and the forms that rows have in memory.

A form decodes a block once, then gathers rows of decoded blocks into chunks, and cuts
batches out of a chunk without copying.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict, Unpack

import numpy as np
import pyarrow as pa

from paimon_features.core.errors import RequestError, UnknownNameError
from paimon_features.core.types.array_types import Array, Ints
from trainer_bridge.batches.aligned import RECYCLED
from trainer_bridge.batches.arrow_values import in_order, take_of_table
from trainer_bridge.batches.ragged import Ragged


class BatchPosition(TypedDict):
    """Which rows a batch has, and where its global batch begins; see :class:`Batch`."""

    row_numbers: Ints
    epoch: int
    position: int
    num_padding: NotRequired[int]


@dataclass(frozen=True, slots=True)
class Batch:
    """One rank's share of a global batch.

    Attributes
    ----------
    columns
        One array per column: of shape ``(rows,)``, views into ``blocks``, and of shape
        ``(rows, *shape)`` for lists of fixed length. Empty for Arrow.
    ragged
        Columns of lists of any length.
    blocks
        One contiguous array of shape ``(rows, columns of that dtype)`` per dtype name.
    names
        The columns of each block, in its order.
    arrow
        The rows as an Arrow table, where the reader's ``output`` is ``"arrow"``.
    row_numbers
        Number of each row in the snapshot, int64.
    num_padding
        How many rows at the end repeat others, to fill the last batch of the epoch.
    epoch, position
        Where the global batch begins.
    """

    row_numbers: Ints
    epoch: int
    position: int
    num_padding: int = 0
    columns: Mapping[str, Array] = field(default_factory=dict)
    ragged: Mapping[str, Ragged] = field(default_factory=dict)
    blocks: Mapping[str, Array] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    arrow: pa.Table | None = None

    def __len__(self) -> int:
        return len(self.row_numbers)

    def __getitem__(self, column: str) -> Any:
        """Return a column: an array, or a ``Ragged``."""
        if column in self.columns:
            return self.columns[column]
        if column in self.ragged:
            return self.ragged[column]
        if self.arrow is not None:
            raise RequestError(
                "a batch of a reader with output='arrow' has its columns in an Arrow table: write "
                f"batch.arrow[{column!r}], or read with output='numpy'"
            )
        raise UnknownNameError.of("column", column, [*self.columns, *self.ragged], "this batch")


GatherSource = tuple[Any, Ints, Ints]
"""(rows, numbers of the wanted ones in them, their places in the result)"""


class Form(ABC):
    """How rows are stored in memory. ``Any`` is the form's own container of rows."""

    row_bytes: float
    """Bytes of a row, exact or an estimate that :meth:`decode` improves."""
    size_known: bool = False
    """Whether ``row_bytes`` is exact from the start."""

    @abstractmethod
    def decode(self, table: pa.Table) -> Any:
        """Return the rows of a block."""

    def column_groups(self, schema: pa.Schema, rows: int) -> list[pa.Schema]:
        """Return the columns of a block of so many rows in groups that are best decoded one after
        the other: what is decoded, and copied, is then in the processor's cache. Empty: all at
        once.
        """
        return []

    def decode_groups(self, parts: Iterable[tuple[int, pa.Table]], rows: int) -> Any | None:
        """Return the rows of a block whose groups come one by one, each as (its first row,
        columns).

        A group may come in several runs of rows. None: they have to be decoded at once.
        """
        raise NotImplementedError

    @abstractmethod
    def nbytes(self, rows: Any) -> int: ...

    @abstractmethod
    def view(self, rows: Any, start: int, stop: int) -> Any:
        """Return the rows ``[start, stop)`` without a copy."""

    @abstractmethod
    def gather(self, sources: Iterable[GatherSource], size: int) -> Any:
        """Return a copy of ``size`` rows. Sources are taken one by one, so that they need not all
        be in memory at once."""

    def pick(self, blocks: Mapping[int, Any], first_rows: Ints, numbers: Ints) -> Any | None:
        """Return a copy of the rows of these numbers out of decoded blocks, all of them in memory.

        Block ``k`` has the rows from ``first_rows[k]`` to ``first_rows[k + 1]`` (exclusive). None:
        this form cannot, and :meth:`gather` does.
        """
        return None

    @abstractmethod
    def join(self, parts: Sequence[Any]) -> Any:
        """Return a copy of all rows of the parts, one after the other."""

    @abstractmethod
    def batch(self, rows: Any, start: int, stop: int, **position: Unpack[BatchPosition]) -> Batch:
        """Return the rows ``[start, stop)`` as a batch, without a copy."""


_LINE_BYTES = 64
_GROUP_BYTES = 1 << 20
"""Values that are decoded at a time: half of the second cache."""


def grouped(names: Sequence[str], column_bytes: int) -> Iterator[Sequence[str]]:
    """Yield columns of one type in groups, each of complete cache lines of a row.

    >>> names = [f"f{number}" for number in range(20)]
    >>> [len(group) for group in grouped(names, 160_000)]
    [8, 8, 4]
    """
    width = max(8, -(-_GROUP_BYTES // max(column_bytes, 1)) // 8 * 8)
    for start in range(0, len(names), width):
        yield names[start : start + width]


class ArrowForm(Form):
    """Arrow tables: every type passes, nulls stay nulls."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.row_bytes = 16.0 * max(len(schema), 1)

    def decode(self, table: pa.Table) -> pa.Table:
        if table.num_rows:
            self.row_bytes = max(1.0, table.nbytes / table.num_rows)
        return table.combine_chunks()

    def column_groups(self, schema: pa.Schema, rows: int) -> list[pa.Schema]:
        kinds = schema.types
        if len(schema) < 2 * _LINE_BYTES // 8 or not all(map(_is_plain, kinds)):
            return []
        by_kind: dict[pa.DataType, list[str]] = {}
        for column in schema:
            by_kind.setdefault(column.type, []).append(column.name)
        return [
            pa.schema([schema.field(name) for name in group])
            for kind, names in by_kind.items()
            for group in grouped(names, rows * kind.bit_width // 8)
        ]

    def decode_groups(self, parts: Iterable[tuple[int, pa.Table]], rows: int) -> pa.Table | None:
        """Return one array for all columns of a type, in their order, in memory that is used
        again."""
        packed: dict[pa.DataType, Array] = {}
        places: dict[pa.DataType, dict[str, int]] = {}
        for own_field in self.schema:
            rows_of = places.setdefault(own_field.type, {})
            rows_of[own_field.name] = len(rows_of)
        for kind, rows_of in places.items():
            # axes: (column, row)
            packed[kind] = RECYCLED.empty((len(rows_of), rows), f"u{kind.bit_width // 8}")
        for start, table in parts:
            for name, column in zip(table.column_names, table.columns, strict=True):
                if column.null_count:
                    return None
                kind = column.type
                out, at = packed[kind][places[kind][name]], start
                for chunk in column.chunks:
                    out[at : at + len(chunk)] = _items(chunk, out.dtype)
                    at += len(chunk)
        columns = [
            pa.Array.from_buffers(
                field.type,
                rows,
                [None, pa.py_buffer(packed[field.type][places[field.type][field.name]])],
            )
            for field in self.schema
        ]
        self.row_bytes = max(1.0, sum(kind.bit_width for kind in self.schema.types) / 8)
        return pa.Table.from_arrays(columns, schema=self.schema)

    def nbytes(self, rows: pa.Table) -> int:
        return int(rows.nbytes)

    def view(self, rows: pa.Table, start: int, stop: int) -> pa.Table:
        return rows.slice(start, stop - start)

    def gather(self, sources: Iterable[GatherSource], size: int) -> pa.Table:
        selected, order = [], []
        for rows, numbers, places in sources:
            selected.append(take_of_table(rows, numbers))
            order.append(places)
        return in_order(pa.concat_tables(selected), order)

    def join(self, parts: Sequence[pa.Table]) -> pa.Table:
        return pa.concat_tables(parts).combine_chunks()

    def batch(
        self, rows: pa.Table, start: int, stop: int, **position: Unpack[BatchPosition]
    ) -> Batch:
        return Batch(arrow=self.view(rows, start, stop), **position)


def stacked_columns(columns: Sequence[pa.ChunkedArray]) -> Array | None:
    """Return columns of one type as the array of shape (columns, rows) that they are rows of.

    As :meth:`ArrowForm.decode_groups` makes them: without a null, and one after the other in
    memory. None for others.

    >>> array = np.arange(6).reshape(2, 3)
    >>> made = [pa.chunked_array([pa.Array.from_buffers(pa.int64(), 3, [None, pa.py_buffer(row)])])
    ...         for row in array]
    >>> stacked_columns(made).tolist(), stacked_columns(made[::-1])
    ([[0, 1, 2], [3, 4, 5]], None)
    """
    kind, rows = columns[0].type, len(columns[0])
    if not rows or not _is_plain(kind):
        return None
    size = rows * kind.bit_width // 8
    held: list[tuple[int, pa.Buffer]] = []
    for column in columns:
        if column.num_chunks != 1 or column.type != kind or column.null_count:
            return None
        chunk = column.chunk(0)
        data = chunk.buffers()[1]
        place = data.address + chunk.offset * kind.bit_width // 8
        if held and place != held[0][0] + len(held) * size:
            return None
        held.append((place, data))
    # every byte of it is of one of these columns, which keep their memory
    memory = pa.foreign_buffer(held[0][0], size * len(held), base=held)
    return np.frombuffer(memory, f"u{kind.bit_width // 8}").reshape(len(held), rows)


def _is_plain(kind: pa.DataType) -> bool:
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind)
    return number and kind.bit_width in (8, 16, 32, 64)


def _items(chunk: pa.Array, dtype: np.dtype[Any]) -> Array:
    """Return the stored values of a chunk without nulls, as words."""
    data = chunk.buffers()[1]
    if data is None:
        return np.empty(0, dtype)
    return np.frombuffer(data, dtype)[chunk.offset : chunk.offset + len(chunk)]
