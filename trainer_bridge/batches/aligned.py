"""Arrays that TensorFlow uses without a copy: they begin at a multiple of 64 bytes."""

from __future__ import annotations

import math
import weakref
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
"""In bytes. Kernels of TensorFlow are compiled for it; what begins elsewhere is copied, or crashes
the process if it is passed by dlpack."""
_PAGE = 2 << 20
"""Of the large pages that the system grants where it can, because NumPy requests them."""
_RECYCLED_FROM = 1 << 18


def empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an array like ``np.empty``, aligned to 64 bytes.

    A slice of rows is aligned too where their bytes are a multiple of 64.

    >>> array = empty((3, 5), "float32")
    >>> array.shape, array.dtype.name, array.ctypes.data % ALIGNMENT
    ((3, 5), 'float32', 0)
    """
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    return _aligned(size, ALIGNMENT).view(kind).reshape(shape)


class RecycledMemory:
    """Gives :func:`empty` arrays in the memory of those before that nobody has any more.

    New memory costs a page fault for each of its pages, which was a third of the time of
    shuffled reading. An array's memory is taken back when the array and all views of it are gone,
    whoever had them, so that no rows change under a reader.

    Parameters
    ----------
    keep_bytes
        How much of such memory waits at most to be used again; what is beyond it is freed.

    >>> memory = RecycledMemory()
    >>> first = memory.empty((1024, 1024), "float32")
    >>> place, view = first.ctypes.data, first[3:]
    >>> del first
    >>> memory.empty((1024, 1024), "float32").ctypes.data == place
    False
    >>> del view
    >>> memory.empty((1000, 1024), "float32").ctypes.data == place
    True
    """

    def __init__(self, keep_bytes: int = 256 << 20) -> None:
        self._keep_bytes = keep_bytes
        # arrays end in any thread, at any time: a deque needs no lock
        self._free: deque[npt.NDArray[np.uint8]] = deque()

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an array as :func:`empty` does, in recycled memory where there is some of that
        size."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        if size < _RECYCLED_FROM:
            return empty(shape, dtype)
        memory = self._take(size)
        # an array over a buffer is the base of all its views, where one over an array is not
        lent = np.frombuffer(memory.data, np.uint8, size)
        weakref.finalize(lent, self._give_back, memory).atexit = False
        return lent.view(kind).reshape(shape)

    def clear(self) -> None:
        """Free what waits to be used again."""
        self._free.clear()

    def _give_back(self, memory: npt.NDArray[np.uint8]) -> None:
        if len(memory) + sum(map(len, self._free.copy())) <= self._keep_bytes:
            self._free.append(memory)

    def _take(self, size: int) -> npt.NDArray[np.uint8]:
        for _ in range(len(self._free)):
            try:
                memory = self._free.pop()
            except IndexError:  # another thread took it
                break
            if size <= len(memory) <= size + size // 4:
                return memory
            self._free.appendleft(memory)
        return _aligned(size, _PAGE if size >= _PAGE else ALIGNMENT)


RECYCLED = RecycledMemory()
"""That of the blocks and chunks of all readers of this process."""


def _aligned(size: int, alignment: int) -> npt.NDArray[np.uint8]:
    raw = np.empty(size + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + size]
