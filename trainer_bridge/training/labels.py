"""Labels and sample weights of a training set as numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paimon_features.array_types import Floats
from paimon_features.errors import ConfigurationError


@dataclass(frozen=True)
class LabelCodec:
    """Labels as numbers: 0 and 1, the number of a class, or the value.

    ``classes`` are the classes of a multiclass label, in order; a label that is none of them is an
    error.
    """

    task: str
    classes: tuple[str, ...] = ()

    @classmethod
    def of(cls, task: str, column: Any) -> LabelCodec:
        """The labels of training rows; ConfigurationError for labels that do not fit the task."""
        values = sorted({str(v) for v in column.unique().to_pylist()})
        if task == "multiclass":
            if len(values) < 2:
                raise ConfigurationError(f"the label has {len(values)} class; expected 2 or more")
            return cls(task, tuple(values))
        labels = cls(task)
        labels.apply(column)
        return labels

    def apply(self, column: Any) -> npt.NDArray[Any]:
        """The numbers: float64, or int64 for classes."""
        if self.task == "multiclass":
            places = {name: number for number, name in enumerate(self.classes)}
            try:
                return np.array([places[str(v)] for v in column.to_pylist()], np.int64)
            except KeyError as error:
                raise ConfigurationError(
                    f"the label {error} is no class of the training rows: {self.classes[:20]}"
                ) from None
        try:
            # a copy: tensors share the memory, which Arrow's must not be written to
            numbers = np.array(np.asarray(column.cast(pa.float64())))
        except pa.ArrowInvalid as error:
            raise ConfigurationError(
                f"the label is {column.type}; objective={self.task} takes numbers: {error}"
            ) from error
        if self.task == "binary" and not np.isin(numbers, (0.0, 1.0)).all():
            raise ConfigurationError(
                "the label has other values than 0 and 1 (or false and true): say "
                "objective=multiclass or objective=regression"
            )
        return numbers


def weights_of(column: Any, name: str) -> npt.NDArray[np.float32]:
    """A column of sample weights; ConfigurationError for nulls and negative ones."""
    found = np.asarray(column.cast(pa.float64()), np.float64)
    if not (np.isfinite(found) & (found >= 0)).all():
        raise ConfigurationError(
            f"data.weights: {name!r} has nulls, negative or infinite numbers; expected weights"
        )
    return found.astype(np.float32)


def sample_weights(rows: pa.Table, name: str | None) -> Floats | None:
    """The column of sample weights of rows as float64; None without one."""
    return None if name is None else weights_of(rows[name], name).astype(np.float64)
