"""Flink ML's estimators on columns: imputation, bins, one-hot encoding, interactions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from paimon_features.core.errors import DefinitionError, TransformError, unknown_name
from paimon_features.core.types.array_types import Floats
from paimon_features.iteration import IterationConfig
from paimon_features.iteration.algorithms.bounded_training import aggregate
from paimon_features.iteration.algorithms.estimator import (
    ColumnsEstimator,
    Parameters,
    TrainingSource,
    VectorEstimator,
)
from paimon_features.iteration.algorithms.exact_quantiles import quantiles
from paimon_features.iteration.algorithms.parameter_checks import at_least, one_of
from paimon_features.iteration.algorithms.scaler_estimators import Extremes
from paimon_features.iteration.algorithms.training_blocks import TrainingBlock
from paimon_features.transformers.flink_ml import (
    ImputerModel,
    InteractionModel,
    KBinsDiscretizerModel,
    OneHotEncoderModel,
)
from paimon_features.transformers.flink_ml.column_models import (
    CONSTANT,
    interaction_of,
    is_missing,
)
from paimon_features.transformers.flink_ml.vectors import as_table, dense, read_features


@dataclass(frozen=True, kw_only=True)
class ImputerStage(ColumnsEstimator):
    """Flink ML's imputer: replaces missing values by ``mean``, ``median`` or ``most_frequent``.

    In ``fit`` nulls, NaN and ``missing_value`` (None: NaN) are missing; in ``transform`` nulls and
    ``missing_value``, as in Flink ML. The median is an element of the data; of several most
    frequent values the smallest is chosen.

    >>> ImputerStage().fit([[1.0], [float("nan")], [3.0]]).transform([[float("nan")]]).tolist()
    [2.0]
    """

    strategy: str = "mean"
    missing_value: float | None = None
    relative_error: float = 0.001

    model = ImputerModel

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "strategy", ("mean", "median", "most_frequent"))
        if self.missing_value is not None and np.isnan(self.missing_value):
            object.__setattr__(self, "missing_value", None)

    def _program(
        self, source: TrainingSource, start: Any, parallelism: int, config: IterationConfig
    ) -> Callable[[Any], Any]:
        if self.strategy == "median":
            missing = self.missing_value
            return quantiles(source, (0.5,), _first, parallelism, config, missing)
        if self.strategy == "mean":
            return aggregate(source, _Means(self.missing_value), parallelism, config)
        return aggregate(source, _Frequencies(self.missing_value), parallelism, config)

    def _model_data(self, output: Any) -> Any:
        for index, surrogate in enumerate(output):
            if np.isnan(surrogate):
                label = self.input_cols[index] if self.input_cols else index
                raise TransformError(
                    f"ImputerStage: all values in column {label} are null, NaN or the missing value"
                )
        return {"surrogates": output}


def _first(quantiles: Floats) -> Floats:
    return quantiles[:, 0]


class _Means:
    def __init__(self, missing_value: float | None) -> None:
        self._missing = missing_value

    def of(self, block: TrainingBlock) -> tuple[Floats, Floats]:
        rows = dense(block.features)
        present = ~np.isnan(rows) & ~is_missing(rows, self._missing)
        return np.where(present, rows, 0.0).sum(axis=0), present.sum(axis=0).astype(np.float64)

    def merge(self, left: Any, right: Any) -> tuple[Floats, Floats]:
        return left[0] + right[0], left[1] + right[1]

    def finish(self, merged: tuple[Floats, Floats]) -> Floats:
        sums, counts = merged
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


class _Frequencies:
    def __init__(self, missing_value: float | None) -> None:
        self._missing = missing_value

    def of(self, block: TrainingBlock) -> list[Counter[float]]:
        out = []
        for column in dense(block.features).T:
            present = column[~np.isnan(column) & ~is_missing(column, self._missing)]
            values, counts = np.unique(present, return_counts=True)
            out.append(Counter(dict(zip(values.tolist(), counts.tolist(), strict=True))))
        return out

    def merge(self, left: Any, right: Any) -> list[Counter[float]]:
        return [a + b for a, b in zip(left, right, strict=True)]

    def finish(self, merged: list[Counter[float]]) -> Floats:
        return np.array(
            [min(c, key=lambda value: (-c[value], value)) if c else np.nan for c in merged]
        )


@dataclass(frozen=True, kw_only=True)
class KBinsDiscretizerStage(VectorEstimator):
    """Flink ML's discretizer: bins of ``uniform`` width, by ``quantile``, or by ``kmeans``.

    The last two use at most ``sub_samples`` rows, drawn by ``seed``. A constant column has the one
    bin ``[-inf, inf]``. A bin without width gets the middle of its neighbouring edges as its right
    edge (the last bin: as its left edge), as in Flink ML since FLINK-31029; a bin that still has
    none, since its edges are adjacent numbers or two centroids of ``kmeans`` are equal, is omitted.

    >>> model = KBinsDiscretizerStage(strategy="uniform", num_bins=2).fit([[0.0], [4.0]])
    >>> model.transform([[1.0], [2.0], [9.0]]).tolist()
    [0.0, 1.0, 1.0]
    """

    strategy: str = "quantile"
    num_bins: int = 5
    sub_samples: int = 200_000
    seed: int = 0

    model = KBinsDiscretizerModel

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "strategy", ("uniform", "quantile", "kmeans"))
        at_least(self, 2, "num_bins", "sub_samples")

    def _program(
        self, source: TrainingSource, start: Any, parallelism: int, config: IterationConfig
    ) -> Callable[[Any], Any]:
        if self.strategy == "uniform":
            return aggregate(source, Extremes(), parallelism, config)
        return aggregate(source, _Sample(self.sub_samples, self.seed), parallelism, config)

    def _model_data(self, output: Any) -> Any:
        if self.strategy == "uniform":
            pairs = zip(output["minVector"].tolist(), output["maxVector"].tolist(), strict=True)
            edges = [_uniform(low, high, self.num_bins) for low, high in pairs]
        else:
            edges = [_edges(np.sort(column), self.strategy, self.num_bins) for column in output.T]
        return {"binEdges": edges}


class _Sample:
    """At most ``size`` rows: each gets a random key, and the rows with the smallest keys stay."""

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._seed = seed

    def of(self, block: TrainingBlock) -> tuple[Floats, Floats]:
        rows = dense(block.features)
        # seeded by the rows themselves: the sample does not depend on how rows were dealt
        first = np.ascontiguousarray(rows[0]).view(np.uint64)
        generator = np.random.default_rng([self._seed, len(rows), *first.tolist()])
        return self._smallest(generator.random(len(rows)), rows)

    def merge(self, left: Any, right: Any) -> tuple[Floats, Floats]:
        keys = np.concatenate([left[0], right[0]])
        return self._smallest(keys, np.concatenate([left[1], right[1]]))

    def finish(self, merged: tuple[Floats, Floats]) -> Floats:
        return merged[1]

    def _smallest(self, keys: Floats, rows: Floats) -> tuple[Floats, Floats]:
        if len(rows) <= self._size:
            return keys, rows
        kept = np.sort(np.argsort(keys, kind="stable")[: self._size])
        return keys[kept], rows[kept]


def _uniform(low: float, high: float, bins: int) -> Sequence[float]:
    if low == high:
        return CONSTANT
    # added step by step, as Flink ML does
    edges = np.unique(np.cumsum([low, *[(high - low) / bins] * bins])).tolist()
    return edges if len(edges) > 1 else [low, high]  # a width that rounding loses


def _edges(values: Floats, strategy: str, bins: int) -> Sequence[float]:
    low, high = float(values[0]), float(values[-1])
    if low == high:
        return CONSTANT
    starts = values[(np.arange(bins) * (len(values) / bins)).astype(np.int64)]
    if strategy == "quantile":
        return _with_width([*starts.tolist(), high] if len(values) > bins else values.tolist())
    if len(np.unique(values)) <= bins:
        return _uniform(low, high, bins)
    centres = _kmeans_of_sorted(values, starts)
    between = ((a + b) / 2 for a, b in pairwise(centres.tolist()))
    return np.unique([low, *between, high]).tolist()


def _with_width(edges: Sequence[float]) -> Sequence[float]:
    """Return ascending edges without bins of width 0, as Flink ML does since FLINK-31029.

    An edge that occurs several times stays twice; the second is moved to the middle of its
    neighbours, and of the last two the first.

    >>> _with_width([0.0, 1.0, 1.0, 2.0, 2.0])
    [0.0, 1.0, 1.5, 1.75, 2.0]
    """
    values, counts = np.unique(edges, return_counts=True)
    out = np.repeat(values, np.minimum(counts, 2)).tolist()
    for i in range(1, len(out) - 1):
        if out[i] == out[i - 1]:
            out[i] = (out[i + 1] + out[i - 1]) / 2
    if out[-1] == out[-2]:
        out[-2] = (out[-1] + out[-3]) / 2
    return np.unique(out).tolist()


def _kmeans_of_sorted(values: Floats, centres: Floats) -> Floats:
    """Run k-means on sorted numbers: 300 rounds, or until the loss changes by at most 1e-4."""
    old_loss = np.inf
    for _ in range(300):
        chosen = np.argmin(np.abs(values[:, None] - centres), axis=1)
        loss = float(np.abs(values - centres[chosen]).mean())
        counts = np.bincount(chosen, minlength=len(centres))
        sums = np.bincount(chosen, values, len(centres))
        centres = np.where(counts > 0, sums / np.maximum(counts, 1), centres)
        if abs(loss - old_loss) <= 1e-4:
            break
        old_loss = loss
    return np.sort(centres)


@dataclass(frozen=True, kw_only=True)
class OneHotEncoderStage(ColumnsEstimator):
    """Flink ML's one-hot encoder: values are integer indices from 0.

    With ``drop_last`` (the default) the largest index has no output of its own.

    >>> OneHotEncoderStage(drop_last=False).fit([[0.0], [1.0]]).transform([[1.0]]).tolist()
    [[0.0, 1.0]]
    """

    drop_last: bool = True
    handle_invalid: str = "error"

    model = OneHotEncoderModel

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "handle_invalid", ("error",))

    def _rows(self, X: Any, y: Any, sample_weight: Any) -> TrainingBlock:
        block = super()._rows(X, y, sample_weight)
        values = dense(block.features)
        invalid = ~((values >= 0) & (values == np.floor(values)))
        if invalid.any():
            raise TransformError(
                f"OneHotEncoderStage: the value {values[invalid][0]} cannot be parsed as an index; "
                "expected integers from 0"
            )
        return block

    def _program(
        self, source: TrainingSource, start: Any, parallelism: int, config: IterationConfig
    ) -> Callable[[Any], Any]:
        return aggregate(source, Extremes(), parallelism, config)

    def _model_data(self, output: Any) -> Any:
        return {"maxIndex": output["maxVector"]}


@dataclass(frozen=True, kw_only=True)
class InteractionStage(Parameters):
    """Flink ML's interaction: all products of one value of each column; stateless.

    Vectors of one column may have different sizes in different rows.

    >>> import pyarrow as pa
    >>> table = pa.table({"a": [[1.0, 2.0], [2.0]], "b": [[3.0, 4.0], [5.0, 6.0]]})
    >>> InteractionStage().set_input_cols("a", "b").transform(table)["output"].to_pylist()
    [[3.0, 4.0, 6.0, 8.0], [10.0, 12.0]]
    """

    input_cols: tuple[str, ...] = ()
    output_col: str = "output"

    def fit(self, X: Any) -> InteractionModel:
        """Return the model for vectors of the sizes in this table, to be stored and served.

        A served feature has one width, so the vectors of a column must have one size here.
        """
        table, _ = self._table(X)
        complete_rows = table.select(list(dict.fromkeys(self.input_cols))).drop_null()
        sizes = [read_features(complete_rows, name).shape[1] for name in self.input_cols]
        return InteractionModel(
            {"sizes": sizes},
            rows=len(table),
            input_cols=self.input_cols,
            output_col=self.output_col,
        )

    def transform(self, X: Any) -> Any:
        """Return the table with the products; null where one of the columns is null."""
        table, back = self._table(X)
        if self.output_col in table.column_names:
            raise TransformError(
                f"the table has a column {self.output_col!r} already; rename the output"
            )
        column = interaction_of(table, self.input_cols)
        return back(table.append_column(self.output_col, column))

    def _table(self, X: Any) -> Any:
        if not self.input_cols:
            raise DefinitionError(
                "InteractionStage: input_cols is empty; expected names of columns"
            )
        converted = as_table(X)
        if converted is None:
            raise TransformError(f"InteractionStage: got {type(X).__name__}; expected a table")
        missing = [name for name in self.input_cols if name not in converted[0].column_names]
        if missing:
            raise TransformError(unknown_name("column", missing[0], converted[0].column_names))
        return converted
