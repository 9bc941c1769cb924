"""Keyed hashes and permutations, computed for each number alone.

The permutation is a Feistel network on mixed radices with cycle walking (Black and Rogaway,
"Ciphers with arbitrary finite domains", CT-RSA 2002).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paimon_features.core.native import CORE
from paimon_features.core.types.array_types import Ints, Words

_MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
_MUL1 = 0xBF58476D1CE4E5B9
_MUL2 = 0x94D049BB133111EB
# Rounds until pairs of neighbours are mapped anywhere equally often, as far as 400,000 keys
# show; halves of a few values need more of them.
_ROUNDS, _ROUNDS_SMALL, _SMALL = 6, 16, 1_024
# A constant as a one-item array: uint64 arrays wrap around silently, as hashing needs,
# while NumPy scalars warn.
WORD = {value: np.array([value], dtype=np.uint64) for value in (GOLDEN, _MUL1, _MUL2)}


def mix64(words: npt.ArrayLike) -> Words:
    """Return a well spread 64-bit hash of each word (the finaliser of SplitMix64).

    >>> [hex(word) for word in mix64([0, 1])]
    ['0x0', '0x5692161d100b05e5']
    """
    z = np.atleast_1d(np.asarray(words, dtype=np.uint64))
    z = (z ^ (z >> np.uint64(30))) * WORD[_MUL1]
    z = (z ^ (z >> np.uint64(27))) * WORD[_MUL2]
    return z ^ (z >> np.uint64(31))


def derive_key(*parts: int) -> int:
    """Return a 64-bit key from integers; another order or number of parts results in another key.

    >>> derive_key(1, 2) == derive_key(2, 1)
    False
    """
    key = 0
    for part in parts:
        key = int(mix64([((key ^ (part & _MASK)) + GOLDEN) & _MASK])[0])
    return key


def keys_of(key: int, *numbers: Ints) -> Words:
    """Return a 64-bit key per row of numbers (arrays of equal length); a pure function.

    >>> one, two = keys_of(7, np.array([1, 2]), np.array([5, 5]))
    >>> bool(one == keys_of(7, np.array([1]), np.array([5]))[0]), bool(one == two)
    (True, False)
    """
    words = np.array([key], dtype=np.uint64)
    for part in numbers:
        words = mix64(part.astype(np.uint64) * WORD[GOLDEN] + words)
    return words


def uniform(key: int, numbers: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return one float in [0, 1) per number, a pure function of key and number.

    >>> bool((uniform(7, [3, 4]) == [uniform(7, 3)[0], uniform(7, 4)[0]]).all())
    True
    """
    counters = np.atleast_1d(np.asarray(numbers)).astype(np.uint64)
    words = mix64(counters * WORD[GOLDEN] + np.array([key & _MASK], dtype=np.uint64))
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def radices(sizes: npt.ArrayLike) -> tuple[Words, Words]:
    """For each size n >= 1 the pair (a, b) with a = ceil(sqrt(n)), b = ceil(n / a)."""
    n = np.atleast_1d(np.asarray(sizes)).astype(np.int64)
    a = np.ceil(np.sqrt(n.astype(np.float64))).astype(np.int64)
    # A float root can be off by one near a square: correct it in integers.
    a = np.where((a - 1) * (a - 1) >= n, a - 1, a)
    a = np.maximum(np.where(a * a < n, a + 1, a), 1)
    return a.astype(np.uint64), (-(-n // a)).astype(np.uint64)


def permute(numbers: npt.ArrayLike, sizes: npt.ArrayLike, keys: npt.ArrayLike) -> Ints:
    """Return a keyed permutation of ``range(size)``, computed for each number alone.

    Arguments broadcast: every number may have its own size (1 <= size < 2^62) and key. ValueError
    for a number that is not below its size.

    >>> [int(x) for x in sorted(permute(range(5), 5, 99))]
    [0, 1, 2, 3, 4]
    >>> bool(permute([3], [5], [99])[0] == permute(range(5), 5, 99)[3])
    True
    """
    args = [np.atleast_1d(np.asarray(p)).astype(np.uint64) for p in (numbers, sizes, keys)]
    if CORE is not None and all(part.ndim == 1 and len(part) in (1, len(args[0])) for part in args):
        a, b = radices(args[1])
        return permute_with(args[0], args[1], a, b, args[2])
    n, size, key = (np.array(p) if p.ndim == 0 else p for p in np.broadcast_arrays(*args))
    a, b = radices(size)
    return permute_with(n, size, a, b, key)


def permute_with(x: Words, size: Words, a: Words, b: Words, key: Words) -> Ints:
    """:func:`permute` with given radices; all arrays have one shape.

    For the native core sizes, radices and keys may also be one number for all.
    """
    if CORE is not None and x.ndim == 1:
        permuted = np.empty(len(x), np.int64)
        words = [np.ascontiguousarray(part) for part in (x, size, a, b, key)]
        CORE.permute(words[0], words[1], words[2], words[3], words[4], permuted)
        return permuted
    if (x >= size).any():
        raise ValueError("permute: a number is not below its size")
    small = size < _SMALL
    if small.all():
        return _walk(x, size, a, b, key, _ROUNDS_SMALL).astype(np.int64)
    if not small.any():
        return _walk(x, size, a, b, key, _ROUNDS).astype(np.int64)
    out = np.empty(x.shape, dtype=np.int64)
    for part, rounds in ((small, _ROUNDS_SMALL), (~small, _ROUNDS)):
        out[part] = _walk(x[part], size[part], a[part], b[part], key[part], rounds)
    return out


def _walk(x: Words, size: Words, a: Words, b: Words, key: Words, rounds: int) -> Words:
    out = _feistel(x, a, b, key, rounds)
    while (outside := out >= size).any():
        # Cycle walking: apply again to those that fell outside; about 1 in sqrt(n) do.
        out[outside] = _feistel(out[outside], a[outside], b[outside], key[outside], rounds)
    return out


def _feistel(x: Words, a: Words, b: Words, key: Words, rounds: int) -> Words:
    left, right = np.divmod(x, b)
    for k in range(rounds):
        source, target, radix = (right, left, a) if k % 2 == 0 else (left, right, b)
        h = (source + key + np.array([k * GOLDEN & _MASK], dtype=np.uint64)) * WORD[_MUL1]
        h ^= h >> np.uint64(29)
        h *= WORD[_MUL2]
        h >>= np.uint64(32)
        h *= radix  # multiply and shift: a number in [0, radix) without a division
        h >>= np.uint64(32)
        h += target
        np.minimum(h, h - radix, out=h)  # below the radix the difference wraps around, upwards
        left, right = (h, right) if k % 2 == 0 else (left, h)
    return left * b + right
