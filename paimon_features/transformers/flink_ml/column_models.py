"""The models that work on columns: imputation, bins, one-hot encoding, products."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, ClassVar

import numpy as np

from paimon_features.core._arrow import pa
from paimon_features.core.columns.column import Column
from paimon_features.core.errors import TransformError
from paimon_features.core.types.array_types import Floats, Ints
from paimon_features.transformers.base import Applied, Params
from paimon_features.transformers.flink_ml.model import (
    Model,
    ModelData,
    VectorModel,
    one_number_per_feature,
)
from paimon_features.transformers.flink_ml.vectors import (
    Matrix,
    SparseRows,
    read_features,
    read_nullable,
    read_numbers,
    table_column,
    to_column,
    vector_sizes,
)
from paimon_features.transformers.k_bins import bins_between


class ImputerModel(Model):
    """Fills missing values in: null, and what is ``missing_value`` (None: NaN).

    >>> model = ImputerModel({"surrogates": [2.0]}, input_cols=("a",), output_cols=("b",))
    >>> model.transform(pa.table({"a": [1.0, None]}))["b"].to_pylist()
    [1.0, 2.0]
    """

    kind = "flink_ml_imputer"
    estimator = "ImputerStage"
    data_names = ("surrogates",)
    defaults: ClassVar[Mapping[str, Any]] = {
        "input_cols": (),
        "output_cols": (),
        "missing_value": None,
    }

    @property
    def width(self) -> int:
        return len(self.model_data["surrogates"])

    @property
    def width_out(self) -> int:
        return self.width

    def names_out(self, names: Sequence[str]) -> list[str]:
        return list(self.settings["output_cols"] or names)

    def apply(self, columns: Sequence[Column]) -> Applied:
        """Return these columns with nothing missing."""
        values = [
            c.values.astype(np.float64, copy=False)
            if c.valid is None
            else np.where(c.valid, c.values.astype(np.float64, copy=False), np.nan)
            for c in columns
        ]
        nulls = [None if column.valid is None else ~column.valid for column in columns]
        return Applied([Column(filled) for filled in self._filled(values, nulls)])

    def _transform_columns(self, columns: Sequence[Floats]) -> list[Floats]:
        return self._filled(columns, [None] * len(columns))

    def _filled(self, columns: Sequence[Floats], nulls: Sequence[Any]) -> list[Floats]:
        out = []
        surrogates = self.model_data["surrogates"].tolist()
        for values, null, surrogate in zip(columns, nulls, surrogates, strict=True):
            missing = is_missing(values, self.settings["missing_value"])
            out.append(np.where(missing if null is None else missing | null, surrogate, values))
        return out

    def _outputs(self, table: pa.Table) -> dict[str, pa.Array]:
        names = self.settings["input_cols"]
        columns = [read_nullable(table, name) for name in names]
        nulls = [np.asarray(table[name].is_null()) for name in names]
        filled = self._filled(columns, nulls)
        return dict(zip(self.settings["output_cols"], map(pa.array, filled), strict=True))


def is_missing(values: Floats, missing_value: float | None) -> Any:
    """Return where values are the one that stands for a missing one (None: NaN)."""
    return np.isnan(values) if missing_value is None else values == missing_value


CONSTANT = (-math.inf, math.inf)
"""The edges of a column that was constant: one bin of all numbers."""


class KBinsDiscretizerModel(VectorModel):
    """The number of the bin ``[left, right)`` of each value, the closest for what is outside.

    ``binEdges`` are the edges of each column, ascending; ``CONSTANT`` for a column that was
    constant: it has the one bin 0.

    >>> KBinsDiscretizerModel({"binEdges": [[-1.0, 0.0, 1.0]]}).transform([[-2], [0], [2]]).tolist()
    [0.0, 1.0, 1.0]
    """

    kind = "flink_ml_k_bins_discretizer"
    estimator = "KBinsDiscretizerStage"
    data_names = ("binEdges",)
    defaults: ClassVar[Mapping[str, Any]] = {"input_col": "input", "output_col": "output"}

    def _checked_data(self, model_data: ModelData) -> dict[str, Any]:
        edges = []
        for column in model_data["binEdges"]:
            of_column = np.asarray(column, np.float64)
            if not len(of_column):
                of_column = np.array(CONSTANT)
            ascends = len(of_column) > 1 and bool((np.diff(of_column) > 0).all())
            if not ascends or not (np.isfinite(of_column).all() or _is_constant(of_column)):
                raise TransformError(
                    f"bin edges {of_column.tolist()}; expected two or more ascending finite "
                    "numbers, or -inf and inf for a constant column"
                )
            edges.append(of_column)
        return {"binEdges": edges}

    def _stored_data(self) -> Params:
        # JSON has no infinite numbers: no edges stand for CONSTANT
        bin_edges = self.model_data["binEdges"]
        return {"binEdges": [[] if _is_constant(edges) else edges.tolist() for edges in bin_edges]}

    def _transform_columns(self, columns: Sequence[Floats]) -> list[Floats]:
        edges = self.model_data["binEdges"]
        return [
            bins_between(e, values).astype(np.float64)
            for e, values in zip(edges, columns, strict=True)
        ]


def _is_constant(edges: Floats) -> bool:
    return bool(np.array_equal(edges, CONSTANT))


class OneHotEncoderModel(Model):
    """A vector for each index column: 1 at the place of its value, which is a number from 0.

    ``maxIndex`` is the greatest index of each column. With ``drop_last`` it has no place: it is
    all zeros. What is no integer from 0 to the greatest is refused.

    >>> model = OneHotEncoderModel({"maxIndex": [2]}, drop_last=False)
    >>> model.transform([[1.0], [2.0]]).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """

    kind = "flink_ml_one_hot_encoder"
    estimator = "OneHotEncoderStage"
    data_names = ("maxIndex",)
    defaults: ClassVar[Mapping[str, Any]] = {"input_cols": (), "output_cols": (), "drop_last": True}

    @property
    def width(self) -> int:
        return len(self.model_data["maxIndex"])

    @property
    def width_out(self) -> int:
        return sum(self._sizes)

    @property
    def is_scalar(self) -> bool:
        return False

    def names_out(self, names: Sequence[str]) -> list[str]:
        return [f"{n}_{i}" for n, size in zip(names, self._sizes, strict=True) for i in range(size)]

    @property
    def _sizes(self) -> list[int]:
        more = 0 if self.settings["drop_last"] else 1
        return [int(greatest) + more for greatest in self.model_data["maxIndex"]]

    def apply(self, columns: Sequence[Column]) -> Applied:
        """Return these columns encoded; a null makes nulls of all places of its column."""
        values = [column.values.astype(np.float64, copy=False) for column in columns]
        encoded = self._transform_columns(values)
        wrong = np.zeros(len(values[0]), np.bool_)
        for column, numbers, greatest in zip(
            columns, values, self.model_data["maxIndex"], strict=True
        ):
            wrong |= _no_index(numbers, greatest) & column.mask
        valids = [
            c.valid for c, size in zip(columns, self._sizes, strict=True) for _ in range(size)
        ]
        out = [Column(indicator, valid) for indicator, valid in zip(encoded, valids, strict=True)]
        return Applied(out, wrong if wrong.any() else None)

    def _transform_columns(self, columns: Sequence[Floats]) -> list[Floats]:
        return [
            (values == place).astype(np.float64)
            for values, size in zip(columns, self._sizes, strict=True)
            for place in range(size)
        ]

    def _refused(self, columns: Sequence[Floats]) -> Any:
        greatest = self.model_data["maxIndex"]
        wrong = [_no_index(v, most) for v, most in zip(columns, greatest, strict=True)]
        return np.logical_or.reduce(wrong)

    def _why(self, row: Sequence[float]) -> str:
        greatest = self.model_data["maxIndex"].tolist()
        return (
            f"{row} cannot be parsed as indices; expected integers from 0 to "
            f"{', '.join(str(int(g)) for g in greatest)}"
        )

    def _outputs(self, table: pa.Table) -> dict[str, pa.Array]:
        columns = [read_numbers(table, name) for name in self.settings["input_cols"]]
        self._results(np.column_stack(columns))  # refuses what is no index
        out: dict[str, pa.Array] = {}
        for name, values, size in zip(
            self.settings["output_cols"], columns, self._sizes, strict=True
        ):
            has_place = values < size
            starts = np.concatenate([[0], np.cumsum(has_place)])
            places = values[has_place].astype(np.int64)
            out[name] = to_column(SparseRows(starts, places, np.ones(len(places)), size))
        return out


def _no_index(values: Floats, greatest: float) -> Any:
    return ~((values >= 0) & (values <= greatest) & (values == np.floor(values)))


class InteractionModel(Model):
    """All products of one value of each vector, those of the last vector next to each other.

    ``sizes`` are the sizes of the vectors, 1 for a number.

    >>> InteractionModel({"sizes": [2, 2]}).transform([[1.0, 2.0, 3.0, 4.0]]).tolist()
    [[3.0, 4.0, 6.0, 8.0]]
    """

    kind = "flink_ml_interaction"
    estimator = "InteractionStage"
    data_names = ("sizes",)
    defaults: ClassVar[Mapping[str, Any]] = {"input_cols": (), "output_col": "output"}

    @property
    def width(self) -> int:
        return sum(self.sizes)

    @property
    def width_out(self) -> int:
        return int(np.prod(self.sizes))

    @property
    def sizes(self) -> list[int]:
        """The sizes of the vectors, in order."""
        return [int(size) for size in self.model_data["sizes"]]

    def names_out(self, names: Sequence[str]) -> list[str]:
        return [f"{self.settings['output_col']}_{place}" for place in range(self.width_out)]

    def _transform_columns(self, columns: Sequence[Floats]) -> list[Floats]:
        bounds = [0, *accumulate(self.sizes)]
        groups = [columns[a:b] for a, b in pairwise(bounds)]
        out = list(groups.pop())
        while groups:
            out = [value * other for value in groups.pop() for other in out]
        return out

    def _outputs(self, table: pa.Table) -> dict[str, pa.Array]:
        names = self.settings["input_cols"]
        complete = _without_null(table, names)
        sizes = _sizes_of_rows(table.filter(pa.array(complete)), names)
        other = sizes[(sizes != self.sizes).any(axis=1)]
        if len(other):
            raise TransformError(
                f"got vectors of the sizes {other[0].tolist()}; the model was fitted on vectors of "
                f"{self.sizes}. InteractionStage.transform multiplies vectors of any size"
            )
        return {self.settings["output_col"]: interaction_of(table, names)}

    def _checked_data(self, model_data: ModelData) -> dict[str, Any]:
        return one_number_per_feature(model_data)

    @classmethod
    def _read_data(cls, stored: Mapping[str, Any]) -> ModelData:
        return stored


def interaction_of(table: pa.Table, names: Sequence[str]) -> pa.Array:
    """Return the products of each row, null where a column is null; sizes may differ by row.

    Raises
    ------
    TransformError
        For columns that do not exist or contain neither numbers nor vectors, and for nulls
        within a vector.
    """
    complete = _without_null(table, names)
    complete_rows = table.filter(pa.array(complete))
    # a column of one kind has vectors of one kind: the parts below have one type
    _, first, group = np.unique(
        _sizes_of_rows(complete_rows, names), axis=0, return_index=True, return_inverse=True
    )
    group = group.reshape(-1)
    order = np.argsort(group, kind="stable")
    bounds = np.searchsorted(group[order], np.arange(len(first) + 1))
    parts = [
        to_column(product([read_features(rows, name) for name in names]))
        for rows in (complete_rows.take(order[a:b]) for a, b in pairwise(bounds.tolist()))
    ] or [to_column(product([read_features(complete_rows, name) for name in names]))]
    places = np.empty(len(complete_rows), np.int64)
    places[order] = np.arange(len(complete_rows))
    # a row with a null has no products
    out = np.zeros(len(table), np.int64)
    out[complete] = places
    return pa.concat_arrays(parts).take(pa.array(out, mask=~complete))


def _without_null(table: pa.Table, names: Sequence[str]) -> Any:
    """Return where no column is null."""
    out = np.ones(len(table), np.bool_)
    for name in names:
        out &= np.asarray(table_column(table, name).is_valid())
    return out


def _sizes_of_rows(table: pa.Table, names: Sequence[str]) -> Ints:
    """Return the size of each row's vector in each column, shape (rows, columns)."""
    return np.column_stack([vector_sizes(table, name) for name in names])


def product(parts: Sequence[Matrix]) -> Matrix:
    """Return the products of vectors row by row; sparse if one of them is."""
    if any(isinstance(part, SparseRows) for part in parts):
        sparse = [part if isinstance(part, SparseRows) else _all_places(part) for part in parts]
        out = sparse.pop()
        while sparse:
            out = _outer(sparse.pop(), out)
        return out
    dense: list[Floats] = [part for part in parts if not isinstance(part, SparseRows)]
    products = dense.pop()
    while dense:
        left = dense.pop()
        # index: (rows, left width, width so far)
        width = left.shape[1] * products.shape[1]
        products = (left[:, :, None] * products[:, None, :]).reshape(len(products), width)
    return products


def _all_places(matrix: Floats) -> SparseRows:
    rows, width = matrix.shape
    starts = np.arange(rows + 1) * width
    return SparseRows(starts, np.tile(np.arange(width), rows), matrix.ravel(), width)


def _outer(left: SparseRows, right: SparseRows) -> SparseRows:
    many: Ints = np.diff(right.starts)
    counts = np.diff(left.starts) * many
    starts = np.concatenate([[0], np.cumsum(counts)])
    row = np.repeat(np.arange(len(left)), counts)
    within = np.arange(starts[-1]) - starts[row]
    a = left.starts[row] + within // many[row]
    b = right.starts[row] + within % many[row]
    indices = left.indices[a] * right.width + right.indices[b]
    values = left.values[a] * right.values[b]
    return SparseRows(starts, indices, values, left.width * right.width)
