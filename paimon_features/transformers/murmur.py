"""Murmur3 (32 bit, x86) of strings: the same number on every host and in every language.

The hash is over the UTF-8 bytes, and is read as a signed integer, as scikit-learn's
``FeatureHasher`` does (Appleby's MurmurHash3_x86_32, seed 0; Java: ``Hashing.murmur3_32_fixed``).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paimon_features.core._arrow import arrow_loaded, pa
from paimon_features.core.hashing.murmur3 import (
    FEW,
    absorb,
    absorb_words,
    finish,
    finish_row,
    mixed,
)

Hashes = npt.NDArray[np.int32]


def hash_text(text: str, seed: int = 0) -> int:
    """Return the hash of one text, in [-2**31, 2**31).

    >>> hash_text(""), hash_text("hello")
    (0, 613153351)
    """
    data = text.encode()
    whole = len(data) // 4 * 4
    state = absorb_words(seed, np.frombuffer(data, "<u4", whole // 4).tolist())
    hashed = finish_row(state, int.from_bytes(data[whole:], "little"), len(data))
    return hashed - 2**32 if hashed >= 2**31 else hashed


def hash_texts(texts: npt.NDArray[np.object_], seed: int = 0) -> Hashes:
    """Return the hashes of many strings, shape ``(strings,)``; each distinct one is hashed once."""
    if len(texts) <= FEW:
        return np.fromiter((hash_text(text, seed) for text in texts), np.int32, len(texts))
    if not arrow_loaded():
        numbers: dict[str, int] = {}
        positions = np.fromiter((numbers.setdefault(t, len(numbers)) for t in texts), np.int64)
        parts = [text.encode() for text in numbers]
        ends_of = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=ends_of[1:])
        hashes: Hashes = _hashed(np.frombuffer(b"".join(parts), np.uint8), ends_of, seed)[positions]
        return hashes
    coded = pa.array(texts, pa.large_string()).dictionary_encode()
    _, ends, flat = coded.dictionary.buffers()
    offsets = np.frombuffer(ends, np.int64, len(coded.dictionary) + 1)
    data = np.frombuffer(flat, np.uint8) if flat is not None else np.zeros(0, np.uint8)
    out: Hashes = _hashed(data, offsets, seed)[coded.indices.to_numpy(zero_copy_only=False)]
    return out


def _hashed(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], seed: int) -> Hashes:
    sizes = np.diff(offsets)
    order = np.argsort(-sizes, kind="stable")
    starts, sizes = offsets[:-1][order], sizes[order]
    counts = sizes // 4
    padded = np.concatenate([data, np.zeros(4, np.uint8)])
    state = absorb(
        counts,
        seed,
        lambda active, step: _words(padded, starts[:active] + 4 * step),
        lambda row, step: padded[starts[row] + 4 * step : starts[row] + 4 * counts[row]].view(
            "<u4"
        ),
    )
    left = (sizes % 4).astype(np.uint32)
    tail = _words(padded, starts + counts * 4)
    tail &= (np.uint32(1) << (left * np.uint32(8))) - np.uint32(1)
    state ^= mixed(tail)  # no byte left: zero, which changes nothing
    out = np.empty(len(state), np.uint32)
    out[order] = finish(state, sizes)
    return out.view(np.int32)


def _words(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Return four bytes from each place, the least significant first."""
    out = np.zeros(len(at), np.uint32)
    for byte in range(4):
        out |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
    return out
