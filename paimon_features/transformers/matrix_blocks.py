"""A matrix through the steps of transformers, block after block, so that it stays in the cache.

Each step by itself would read and write all of the matrix from and to memory, which is what
plain NumPy does and what it waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paimon_features.array_types import Array, Floats
from paimon_features.transformers.frames import Frame, infinite

Step = Callable[[Floats], Floats]
"""Values, index (rows, columns), transformed; it may overwrite them and give them back."""

VALUES = 1 << 15
"""Numbers of a block: 256 KiB of float64, so that two blocks stay in a core's own cache."""

_FEW = 1 << 10
"""Up to so many numbers to look at each costs less than to add them up without a warning."""

NARROW = 16
"""Below so many columns NumPy's loops over the rows of a block are too short to be fast."""


def run_blocks(
    frame: Frame, steps: Sequence[Step], width_out: int, names: Sequence[str] | None = None
) -> Any:
    """A frame's matrix through steps, in the frame's form; ``names`` are those of what comes out.

    Raises
    ------
    TransformError
        For an infinite value, and what the steps raise.
    """
    assert frame.matrix is not None
    matrix = frame.matrix
    rows, width = matrix.shape
    size = block_rows(max(width, width_out))
    if rows <= size:
        block = np.array(matrix, np.float64)
        refuse_infinite(block, frame)
        for step in steps:
            block = step(block)
        return frame.like_matrix(block, names=names)
    out = np.empty((rows, width_out))
    # narrow blocks stand column by column: their loops are as long as they have rows, which is
    # worth to turn them there and back where several steps follow
    turned = width < NARROW and len(steps) > 1
    own = None
    if turned or width != width_out:
        own = np.empty((size, width), order="F" if turned else "C")
    for start in range(0, rows, size):
        part = matrix[start : start + size]
        made = block = out[start : start + size] if own is None else own[: len(part)]
        np.copyto(block, part)
        refuse_infinite(block, frame)
        for step in steps:
            made = step(made)
        if own is not None or made is not block:
            out[start : start + size] = made
    return frame.like_matrix(out, names=names)


def block_rows(width: int) -> int:
    """The rows of a block of a matrix of so many columns."""
    return max(1, VALUES // max(width, 1))


def refuse_infinite(block: Array, frame: Frame) -> None:
    """TransformError if one of the values is infinite."""
    if block.size > _FEW:
        with np.errstate(over="ignore", invalid="ignore"):
            total = np.add.reduce(block, axis=None, dtype=np.float64)
        # NaN, and a sum beyond float64, are no infinite value
        if np.isfinite(total):
            return
    if np.isinf(block).any():
        raise infinite(frame.label(int(np.flatnonzero(np.isinf(block).any(axis=0))[0])))
