"""Checks of the settings of transformers; each returns the setting as a JSON value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from paimon_features.core.errors import TransformError


def wrong(of: object, name: str, value: object, expected: str) -> TransformError:
    """Return the error for a setting of a transformer."""
    return TransformError(f"{type(of).__name__}: {name}={value!r}; expected {expected}")


def one_of(of: object, name: str, value: Any, among: Sequence[str], more: str = "") -> str:
    """Return a setting that is one of these strings.

    Raises
    ------
    TransformError
        For anything else.
    """
    if not isinstance(value, str) or value not in among:
        raise wrong(of, name, value, f"one of{more}: {', '.join(among)}")
    return str(value)


def flag(of: object, name: str, value: Any) -> bool:
    """Return True or False; TransformError for anything that is not one of them, 0 or 1."""
    if isinstance(value, bool | np.bool_) or (is_integer(value) and value in (0, 1)):
        return bool(value)
    raise wrong(of, name, value, "True or False")


def integer(of: object, name: str, value: Any, low: int, most: int | None = None) -> int:
    """Return an integer from ``low`` to ``most``; TransformError for anything else."""
    if not is_integer(value) or value < low or (most is not None and value > most):
        upto = "or more" if most is None else f"to {most}"
        raise wrong(of, name, value, f"{low} {upto}")
    return int(value)


def number(of: object, name: str, value: Any, expected: str = "a finite number") -> float:
    """Return a finite number; TransformError for anything else."""
    if not is_number(value) or not math.isfinite(value):
        raise wrong(of, name, value, expected)
    return float(value)


def dtype_name(of: object, dtype: Any) -> str:
    """Return the name of a NumPy type of numbers; TransformError for any other type."""
    try:
        data_type = np.dtype(dtype)
    except TypeError:
        data_type = None
    if data_type is None or data_type.kind not in "fiub" or dtype is None:
        raise wrong(of, "dtype", dtype, "a NumPy type of numbers")
    return data_type.name


def is_integer(value: Any) -> bool:
    """Return True if a value is an integer, of Python or NumPy."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_none(value: Any) -> bool:
    """Return True if a value is None, NaN or ``pandas.NA``."""
    return value is None or (is_number(value) and math.isnan(value)) or str(value) == "<NA>"


def is_number(value: Any) -> bool:
    """Return True if a value is a number, of Python or NumPy."""
    return is_integer(value) or isinstance(value, float | np.floating)


def pair(value: Any) -> tuple[float, float] | None:
    """Return two finite numbers; None for anything else."""
    if not isinstance(value, list | tuple | np.ndarray) or len(value) != 2:
        return None
    low, high = value
    if not (is_number(low) and is_number(high) and math.isfinite(low) and math.isfinite(high)):
        return None
    return float(low), float(high)
