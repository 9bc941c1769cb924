"""Hashes of sample keys: a 64-bit number per row of one or more columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from paimon_features.core.types.array_types import Ints, Words
from trainer_bridge.order.permutation import GOLDEN, WORD, mix64


def key_hashes(keys: Sequence[pa.Array]) -> Words:
    """Return a 64-bit hash per row of one or more key columns of equal length, without nulls.

    >>> one, other = key_hashes([pa.array([1, 2])]), key_hashes([pa.array([2, 1])])
    >>> bool(one[0] == other[1])
    True
    """
    total: Words | None = None
    for column in keys:
        if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
            words = column.cast(pa.int64()).to_numpy(zero_copy_only=False).view(np.uint64)
        else:
            words = _text_hashes(column)
        total = mix64((words if total is None else words ^ total) + WORD[GOLDEN])
    assert total is not None, "a sample has at least one key column"
    return total


def _text_hashes(column: pa.Array) -> Words:
    """Return a hash per text: its length, and its bytes eight at a time."""
    if not pa.types.is_binary(column.type):
        column = column.cast(pa.string())
    _, offsets, data = column.buffers()
    if not len(column):
        return np.empty(0, dtype=np.uint64)
    bounds = np.frombuffer(offsets, dtype="<i4")[column.offset :][: len(column) + 1]
    bounds = bounds.astype(np.int64)
    sizes = np.diff(bounds)
    # a copy with bytes to spare, of which a word can be read at every byte
    size = int(bounds[-1] - bounds[0])
    content = (data.slice(int(bounds[0]), size).to_pybytes() if size else b"") + bytes(8)
    words: Words = np.ndarray((len(content) - 7,), dtype="<u8", buffer=content, strides=(1,))
    starts = bounds[:-1] - bounds[0]
    hashes: Words = mix64(sizes.view(np.uint64) + WORD[GOLDEN])
    begin = 0
    rows: Ints = np.flatnonzero(sizes)
    while len(rows):
        left = sizes[rows] - begin
        unused = (8 * (8 - np.minimum(left, 8))).astype(np.uint64)
        word = (words[starts[rows] + begin].astype(np.uint64) << unused) >> unused
        hashes[rows] = mix64((hashes[rows] ^ word) + WORD[GOLDEN])
        begin += 8
        rows = rows[left > 8]
    return hashes
