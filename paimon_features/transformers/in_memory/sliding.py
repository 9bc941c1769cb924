"""Functions of sliding windows of a list of values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core.columns.given_values import as_numpy
from paimon_features.core.errors import DefinitionError
from paimon_features.transformers.in_memory.base import OnlineFeatureComputer


class SlidingWindowAggregator(OnlineFeatureComputer):
    """Functions of every full window of ``window_size`` values, one window per ``step_size``.

    A function is called with the values of a window as a NumPy array (a view, not to be changed);
    its result is converted to a Python value. Values that do not fill a window are ignored.

    >>> sums = SlidingWindowAggregator(3, {"sum": np.sum, "max": max})
    >>> sums.aggregate([1, 2, 3, 4])
    [{'sum': 6, 'max': 3}, {'sum': 9, 'max': 4}]

    Raises
    ------
    DefinitionError
        For a size or step below 1, no function, or something that cannot be called.
    """

    def __init__(
        self, window_size: int, agg_functions: dict[str, Callable[..., Any]], step_size: int = 1
    ) -> None:
        for argument, size in (("window_size", window_size), ("step_size", step_size)):
            if size < 1:
                raise DefinitionError(f"{argument}={size!r}; expected at least 1")
        if not agg_functions:
            raise DefinitionError("agg_functions is empty; expected names with functions")
        for name, function in agg_functions.items():
            if not callable(function):
                raise DefinitionError(f"agg_functions[{name!r}] is {function!r}, no function")
        self.window_size, self.step_size = window_size, step_size
        self.agg_functions = dict(agg_functions)

    def aggregate(self, values: Any) -> list[dict[str, Any]]:
        """Return the functions of each full window, oldest first; empty for too few values."""
        array = as_numpy(values)
        starts = range(0, len(array) - self.window_size + 1, self.step_size)
        return [self._of(array[start : start + self.window_size]) for start in starts]

    def compute(self, data: Any) -> dict[str, Any]:
        """Return the functions of the newest ``window_size`` values; empty for too few values."""
        array = as_numpy(data)
        return self._of(array[-self.window_size :]) if len(array) >= self.window_size else {}

    def _of(self, window: npt.NDArray[Any]) -> dict[str, Any]:
        results = {name: function(window) for name, function in self.agg_functions.items()}
        return {n: v.item() if isinstance(v, np.generic) else v for n, v in results.items()}
