"""Sketches of sets: HyperLogLog registers in a roaring bitmap.

The sketch of one value is a 16-bit number: a register (12 bits of a hash) and a rank (the number
of leading zeros of a further 16 bits, plus one; 15 at most). The sketch of a set contains those of
its members, so a merge is a union: the lake's ``rbm32`` computes it, in any order and any number
of times. Of the ranks of a register only the greatest matters, and a merge drops the others.

::

    bits   15 ... 8        7 6 5 4   3 2 1 0
           register 7-0    rank      register 11-8

The estimate is that of Ertl, "New cardinality estimation algorithms for HyperLogLog sketches"
(2017), algorithm 6: one formula from an empty set to full registers. The bytes follow
https://github.com/RoaringBitmap/RoaringFormatSpec with one container, whose key is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from paimon_features.core.errors import DamagedValueError
from paimon_features.core.types.array_types import Floats, Ints

REGISTERS = 4096
TOP_RANK = 15
"""The greatest rank; it also stands for all greater ones."""
RELATIVE_ERROR = 1.04 / REGISTERS**0.5
"""Standard error of an estimate, 1.6 %: two of three are nearer, 19 of 20 within twice of it."""

_ARRAY_COOKIE, _RUN_COOKIE = 12346, 12347
_ARRAY_LIMIT = 4096  # the most values of an array container
_HEADER_SIZE = 16


def code_of(words: Ints) -> Ints:
    """Return stored numbers as numbers in the order of (register, rank)."""
    return (words & 15) << 12 | words >> 8 << 4 | words >> 4 & 15


def word_of(codes: Ints) -> Ints:
    """Return the inverse of ``code_of``."""
    return (codes >> 4 & 255) << 8 | (codes & 15) << 4 | codes >> 12


def decode_sketches(sketches: Sequence[bytes]) -> tuple[Ints, Ints]:
    """Return the codes of all sketches one after another, and the number of codes of each.

    Raises
    ------
    DamagedValueError
        For bytes that are not a sketch.
    """
    lengths = np.fromiter(map(len, sketches), np.int64, len(sketches))
    buffer = np.frombuffer(b"".join(sketches), np.uint8)
    starts = np.cumsum(lengths) - lengths
    if len(sketches) and lengths.min() >= _HEADER_SIZE:
        # axes: sketches, bytes of the header
        heads = buffer[starts[:, None] + np.arange(_HEADER_SIZE)].view("<u2")
        counts = heads[:, 5].astype(np.int64) + 1
        arrays = (heads[:, 0] == _ARRAY_COOKIE) & (heads[:, 2] == 1) & (heads[:, 4] == 0)
        if (arrays & (lengths == _HEADER_SIZE + 2 * counts)).all():
            inside = np.ones(len(buffer), np.bool_)
            inside[(starts[:, None] + np.arange(_HEADER_SIZE)).ravel()] = False
            words = buffer[inside].view("<u2").astype(np.int64)
            return code_of(words), counts
    parts = [_words(sketch) for sketch in sketches]
    counts = np.fromiter(map(len, parts), np.int64, len(parts))
    return code_of(np.concatenate([np.zeros(0, np.int64), *parts])), counts


def encode_sketches(codes: Ints, offsets: Ints) -> npt.NDArray[np.object_]:
    """Return sketches of the codes ``offsets[i]:offsets[i + 1]``, one rank per register each."""
    counts = np.diff(offsets)
    owners = np.repeat(np.arange(len(counts)), counts)
    keys = np.sort(owners << 16 | word_of(codes))
    body = (keys & 0xFFFF).astype("<u2").tobytes()
    cuts = (2 * offsets).tolist()
    out = np.empty(len(counts), np.object_)
    out[:] = [
        header(stop - start >> 1) + body[start:stop] if stop > start else b""
        for start, stop in pairwise(cuts)
    ]
    return out


def header(count: int) -> bytes:
    """Return the bytes before ``count`` sorted 16-bit numbers, at least one."""
    fields = (_ARRAY_COOKIE, 0, 1, 0, 0, count - 1, _HEADER_SIZE, 0)
    return np.array(fields, "<u2").tobytes()


def estimates(codes: Ints, offsets: Ints) -> Ints:
    """Estimate the number of distinct values in sketches ``offsets[i]:offsets[i + 1]``."""
    rows = len(offsets) - 1
    owners = np.repeat(np.arange(rows), np.diff(offsets))
    ranks = np.bincount(owners << 4 | codes & 15, minlength=rows << 4)
    # axes: rows, ranks; a register without a rank is empty
    counts = ranks.reshape(rows, TOP_RANK + 1).astype(np.float64)
    empty = REGISTERS - counts.sum(axis=1)
    weight = REGISTERS * _tau(1 - counts[:, TOP_RANK] / REGISTERS)
    for rank in range(TOP_RANK - 1, 0, -1):
        weight = (weight + counts[:, rank]) / 2
    weight += REGISTERS * _sigma(empty / REGISTERS)
    with np.errstate(divide="ignore"):
        number = REGISTERS * REGISTERS / (2 * np.log(2)) / weight
    rounded: Ints = np.rint(np.minimum(number, 2.0**62)).astype(np.int64)
    return rounded


def _sigma(share: Floats) -> Floats:
    """Return ``x + sum of x^(2^k) * 2^(k-1)``: the weight of empty registers, inf if all are."""
    power, total, factor = share, share.copy(), 1.0
    with np.errstate(under="ignore"):
        for _ in range(64):
            power = power * power
            total = total + power * factor
            factor *= 2
    return np.where(share == 1, np.inf, total)


def _tau(share: Floats) -> Floats:
    """Return the weight of full registers: for the ``share`` of registers that are not full."""
    root, total, factor = share, 1 - share, 1.0
    for _ in range(64):
        root = np.sqrt(root)
        factor /= 2
        total = total - (1 - root) ** 2 * factor
    return np.where((share == 0) | (share == 1), 0.0, total / 3)


def _words(sketch: bytes) -> Ints:
    """Return the numbers in one bitmap, whichever kind of container it has."""
    fields = np.frombuffer(sketch[: len(sketch) // 2 * 2], "<u2").astype(np.int64)
    if len(fields) >= 8 and (fields[:5] == (_ARRAY_COOKIE, 0, 1, 0, 0)).all():
        count = int(fields[5]) + 1
        if count <= _ARRAY_LIMIT and len(sketch) == _HEADER_SIZE + 2 * count:
            return fields[8:]
        if count > _ARRAY_LIMIT and len(sketch) == _HEADER_SIZE + (1 << 13):
            bits = np.unpackbits(np.frombuffer(sketch[_HEADER_SIZE:], np.uint8), bitorder="little")
            return np.flatnonzero(bits)
    # cookie and number of containers - 1, a byte that marks a run container, its key, its number
    # of values - 1; then the number of runs, and the start and length of each
    if len(sketch) >= 11 and fields[0] == _RUN_COOKIE and fields[1] == 0 and sketch[4] == 1:
        runs = np.frombuffer(sketch[9 : 9 + (len(sketch) - 9) // 2 * 2], "<u2").astype(np.int64)
        if len(sketch) == 11 + 4 * int(runs[0]):
            firsts, stops = runs[1::2], runs[1::2] + runs[2::2] + 1
            ends = np.append(firsts[1:], 1 << 16)
            if len(firsts) and (stops <= ends).all():
                return np.concatenate([*map(np.arange, firsts, stops)])
    raise DamagedValueError(
        f"{len(sketch)} bytes that begin with {sketch[:16].hex()} are not a sketch of a set; "
        "expected a roaring bitmap with one container"
    )
