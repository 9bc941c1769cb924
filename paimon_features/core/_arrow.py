"""pyarrow, imported at the first use of one of its names: 135 MB that a serving host can lack.

Reads of the online store, definitions and transformers work on NumPy columns. Arrow is how data
of the lake comes in, and a format that a caller may use for a request or a response.

>>> from paimon_features.core._arrow import pa
>>> pa.int64()
DataType(int64)
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import TYPE_CHECKING, Any

from paimon_features.core.errors import MissingExtraError
from paimon_features.core.extras import installed, require


class _LazyModule:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # of the protocols of Python and of doctest, not of Arrow
            raise AttributeError(attribute)
        try:
            module = importlib.import_module(self._name)
        except ModuleNotFoundError as error:
            raise MissingExtraError.of("pyarrow", "arrow", "a value in Arrow's format") from error
        value = getattr(module, attribute)
        # found without this method from now on
        self.__dict__[attribute] = value
        return value


if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    pa = _LazyModule("pyarrow")
    pc = _LazyModule("pyarrow.compute")

__all__ = ["arrow_loaded", "has_arrow", "is_arrow", "is_arrow_scalar", "pa", "pc", "require_arrow"]


@functools.cache
def has_arrow() -> bool:
    """Return True if pyarrow can be imported; it is not imported for that."""
    return installed("pyarrow")


def arrow_loaded() -> bool:
    """Return True if Arrow was imported already: the faster way through many strings, where it
    was."""
    return "pyarrow" in sys.modules


def require_arrow(needed_for: str) -> None:
    """Raise MissingExtraError unless pyarrow is installed."""
    require("pyarrow", "arrow", needed_for)


def is_arrow(values: Any) -> bool:
    """Return True if a value is an array or a chunked array of Arrow, without importing it.

    >>> is_arrow([1]), is_arrow(pa.array([1])), is_arrow(pa.chunked_array([[1]]))
    (False, True, True)
    """
    return _comes_from_arrow(values) and isinstance(values, pa.Array | pa.ChunkedArray)


def is_arrow_scalar(value: object) -> bool:
    """Return True if a value is a scalar of Arrow, without importing it."""
    return _comes_from_arrow(value) and isinstance(value, pa.Scalar)


def _comes_from_arrow(value: object) -> bool:
    # a value of Arrow exists only where Arrow was imported
    return type(value).__module__.startswith("pyarrow") and "pyarrow" in sys.modules
