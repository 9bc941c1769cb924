"""The sum over all subtasks that an all-reduced feedback edge delivers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paimon_features.core.errors import JobError
from paimon_features.core.types.array_types import Floats


def check_parts(values: Sequence[Any], edge: str, subtask: int) -> None:
    """Reject records that cannot be added up: only float64 arrays can."""
    for value in values:
        # nor can a masked array, which would add up something else
        plain = type(value) is np.ndarray
        if not plain or value.dtype != np.float64:
            got = f"an array of {value.dtype}" if plain else f"a {type(value).__name__}"
            raise JobError(
                f"all-reduce: {edge}, subtask {subtask}, got {got}; expected arrays of float64, "
                "for example np.asarray(value, dtype=np.float64)"
            )


class AllReduceSum:
    """The running sum of one epoch: ``((first + second) + third) ...``, in the order of ``add``.

    >>> total = AllReduceSum(epoch=3)
    >>> total.add(np.array([1.0, 2.0]), subtask=0)
    >>> total.add(np.array([0.5, 0.5]), subtask=1)
    >>> total.value
    array([1.5, 2.5])
    """

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self._value: Floats | None = None

    @property
    def value(self) -> Floats:
        """The sum of what was added; at least one array was."""
        assert self._value is not None
        return self._value

    def add(self, part: Floats, subtask: int) -> None:
        """Add an array of a subtask, which the sum then owns.

        Raises
        ------
        JobError
            It has another shape than those before.
        """
        if self._value is None:
            # what was pickled from an array that is read-only cannot be written either
            self._value = part if part.flags.writeable else part.copy()
            return
        if part.shape != self._value.shape:
            raise JobError(
                f"all-reduce: in epoch {self.epoch} subtask {subtask} has an array of shape "
                f"{part.shape}, those before {self._value.shape}; expected one shape for all"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            self._value += part
