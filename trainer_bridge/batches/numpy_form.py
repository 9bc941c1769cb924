"""Rows as NumPy arrays: one matrix per dtype, a row of it being a row of the table.

Gathering shuffled rows from such a matrix is five times as fast as from one array per column, and
a model gets one contiguous matrix."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.errors import ConfigurationError, unknown_name
from paimon_features.core.native import CORE
from paimon_features.core.types.array_types import Array, Ints
from trainer_bridge.batches import aligned
from trainer_bridge.batches.forms import Batch, BatchPosition, Form, GatherSource, grouped
from trainer_bridge.batches.ragged import (
    Ragged,
    Rows,
    concat_rows,
    items,
    move_items,
    scatter_rows,
    take_rows,
)
from trainer_bridge.batches.tensor_columns import MASK_SUFFIX, ColumnSpec, TensorColumn
from trainer_bridge.batches.vocabulary import Vocabulary

_GUESSED_ITEMS = 8
"""Items of a list before one was seen."""
_TILE_BYTES, _MANY_COLUMNS = 4 << 20, 16
_WIDE_BYTES = 256
"""Rows of a dtype that are at least so long are decoded a few columns at a time."""


@dataclass(frozen=True, slots=True)
class NumpyRows:
    """Rows as arrays: a block per dtype for plain numbers, arrays and lists by column."""

    blocks: dict[str, Array]
    others: dict[str, Rows]


def _check_columns(named: Mapping[str, Iterable[str]], columns: Sequence[str]) -> None:
    """Raise ConfigurationError if an option names a column that is not read."""
    for option, names in named.items():
        for name in names:
            if name not in columns:
                raise ConfigurationError(f"{option}=: {unknown_name('column', name, columns)}")


class NumpyForm(Form):
    """Numbers, booleans, times, lists, and texts as codes.

    Plain numbers come as one contiguous array per dtype. Lists of fixed length are arrays of
    shape ``(rows, *shape)``, others :class:`~trainer_bridge.batches.ragged.Ragged`, a null list
    being
    an empty one with a mask. Timestamps become int64 milliseconds since 1970 (finer
    parts cut off, towards the past), times of a day int64 milliseconds since its midnight,
    dates int64 days since 1970.

    Parameters
    ----------
    schema
        Columns and types to deliver.
    fill
        Number that replaces a null, by column; in a column of lists, a null item.
    masks
        Columns that get an additional boolean column ``<name>_present``, False at nulls
        (whose value is that of ``fill``, else 0, or an empty list).
    item_masks
        Columns of lists that get, for each level of lists, the same lists of booleans:
        ``<name>_present_1`` is False at the null items of a row's list, ``<name>_present_2`` at
        null items of lists within it. Their value is that of ``fill``, else 0, or empty.
    float_dtype
        ``"float32"`` or ``"float64"`` for all floats; None leaves each as it is.
    shapes
        Fixed dimensions by column of lists: ``{"embedding": [32]}``. Those of fixed-size lists
        are known already.
    codes
        Vocabularies of columns of texts, which become int32 codes.
    scaled
        Columns of decimals that become int64 in units of their last digit: 12.34 is 1234.

    Raises
    ------
    RequestError
        At once for a type without a tensor form, and when there is a null that neither
        ``fill`` nor ``masks`` declares; both name the column and the remedy.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        table: str,
        fill: Mapping[str, float] | None = None,
        masks: Collection[str] = (),
        item_masks: Collection[str] = (),
        float_dtype: str | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        codes: Mapping[str, Vocabulary] | None = None,
        scaled: Collection[str] = (),
    ) -> None:
        self.table = table
        fill, shapes, codes = dict(fill or {}), dict(shapes or {}), dict(codes or {})
        self.masks = frozenset(masks)
        named: dict[str, Iterable[str]] = {
            "fill": fill,
            "masks": self.masks,
            "item_masks": item_masks,
            "shapes": shapes,
            "codes": codes,
            "scaled": scaled,
        }
        _check_columns(named, schema.names)
        if float_dtype not in (None, "float32", "float64"):
            raise ConfigurationError(
                f"float_dtype={float_dtype!r}: expected 'float32', 'float64' or None"
            )
        self.specs: dict[str, ColumnSpec] = {}
        """What each column of a batch is, in their order."""
        self.plans: dict[str, TensorColumn] = {}
        """How each column and item mask is decoded."""
        self._masked: dict[str, str] = {}  # by item mask, the column that it is of
        for column in schema:
            name = column.name
            self.plans[name] = TensorColumn.plan(
                column,
                table,
                shape=shapes.get(name, ()),
                fill=fill.get(name),
                masked=name in self.masks,
                items_masked=name in item_masks,
                vocabulary=codes.get(name),
                scaled=name in scaled,
                float_dtype=float_dtype,
            )
            self.specs[name] = self.plans[name].spec
            if name in self.masks:
                mask = name + MASK_SUFFIX
                self.specs[mask] = ColumnSpec(mask, np.dtype(bool))
            for plan in self.plans[name].item_masks() if name in item_masks else ():
                mask = plan.spec.name
                self.plans[mask], self.specs[mask], self._masked[mask] = plan, plan.spec, name
        for mask in (*self._masked, *(name + MASK_SUFFIX for name in self.masks)):
            if mask in schema.names:
                raise ConfigurationError(
                    f"masks= or item_masks= would add a column {mask!r}, which table {table!r} has "
                    "already"
                )
        self.names: dict[str, tuple[str, ...]] = {}
        for spec in self.specs.values():
            if not spec.ragged_rank and not spec.shape:
                dtype = spec.dtype.name
                self.names[dtype] = (*self.names.get(dtype, ()), spec.name)
        self._places = {
            name: (dtype, place)
            for dtype, names in self.names.items()
            for place, name in enumerate(names)
        }
        self._others = [name for name in self.specs if name not in self._places]
        self.size_known = not any(spec.ragged_rank for spec in self.specs.values())
        self.row_bytes = float(
            sum(
                spec.dtype.itemsize * math.prod(spec.shape)
                + spec.ragged_rank * (8 + _GUESSED_ITEMS * spec.dtype.itemsize)
                for spec in self.specs.values()
            )
        )

    def decode(self, table: pa.Table) -> NumpyRows:
        blocks: dict[str, Array] = {}
        for dtype, names in self.names.items():
            # axes: (row, column)
            blocks[dtype] = aligned.RECYCLED.empty((table.num_rows, len(names)), dtype)
            _fill(blocks[dtype], [list(self._parts(name, table)) for name in names])
        others = {
            name: self.plans[name].rows(table.column(self._masked.get(name, name)))
            for name in self._others
        }
        rows = NumpyRows(blocks, others)
        if not self.size_known and table.num_rows:
            self.row_bytes = max(1.0, self.nbytes(rows) / table.num_rows)
        return rows

    def column_groups(self, schema: pa.Schema, rows: int) -> list[pa.Schema]:
        plain = list(self.names.values())
        narrow = any(
            len(names) * np.dtype(d).itemsize < _WIDE_BYTES for d, names in self.names.items()
        )
        if CORE is None or self._others or narrow or self.masks:
            return []
        return [
            pa.schema([schema.field(name) for name in group])
            for dtype, names in zip(self.names, plain, strict=True)
            for group in grouped(names, rows * np.dtype(dtype).itemsize)
        ]

    def decode_groups(self, parts: Iterable[tuple[int, pa.Table]], rows: int) -> NumpyRows:
        blocks = {
            # axes: (row, column)
            dtype: aligned.RECYCLED.empty((rows, len(names)), dtype)
            for dtype, names in self.names.items()
        }
        for start, table in parts:
            dtype, place = self._places[table.column_names[0]]
            columns = [list(self._parts(name, table)) for name in table.column_names]
            _fill(blocks[dtype][start : start + table.num_rows], columns, place)
        return NumpyRows(blocks, {})

    def _parts(self, name: str, table: pa.Table) -> Iterator[Array]:
        if name in self.plans:
            return self.plans[name].numbers(table.column(name))
        present = pc.is_valid(table.column(name.removesuffix(MASK_SUFFIX)))
        return (chunk.to_numpy(zero_copy_only=False) for chunk in present.chunks)

    def nbytes(self, rows: NumpyRows) -> int:
        parts = (*rows.blocks.values(), *rows.others.values())
        return sum(part.nbytes for part in parts)

    def view(self, rows: NumpyRows, start: int, stop: int) -> NumpyRows:
        return NumpyRows(
            {dtype: block[start:stop] for dtype, block in rows.blocks.items()},
            {name: column[start:stop] for name, column in rows.others.items()},
        )

    def gather(self, sources: Iterable[GatherSource], size: int) -> NumpyRows:
        blocks = {
            dtype: aligned.RECYCLED.empty((size, len(names)), dtype)
            for dtype, names in self.names.items()
        }
        whole = {dtype: items(block) for dtype, block in blocks.items()}
        selected: dict[str, list[Rows]] = {name: [] for name in self._others}
        order = []
        for rows, numbers, places in sources:
            for dtype, cells in whole.items():
                move_items(items(rows.blocks[dtype]), numbers, cells, places)
            for name, parts in selected.items():
                parts.append(take_rows(rows.others[name], numbers))
            order.append(places)
        # where lists end is known only when all are there
        others = {name: scatter_rows(parts, order, size) for name, parts in selected.items()}
        return NumpyRows(blocks, others)

    def pick(
        self, blocks: Mapping[int, NumpyRows], first_rows: Ints, numbers: Ints
    ) -> NumpyRows | None:
        if CORE is None or self._others:
            return None
        numbers = np.ascontiguousarray(numbers, np.int64)
        blocks_of_dtype: dict[str, Array] = {}
        for dtype, names in self.names.items():
            out = aligned.RECYCLED.empty((len(numbers), len(names)), dtype)
            cells: list[Array | None] = [None] * (len(first_rows) - 1)
            for number, rows in blocks.items():
                cells[number] = _as_bytes(rows.blocks[dtype])
            CORE.pick(cells, first_rows, numbers, len(names) * out.itemsize, _as_bytes(out))
            blocks_of_dtype[dtype] = out
        return NumpyRows(blocks_of_dtype, {})

    def join(self, parts: Sequence[NumpyRows]) -> NumpyRows:
        return NumpyRows(
            {dtype: np.concatenate([part.blocks[dtype] for part in parts]) for dtype in self.names},
            {name: concat_rows([part.others[name] for part in parts]) for name in self._others},
        )

    def batch(
        self, rows: NumpyRows, start: int, stop: int, **position: Unpack[BatchPosition]
    ) -> Batch:
        part = self.view(rows, start, stop)
        columns: dict[str, Array] = {}
        ragged: dict[str, Ragged] = {}
        for name in self.specs:
            if name in self._places:
                dtype, place = self._places[name]
                columns[name] = part.blocks[dtype][:, place]
                continue
            other = part.others[name]
            if isinstance(other, Ragged):
                ragged[name] = other
            else:
                columns[name] = other
        return Batch(
            columns=columns, ragged=ragged, blocks=part.blocks, names=self.names, **position
        )


def _fill(block: Array, columns: Sequence[Sequence[Array]], first: int = 0) -> None:
    """Write columns, each in parts, into those of a matrix from ``first`` on."""
    if CORE is None or not len(block):
        _fill_by_numpy(block[:, first : first + len(columns)], columns)
        return
    if all(len(parts) == 1 for parts in columns):
        run = [_bytes_of(parts[0], block.dtype) for parts in columns]
        CORE.interleave(run, block.itemsize, _as_bytes(block), first, block.shape[1])
        return
    # the runs of rows within which no column begins a new part
    ends = np.unique(np.concatenate([np.cumsum([len(p) for p in parts]) for parts in columns]))
    left, low = [list(parts) for parts in columns], 0
    for high in ends[ends > 0].tolist():
        run = [_cut(parts, high - low, block.dtype) for parts in left]
        CORE.interleave(run, block.itemsize, _as_bytes(block[low:high]), first, block.shape[1])
        low = high


def _as_bytes(block: Array) -> Array:
    # not every type has a buffer
    return block.reshape(-1).view(np.uint8)


def _cut(parts: list[Array], rows: int, dtype: np.dtype[Any]) -> Array:
    """Remove the first rows of a column in parts; returns their bytes."""
    while not len(parts[0]):
        del parts[0]
    first = parts[0]
    if len(first) == rows:
        del parts[0]
    else:
        parts[0] = first[rows:]
    return _bytes_of(first[:rows], dtype)


def _bytes_of(values: Array, dtype: np.dtype[Any]) -> Array:
    if values.dtype == dtype and dtype.kind in "iuf" and values.flags.c_contiguous:
        return values  # has a buffer
    return np.ascontiguousarray(values, dtype).view(np.uint8)


def _fill_by_numpy(block: Array, columns: Sequence[Sequence[Array]]) -> None:
    """:func:`_fill` without the native core.

    Writing a single column touches a cache line for every row. Many columns are
    therefore copied one below the other first, a tile of rows at a time, and the tile is written
    row by row: that takes two thirds of the time with 200 columns.
    """
    if len(columns) < _MANY_COLUMNS:
        for place, parts in enumerate(columns):
            _write(block[:, place], parts, 0)
        return
    height = min(len(block), _TILE_BYTES // (len(columns) * block.itemsize) + 1)
    # not a power of two bytes, or the columns of a row would share few places of the cache
    tile = np.empty((len(columns), height + aligned.ALIGNMENT), block.dtype)
    for low in range(0, len(block), max(height, 1)):
        rows = block[low : low + height]
        part = tile[:, : len(rows)]
        for place, parts in enumerate(columns):
            _write(part[place], parts, low)
        rows[:] = part.T


def _write(out: Array, parts: Sequence[Array], low: int) -> None:
    """Fill ``out`` with the values of a column, in parts, from row ``low`` on."""
    start = -low
    for part in parts:
        first, stop = max(start, 0), min(start + len(part), len(out))
        if first < stop:
            out[first:stop] = part[first - start : stop - start]
        start += len(part)


def specs_of(form: Form) -> dict[str, ColumnSpec]:
    """Return the spec of each column of a batch of this form, including lists.

    Raises
    ------
    ConfigurationError
        For batches of Arrow columns.
    """
    if not isinstance(form, NumpyForm):
        raise ConfigurationError("a reader with output='arrow' has no NumPy columns")
    return dict(form.specs)


def dtypes_of(specs: Mapping[str, ColumnSpec]) -> dict[str, np.dtype[Any]]:
    """Return the dtype of each column that has an array, not lists of any length."""
    return {name: spec.dtype for name, spec in specs.items() if not spec.ragged_rank}
