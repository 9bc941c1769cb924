"""Murmur3 (32 bit, x86) of strings: the same number on every host and in every language.

The hash is over the UTF-8 bytes, and is read as a signed integer, as scikit-learn's
``FeatureHasher`` does (Appleby's MurmurHash3_x86_32, seed 0; Java: ``Hashing.murmur3_32_fixed``).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paimon_features._arrow import arrow_loaded, pa

Hashes = npt.NDArray[np.int32]

_FEW = 16
"""Up to so many strings a loop costs less than what NumPy and Arrow have to set up."""
_MASK = 0xFFFFFFFF


def hash_text(text: str, seed: int = 0) -> int:
    """The hash of one text, in [-2**31, 2**31).

    >>> hash_text(""), hash_text("hello")
    (0, 613153351)
    """
    data = text.encode()
    state = seed
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little")
        state ^= _mixed(word)
        state = (state << 13 | state >> 19) & _MASK
        state = (state * 5 + 0xE6546B64) & _MASK
    if len(data) > whole:
        state ^= _mixed(int.from_bytes(data[whole:], "little"))
    state ^= len(data)
    state ^= state >> 16
    state = state * 0x85EBCA6B & _MASK
    state ^= state >> 13
    state = state * 0xC2B2AE35 & _MASK
    state ^= state >> 16
    return state - 2**32 if state >= 2**31 else state


def hash_texts(texts: npt.NDArray[np.object_], seed: int = 0) -> Hashes:
    """The hashes of many strings, shape ``(strings,)``; each distinct one is hashed once."""
    if len(texts) <= _FEW:
        return np.fromiter((hash_text(text, seed) for text in texts), np.int32, len(texts))
    if not arrow_loaded():
        numbers: dict[str, int] = {}
        found = np.fromiter((numbers.setdefault(t, len(numbers)) for t in texts), np.int64)
        parts = [text.encode() for text in numbers]
        ends_of = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=ends_of[1:])
        made: Hashes = _hashed(np.frombuffer(b"".join(parts), np.uint8), ends_of, seed)[found]
        return made
    coded = pa.array(texts, pa.large_string()).dictionary_encode()
    _, ends, flat = coded.dictionary.buffers()
    offsets = np.frombuffer(ends, np.int64, len(coded.dictionary) + 1)
    data = np.frombuffer(flat, np.uint8) if flat is not None else np.zeros(0, np.uint8)
    out: Hashes = _hashed(data, offsets, seed)[coded.indices.to_numpy(zero_copy_only=False)]
    return out


def _hashed(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], seed: int) -> Hashes:
    sizes = np.diff(offsets)
    # axes: strings, longest first, so that those that have a further word are a prefix
    order = np.argsort(-sizes, kind="stable")
    starts, sizes = offsets[:-1][order], sizes[order]
    padded = np.concatenate([data, np.zeros(4, np.uint8)])
    state = np.full(len(sizes), seed, np.uint32)
    wholes = -(sizes // 4)
    for step in range(int(sizes[0] // 4) if len(sizes) else 0):
        active = int(np.searchsorted(wholes, -step, side="left"))
        part = state[:active]
        part ^= _mixed_words(_words(padded, starts[:active] + 4 * step))
        part[:] = _rotated(part, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    left = (sizes % 4).astype(np.uint32)
    tail = _words(padded, starts + sizes // 4 * 4)
    tail &= (np.uint32(1) << (left * np.uint32(8))) - np.uint32(1)
    state ^= _mixed_words(tail)  # no byte left: zero, which changes nothing
    state ^= sizes.astype(np.uint32)
    state ^= state >> np.uint32(16)
    state *= np.uint32(0x85EBCA6B)
    state ^= state >> np.uint32(13)
    state *= np.uint32(0xC2B2AE35)
    state ^= state >> np.uint32(16)
    out = np.empty(len(state), np.uint32)
    out[order] = state
    return out.view(np.int32)


def _words(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Four bytes from each place, the least first."""
    out = np.zeros(len(at), np.uint32)
    for byte in range(4):
        out |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
    return out


def _mixed(word: int) -> int:
    word = word * 0xCC9E2D51 & _MASK
    return (word << 15 | word >> 17) * 0x1B873593 & _MASK


def _mixed_words(word: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    return _rotated(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _rotated(value: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint32]:
    return value << np.uint32(bits) | value >> np.uint32(32 - bits)
