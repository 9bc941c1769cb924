"""Runs a matrix through several steps block by block, so that the data stay in the CPU cache.

Applied one after another to the complete matrix, each step would read it from memory and write it
back, which dominates the time of plain NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paimon_features.core.types.array_types import Array, Floats
from paimon_features.transformers.frames import Frame, infinite

BlockStep = Callable[[Floats], Floats]
"""Transforms values, index (rows, columns); may overwrite and return them."""

VALUES = 1 << 15
"""Numbers in a block: 256 KiB of float64, so that two blocks fit into a core's L2 cache."""

_FEW = 1 << 10
"""Up to this size checking each number is cheaper than a sum with warnings disabled."""

NARROW = 16
"""Below this number of columns NumPy's inner loops over a row are too short to be fast."""


def run_blocks(
    frame: Frame,
    steps: Sequence[BlockStep],
    width_out: int,
    names: Sequence[str] | None = None,
    target: Floats | None = None,
) -> Any:
    """Run a frame's matrix through steps; the output has the frame's form and these names.

    It is written into ``target``, which may be the matrix itself, if there is one.

    Raises
    ------
    TransformError
        For an infinite value, or raised by a step.
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
        if target is not None:
            target[...] = block
            block = target
        return frame.like_matrix(block, names=names)
    out = np.empty((rows, width_out)) if target is None else target
    # narrow blocks are stored by column, so that inner loops run over rows; with several steps
    # this is worth transposing them twice
    turned = width < NARROW and len(steps) > 1
    buffer = None
    if turned or width != width_out:
        buffer = np.empty((size, width), order="F" if turned else "C")
    for start in range(0, rows, size):
        part = matrix[start : start + size]
        result = block = out[start : start + size] if buffer is None else buffer[: len(part)]
        np.copyto(block, part)
        refuse_infinite(block, frame)
        for step in steps:
            result = step(result)
        if buffer is not None or result is not block:
            out[start : start + size] = result
    return frame.like_matrix(out, names=names)


def block_rows(width: int) -> int:
    """Return the rows per block of a matrix with this number of columns."""
    return max(1, VALUES // max(width, 1))


def refuse_infinite(block: Array, frame: Frame) -> None:
    """Raise TransformError if one of the values is infinite."""
    if block.size > _FEW:
        with np.errstate(over="ignore", invalid="ignore"):
            total = np.add.reduce(block, axis=None, dtype=np.float64)
        # NaN and a sum beyond float64 are decided below
        if np.isfinite(total):
            return
    if np.isinf(block).any():
        raise infinite(frame.label(int(np.flatnonzero(np.isinf(block).any(axis=0))[0])))
