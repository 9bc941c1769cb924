"""Labels and sample weights of a training set as numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.errors import ConfigurationError, shortened
from paimon_features.core.types.array_types import Floats


@dataclass(frozen=True)
class LabelCodec:
    """Labels as numbers: 0 and 1, the number of a class, or the value.

    ``classes`` are the classes of a multiclass label, in order, as ``class_texts`` spells them; a
    label that is none of them is an error. Networks learn values of a regression less ``mean``,
    over ``scale``: those of the training rows.
    """

    task: str
    classes: tuple[str, ...] = ()
    mean: float = 0.0
    scale: float = 1.0

    @classmethod
    def of(cls, task: str, column: Any) -> LabelCodec:
        """Return the labels of training rows.

        ConfigurationError for labels that do not fit the task.
        """
        if task == "multiclass":
            values = sorted(pc.unique(class_texts(column)).drop_null().to_pylist())
            if len(values) < 2:
                raise ConfigurationError(
                    f"the label has {len(values)} class{'es' * (len(values) != 1)} in the training "
                    "rows; expected 2 or more"
                )
            return cls(task, tuple(values))
        numbers = cls(task).apply(column)
        if not len(numbers):
            raise ConfigurationError("no training row has a label")
        if task == "binary":
            if numbers.min() == numbers.max():
                raise ConfigurationError(
                    f"the label is {numbers[0]:g} in all training rows; expected 0 and 1 (or false "
                    "and true)"
                )
            return cls(task)
        deviation = float(numbers.std())
        scale = deviation if math.isfinite(deviation) and deviation > 0 else 1.0
        return cls(task, (), float(numbers.mean()), scale)

    def known(self, column: Any) -> npt.NDArray[np.bool_]:
        """Return which rows have a label that ``apply`` accepts."""
        if self.task == "multiclass":
            texts = class_texts(column)
            return np.asarray(pc.is_in(texts, value_set=pa.array(self.classes, pa.string())))
        numbers = _numbers(self.task, column)
        return np.isin(numbers, (0.0, 1.0)) if self.task == "binary" else np.isfinite(numbers)

    def apply(self, column: Any) -> npt.NDArray[Any]:
        """Return the numbers: float64, or int64 for classes."""
        is_known = self.known(column)
        if not is_known.all():
            wrong = column.filter(pa.array(~is_known)).unique().to_pylist()[:5]
            expected = {
                "multiclass": f"one of the classes of the training rows: {self.classes[:20]}",
                "binary": "0 and 1 (or false and true); say objective=multiclass or "
                "objective=regression",
                "regression": "finite numbers",
            }[self.task]
            raise ConfigurationError(
                f"{int((~is_known).sum()):,} of {len(is_known):,} labels are "
                f"{shortened(', '.join(map(repr, wrong)))}; expected {expected}"
            )
        if self.task == "multiclass":
            codes = pc.index_in(class_texts(column), value_set=pa.array(self.classes, pa.string()))
            return np.asarray(codes).astype(np.int64)
        # a copy: tensors share the memory, which Arrow's must not be written to
        return np.array(_numbers(self.task, column))

    def targets(self, column: Any) -> npt.NDArray[Any]:
        """Return what a network learns: the numbers, those of a regression scaled."""
        numbers = self.apply(column)
        return (numbers - self.mean) / self.scale if self.task == "regression" else numbers


def class_texts(column: Any) -> Any:
    """Return the classes of a label as texts, in the one spelling that versions store: that of
    Arrow.

    A number that is an integer has no decimals, whatever its type; NaN is null, which is no class.

    >>> [class_texts(pa.array(labels)).to_pylist() for labels in ([1.0, 2.5, None], [True])]
    [['1', '2.5', None], ['true']]
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    try:
        if pa.types.is_decimal(column.type):
            column = column.cast(pa.float64())
        if pa.types.is_floating(column.type):
            column = pc.if_else(pc.is_nan(column), None, column)
        return column.cast(pa.string())
    except pa.ArrowException as error:
        raise ConfigurationError(
            f"the label is {column.type}; objective=multiclass takes texts, numbers and truth "
            f"values: {shortened(str(error))}"
        ) from error


def _numbers(task: str, column: Any) -> Floats:
    """Labels as float64; NaN for null."""
    try:
        return np.asarray(column.cast(pa.float64()), np.float64)
    except pa.ArrowException as error:
        raise ConfigurationError(
            f"the label is {column.type}; objective={task} takes numbers: {shortened(str(error))}"
        ) from error


def counted_rows(column: Any) -> npt.NDArray[np.bool_]:
    """Return which rows count, by their sample weights: those are finite and above 0."""
    weights = np.asarray(column.cast(pa.float64()), np.float64)
    return np.isfinite(weights) & (weights > 0)


def weights_of(column: Any, name: str) -> npt.NDArray[np.float32]:
    """Return a column of sample weights; ConfigurationError for nulls and negative ones."""
    weights = np.asarray(column.cast(pa.float64()), np.float64)
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise ConfigurationError(
            f"data.weights: {name!r} has nulls, negative or infinite numbers; expected weights"
        )
    return weights.astype(np.float32)


def sample_weights(rows: pa.Table, name: str | None) -> Floats | None:
    """Return the column of sample weights of rows as float64; None without one."""
    return None if name is None else weights_of(rows[name], name).astype(np.float64)
