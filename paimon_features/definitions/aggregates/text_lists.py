"""Lists of texts in one text each: split, sorted and joined, a column at a time.

A few rows are a matter of plain Python, as on a serving host, which has no Arrow. For many rows
Arrow does the same ten times as fast, where it is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core._arrow import arrow_loaded, pa, pc
from paimon_features.core.columns.column import Column
from paimon_features.core.types.array_types import Ints

Texts = npt.NDArray[np.object_]

_FEW = 200
"""Up to this number of rows or texts plain Python is as fast."""


def split_texts(column: Column, delimiter: str) -> tuple[Ints, Texts, Ints]:
    """Split each text of a column; null is an empty list.

    Returns the number of items of each row, the distinct items, and the code of each item: its
    place among the distinct ones.
    """
    if len(column) > _FEW and arrow_loaded():
        return _split_by_arrow(column, delimiter)
    rows = zip(column.values.tolist(), column.mask.tolist(), strict=True)
    lists = [text.split(delimiter) if is_valid else [] for text, is_valid in rows]
    sizes = np.array([len(items) for items in lists], np.int64)
    return (sizes, *distinct_texts([item for items in lists for item in items]))


def distinct_texts(texts: Sequence[str]) -> tuple[Texts, Ints]:
    """Return the distinct texts, and the place of each text among them.

    >>> words, codes = distinct_texts(["b", "a", "b"])
    >>> words.tolist(), codes.tolist()
    (['b', 'a'], [0, 1, 0])
    """
    numbers: dict[str, int] = {}
    codes = np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)
    return as_texts(list(numbers)), codes


def sort_texts(texts: Texts) -> tuple[Texts, Ints]:
    """Return distinct texts in the order of their UTF-8 bytes, and the rank of each.

    >>> words, ranks = sort_texts(as_texts(["b", "c", "a"]))
    >>> words.tolist(), ranks.tolist()
    (['a', 'b', 'c'], [1, 2, 0])
    """
    if len(texts) > _FEW and arrow_loaded():
        order: Ints = pc.sort_indices(pa.array(texts, pa.large_string())).to_numpy()
    else:
        # code points have the order of their UTF-8 bytes
        order = np.array(sorted(range(len(texts)), key=texts.tolist().__getitem__), np.int64)
    ranks = np.empty(len(texts), np.int64)
    ranks[order] = np.arange(len(texts))
    return texts[order], ranks


def join_texts(items: Texts, offsets: Ints, delimiter: str) -> Texts:
    """Join items ``offsets[i]:offsets[i + 1]`` to text ``i``."""
    if len(offsets) > _FEW and arrow_loaded():
        of_items = pa.array(items, pa.large_string())
        lists = pa.LargeListArray.from_arrays(pa.array(offsets), of_items)
        joined = pc.binary_join(lists, pa.scalar(delimiter, of_items.type))
        out: Texts = joined.to_numpy(zero_copy_only=False)
        return out
    bounds, values = offsets.tolist(), items.tolist()
    return as_texts([delimiter.join(values[start:stop]) for start, stop in pairwise(bounds)])


def as_texts(values: Sequence[Any]) -> Texts:
    """Return texts as an object array.

    >>> as_texts(["a", "b"])
    array(['a', 'b'], dtype=object)
    """
    out = np.empty(len(values), np.object_)
    out[:] = values
    return out


def _split_by_arrow(column: Column, delimiter: str) -> tuple[Ints, Texts, Ints]:
    texts = pa.array(column.values, pa.large_string(), mask=~column.mask)
    lists = pc.split_pattern(texts, delimiter)
    sizes = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    encoded = lists.flatten().dictionary_encode()
    words = encoded.dictionary.to_numpy(zero_copy_only=False)
    return sizes.astype(np.int64), words, encoded.indices.to_numpy().astype(np.int64)
