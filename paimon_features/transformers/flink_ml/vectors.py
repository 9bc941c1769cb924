"""Vectors as Flink ML has them, many at once: dense as a matrix, sparse as compressed rows.

A table contains them as a column of lists, as a column of structs (``size``, ``indices``,
``values``), or as one column of numbers for each place.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paimon_features.core._arrow import pa, pc
from paimon_features.core.errors import TransformError, unknown_name
from paimon_features.core.types.array_types import Floats, Ints
from paimon_features.core.types.foreign_types import plain_column


def _sparse_type() -> pa.DataType:
    """Return the columns of a sparse vector in a table."""
    indices, values = pa.list_(pa.int64()), pa.list_(pa.float64())
    return pa.struct([("size", pa.int64()), ("indices", indices), ("values", values)])


@dataclass(frozen=True, slots=True)
class SparseVector:
    """A vector of ``size`` numbers, zero but at ``indices`` (ascending, from 0).

    >>> SparseVector(4, [1, 3], [0.5, 2.0]).dense()
    [0.0, 0.5, 0.0, 2.0]
    """

    size: int
    indices: Sequence[int]
    values: Sequence[float]

    def dense(self) -> list[float]:
        """Return all its numbers."""
        out = [0.0] * self.size
        for index, value in zip(self.indices, self.values, strict=True):
            out[index] = float(value)
        return out


@dataclass(frozen=True, eq=False, slots=True)
class SparseRows:
    """Sparse vectors below each other.

    Row ``i`` has ``values[starts[i]:starts[i + 1]]`` at the places ``indices`` of the same slice.

    >>> rows = SparseRows.of([SparseVector(3, [0, 2], [1.0, 5.0]), SparseVector(3, [], [])])
    >>> rows.shape, rows.dense().tolist()
    ((2, 3), [[1.0, 0.0, 5.0], [0.0, 0.0, 0.0]])
    """

    starts: Ints
    indices: Ints
    values: Floats
    width: int

    @classmethod
    def of(cls, vectors: Iterable[SparseVector]) -> SparseRows:
        """Return sparse rows of vectors of one size; TransformError for invalid indices."""
        vectors = list(vectors)
        sizes = {vector.size for vector in vectors}
        if len(sizes) > 1:
            raise TransformError(f"got vectors of the sizes {sorted(sizes)}; expected one size")
        counts = [len(vector.indices) for vector in vectors]
        indices = [i for vector in vectors for i in vector.indices]
        values = [v for vector in vectors for v in vector.values]
        return cls.checked(np.cumsum([0, *counts]), indices, values, sizes.pop() if sizes else 0)

    @classmethod
    def checked(cls, starts: Any, indices: Any, values: Any, width: int) -> SparseRows:
        """Return checked rows as in SciPy's ``csr_array`` (``indptr``, ``indices``, ``data``)."""
        out = cls(
            np.asarray(starts, np.int64),
            np.asarray(indices, np.int64),
            np.asarray(values, np.float64),
            int(width),
        )
        if len(out.indices) != len(out.values) or out.starts[-1] != len(out.values):
            raise TransformError(
                f"{len(out.indices)} indices of {len(out.values)} values; expected as many"
            )
        if len(out.indices):
            last = np.zeros(len(out.indices), np.bool_)
            ends = out.starts[1:]
            last[ends[np.diff(out.starts) > 0] - 1] = True
            falling = (np.diff(out.indices) <= 0) & ~last[:-1]
            if out.indices.min() < 0 or out.indices.max() >= out.width or falling.any():
                raise TransformError(
                    f"indices of a sparse vector have to ascend from 0 below its size {out.width}"
                )
        return out

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.starts) - 1, self.width

    def __len__(self) -> int:
        return len(self.starts) - 1

    def rows(self) -> Ints:
        """Return the row of each value."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    def part(self, start: int, stop: int) -> SparseRows:
        """Return the rows from ``start`` to ``stop`` (exclusive), not copied."""
        starts = self.starts[start : stop + 1]
        at = slice(starts[0], starts[-1])
        return SparseRows(starts - starts[0], self.indices[at], self.values[at], self.width)

    def take(self, rows: Ints) -> SparseRows:
        """Return the rows with these numbers, in their order."""
        counts = np.diff(self.starts)[rows]
        starts = np.concatenate([[0], np.cumsum(counts)])
        at = np.repeat(self.starts[rows] - starts[:-1], counts) + np.arange(starts[-1])
        return SparseRows(starts, self.indices[at], self.values[at], self.width)

    def dense(self) -> Floats:
        """Return as a matrix, index (rows, width)."""
        out = np.zeros(self.shape)
        out[self.rows(), self.indices] = self.values
        return out


Matrix = Floats | SparseRows
"""Vectors below each other."""


def dot(features: Matrix, coefficient: Floats) -> Floats:
    """Return the product of each row with a vector, shape (rows,)."""
    if isinstance(features, SparseRows):
        terms = features.values * coefficient[features.indices]
        return sums(features.rows(), terms, len(features))
    return features @ coefficient


def sums(places: Ints, terms: Floats, size: int) -> Floats:
    """Return the sum of the terms at each place, added in their order, shape (size,)."""
    return np.bincount(places, terms, size).astype(np.float64, copy=False)


def weighted_sum(features: Matrix, weights: Floats) -> Floats:
    """Return the sum of the rows, each times its weight, shape (width,)."""
    if isinstance(features, SparseRows):
        terms = features.values * np.repeat(weights, np.diff(features.starts))
        return sums(features.indices, terms, features.width)
    return weights @ features


def dense(features: Matrix) -> Floats:
    """Return as a matrix of numbers."""
    return features.dense() if isinstance(features, SparseRows) else features


def part(features: Matrix, start: int, stop: int) -> Matrix:
    """Return the rows from ``start`` to ``stop`` (exclusive)."""
    if isinstance(features, SparseRows):
        return features.part(start, stop)
    return features[start:stop]


def take(features: Matrix, rows: Ints) -> Matrix:
    """Return the rows with these numbers, in their order."""
    return features.take(rows) if isinstance(features, SparseRows) else features[rows]


def joined(parts: Sequence[Matrix]) -> Matrix:
    """Return the vectors of several matrices as one; dense if one of them is."""
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, SparseRows) for part in parts):
        rows: list[SparseRows] = [part for part in parts if isinstance(part, SparseRows)]
        counts = np.concatenate([np.diff(part.starts) for part in rows])
        return SparseRows(
            np.concatenate([[0], np.cumsum(counts)]),
            np.concatenate([part.indices for part in rows]),
            np.concatenate([part.values for part in rows]),
            rows[0].width,
        )
    return np.concatenate([dense(part) for part in parts])


# -- reading and writing --------------------------------------------------------------------


def as_table(data: Any) -> tuple[pa.Table, Callable[[pa.Table], Any]] | None:
    """Return a table of Arrow, pandas or Polars as Arrow, and how to give another one its form."""
    home = type(data).__module__.partition(".")[0]
    if isinstance(data, pa.Table):
        return data, lambda table: table
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data]), lambda table: table.combine_chunks().to_batches()[0]
    if home == "pandas":
        return pa.Table.from_pandas(data, preserve_index=False), lambda table: table.to_pandas()
    if home == "polars":
        polars = importlib.import_module("polars")
        oldest = polars.CompatLevel.oldest()
        return data.to_arrow(compat_level=oldest), polars.from_arrow
    return None


def read_matrix(data: Any) -> Matrix:
    """Return vectors outside of tables: an array, sparse rows, lists, ``SparseVector``s.

    Raises
    ------
    TransformError
        For anything else, nulls, or rows of different lengths.
    """
    if isinstance(data, SparseRows):
        return data
    if hasattr(data, "indptr") and hasattr(data, "indices"):  # of SciPy
        csr = data.tocsr()
        csr.sort_indices()
        return SparseRows.checked(csr.indptr, csr.indices, csr.data, csr.shape[1])
    if isinstance(data, list | tuple) and data and isinstance(data[0], SparseVector):
        return SparseRows.of(data)
    try:
        out = np.asarray(data, np.float64)
    except (TypeError, ValueError) as error:
        raise TransformError(
            f"got {type(data).__name__} that is not a matrix of numbers ({error}); expected an "
            "array (rows, width), rows of numbers of one length, SparseVectors, or a table"
        ) from error
    if out.ndim == 1:
        out = out[:, None]
    if out.ndim != 2:
        raise TransformError(f"got an array of {out.ndim} dimensions; expected (rows, width)")
    return out


def read_features(table: pa.Table, columns: str | Sequence[str]) -> Matrix:
    """Return a column of vectors of a table, or a vector built from several numeric columns.

    Raises
    ------
    TransformError
        For columns that are not there or hold nulls, and vectors of different sizes.
    """
    if not isinstance(columns, str):
        return np.column_stack([read_numbers(table, name) for name in columns])
    column = table_column(table, columns)
    if column.null_count:
        raise TransformError(f"column {columns!r} has {column.null_count} nulls; expected vectors")
    kind = column.type
    if pa.types.is_struct(kind):
        return _sparse(column.combine_chunks(), columns)
    if not _is_list(kind):
        return read_numbers(table, columns)[:, None]
    sizes = pc.unique(pc.list_value_length(column)).to_pylist()
    if len(sizes) > 1:
        raise TransformError(f"column {columns!r} has vectors of the sizes {sorted(sizes)}")
    flat = pc.list_flatten(column)
    if flat.null_count:
        raise TransformError(f"column {columns!r} has vectors with nulls; impute them first")
    values: Floats = flat.to_numpy().astype(np.float64, copy=False)
    return values.reshape(len(column), sizes[0] if sizes else 0)


def vector_sizes(table: pa.Table, name: str) -> Ints:
    """Return the size of the vector of each row of a column without nulls; 1 for a number."""
    column = table_column(table, name)
    if _is_list(column.type):
        return np.asarray(pc.list_value_length(column), np.int64)
    if pa.types.is_struct(column.type) and column.type.get_field_index("size") >= 0:
        return np.asarray(pc.struct_field(column, "size"), np.int64)
    return np.ones(len(table), np.int64)


def read_numbers(table: pa.Table, name: str) -> Floats:
    """Return a column of numbers without nulls as float64."""
    column = table_column(table, name)
    if column.null_count:
        raise TransformError(f"column {name!r} has {column.null_count} nulls; expected numbers")
    out: Floats = _numeric(column, name).to_numpy()
    return out


def read_nullable(table: pa.Table, name: str) -> Floats:
    """Return a column of numbers as float64, NaN where it is null."""
    column = _numeric(table_column(table, name), name)
    out: Floats = (column.fill_null(np.nan) if column.null_count else column).to_numpy()
    return out


def to_column(features: Matrix) -> pa.Array:
    """Return vectors as a column of a table."""
    if isinstance(features, SparseRows):
        starts = pa.array(features.starts, pa.int32())
        lists = [
            pa.ListArray.from_arrays(starts, pa.array(values))
            for values in (features.indices, features.values)
        ]
        size = pa.array(np.full(len(features), features.width))
        return pa.StructArray.from_arrays([size, *lists], fields=list(_sparse_type()))
    starts = pa.array(np.arange(len(features) + 1) * features.shape[1], pa.int32())
    return pa.ListArray.from_arrays(starts, pa.array(np.ascontiguousarray(features).ravel()))


def table_column(table: pa.Table, name: str) -> pa.ChunkedArray:
    """Return a column of a table; TransformError for a name that it does not have."""
    if name not in table.column_names:
        raise TransformError(unknown_name("column", name, table.column_names))
    try:
        return plain_column(table[name])
    except (pa.ArrowException, KeyError) as error:
        raise TransformError(f"column {name!r}: {error}") from error


def _numeric(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    try:
        return column.cast(pa.float64(), safe=False)
    except pa.ArrowException as error:
        raise TransformError(f"column {name!r} is {column.type}; expected numbers") from error


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _sparse(column: Any, name: str) -> SparseRows:
    fields = {field.name for field in column.type}
    if fields != {"size", "indices", "values"}:
        raise TransformError(
            f"column {name!r} is a struct of {', '.join(sorted(fields))}; a sparse vector has "
            "size, indices and values"
        )
    sizes = set(column.field("size").to_pylist())
    if len(sizes) > 1:
        raise TransformError(f"column {name!r} has vectors of the sizes {sorted(sizes)}")
    indices, values = column.field("indices"), column.field("values")
    counts = pc.list_value_length(indices).to_numpy(zero_copy_only=False)
    return SparseRows.checked(
        np.concatenate([[0], np.cumsum(counts)]),
        indices.flatten().to_numpy(zero_copy_only=False),
        values.flatten().to_numpy(zero_copy_only=False),
        sizes.pop() if sizes else 0,
    )
