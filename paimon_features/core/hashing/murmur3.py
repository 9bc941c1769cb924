"""Murmur3 (32 bit, x86; Appleby's MurmurHash3_x86_32) over many rows of four-byte words at once.

A step takes the next word of all rows that have one, in NumPy. That costs as much for one row as
for hundreds, so the last few rows, which may be much longer than the others, are finished one by
one: the cost is proportional to the bytes, whatever their distribution over rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from paimon_features.core.types.array_types import Ints

Words32 = npt.NDArray[np.uint32]

FEW = 16
"""Up to so many rows a loop costs less than NumPy's calls."""
_MASK = 0xFFFFFFFF
_WORD_1, _WORD_2, _STEP = 0xCC9E2D51, 0x1B873593, 0xE6546B64
_FINAL_1, _FINAL_2 = 0x85EBCA6B, 0xC2B2AE35
_PART = 65_536
"""Words of a row that are Python integers at a time."""


def absorb(
    counts: Ints,
    seed: int,
    column: Callable[[int, int], Words32],
    rest: Callable[[int, int], Words32],
) -> Words32:
    """Return the state of each row after all its words.

    Parameters
    ----------
    counts
        The number of words of each row, in descending order.
    column
        ``column(active, step)``: word ``step`` of each of the first ``active`` rows.
    rest
        ``rest(row, step)``: the words of one row from ``step`` on.
    """
    state = np.full(len(counts), seed, np.uint32)
    ascending = -counts
    step = 0
    # axes: rows, longest first, so that the rows that have a further word are a prefix
    while (active := int(np.searchsorted(ascending, -step, side="left"))) > FEW:
        part = state[:active]
        word = column(active, step)
        part ^= mixed(word)
        part[:] = _rotated(part, 13) * np.uint32(5) + np.uint32(_STEP)
        step += 1
    for row in range(active):
        words = rest(row, step)
        one = int(state[row])
        for at in range(0, len(words), _PART):
            one = absorb_words(one, words[at : at + _PART].tolist())
        state[row] = one
    return state


def absorb_words(state: int, words: list[int]) -> int:
    """Return the state of one row after these words."""
    for word in words:
        word = word * _WORD_1 & _MASK
        state ^= (word << 15 | word >> 17) * _WORD_2 & _MASK
        state = (state << 13 | state >> 19) & _MASK
        state = (state * 5 + _STEP) & _MASK
    return state


def finish_row(state: int, tail: int, size: int) -> int:
    """Return the hash of one row of ``size`` bytes, whose last ones, fewer than four, are
    ``tail``."""
    tail = tail * _WORD_1 & _MASK
    state ^= (tail << 15 | tail >> 17) * _WORD_2 & _MASK
    state ^= size
    state ^= state >> 16
    state = state * _FINAL_1 & _MASK
    state ^= state >> 13
    state = state * _FINAL_2 & _MASK
    return state ^ state >> 16


def mixed(word: Words32) -> Words32:
    """Return what a word of a row, or its last bytes, fewer than four, add by exclusive or."""
    return _rotated(word * np.uint32(_WORD_1), 15) * np.uint32(_WORD_2)


def finish(state: Words32, sizes: Ints) -> Words32:
    """Return the hashes of rows of these sizes in bytes; changes ``state``."""
    state ^= sizes.astype(np.uint32)
    state ^= state >> np.uint32(16)
    state *= np.uint32(_FINAL_1)
    state ^= state >> np.uint32(13)
    state *= np.uint32(_FINAL_2)
    state ^= state >> np.uint32(16)
    return state


def _rotated(value: Words32, bits: int) -> Words32:
    return value << np.uint32(bits) | value >> np.uint32(32 - bits)
