"""From the columns of a read to the inputs of a network, without Python code for each row."""

from __future__ import annotations

from itertools import chain

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.types.array_types import Array
from paimon_features.models import ModelInput


def input_array(of: ModelInput, column: Column) -> Array:
    """Return the values of a column as an input: shape (rows, width), null as the input has it.

    Lists are cut to the first ``width`` items, or padded at their end.

    >>> spent = ModelInput("spent", "feature", "clicks:spent", "int64", "float64")
    >>> input_array(spent, Column(np.array([5, 0]), np.array([True, False]))).tolist()
    [[5.0], [nan]]
    >>> words = ModelInput("w", "feature", "clicks:w", "list(string)", "string", 2, "?")
    >>> lists = np.fromiter([["a", None, "c"], []], np.object_, 2)
    >>> input_array(words, Column(lists)).tolist()
    [['a', '?'], ['?', '?']]
    """
    if of.type.startswith("list("):
        return _lists(of, column)
    values, valid = column.values, column.valid
    if of.dtype == "string":
        out = values.astype(np.object_)  # a copy: a column is shared
        if valid is not None:
            out[~valid] = of.null_text
        return out.reshape(-1, 1)
    if valid is None:
        return values.astype(np.float64, copy=False).reshape(-1, 1)
    if values.dtype == np.object_:  # decimals; the slot of a null may have anything
        values = np.where(valid, values, np.nan)
    return np.where(valid, values.astype(np.float64, copy=False), np.nan).reshape(-1, 1)


def _lists(of: ModelInput, column: Column) -> Array:
    rows, width = len(column), of.width
    lists = zip(column.values.tolist(), column.mask.tolist(), strict=True)
    cut = [values[:width] if is_valid and values is not None else [] for values, is_valid in lists]
    lengths = np.fromiter(map(len, cut), np.int64, rows)
    items = np.fromiter(chain.from_iterable(cut), np.object_, int(lengths.sum()))
    null = items == None  # noqa: E711  (elementwise)
    ends = np.cumsum(lengths)
    row_of = np.repeat(np.arange(rows), lengths)
    place = np.arange(len(items)) - np.repeat(ends - lengths, lengths)
    if of.dtype == "string":
        out: Array = np.full((rows, width), of.null_text, np.object_)
        items[null] = of.null_text
        out[row_of, place] = items
        return out
    numbers = np.full((rows, width), np.nan)
    items[null] = np.nan
    numbers[row_of, place] = items.astype(np.float64)
    return numbers
