"""What goes into a transformer and comes out again: lists, NumPy, Arrow, pandas, Polars, torch.

Inside, data are columns of values with a mask (``Column``), or one matrix of numbers where they
came as one. pandas, Polars and torch are never imported before data of theirs come in.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core._arrow import pa
from paimon_features.core.columns.column import Column
from paimon_features.core.errors import DataTypeError, TransformError
from paimon_features.core.types.array_types import Array, Floats, Ints
from paimon_features.core.types.foreign_types import plain_array, plain_column

_FORMS = (
    "lists, NumPy arrays, Arrow tables and arrays, pandas or Polars frames and series, torch "
    "tensors of numbers, strings or booleans"
)


@dataclass(frozen=True)
class Frame:
    """Data as columns, and how to give other columns the form that these came in.

    ``names`` are those of the columns, where the form has names. ``is_flat`` says that the data
    were one column without a table around it.
    """

    rows: int
    width: int
    names: tuple[str, ...] | None
    is_flat: bool
    _read: Callable[[], tuple[Column, ...]]
    _write: Callable[[Sequence[Column], Sequence[str], bool, Ints | None], Any]
    _matrix: Callable[[], Array | None] | None = None
    _write_matrix: Callable[[Floats], Any] | None = None

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns, in order."""
        return self._read()

    @cached_property
    def matrix(self) -> Array | None:
        """The data as one array of numbers, index (rows, columns); NaN is no value.

        None for forms of columns (Arrow, pandas, Polars), and for data with nulls, strings or
        booleans among lists.
        """
        return None if self._matrix is None else self._matrix()

    def like_matrix(self, matrix: Floats, *, names: Sequence[str] | None = None) -> Any:
        """Return a matrix in the form of these data.

        One column without a table if these had none.
        """
        flat = self.is_flat and matrix.shape[1] == 1
        if self._write_matrix is not None:
            return self._write_matrix(matrix[:, 0] if flat else matrix)
        columns = [Column(matrix[:, j]) for j in range(matrix.shape[1])]
        return self.like(columns, names=names, flat=flat)

    def like(
        self,
        columns: Sequence[Column],
        *,
        names: Sequence[str] | None = None,
        flat: bool | None = None,
        rows: Ints | None = None,
    ) -> Any:
        """Return other columns in the form of these data.

        ``names`` are by default those of these columns. ``flat`` says whether one column comes
        without a table around it, by default as these data did. ``rows`` are the rows of these
        data that the new ones are, where they are not all.
        """
        chosen = names if names is not None else (self.names or _numbered(len(columns)))
        return self._write(columns, chosen, self.is_flat if flat is None else flat, rows)

    def part(self, indices: Sequence[int]) -> Frame:
        """Return some of the columns, as a frame inside of transformers."""
        names = None if self.names is None else tuple(self.names[i] for i in indices)
        if self.matrix is not None:
            return inner_frame(matrix=self.matrix[:, list(indices)], names=names)
        return inner_frame([self.columns[i] for i in indices], rows=self.rows, names=names)

    def label(self, index: int) -> str:
        """Return a column as it is called in messages.

        >>> read_frame([[1.0]]).label(0)
        'column 0'
        """
        return f"column {index}" if self.names is None else f"column {self.names[index]!r}"


def inner_frame(
    columns: Sequence[Column] = (),
    *,
    rows: int = 0,
    matrix: Array | None = None,
    names: Sequence[str] | None = None,
) -> Frame:
    """Return columns, or a matrix of numbers, between two transformers.

    What it writes is another one.
    """
    if matrix is not None:
        numbers, rows = matrix, len(matrix)
        width = matrix.shape[1]
    else:
        width = len(columns)

    def read() -> tuple[Column, ...]:
        return tuple(columns) if matrix is None else tuple(Column(c) for c in numbers.T)

    def write(out: Sequence[Column], labels: Sequence[str], flat: bool, kept: Ints | None) -> Any:
        length = rows if kept is None else len(kept)
        return inner_frame(out, rows=length, names=None if names is None else labels)

    column_names = None if names is None else tuple(names)
    return Frame(rows, width, column_names, False, read, write, lambda: matrix)


def read_frame(data: Any) -> Frame:
    """Return data of any of the forms as a frame; a frame is returned as it is.

    Raises
    ------
    TransformError
        For anything else, rows of different lengths, or a column of mixed or other types.
    """
    if isinstance(data, Frame):
        return data
    if isinstance(data, np.ndarray):
        return _numpy(data)
    home = type(data).__module__.partition(".")[0]
    if isinstance(data, pa.Table | pa.RecordBatch | pa.Array | pa.ChunkedArray):
        return _arrow(data)
    if home == "pandas":
        return _pandas(data)
    if home == "polars":
        return _polars(data)
    if home == "torch":
        return _torch(data)
    if isinstance(data, list | tuple):
        return _lists(data)
    if home == "scipy" and hasattr(data, "toarray"):
        raise DataTypeError(
            f"Sparse data was passed, a {type(data).__name__}, but dense data is required; use its "
            "toarray()"
        )
    if hasattr(data, "__array__"):
        return _numpy(np.asarray(data))
    raise TransformError(f"got {type(data).__name__}; expected {_FORMS}")


def write_frame(form: str, frame: Frame, names: Sequence[str], index: Any = None) -> Any:
    """Return the columns as a data frame of pandas (with this index) or Polars, under these
    names."""
    columns = frame.columns
    if form == "pandas":
        pandas = importlib.import_module("pandas")
        rows = pandas.RangeIndex(frame.rows) if index is None else index
        out = pandas.DataFrame({j: _plain(c) for j, c in enumerate(columns)}, index=rows)
        out.columns = list(names)
        return out
    polars = importlib.import_module("polars")
    series = [polars.from_arrow(_array(column)) for column in columns]
    return polars.DataFrame([s.alias(name) for s, name in zip(series, names, strict=True)])


def numbers(column: Column, label: str) -> Floats:
    """Return the values of a column as float64, NaN where there is none.

    Raises
    ------
    TransformError
        For strings, and for infinite values.
    """
    out = floats(column, label)
    if np.isinf(out).any():
        raise infinite(label)
    return out


def floats(column: Column, label: str) -> Floats:
    """Return as ``numbers``, but infinite values pass; a view of the column's own where that is
    one.

    Raises
    ------
    TransformError
        For strings.
    """
    values = column.values
    if values.dtype == np.object_:
        for kind, plural in ((str, "strings"), (list, "lists")):
            if any(isinstance(v, kind) for v in values[column.mask]):
                raise TransformError(f"{label} contains {plural}; expected numbers")
    out = as_float(column)
    return out if column.valid is None else np.where(column.valid, out, np.nan)


def infinite(label: str) -> TransformError:
    """Return the refusal of an infinite value."""
    return TransformError(f"{label} contains an infinite value; expected finite numbers or null")


def as_float(column: Column) -> Floats:
    """Return the values of a column of numbers as float64; anything where there is none."""
    values = column.values
    if values.dtype == np.object_ and column.valid is not None:
        values = np.where(column.valid, values, np.nan)
    return values.astype(np.float64, copy=False)


def missing(column: Column) -> npt.NDArray[np.bool_]:
    """Return where a column has no value: null, or not a number."""
    out = ~column.mask
    if column.values.dtype.kind == "f":
        out = out | np.isnan(column.values)
    return out


def _numbered(count: int) -> list[str]:
    return [f"x{index}" for index in range(count)]


def _column(array: pa.Array | pa.ChunkedArray, label: str) -> Column:
    try:
        array = (plain_column if isinstance(array, pa.ChunkedArray) else plain_array)(array)
    except pa.ArrowException as error:
        raise TransformError(f"{label}: {error}") from error
    kind = array.type
    if pa.types.is_list(kind):
        item = kind.value_type
        if not (
            pa.types.is_string(item)
            or pa.types.is_integer(item)
            or pa.types.is_boolean(item)
            or pa.types.is_null(item)
        ):
            raise TransformError(
                f"{label} is {kind}; expected lists of strings, integers or booleans"
            )
        return Column.from_arrow(array)
    if not (
        pa.types.is_null(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_string(kind)
    ):
        raise TransformError(f"{label} is {kind}; expected numbers, strings or booleans")
    if pa.types.is_null(kind):
        return Column(np.full(len(array), np.nan), np.zeros(len(array), np.bool_))
    return Column.from_arrow(array)


_FEW_ROWS = 64
"""Up to here a loop over the values costs less than what Arrow has to set up."""


def _of_few(values: Sequence[Any]) -> Column | None:
    """Return the column of a few strings, floats or booleans; None where Arrow must decide."""
    kinds = set(map(type, values))
    has_nulls = type(None) in kinds
    kinds.discard(type(None))
    if len(kinds) != 1 or not kinds <= {str, float, bool}:
        return None
    valid = np.array([v is not None for v in values], np.bool_) if has_nulls else None
    kind = kinds.pop()
    if kind is str:
        texts = np.empty(len(values), np.object_)
        texts[:] = values
        return Column(texts, valid)
    if kind is float:
        return Column(np.array(values, np.float64), valid)  # None becomes NaN
    return Column(np.array([bool(v) for v in values], np.bool_), valid)


def _of_values(values: Sequence[Any], label: str) -> Column:
    if len(values) <= _FEW_ROWS:
        column = _of_few(values)
        if column is not None:
            return column
    try:
        array = pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise _mixed(label, error) from error
    return _column(array, label)


def _mixed(label: str, error: Exception) -> TransformError:
    return DataTypeError(
        f"{label} contains values of several types; the input argument must be uniformly strings, "
        f"booleans or numbers: {error}"
    )


def _array(column: Column) -> pa.Array:
    """Return a column as Arrow, typed as its values are."""
    if column.values.dtype != np.object_:
        return pa.array(column.values, mask=None if column.valid is None else ~column.valid)
    return pa.array(_values(column))


def _values(column: Column) -> list[Any]:
    values: list[Any] = column.values.tolist()
    if column.valid is None:
        return values
    return [
        v if is_valid else None for v, is_valid in zip(values, column.valid.tolist(), strict=True)
    ]


def _plain(column: Column) -> npt.NDArray[Any]:
    """Return a column as NumPy: nulls are NaN among numbers and None among anything else."""
    values = column.values
    if column.valid is None or column.valid.all():
        return values
    out = values.astype(np.float64 if values.dtype.kind in "fiu" else np.object_)
    out[~column.valid] = np.nan if out.dtype.kind == "f" else None
    return out


# -- the forms ------------------------------------------------------------------------------


def _lists(data: Sequence[Any]) -> Frame:
    nested = [isinstance(row, list | tuple | np.ndarray) for row in data]
    if any(nested) and not all(nested):
        raise TransformError("rows and single values are mixed in one list; expected lists of rows")
    is_flat = not any(nested) and len(data) > 0
    width = 1 if is_flat else len(data[0]) if data else 0
    if not is_flat and any(len(row) != width for row in data):
        other = next(i for i, row in enumerate(data) if len(row) != width)
        raise TransformError(f"row {other} has {len(data[other])} values, row 0 has {width}")

    def read() -> tuple[Column, ...]:
        values = [list(data)] if is_flat else [list(column) for column in zip(*data, strict=True)]
        return tuple(_of_values(column, f"column {i}") for i, column in enumerate(values))

    def write(columns: Sequence[Column], names: Sequence[str], flat: bool, rows: Any) -> Any:
        values = [_values(column) for column in columns]
        if not values:
            return [[] for _ in (data if rows is None else rows)]
        return values[0] if flat else [list(row) for row in zip(*values, strict=True)]

    def matrix() -> Array | None:
        kinds = set(map(type, data if is_flat else chain.from_iterable(data)))
        # None would become NaN, and booleans among numbers are refused
        if not kinds or not kinds <= {float, int}:
            return None
        try:
            values = np.array(data, np.float64)
        except OverflowError:  # integers beyond float64: the column reader reports them
            return None
        return values[:, None] if is_flat else values

    return Frame(len(data), width, None, is_flat, read, write, matrix, lambda out: out.tolist())


def _numpy(data: npt.NDArray[Any]) -> Frame:
    if data.ndim not in (1, 2):
        raise TransformError(f"got an array of {data.ndim} dimensions; expected 1 or 2")
    if isinstance(data, np.ma.MaskedArray):  # what is masked is no value
        gaps, has_numbers = np.broadcast_to(data.mask, data.shape), data.dtype.kind in "fiub"
        data = np.array(data.data, np.float64 if has_numbers else np.object_)
        data[gaps] = np.nan if has_numbers else None
    if data.dtype.kind == "f" and data.dtype.itemsize > 8:
        data = data.astype(np.float64)
    table = data[:, None] if data.ndim == 1 else data
    is_number = data.dtype.kind in "fiub"
    if data.dtype.kind == "c":
        raise DataTypeError(f"Complex data not supported: got an array of {data.dtype}")
    if not is_number and data.dtype.kind not in "OUT":
        raise TransformError(f"got an array of {data.dtype}; expected {_FORMS}")

    def read() -> tuple[Column, ...]:
        columns = [table[:, j] for j in range(table.shape[1])]
        if is_number:
            return tuple(Column(column) for column in columns)
        return tuple(_of_values(c.tolist(), f"column {j}") for j, c in enumerate(columns))

    def write(columns: Sequence[Column], names: Sequence[str], flat: bool, rows: Any) -> Any:
        if not columns:
            return np.zeros((len(data) if rows is None else len(rows), 0))
        plain = [_plain(column) for column in columns]
        if not flat and any(values.dtype == np.object_ for values in plain):
            plain = [np.fromiter(_values(c), np.object_, len(c)) for c in columns]
        return plain[0] if flat else np.column_stack(plain)

    matrix = (lambda: table) if is_number else None
    return Frame(
        len(data), table.shape[1], None, data.ndim == 1, read, write, matrix, lambda out: out
    )


def _torch(data: Any) -> Frame:
    torch = importlib.import_module("torch")
    if not isinstance(data, torch.Tensor):
        raise TransformError(f"got torch.{type(data).__name__}; expected a Tensor")
    if data.requires_grad:
        raise TransformError(
            "got a tensor that requires grad, and no gradient passes a transformer; detach() it"
        )
    try:
        # NumPy has no bfloat16
        array = (data.double() if data.dtype == torch.bfloat16 else data).cpu().numpy()
    except (TypeError, RuntimeError) as error:
        raise TransformError(f"got a tensor that is not a plain array: {error}") from error
    inner = _numpy(array)

    def tensor(out: Array) -> Any:
        if out.dtype == np.object_:
            raise TransformError("a tensor has no place for null or text; give lists or a frame")
        return torch.from_numpy(out).to(data.device)

    def write(columns: Sequence[Column], names: Sequence[str], flat: bool, rows: Any) -> Any:
        return tensor(inner.like(columns, names=names, flat=flat, rows=rows))

    return Frame(
        inner.rows, inner.width, None, inner.is_flat, lambda: inner.columns, write,
        lambda: inner.matrix, tensor,
    )  # fmt: skip


def _arrow(data: Any) -> Frame:
    is_flat = isinstance(data, pa.Array | pa.ChunkedArray)
    names = None if is_flat else tuple(data.schema.names)
    columns = [data] if is_flat else data.columns

    def read() -> tuple[Column, ...]:
        labels = ["column 0"] if names is None else [f"column {name!r}" for name in names]
        return tuple(map(_column, columns, labels))

    def write(out: Sequence[Column], labels: Sequence[str], flat: bool, rows: Any) -> Any:
        arrays = [_array(column) for column in out]
        if flat:
            return pa.chunked_array(arrays) if isinstance(data, pa.ChunkedArray) else arrays[0]
        make = pa.RecordBatch if isinstance(data, pa.RecordBatch) else pa.Table
        return make.from_arrays(arrays, names=list(labels))

    return Frame(len(data), len(columns), names, is_flat, read, write)


def _pandas(data: Any) -> Frame:
    pandas = importlib.import_module("pandas")
    is_flat = isinstance(data, pandas.Series)
    if not is_flat and not isinstance(data, pandas.DataFrame):
        raise TransformError(f"got pandas.{type(data).__name__}; expected a DataFrame or a Series")
    columns = [data] if is_flat else [data.iloc[:, j] for j in range(data.shape[1])]
    names = None if is_flat else tuple(map(str, data.columns))

    def read() -> tuple[Column, ...]:
        out = []
        for index, series in enumerate(columns):
            label = f"column {index}" if names is None else f"column {names[index]!r}"
            try:
                array = pa.Array.from_pandas(series)
            except (pa.ArrowException, TypeError, ValueError) as error:
                raise _mixed(label, error) from error
            out.append(_column(array, label))
        return tuple(out)

    def write(out: Sequence[Column], labels: Sequence[str], flat: bool, rows: Ints | None) -> Any:
        index = data.index if rows is None else data.index[rows]
        if flat:
            return pandas.Series(_plain(out[0]), index=index, name=getattr(data, "name", None))
        columns = {j: _plain(column) for j, column in enumerate(out)}
        frame = pandas.DataFrame(columns, index=index)
        same = names is not None and tuple(labels) == names
        frame.columns = data.columns if same else list(labels)
        return frame

    return Frame(len(data), len(columns), names, is_flat, read, write)


def _polars(data: Any) -> Frame:
    polars = importlib.import_module("polars")
    if isinstance(data, polars.LazyFrame):
        raise TransformError("got polars.LazyFrame; expected a DataFrame: collect() it")
    is_flat = isinstance(data, polars.Series)
    columns = [data] if is_flat else data.get_columns()
    names = None if is_flat else tuple(data.columns)

    def read() -> tuple[Column, ...]:
        # the oldest level: views of strings are newer than the Arrow that Flink needs
        oldest = polars.CompatLevel.oldest()
        arrays = [series.to_arrow(compat_level=oldest) for series in columns]
        labels = ["column 0"] if names is None else [f"column {name!r}" for name in names]
        return tuple(map(_column, arrays, labels))

    def write(out: Sequence[Column], labels: Sequence[str], flat: bool, rows: Any) -> Any:
        series = [polars.from_arrow(_array(column)) for column in out]
        if flat:
            return series[0].alias(data.name if is_flat else labels[0])
        return polars.DataFrame([s.alias(name) for s, name in zip(series, labels, strict=True)])

    return Frame(len(data), len(columns), names, is_flat, read, write)
