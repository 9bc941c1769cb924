"""Sketches of many values: registers that collide, ranks at the top, and what is written."""

from __future__ import annotations

import random

import numpy as np
import pytest

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import TableError
from paimon_features.core.types.schema import Bytes, String
from paimon_features.definitions.aggregates import Merge, Partial
from paimon_features.definitions.aggregates.fold import fold
from paimon_features.definitions.aggregates.registers import (
    REGISTERS,
    TOP_RANK,
    code_of,
    decode_sketches,
    encode_sketches,
    estimates,
    header,
    word_of,
)
from paimon_features.testing.reference.aggregates import ertl_estimate
from paimon_features.testing.sizes import seeds


def test_a_stored_number_is_register_and_rank_at_their_bits() -> None:
    #  bits   15 ... 8        7 6 5 4   3 2 1 0
    #         register 7-0    rank      register 11-8
    for register, rank in [(0, 1), (0xABC, 13), (REGISTERS - 1, TOP_RANK)]:
        word = (register & 0xFF) << 8 | rank << 4 | register >> 8
        code = int(code_of(np.array([word]))[0])
        assert (code >> 4, code & 15) == (register, rank)
        assert word_of(np.array([code])).tolist() == [word]


@pytest.mark.parametrize("seed", seeds(12))
def test_merged_sketches_estimate_like_the_reference_implementation(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.choice((0, 1, 50, 3000, 4000)) for _ in range(4)]
    low = rng.choice((1, 1, 14, TOP_RANK))
    ranks: dict[int, int] = {}
    sketches = []
    for size in sizes:
        codes = {rng.randrange(REGISTERS) << 4 | rng.randint(low, TOP_RANK) for _ in range(size)}
        for code in codes:
            ranks[code >> 4] = max(ranks.get(code >> 4, 0), code & 15)
        some = np.array(sorted(codes), np.int64)
        sketches.append(encode_sketches(some, np.array([0, len(some)]))[0] if size else None)
    partial = Partial("it", Bytes, Merge.REGISTERS, "")
    column = Column(
        np.array(sketches, np.object_), np.array([sketch is not None for sketch in sketches])
    )
    merged = fold([partial], {"it": column}, np.array([0, 4]), 1)["it"]
    codes, _ = decode_sketches(merged.values[merged.mask].tolist())
    assert sorted(codes.tolist()) == sorted(
        register << 4 | rank for register, rank in ranks.items()
    )
    offsets = np.array([0, len(codes)])
    assert estimates(codes, offsets).tolist() == [ertl_estimate(ranks, REGISTERS, TOP_RANK)]


@pytest.mark.parametrize("count", [4095, 4096, 4097, 20_000])
def test_sketches_are_read_whichever_container_the_lake_has_chosen(count: int) -> None:
    words = np.sort(np.random.default_rng(count).permutation(1 << 16)[:count])
    head = header(count)
    if count <= 4096:
        sketch = head + words.astype("<u2").tobytes()
    else:  # beyond that a roaring bitmap holds a bit for each number
        bits = np.zeros(1 << 16, np.uint8)
        bits[words] = 1
        sketch = head + np.packbits(bits, bitorder="little").tobytes()
    codes, counts = decode_sketches([sketch])
    assert sorted(word_of(codes).tolist()) == words.tolist()
    assert counts.tolist() == [count]
    with pytest.raises(TableError, match="not a sketch of a set"):
        decode_sketches([sketch[:-1]])


def test_full_registers_are_estimated_too() -> None:
    codes = np.arange(REGISTERS) << 4 | TOP_RANK
    offsets = np.array([0, REGISTERS])
    assert estimates(codes, offsets).tolist() == [2**62]
    codes[7] = 7 << 4 | 3
    ranks = {code >> 4: code & 15 for code in codes.tolist()}
    assert estimates(codes, offsets).tolist() == [ertl_estimate(ranks, REGISTERS, TOP_RANK)]


def test_counts_are_written_as_briefly_as_they_are_in_the_lake() -> None:
    partial = Partial("it", String, Merge.COUNTS, "")
    rows = Column(np.array(["'b,'a", "'a", "+3:'c"], np.object_))
    merged = fold([partial], {"it": rows}, np.array([0, 3]), 1)["it"]
    assert merged.values.tolist() == ["+2:'a,'b,+3:'c"]
