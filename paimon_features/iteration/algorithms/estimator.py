"""The base classes of the estimators: parameters, input data, programs, executors."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import pyarrow as pa

from paimon_features.core.configuration.arguments import (
    check_arguments,
    checked_integer,
    plain_arguments,
)
from paimon_features.core.errors import DefinitionError, TransformError, unknown_name
from paimon_features.core.types.array_types import Floats
from paimon_features.iteration import IterationConfig, IterationStream, ReferenceExecutor
from paimon_features.iteration.algorithms.parameter_checks import finite
from paimon_features.iteration.algorithms.training_blocks import TrainingBlock, deal, to_subtask
from paimon_features.transformers.flink_ml import Model
from paimon_features.transformers.flink_ml.vectors import (
    Matrix,
    as_table,
    read_features,
    read_matrix,
    read_nullable,
    read_numbers,
)

MODEL = "model"
"""The output stream of a program: model data, one record per version."""


@dataclass(frozen=True)
class TrainingSource:
    """The rows to train on: a stream of the job, and in the iteration body blocks of it.

    ``to_block`` converts a record to a block, which stays at the subtask that read it. Without it
    records are blocks already, and each goes to the subtask that it names.
    """

    read: Callable[[Any], IterationStream]
    to_block: Any = None

    def blocks(self, stream: IterationStream) -> IterationStream:
        """Return the stream in the body as blocks at their subtasks."""
        if self.to_block is None:
            return to_its_subtask(stream)
        return stream.map(self.to_block)


class Executor(Protocol):
    """Runs a program: a ``ReferenceExecutor``, or an ``IterationJob`` on Flink."""

    def run(self, build: Callable[[Any], Any]) -> Any:
        """Return the values of the output streams of ``build``, by name."""
        ...


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Parameters with the names and defaults of Flink ML's Python API.

    ``set_<parameter>(value)`` returns a copy with another value, as code written for Flink ML
    calls it.

    Raises
    ------
    DefinitionError
        A parameter has another type than its annotation.
    """

    def __post_init__(self) -> None:
        plain_arguments(self)
        check_arguments(type(self).__name__, self)

    def __getattr__(self, name: str) -> Any:
        parameter = name.removeprefix("set_")
        fields = {field.name for field in dataclasses.fields(self)}
        if name.startswith("set_") and parameter in fields:
            return lambda *values: self._with(parameter, values)
        kind = f"attribute of {type(self).__name__}"
        raise AttributeError(unknown_name(kind, name, [f"set_{field}" for field in fields]))

    def _with(self, parameter: str, values: tuple[Any, ...]) -> Self:
        many = parameter.endswith("_cols") and not (len(values) == 1 and values[0] is None)
        return dataclasses.replace(self, **{parameter: values if many else values[0]})


@dataclass(frozen=True, kw_only=True)
class IterativeEstimator(Parameters, ABC):
    """Parameters and ``fit``.

    A subclass names its ``model``, whose settings are the parameters of the same names.
    """

    model: ClassVar[type[Model]]
    """The class of the fitted model."""

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        initial: Model | None = None,
        executor: Executor | None = None,
        parallelism: int = 1,
        config: IterationConfig | None = None,
    ) -> Any:
        """Fit on a table, or on vectors with labels ``y`` and weights ``sample_weight``.

        Parameters
        ----------
        X
            An Arrow, pandas or Polars table with the columns that the parameters name; or
            vectors: an array (rows, width), rows of numbers, ``SparseVector``s, a SciPy matrix.
        initial
            The model to start from, for example that of an earlier fit.
        executor
            By default a ``ReferenceExecutor`` in this process; on Flink an ``IterationJob``.
        parallelism
            Number of subtasks.

        Raises
        ------
        TransformError
            For an empty training set, missing columns, nulls, or invalid labels.
        """
        rows = self._rows(X, y, sample_weight)
        if not len(rows):
            raise TransformError(f"{type(self).__name__}: the training set is empty")
        parallelism = checked_integer("parallelism", parallelism)
        blocks = self._blocks(rows, parallelism)
        start = self._start(rows, initial)
        outputs = (executor or ReferenceExecutor()).run(
            self._program(_collection(blocks), start, parallelism, config or IterationConfig())
        )
        return self._model(list(outputs[MODEL]), len(rows))

    def program(
        self,
        source: Callable[[Any], IterationStream],
        *,
        initial: Model | None = None,
        parallelism: int = 1,
        config: IterationConfig | None = None,
    ) -> Callable[[Any], Any]:
        """Build the program that fits on a stream, for ``IterationJob.run`` or an executor.

        ``source(job)`` returns a stream of record batches with the columns that the parameters
        name, such as ``lambda job: job.from_table(table, columns)``; each subtask keeps the rows
        that it read. ``model_of`` converts the output ``"model"`` to the model.
        """
        parallelism = checked_integer("parallelism", parallelism)
        start = self._start(None, initial)
        rows = TrainingSource(source, _ToBlock(self))
        return self._program(rows, start, parallelism, config or IterationConfig())

    def model_of(self, output: Sequence[Any], rows: int = 0) -> Any:
        """Return the model (of an online algorithm: the versions) from a program's output."""
        return self._model(list(output), rows)

    @abstractmethod
    def _program(
        self, source: TrainingSource, start: Any, parallelism: int, config: IterationConfig
    ) -> Callable[[Any], Any]: ...

    @abstractmethod
    def _rows(self, X: Any, y: Any, sample_weight: Any) -> TrainingBlock:
        """Return the checked training data."""

    @abstractmethod
    def _names(self) -> tuple[str, ...] | None:
        """Return the names of the features that are columns of their own."""

    def _blocks(self, rows: TrainingBlock, parallelism: int) -> list[TrainingBlock]:
        return deal(rows, parallelism)

    def _start(self, rows: TrainingBlock | None, initial: Model | None) -> Any:
        """Return the initial variable of the iteration."""
        if initial is not None:
            raise DefinitionError(f"{type(self).__name__} does not start from an earlier model")
        return None

    def _model(self, outputs: list[Any], rows: int) -> Any:
        if len(outputs) != 1:
            raise TransformError(
                f"{type(self).__name__}: the program returned {len(outputs)} models; expected one"
            )
        return self._new_model(self._model_data(outputs[0]), rows)

    def _model_data(self, output: Any) -> Any:
        """Return the model data from the record that the program outputs."""
        return output

    def _new_model(self, model_data: Any, rows: int) -> Model:
        settings = {n: getattr(self, n) for n in self.model.defaults if hasattr(self, n)}
        return self.model(model_data, rows=rows, names=self._names(), **settings)


@dataclass(frozen=True, kw_only=True)
class VectorEstimator(IterativeEstimator):
    """An estimator on one column of vectors."""

    input_col: str | tuple[str, ...] = "input"
    output_col: str = "output"

    allows_nan: ClassVar[bool] = False

    def _rows(self, X: Any, y: Any, sample_weight: Any) -> TrainingBlock:
        rows = TrainingBlock(_vectors(X, self.input_col))
        return rows if self.allows_nan else finite(self, rows)

    def _names(self) -> tuple[str, ...] | None:
        return _names_of(self.input_col)


@dataclass(frozen=True, kw_only=True)
class PredictionEstimator(IterativeEstimator):
    """An estimator whose model predicts from a column of features."""

    features_col: str | tuple[str, ...] = "features"
    prediction_col: str = "prediction"

    def _rows(self, X: Any, y: Any, sample_weight: Any) -> TrainingBlock:
        return finite(self, labelled(X, None, None, (self.features_col, None, None)))

    def _names(self) -> tuple[str, ...] | None:
        return _names_of(self.features_col)


@dataclass(frozen=True, kw_only=True)
class SupervisedEstimator(PredictionEstimator):
    """An estimator that learns from labels, optionally weighted."""

    label_col: str = "label"
    weight_col: str | None = None

    def _rows(self, X: Any, y: Any, sample_weight: Any) -> TrainingBlock:
        columns = (self.features_col, self.label_col, self.weight_col)
        return finite(self, labelled(X, y, sample_weight, columns))


@dataclass(frozen=True, kw_only=True)
class ColumnsEstimator(IterativeEstimator):
    """An estimator on several columns of numbers."""

    input_cols: tuple[str, ...] = ()
    output_cols: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()

    def _rows(self, X: Any, y: Any, sample_weight: Any) -> TrainingBlock:
        converted = as_table(X)
        if converted is None:
            return TrainingBlock(read_matrix(X))
        if not self.input_cols or len(self.input_cols) != len(self.output_cols):
            raise DefinitionError(
                f"{type(self).__name__}: {len(self.input_cols)} input columns and "
                f"{len(self.output_cols)} output columns; expected equal numbers, at least one"
            )
        columns = [read_nullable(converted[0], name) for name in self.input_cols]
        return TrainingBlock(np.column_stack(columns))

    def _names(self) -> tuple[str, ...] | None:
        return self.input_cols or None


def _collection(blocks: list[TrainingBlock]) -> TrainingSource:
    """Return a source of blocks, each for the subtask that it names."""
    return TrainingSource(lambda job: job.from_collection(blocks))


class _ToBlock:
    """Converts a record batch to a block; a block is returned as it is."""

    def __init__(self, estimator: IterativeEstimator) -> None:
        self._estimator = estimator

    def map(self, value: Any) -> TrainingBlock:
        if isinstance(value, TrainingBlock):
            return value
        table = pa.Table.from_batches([value]) if isinstance(value, pa.RecordBatch) else value
        return self._estimator._rows(table, None, None)


def to_its_subtask(stream: IterationStream) -> IterationStream:
    """Partition records by the subtask that they name."""
    return stream.partition_custom(to_subtask, _subtask_of)


def _subtask_of(record: Any) -> int:
    return int(record.subtask)


def _names_of(columns: str | Sequence[str]) -> tuple[str, ...] | None:
    return None if isinstance(columns, str) else tuple(columns)


def labelled(
    X: Any, y: Any, sample_weight: Any, columns: tuple[Any, str | None, str | None]
) -> TrainingBlock:
    """Read rows from the columns (features, label, weight) of a table, or from arrays."""
    features_col, label_col, weight_col = columns
    converted = as_table(X)
    if converted is None:
        features = read_matrix(X)
        labels, weights = (_per_row(values, len(features)) for values in (y, sample_weight))
        if labels is None and label_col is not None:
            raise TransformError("vectors without labels; pass them as y")
        return TrainingBlock(features, labels, weights)
    if y is not None or sample_weight is not None:
        raise TransformError(
            f"a table has its labels in {label_col!r} and its weights in {weight_col!r}; "
            "pass y and sample_weight only with arrays"
        )
    table = converted[0]
    return TrainingBlock(
        read_features(table, features_col),
        None if label_col is None else read_numbers(table, label_col),
        None if weight_col is None else read_numbers(table, weight_col),
    )


def _vectors(X: Any, columns: str | Sequence[str]) -> Matrix:
    converted = as_table(X)
    return read_matrix(X) if converted is None else read_features(converted[0], columns)


def _per_row(values: Any, rows: int) -> Floats | None:
    if values is None:
        return None
    out = np.asarray(values, np.float64)
    if out.shape != (rows,):
        raise TransformError(f"got values of shape {out.shape} for {rows} rows")
    return out
