"""Rows within the pipeline: columns of the table and columns computed by functions."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.columns.column import one_array
from paimon_features.core.errors import RequestError, UnknownNameError
from paimon_features.core.types.array_types import Array, Bools
from trainer_bridge.batches.numpy_form import NumpyForm
from trainer_bridge.batches.tensor_columns import MASK_SUFFIX
from trainer_bridge.preprocess.stages import Rows, Values

_SHAPE = b"paimon-features.shape"


class ColumnConverter:
    """Conversion of table columns to NumPy arrays: one :class:`NumpyForm` per column."""

    def __init__(
        self,
        schema: pa.Schema,
        table: str,
        fill: Mapping[str, float],
        masks: Collection[str],
        float_dtype: str | None,
    ) -> None:
        self.table = table
        self._forms = {
            column.name: NumpyForm(
                pa.schema([column.with_nullable(True)]),
                table=table,
                fill={name: value for name, value in fill.items() if name == column.name},
                masks=[name for name in masks if name == column.name],
                float_dtype=float_dtype,
            )
            for column in schema
            if _is_number(column.type)
        }
        self.names: dict[str, str] = {}
        """Each initial column, and the table column it is derived from."""
        for column in schema:
            self.names[column.name] = column.name
            if column.name in masks and column.name in self._forms:
                self.names[column.name + MASK_SUFFIX] = column.name

    def convert(self, name: str, values: pa.Array) -> Values:
        """Return a column as an array, or unchanged if it has no NumPy form."""
        source = self.names[name]
        if source not in self._forms:
            return values
        form = self._forms[source]
        rows = form.decode(pa.table({source: values}))
        numbers = np.empty(0, dtype=np.int64)
        batch = form.batch(rows, 0, len(values), row_numbers=numbers, epoch=0, position=0)
        return batch.columns[name]


class RowBlock(Rows):
    """Rows as input and output of a stage.

    A mapping from names to columns. Columns of the table are converted to arrays on first
    access; filter expressions see them as stored, including nulls.
    """

    def __init__(
        self,
        numbers: ColumnConverter,
        raw: Mapping[str, pa.Array],
        made: Mapping[str, Values],
        names: Sequence[str],
        num_rows: int,
    ) -> None:
        self._numbers, self._raw = numbers, dict(raw)
        self._made = dict(made)
        self._names = list(names)
        self.num_rows = num_rows

    @classmethod
    def of_table(cls, numbers: ColumnConverter, table: pa.Table) -> RowBlock:
        """Wrap the rows of a block as read."""
        raw = {name: one_array(table.column(name)) for name in table.column_names}
        names = [name for name, source in numbers.names.items() if source in raw]
        return cls(numbers, raw, {}, names, table.num_rows)

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names  # without converting it

    def __getitem__(self, name: str) -> Values:
        if name not in self._names:
            raise UnknownNameError.of("column at this stage", name, self._names)
        if name not in self._made:
            source = self._raw[self._numbers.names[name]]
            self._made[name] = _read_only(self._numbers.convert(name, source))
        return self._made[name]

    @property
    def table_columns(self) -> list[str]:
        """The columns that are unchanged from the table."""
        return [name for name in self._names if self._is_raw(name)]

    def as_read(self, name: str) -> Values:
        """Return a column as stored in the table, unless a function has replaced it."""
        if name in self._names and name in self._raw and self._is_raw(name):
            return self._raw[name]
        return self[name]

    def only(self, names: Sequence[str]) -> RowBlock:
        """Select columns, in this order."""
        for name in names:
            if name not in self._names:
                raise UnknownNameError.of("column at this stage", name, self._names)
        sources = {self._numbers.names.get(name, name) for name in names}
        raw = {name: column for name, column in self._raw.items() if name in sources}
        computed = {name: column for name, column in self._made.items() if name in names}
        return RowBlock(self._numbers, raw, computed, names, self.num_rows)

    def with_columns(self, made: Mapping[str, Values]) -> RowBlock:
        """Return the rows with columns added or replaced."""
        names = [*self._names, *(name for name in made if name not in self._names)]
        raw = {name: column for name, column in self._raw.items() if name not in made}
        kept = {**self._made}
        for name in self._names:  # a mask has to be computed before its column is replaced
            if name not in kept and self._numbers.names.get(name, name) in made:
                kept[name] = self[name]
        frozen = {name: _read_only(column) for name, column in made.items()}
        return RowBlock(self._numbers, raw, {**kept, **frozen}, names, self.num_rows)

    @classmethod
    def joined(cls, parts: Sequence[RowBlock]) -> RowBlock:
        """Concatenate; all parts have the same columns."""
        first = parts[0]
        raw = {name: pa.concat_arrays([p._raw[name] for p in parts]) for name in first._raw}
        computed: dict[str, Values] = {}
        for name in first._names:
            if not first._is_raw(name):
                columns = [part[name] for part in parts]
                arrays = all(isinstance(column, np.ndarray) for column in columns)
                join = np.concatenate if arrays else pa.concat_arrays
                computed[name] = join(columns)
        rows = sum(part.num_rows for part in parts)
        return cls(first._numbers, raw, computed, first._names, rows)

    def where(self, mask: Bools) -> RowBlock:
        """Return the rows for which the mask is true."""
        if bool(mask.all()):
            return self
        chosen = pa.array(mask)
        raw = {name: column.filter(chosen) for name, column in self._raw.items()}
        computed = {
            name: column[mask] if isinstance(column, np.ndarray) else column.filter(chosen)
            for name, column in self._made.items()
        }
        return RowBlock(self._numbers, raw, computed, self._names, int(mask.sum()))

    def part(self, start: int, stop: int) -> RowBlock:
        """Return the rows ``[start, stop)``."""
        raw = {name: column[start:stop] for name, column in self._raw.items()}
        computed = {name: column[start:stop] for name, column in self._made.items()}
        return RowBlock(self._numbers, raw, computed, self._names, stop - start)

    def arrays(self) -> dict[str, Array]:
        """Return all columns as NumPy arrays.

        Raises
        ------
        RequestError
            For a column that has no tensor form.
        """
        by_name: dict[str, Array] = {}
        for name in self._names:
            values = self[name]
            if not isinstance(values, np.ndarray):
                if _is_number(values.type):
                    raise RequestError(
                        f"table {self._numbers.table!r}: column {name!r} is an Arrow array of "
                        f"{values.type}, as a map() function returned it; return numbers as a "
                        "NumPy array (to_numpy())"
                    )
                raise RequestError(
                    f"table {self._numbers.table!r}: column {name!r} is {values.type}, which has "
                    "no tensor form; drop it with select(), or convert it to numbers with map()"
                )
            by_name[name] = values
        return by_name

    def to_arrow(self) -> pa.Table:
        """Convert for a cache: table columns unchanged, arrays with their shapes."""
        columns, fields = [], []
        for name in self._names:
            if self._is_raw(name):
                columns.append(self._raw[name])
                fields.append(pa.field(name, self._raw[name].type))
            else:
                column, shape = to_arrow(self[name])
                metadata = None if shape is None else {_SHAPE: json.dumps(shape)}
                fields.append(pa.field(name, column.type, metadata=metadata))
                columns.append(column)
        table = pa.Table.from_arrays(columns, schema=pa.schema(fields))
        if columns:
            return table
        return pa.table({"": pa.nulls(self.num_rows)})

    @classmethod
    def from_arrow(cls, numbers: ColumnConverter, table: pa.Table) -> RowBlock:
        """Return the inverse of :meth:`to_arrow`; arrays share the table's memory."""
        raw, computed = {}, {}
        names = [name for name in table.column_names if name]
        for name in names:
            field, column = table.schema.field(name), one_array(table.column(name))
            if field.metadata and _SHAPE in field.metadata:
                computed[name] = _read_only(from_arrow(column, json.loads(field.metadata[_SHAPE])))
            else:
                raw[name] = column
        return cls(numbers, raw, computed, names, table.num_rows)

    def made_since(self, before: RowBlock) -> set[str]:
        """Return the columns that a map added or replaced."""
        return {
            name
            for name in self._names
            if name not in before._names
            or (name in self._made and self._made[name] is not before._made.get(name))
        }

    def _is_raw(self, name: str) -> bool:
        return name in self._raw and self._numbers.names.get(name) == name


def to_arrow(values: Values) -> tuple[pa.Array, list[int] | None]:
    """Convert a column to Arrow; also return its per-row shape (None if it is Arrow already)."""
    if not isinstance(values, np.ndarray):
        return values, None
    shape = list(values.shape[1:])
    flat = np.ascontiguousarray(values).reshape(-1)
    items = pa.array(flat)
    if not shape:
        return items, shape
    return pa.FixedSizeListArray.from_arrays(items, math.prod(shape)), shape


def from_arrow(column: pa.Array, shape: list[int]) -> Array:
    """Return the inverse of :func:`to_arrow` for arrays."""
    items = column.flatten() if shape else column
    flat: Array = items.to_numpy(zero_copy_only=False)
    return flat.reshape(len(column), *shape)


def checked(name: str, result: Any, num_rows: int) -> dict[str, Values]:
    """Validate the result of a function as columns of ``num_rows`` rows.

    Raises
    ------
    RequestError
        If it is not; names the function and the column.
    """
    if not isinstance(result, Mapping):
        raise RequestError(
            f"function {name!r} returned a {type(result).__name__}; expected a mapping from "
            "column names to arrays"
        )
    columns: dict[str, Values] = {}
    for column, values in result.items():
        if isinstance(values, pa.ChunkedArray):
            values = one_array(values)
        if not isinstance(values, pa.Array):
            values = np.asarray(values)
            if values.dtype.kind not in "biuf":
                raise RequestError(
                    f"function {name!r}, column {column!r}: an array of {values.dtype}; expected "
                    "numbers or booleans, or an Arrow array for anything else"
                )
        if np.ndim(values) == 0 or len(values) != num_rows:
            got = "one value" if np.ndim(values) == 0 else f"{len(values)} values"
            raise RequestError(
                f"function {name!r}, column {column!r}: {got} for {num_rows} rows; a row stage has "
                "to return one value per input row"
            )
        if np.ndim(values) > 1 and 0 in np.shape(values)[1:]:
            raise RequestError(
                f"function {name!r}, column {column!r}: rows of shape {np.shape(values)[1:]} are "
                "empty; leave the column out"
            )
        columns[str(column)] = values
    return columns


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_date32(kind)
    )


def _read_only(values: Values) -> Values:
    """Return a read-only view: a function that writes into its input fails, harming no other."""
    if isinstance(values, np.ndarray) and values.flags.writeable:
        values = values.view()
        values.flags.writeable = False
    return values
