"""What a batch is made of: NumPy blocks, or Arrow.

A form decodes a block once, then gathers rows of decoded blocks into chunks, and cuts
batches out of a chunk without copying. :class:`NumpyForm` keeps one two-dimensional
array per dtype, a row of it being a row of the table: gathering shuffled rows from it is
five times as fast as from one array per column, and a model gets one contiguous matrix.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.errors import ConfigurationError, RequestError
from trainer_bridge.order import Ints

Array = npt.NDArray[Any]
MASK_SUFFIX = "_present"


@dataclass(frozen=True, slots=True)
class Batch:
    """One rank's share of a global batch.

    Attributes
    ----------
    columns
        One array of shape ``(rows,)`` per column, views into ``blocks``; empty for Arrow.
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
    blocks: Mapping[str, Array] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    arrow: pa.Table | None = None

    def __len__(self) -> int:
        return len(self.row_numbers)

    def __getitem__(self, column: str) -> Array:
        return self.columns[column]


Source = tuple[Any, Ints, Ints]
"""(rows, numbers of the wanted ones in them, their places in the result)"""


class Form(ABC):
    """How rows are held in memory. ``Any`` is the form's own container of rows."""

    row_bytes: float
    """Bytes of a row, exact or (Arrow) a guess that :meth:`decode` makes better."""

    @abstractmethod
    def decode(self, table: pa.Table) -> Any:
        """The rows of a block."""

    @abstractmethod
    def nbytes(self, rows: Any) -> int: ...

    @abstractmethod
    def view(self, rows: Any, start: int, stop: int) -> Any:
        """The rows ``[start, stop)`` without a copy."""

    @abstractmethod
    def gather(self, sources: Iterable[Source], size: int) -> Any:
        """A copy of ``size`` rows. Sources are taken one by one, so that they need not all
        be in memory at once."""

    @abstractmethod
    def join(self, parts: Sequence[Any]) -> Any:
        """A copy of all rows of the parts, one after the other."""

    @abstractmethod
    def batch(self, rows: Any, start: int, stop: int, **fields: Any) -> Batch:
        """The rows ``[start, stop)`` as a batch, without a copy."""


class NumpyForm(Form):
    """Numbers, booleans and times as contiguous arrays, one per dtype.

    Timestamps become int64 milliseconds since 1970 (finer parts cut off, towards the
    past), dates int32 days.

    Parameters
    ----------
    schema
        Columns and types to deliver.
    fill
        Number to put in place of a null, by column.
    masks
        Columns that get a boolean column ``<name>_present`` beside them, False at nulls
        (where the value is that of ``fill``, else 0).
    float_dtype
        ``"float32"`` or ``"float64"`` for all floats; None leaves each as it is.

    Raises
    ------
    RequestError
        At once for a type without a tensor form, and when a null comes that neither
        ``fill`` nor ``masks`` declares; both name the column and what to do.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        table: str,
        fill: Mapping[str, float] | None = None,
        masks: Collection[str] = (),
        float_dtype: str | None = None,
    ) -> None:
        self.table = table
        self.fill = dict(fill or {})
        self.masks = frozenset(masks)
        for name in (*self.fill, *self.masks):
            if name not in schema.names:
                raise ConfigurationError(
                    f"fill= or masks= names {name!r}; read are: {', '.join(schema.names)}"
                )
        if float_dtype not in (None, "float32", "float64"):
            raise ConfigurationError(
                f"float_dtype={float_dtype!r}: expected 'float32', 'float64' or None"
            )
        self.kinds: dict[str, np.dtype[Any]] = {}
        for column in schema:
            dtype = _numpy_dtype(column, table)
            self.kinds[column.name] = (
                np.dtype(float_dtype) if float_dtype and dtype.kind == "f" else dtype
            )
            self._check_fill(column.name)
            if column.name in self.masks:
                mask = column.name + MASK_SUFFIX
                if mask in schema.names:
                    raise ConfigurationError(
                        f"masks= would add a column {mask!r}, which table {table!r} has already"
                    )
                self.kinds[mask] = np.dtype(bool)
        self.names: dict[str, tuple[str, ...]] = {}
        for name, dtype in self.kinds.items():
            self.names[dtype.name] = (*self.names.get(dtype.name, ()), name)
        self._places = {
            name: (dtype.name, self.names[dtype.name].index(name))
            for name, dtype in self.kinds.items()
        }
        self.row_bytes = float(sum(dtype.itemsize for dtype in self.kinds.values()))

    def _check_fill(self, name: str) -> None:
        if name in self.fill:
            dtype, value = self.kinds[name], self.fill[name]
            if dtype.kind != "f" and dtype.type(value) != value:
                raise ConfigurationError(
                    f"fill={{{name!r}: {value!r}}}: column {name!r} is {dtype.name}, "
                    "which cannot hold that"
                )

    def decode(self, table: pa.Table) -> dict[str, Array]:
        out: dict[str, Array] = {}
        for dtype, names in self.names.items():
            # axes: (row, column)
            block = np.empty((table.num_rows, len(names)), dtype=dtype)
            for place, name in enumerate(names):
                source = name.removesuffix(MASK_SUFFIX)
                if name not in table.column_names and source in self.masks:
                    values = pc.is_valid(table.column(source))
                else:
                    values = self._values(name, table.column(name))
                start = 0
                for chunk in values.chunks:
                    part = chunk.to_numpy(zero_copy_only=False)
                    block[start : start + len(part), place] = part
                    start += len(part)
            out[dtype] = block
        return out

    def _values(self, name: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
        values = _as_numbers(values)
        if values.null_count:
            if name not in self.fill and name not in self.masks:
                raise RequestError(
                    f"table {self.table!r}: column {name!r} has a null, which is no number; "
                    f"declare fill={{{name!r}: <number>}} or masks=[{name!r}], "
                    "or leave the column out by columns="
                )
            fill = self.fill.get(name, 0)
            values = values.fill_null(pa.scalar(fill).cast(values.type))
        return values

    def nbytes(self, rows: dict[str, Array]) -> int:
        return sum(block.nbytes for block in rows.values())

    def view(self, rows: dict[str, Array], start: int, stop: int) -> dict[str, Array]:
        return {dtype: block[start:stop] for dtype, block in rows.items()}

    def gather(self, sources: Iterable[Source], size: int) -> dict[str, Array]:
        out = {
            dtype: np.empty((size, len(names)), dtype=dtype) for dtype, names in self.names.items()
        }
        whole = {dtype: _as_items(block) for dtype, block in out.items()}
        for rows, numbers, places in sources:
            for dtype, items in whole.items():
                items[places] = _as_items(rows[dtype]).take(numbers, mode="clip")
        return out

    def join(self, parts: Sequence[dict[str, Array]]) -> dict[str, Array]:
        return {dtype: np.concatenate([part[dtype] for part in parts]) for dtype in self.names}

    def batch(self, rows: dict[str, Array], start: int, stop: int, **fields: Any) -> Batch:
        blocks = self.view(rows, start, stop)
        columns = {name: blocks[dtype][:, place] for name, (dtype, place) in self._places.items()}
        return Batch(columns=columns, blocks=blocks, names=self.names, **fields)


class ArrowForm(Form):
    """Arrow tables: every type passes, nulls stay nulls."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.row_bytes = 16.0 * max(len(schema), 1)

    def decode(self, table: pa.Table) -> pa.Table:
        if table.num_rows:
            self.row_bytes = max(1.0, table.nbytes / table.num_rows)
        return table.combine_chunks()

    def nbytes(self, rows: pa.Table) -> int:
        return int(rows.nbytes)

    def view(self, rows: pa.Table, start: int, stop: int) -> pa.Table:
        return rows.slice(start, stop - start)

    def gather(self, sources: Iterable[Source], size: int) -> pa.Table:
        taken, order = [], []
        for rows, numbers, places in sources:
            taken.append(rows.take(pa.array(numbers)))
            order.append(places)
        back = np.empty(size, dtype=np.int64)
        back[np.concatenate(order)] = np.arange(size)
        return pa.concat_tables(taken).combine_chunks().take(pa.array(back))

    def join(self, parts: Sequence[pa.Table]) -> pa.Table:
        return pa.concat_tables(parts).combine_chunks()

    def batch(self, rows: pa.Table, start: int, stop: int, **fields: Any) -> Batch:
        return Batch(arrow=self.view(rows, start, stop), **fields)


def _numpy_dtype(column: pa.Field, table: str) -> np.dtype[Any]:
    kind = column.type
    if pa.types.is_timestamp(kind):
        return np.dtype(np.int64)
    if pa.types.is_date32(kind):
        return np.dtype(np.int32)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype())
    remedies = {
        "string": "encode it as numbers (a fitted transformer)",
        "list": "store its items as columns of their own",
        "decimal": "store it as a float, or as an integer number of its smallest unit",
    }
    remedy = next((text for word, text in remedies.items() if word in str(kind)), "convert it")
    raise RequestError(
        f"table {table!r}: column {column.name!r} is {kind}, which has no tensor form here; "
        f"{remedy}, leave it out by columns=, or read with output='arrow'"
    )


def _as_numbers(values: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = values.type
    if pa.types.is_date32(kind):
        return values.cast(pa.int32())
    if not pa.types.is_timestamp(kind):
        return values
    numbers = values.cast(pa.int64())
    per_ms = {"s": -1000, "ms": 1, "us": 1000, "ns": 1_000_000}[kind.unit]
    if per_ms == 1:
        return numbers
    if per_ms < 0:
        return pc.multiply_checked(numbers, -per_ms)
    # Arrow divides towards zero; times before 1970 have to go down as well
    cut = pc.divide(numbers, per_ms)
    below = pc.less(numbers, pc.multiply(cut, per_ms)).cast(pa.int64())
    return pc.subtract(cut, below)


def _as_items(block: Array) -> Array:
    """Each row of a contiguous matrix as one item: moving items is thrice as fast as rows."""
    return block.view(np.dtype((np.void, block.shape[1] * block.itemsize)))[:, 0]
