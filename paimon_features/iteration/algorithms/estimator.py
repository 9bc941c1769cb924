"""What the algorithms have in common: parameters, data in, programs, executors."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import pyarrow as pa

from paimon_features.array_types import Floats
from paimon_features.errors import DefinitionError, TransformError
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
"""The name of the stream that a program gives: model data, one record for each version."""


@dataclass(frozen=True)
class TrainingSource:
    """Where the rows come from: of a job its stream, and in the body blocks of it.

    ``to_block`` makes a block of a record; without it records are blocks, each for the subtask
    that it names. What a table gives stays with the subtask that read it.
    """

    read: Callable[[Any], IterationStream]
    to_block: Any = None

    def blocks(self, stream: IterationStream) -> IterationStream:
        """The stream in the body, as blocks at their subtasks."""
        if self.to_block is None:
            return to_its_subtask(stream)
        return stream.map(self.to_block)


class Executor(Protocol):
    """What runs a program: a ``ReferenceExecutor``, or an ``IterationJob`` on Flink."""

    def run(self, build: Callable[[Any], Any]) -> Any:
        """The output values of the streams that ``build`` gives, by their names."""
        ...


@dataclass(frozen=True, kw_only=True)
class Estimator(ABC):
    """Parameters under the names of Flink ML's Python API, with its defaults.

    ``set_<parameter>(value)`` gives one with another value, as jobs that come from there say it.
    """

    def __getattr__(self, name: str) -> Any:
        parameter = name.removeprefix("set_")
        fields = {field.name for field in dataclasses.fields(self)}
        if name.startswith("set_") and parameter in fields:
            return lambda *values: self._with(parameter, values)
        raise AttributeError(
            f"{type(self).__name__} has no {name!r}; its parameters are: {', '.join(fields)}"
        )

    def _with(self, parameter: str, values: tuple[Any, ...]) -> Self:
        many = parameter.endswith("_cols") and not (len(values) == 1 and values[0] is None)
        return dataclasses.replace(self, **{parameter: values if many else values[0]})

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
        """Fit on a table, or on vectors with labels ``y`` and weights beside them.

        Parameters
        ----------
        X
            An Arrow, pandas or Polars table with the columns that the parameters name; or
            vectors: an array (rows, width), rows of numbers, ``SparseVector``s, a SciPy matrix.
        initial
            The model to start from, of an earlier fit say.
        executor
            What runs it: by default a ``ReferenceExecutor`` in this process, on Flink an
            ``IterationJob``.
        parallelism
            Number of subtasks.

        Raises
        ------
        TransformError
            For an empty training set, missing columns, nulls, or labels that are none.
        """
        rows = self._rows(X, y, sample_weight)
        if not len(rows):
            raise TransformError(f"{type(self).__name__}: the training set is empty")
        blocks = self._blocks(rows, parallelism)
        start = self._start(rows, initial)
        found = (executor or ReferenceExecutor()).run(
            self._program(_collection(blocks), start, parallelism, config or IterationConfig())
        )
        return self._model(list(found[MODEL]), len(rows), self._names(X))

    def program(
        self,
        source: Callable[[Any], IterationStream],
        *,
        initial: Model | None = None,
        parallelism: int = 1,
        config: IterationConfig | None = None,
    ) -> Callable[[Any], Any]:
        """The program that fits on a stream: for ``IterationJob.run`` or a ``ReferenceExecutor``.

        ``source(job)`` gives record batches with the columns that the parameters name, such as
        ``lambda job: job.from_table(table, columns)``; each subtask keeps those that it read.
        The output ``"model"`` is model data, of which ``model_of`` makes the model.
        """
        start = self._start(None, initial)
        rows = TrainingSource(source, _ToBlock(self))
        return self._program(rows, start, parallelism, config or IterationConfig())

    def model_of(self, output: Sequence[Any], rows: int = 0) -> Any:
        """The model (of an online algorithm: the versions) of what ``program`` put out."""
        return self._model(list(output), rows, self._names(None))

    # -- what an algorithm has to say ---------------------------------------------------

    @abstractmethod
    def _program(
        self, source: TrainingSource, start: Any, parallelism: int, config: IterationConfig
    ) -> Callable[[Any], Any]: ...

    @abstractmethod
    def _model(self, found: list[Any], rows: int, names: tuple[str, ...] | None) -> Any: ...

    @abstractmethod
    def _rows(self, X: Any, y: Any, sample_weight: Any) -> TrainingBlock: ...

    @abstractmethod
    def _names(self, X: Any) -> tuple[str, ...] | None: ...

    def _blocks(self, rows: TrainingBlock, parallelism: int) -> list[TrainingBlock]:
        return deal(rows, parallelism)

    def _start(self, rows: TrainingBlock | None, initial: Model | None) -> Any:
        """What the iteration starts from."""
        if initial is not None:
            raise DefinitionError(f"{type(self).__name__} does not start from an earlier model")
        return None

    def _only(self, found: list[Any]) -> Any:
        if len(found) != 1:
            raise TransformError(
                f"{type(self).__name__}: the program gave {len(found)} models; expected one"
            )
        return found[0]


@dataclass(frozen=True, kw_only=True)
class VectorEstimator(Estimator):
    """An algorithm over one column of vectors."""

    input_col: str | tuple[str, ...] = "input"
    output_col: str = "output"

    leaves_nan_out: ClassVar[bool] = False

    def _rows(self, X: Any, y: Any, sample_weight: Any) -> TrainingBlock:
        rows = TrainingBlock(_vectors(X, self.input_col))
        return rows if self.leaves_nan_out else finite(self, rows)

    def _names(self, X: Any) -> tuple[str, ...] | None:
        return names_of(self.input_col, X)


@dataclass(frozen=True, kw_only=True)
class ColumnsEstimator(Estimator):
    """An algorithm over several columns of numbers."""

    input_cols: tuple[str, ...] = ()
    output_cols: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "input_cols", tuple(self.input_cols))
        object.__setattr__(self, "output_cols", tuple(self.output_cols))

    def _rows(self, X: Any, y: Any, sample_weight: Any) -> TrainingBlock:
        found = as_table(X)
        if found is None:
            return TrainingBlock(read_matrix(X))
        if not self.input_cols or len(self.input_cols) != len(self.output_cols):
            raise DefinitionError(
                f"{type(self).__name__}: {len(self.input_cols)} input columns and "
                f"{len(self.output_cols)} output columns; expected as many, and one at least"
            )
        return TrainingBlock(
            np.column_stack([read_nullable(found[0], name) for name in self.input_cols])
        )

    def _names(self, X: Any) -> tuple[str, ...] | None:
        return self.input_cols or None


def _collection(blocks: list[TrainingBlock]) -> TrainingSource:
    """A source of blocks that are dealt to the subtasks that they name."""
    return TrainingSource(lambda job: job.from_collection(blocks))


class _ToBlock:
    """A record batch as a block; what is a block already stays one."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator

    def map(self, value: Any) -> TrainingBlock:
        if isinstance(value, TrainingBlock):
            return value
        table = pa.Table.from_batches([value]) if isinstance(value, pa.RecordBatch) else value
        return self._estimator._rows(table, None, None)


def to_its_subtask(stream: IterationStream) -> IterationStream:
    """Records to the subtasks that they name."""
    return stream.partition_custom(to_subtask, _subtask_of)


def _subtask_of(record: Any) -> int:
    return int(record.subtask)


def names_of(columns: str | Sequence[str], X: Any) -> tuple[str, ...] | None:
    """The names of the features where they are columns of their own."""
    return None if isinstance(columns, str) else tuple(columns)


def labelled(
    X: Any, y: Any, sample_weight: Any, columns: tuple[Any, str | None, str | None]
) -> TrainingBlock:
    """Rows of a table by its columns (features, label, weight), or of arrays."""
    features_col, label_col, weight_col = columns
    found = as_table(X)
    if found is None:
        features = read_matrix(X)
        labels, weights = (_beside(values, len(features)) for values in (y, sample_weight))
        if labels is None and label_col is not None:
            raise TransformError("vectors without labels: give them as y")
        return TrainingBlock(features, labels, weights)
    if y is not None or sample_weight is not None:
        raise TransformError(
            f"a table has its labels in {label_col!r} and its weights in {weight_col!r}; "
            "y and sample_weight stand beside arrays only"
        )
    table = found[0]
    return TrainingBlock(
        read_features(table, features_col),
        None if label_col is None else read_numbers(table, label_col),
        None if weight_col is None else read_numbers(table, weight_col),
    )


def _vectors(X: Any, columns: str | Sequence[str]) -> Matrix:
    found = as_table(X)
    return read_matrix(X) if found is None else read_features(found[0], columns)


def _beside(values: Any, rows: int) -> Floats | None:
    if values is None:
        return None
    out = np.asarray(values, np.float64)
    if out.shape != (rows,):
        raise TransformError(f"got values of the shape {out.shape} beside {rows} rows")
    return out
