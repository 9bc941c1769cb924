"""What the models have in common: model data, settings, tables in and out, storage."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np

from paimon_features.core._arrow import pa
from paimon_features.core.columns.column import Column
from paimon_features.core.errors import TransformError, unknown_name
from paimon_features.core.types.array_types import Floats
from paimon_features.transformers.base import Applied, FeatureTransformer, Params, StoredTransformer
from paimon_features.transformers.flink_ml.vectors import (
    Matrix,
    SparseRows,
    as_table,
    dense,
    read_features,
    read_matrix,
    to_column,
)

ModelData = Mapping[str, Any]
"""The fitted parameters, by the names of Flink ML's model data; arrays and numbers."""


class Model(StoredTransformer):
    """What an algorithm of ``paimon_features.iteration.algorithms`` fitted, as Flink ML stores it.

    ``model_data`` are arrays under Flink ML's names, ``settings`` the parameters that
    ``transform`` needs. ``transform`` of a table adds columns to it; of an array it returns an
    array of what a service would give: the same steps for a table, a training set and a request.

    A column ``features_col`` contains vectors (lists or sparse ones); several names are the columns
    of numbers of which a vector is made.
    """

    estimator: ClassVar[str]
    """What makes it."""
    data_names: ClassVar[tuple[str, ...]]
    """The names of its model data, in order."""
    defaults: ClassVar[Mapping[str, Any]]
    """Its settings and their defaults."""

    def __init__(
        self,
        model_data: ModelData,
        *,
        rows: int = 0,
        names: Sequence[str] | None = None,
        **settings: Any,
    ) -> None:
        if unknown := settings.keys() - self.defaults.keys():
            kind = f"setting of a {type(self).__name__}"
            raise TransformError(unknown_name(kind, sorted(unknown)[0], self.defaults))
        if set(model_data) != set(self.data_names):
            raise TransformError(
                f"the model data of a {type(self).__name__} are {', '.join(self.data_names)}; "
                f"got {', '.join(model_data) or 'none'}"
            )
        self.settings = {**self.defaults, **settings}
        self.model_data = self._checked_data(model_data)
        self.names = None if names is None else tuple(names)
        self._rows = int(rows)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(width={self.width}, rows={self._rows})"

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the settings."""
        return dict(self.settings)

    def _set_param(self, name: str, value: Any) -> None:
        raise TransformError(
            f"the settings of a {type(self).__name__} are those of {self.estimator}, which gives it"
        )

    def fit(self, X: Any, y: Any = None) -> Self:
        """Raise TransformError: its estimator fits a model."""
        raise TransformError(
            f"a {type(self).__name__} is not fitted itself: {self.estimator}().fit(data) returns it"
        )

    merge = FeatureTransformer.merge

    def apply(self, columns: Sequence[Column]) -> Applied:
        """Return these columns through the model; a null in one of them makes every result null."""
        masks = [column.valid for column in columns if column.valid is not None]
        valid = np.logical_and.reduce(masks) if masks else None
        with np.errstate(all="ignore"):
            values = [column.values.astype(np.float64, copy=False) for column in columns]
            results, failed = self._transform_columns(values), self._refused(values)
        if failed is not None and valid is not None:
            failed = failed & valid
        return Applied([Column(result, valid) for result in results], failed)

    def transform(self, X: Any) -> Any:
        """Return a table with columns added, or the results as an array for an array of vectors.

        Raises
        ------
        TransformError
            For missing columns, vectors of another size than the model's, or values that it
            cannot take.
        """
        converted = as_table(X)
        if converted is None:
            results = self._results(self._fitting(read_matrix(X)))
            return results[0] if self.is_scalar else np.column_stack(results)
        table, back = converted
        for name, column in self._outputs(table).items():
            if name in table.column_names:
                raise TransformError(f"the table has a column {name!r} already; rename the output")
            table = table.append_column(name, column)
        return back(table)

    def _results(self, features: Matrix) -> list[Floats]:
        """Return one array for each output number of a row."""
        with np.errstate(all="ignore"):
            # index: (width, rows): each step goes over whole columns
            columns = list(np.ascontiguousarray(dense(features).T))
            failed = self._refused(columns)
            if failed is not None and failed.any():
                row = int(np.flatnonzero(failed)[0])
                raise TransformError(f"row {row}: {self._why([c[row] for c in columns])}")
            return self._transform_columns(columns)

    def _fitting(self, features: Matrix) -> Matrix:
        if not len(features):  # a column of lists has no size without rows
            if isinstance(features, SparseRows):
                return replace(features, width=self.width)
            return np.zeros((0, self.width))
        if features.shape[1] != self.width:
            raise TransformError(
                f"number of features must be {self.width} but got {features.shape[1]}"
            )
        return features

    @abstractmethod
    def _transform_columns(self, columns: Sequence[Floats]) -> list[Floats]:
        """Return columns to columns, the same steps for each row whatever the other rows are."""

    @abstractmethod
    def _outputs(self, table: pa.Table) -> dict[str, pa.Array]:
        """Return the columns that ``transform`` adds to a table."""

    def _refused(self, columns: Sequence[Floats]) -> Any:
        """Return the rows that the model cannot take; None: it takes all."""
        return None

    def _why(self, row: Sequence[float]) -> str:
        """Return why a row is rejected."""
        raise AssertionError("no row is refused")

    def _checked_data(self, model_data: ModelData) -> dict[str, Any]:
        """Return model data as arrays of the right shapes; TransformError for others."""
        return one_number_per_feature({name: model_data[name] for name in self.data_names})

    def _fitted_params(self) -> Params:
        return {"settings": _plain(self.settings), "model_data": self._stored_data()}

    def _stored_data(self) -> Params:
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in self.model_data.items()
        }

    @classmethod
    def _from_params(cls, params: Mapping[str, Any]) -> Self:
        settings = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in params["settings"].items()
        }
        data = cls._read_data(params["model_data"])
        return cls(data, rows=params["rows"], names=params["names"], **settings)

    @classmethod
    def _read_data(cls, stored: Mapping[str, Any]) -> ModelData:
        return stored


class VectorModel(Model):
    """A model that makes one vector of one: scalers and bins (``input_col`` to ``output_col``)."""

    keeps_zeros: ClassVar[bool] = False
    """Whether a zero stays a zero, so that sparse vectors can stay sparse."""

    @property
    def width(self) -> int:
        return len(self.model_data[self.data_names[0]])

    @property
    def width_out(self) -> int:
        return self.width

    def names_out(self, names: Sequence[str]) -> list[str]:
        return list(names)

    def apply(self, columns: Sequence[Column]) -> Applied:
        """Return these columns through the model; a null stays null."""
        with np.errstate(all="ignore"):
            results = self._transform_columns(
                [c.values.astype(np.float64, copy=False) for c in columns]
            )
        return Applied([Column(v, c.valid) for v, c in zip(results, columns, strict=True)])

    def transform(self, X: Any) -> Any:
        if isinstance(X, SparseRows) and self._stays_sparse:
            return self._scaled(self._fitting(X))
        return super().transform(X)

    def _outputs(self, table: pa.Table) -> dict[str, pa.Array]:
        features = self._fitting(read_features(table, self.settings["input_col"]))
        if isinstance(features, SparseRows) and self._stays_sparse:
            return {self.settings["output_col"]: to_column(self._scaled(features))}
        results = np.column_stack(self._results(features))
        return {self.settings["output_col"]: to_column(results)}

    @property
    def _stays_sparse(self) -> bool:
        return self.keeps_zeros

    def _scaled(self, features: Matrix) -> SparseRows:
        assert isinstance(features, SparseRows)
        # each place is scaled by itself, so its factor is what it makes of 1
        factors = np.concatenate(self._transform_columns([np.ones(1)] * self.width))
        values = features.values * factors[features.indices]
        return SparseRows(features.starts, features.indices, values, features.width)


def one_number_per_feature(model_data: ModelData) -> dict[str, Any]:
    """Return model data as arrays of one length; TransformError for others."""
    out = {name: np.asarray(values, np.float64) for name, values in model_data.items()}
    shapes = {name: values.shape for name, values in out.items()}
    if any(len(shape) != 1 for shape in shapes.values()) or len(set(shapes.values())) != 1:
        raise TransformError(f"model data of the shapes {shapes}; expected one number per feature")
    for name, values in out.items():
        check_finite(name, values)
    return out


def check_finite(name: str, values: Floats) -> None:
    """Raise TransformError for model data that are not finite numbers."""
    if not np.isfinite(values).all():
        raise TransformError(
            f"the model data {name} have NaN or infinite values: so had the training data, or "
            "the learning rate was too large"
        )


def _plain(settings: Mapping[str, Any]) -> Params:
    return {n: list(v) if isinstance(v, tuple) else v for n, v in settings.items()}
