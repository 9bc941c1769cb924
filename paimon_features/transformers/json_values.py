"""Fitted parameters to and from JSON values; JSON has neither NaN nor infinity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paimon_features.core.errors import TransformError
from paimon_features.core.types.array_types import Floats


def names_of(params: Mapping[str, Any], width: int) -> tuple[str, ...] | None:
    """Return the column names in parameters; TransformError for a wrong number."""
    names = params["names"]
    if names is not None and (len(names) != width or not all(isinstance(n, str) for n in names)):
        raise TransformError(f"{len(names)} names for {width} columns")
    return None if names is None else tuple(names)


def same_length(params: Mapping[str, Any], *keys: str) -> list[Floats]:
    """Return lists of numbers in parameters, NaN for null; TransformError if lengths differ."""
    out = [nan_for_null(params[key]) for key in keys]
    lengths = {len(column) for column in out}
    if len(lengths) != 1 or lengths == {0}:
        raise TransformError(f"{', '.join(keys)} have {sorted(lengths)} values; expected one each")
    return out


def null_for_nan(values: Floats) -> list[float | None]:
    """Return numbers in JSON values.

    >>> null_for_nan(np.array([1.0, np.nan]))
    [1.0, None]
    """
    return [None if np.isnan(value) else float(value) for value in values]


def nan_for_null(values: Sequence[float | None]) -> Floats:
    """Return the inverse of ``null_for_nan``."""
    return np.array([np.nan if v is None else float(v) for v in values], np.float64)
