"""One table of data in every form that transformers take, and back to rows of Python values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

Rows = Sequence[Sequence[Any]]
FORMS = ("lists", "numpy", "table", "batch", "pandas", "polars")
NAMES = ("a", "b", "c", "d", "e", "f")


def put(form: str, rows: Rows) -> Any:
    """Rows in a form; None is null, NaN in NumPy and pandas."""
    names = NAMES[: len(rows[0])]
    columns = {
        name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }
    if form == "lists":
        return [list(row) for row in rows]
    if form == "numpy":
        if any(isinstance(v, str) for row in rows for v in row):
            return np.array(rows, object)
        return np.array([[math.nan if v is None else v for v in row] for row in rows], float)
    if form == "table":
        return pa.table(columns)
    if form == "batch":
        return pa.RecordBatch.from_pydict(columns)
    if form == "pandas":
        return pd.DataFrame(columns, index=range(100, 100 + len(rows)))
    return pl.DataFrame(columns, strict=False)


def rows_of(data: Any) -> list[list[Any]]:
    """The rows of any form; null and NaN are None."""
    if isinstance(data, list):
        rows = [[v.as_py() if isinstance(v, pa.Scalar) else v for v in row] for row in data]
    elif isinstance(data, np.ndarray):
        rows = data.tolist()
    elif isinstance(data, pa.Table | pa.RecordBatch):
        rows = [list(row.values()) for row in data.to_pylist()]
    elif isinstance(data, pd.DataFrame):
        rows = data.to_numpy().tolist()
    else:
        rows = [list(row) for row in data.rows()]
    return [[None if v is None or v is pd.NA or v != v else v for v in row] for row in rows]
