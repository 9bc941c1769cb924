"""Arrays that TensorFlow uses without a copy: they begin at a multiple of 64 bytes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
"""In bytes. Kernels of TensorFlow are compiled for it; what begins elsewhere is copied, or crashes
the process if it is passed by dlpack."""


def empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """As ``np.empty``; a slice of rows is aligned too where their bytes are a multiple of 64.

    >>> array = empty((3, 5), "float32")
    >>> array.shape, array.dtype.name, array.ctypes.data % ALIGNMENT
    ((3, 5), 'float32', 0)
    """
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(kind).reshape(shape)
