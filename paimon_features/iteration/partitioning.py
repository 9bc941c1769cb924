"""Assignment of records to subtasks: by the hash of their key, or by a partitioner."""

from __future__ import annotations

import math
import operator
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from paimon_features.core.errors import JobError

_MIX = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


def stable_hash(key: Any) -> int:
    """Return a hash below 2^64 that is the same in every process, and equal for equal keys.

    Keys are numbers (also of NumPy), strings, bytes, ``None``, or tuples of them.

    Raises
    ------
    JobError
        The key is of another type, or NaN.

    Examples
    --------
    >>> stable_hash(1) == stable_hash(1.0) == stable_hash(True)
    True
    >>> stable_hash(("user", 7)) == stable_hash(("user", 8))
    False
    """
    if isinstance(key, str):
        return _mix(zlib.crc32(key.encode("utf-8", "surrogatepass")), 1)
    if isinstance(key, int):
        return _mix(key, 2)
    if isinstance(key, float):
        if key.is_integer():
            return _mix(int(key), 2)
        return _mix(zlib.crc32(_checked(key).hex().encode()), 3)
    if isinstance(key, bytes):
        return _mix(zlib.crc32(key), 4)
    if key is None:
        return _mix(0, 5)
    if isinstance(key, tuple):
        value = len(key)
        for item in key:
            value = _mix(value ^ stable_hash(item), 6)
        return value
    return stable_hash(_plain(key))


def subtasks_of(
    keys: Iterable[Any], partitioner: Callable[[Any, int], Any], count: int
) -> list[int]:
    """Return the subtask that a partitioner chooses for each key, out of ``count`` subtasks.

    Raises
    ------
    JobError
        The partitioner returned something else than an integer from 0 to ``count - 1``.

    Examples
    --------
    >>> subtasks_of([1, 5, 6], lambda key, subtasks: key % subtasks, 2)
    [1, 1, 0]
    """
    return [_subtask(partitioner(key, count), count) for key in keys]


def positions_by_subtask(subtasks: Sequence[int]) -> Mapping[int, list[int]]:
    """Return the positions of the records of each subtask that has any.

    >>> positions_by_subtask([1, 1, 0])
    {1: [0, 1], 0: [2]}
    """
    positions: dict[int, list[int]] = {}
    for position, subtask in enumerate(subtasks):
        positions.setdefault(subtask, []).append(position)
    return positions


def canonical_key(key: Any) -> Any:
    """Return the plain Python key that represents all equal keys; equal keys have one ``repr``.

    >>> canonical_key((1.0, True, "a"))
    (1, 1, 'a')
    """
    kind = type(key)
    if kind is int or kind is str or kind is bytes or key is None:
        return key
    if isinstance(key, tuple):
        return tuple(canonical_key(item) for item in key)
    if isinstance(key, float):
        return int(key) if key.is_integer() else _checked(float(key))
    if isinstance(key, int):
        return int(key)
    if isinstance(key, str | bytes):
        return key[:]  # plain, also for a subclass
    return canonical_key(_plain(key))


def _subtask(chosen: Any, count: int) -> int:
    try:
        subtask = operator.index(chosen)
    except TypeError:
        subtask = -1
    if not 0 <= subtask < count:
        raise JobError(
            f"a partitioner returned subtask {chosen!r}; expected an integer from 0 to {count - 1}"
        )
    return subtask


def _checked(key: float) -> float:
    if math.isnan(key):
        raise JobError("a key is not a number (NaN); NaN is not equal to itself: filter it out")
    return key


def _plain(key: Any) -> Any:
    """Return the Python value of a NumPy scalar."""
    if getattr(key, "ndim", None) == 0 and hasattr(key, "item"):
        return key.item()
    raise JobError(
        f"a key is of type {type(key).__name__}; keys are numbers, strings, bytes, None, "
        "or tuples of them"
    )


def _mix(value: int, kind: int) -> int:
    value = (value + kind) * _MIX & _MASK
    value ^= value >> 29
    value = value * 0xBF58476D1CE4E5B9 & _MASK
    return value ^ value >> 32
