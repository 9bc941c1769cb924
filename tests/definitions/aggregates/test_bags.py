"""Sketches of sets and lists of items, where their bytes and their sizes matter."""

from __future__ import annotations

import random

import numpy as np
import pytest
from pyroaring import BitMap

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import TableError
from paimon_features.core.expressions.items import digest_of, sketch_of
from paimon_features.core.types.schema import Bytes, String
from paimon_features.definitions.aggregates import Merge, Partial
from paimon_features.definitions.aggregates.fold import canonical, fold, merge_rows
from paimon_features.definitions.aggregates.registers import (
    RELATIVE_ERROR,
    code_of,
    decode_sketches,
    encode_sketches,
    estimates,
    word_of,
)
from paimon_features.testing.reference.aggregates import ertl_estimate

SKETCH = Partial("p", Bytes, Merge.REGISTERS, "")
TOP = Partial("p", String, Merge.TOP, "", limit=3)
COUNTS = Partial("p", String, Merge.COUNTS, "")


def column(*values: str | bytes | None) -> Column:
    valid = np.array([value is not None for value in values])
    return Column(np.fromiter(values, object, len(values)), None if valid.all() else valid)


@pytest.mark.parametrize("size", [1, 2, 100, 4095, 4096, 4097, 9_000, 65_536])
@pytest.mark.parametrize("optimized", [False, True])
def test_every_container_that_the_lake_may_write_is_read(size: int, optimized: bool) -> None:
    rng = random.Random(size)
    scattered = rng.sample(range(2**16), size)
    for words in (scattered, range(size), [*range(0, size, 2)]):
        bitmap = BitMap(words)
        if optimized:
            bitmap.run_optimize()
        codes, counts = decode_sketches([bitmap.serialize(), BitMap([7]).serialize()])
        assert counts.tolist() == [len(bitmap), 1]
        assert sorted(word_of(codes[:-1]).tolist()) == sorted(words)


def test_a_sketch_is_written_as_the_lake_would_write_it() -> None:
    words = np.array([9, 5, 300, 2**16 - 1])
    (written,) = encode_sketches(code_of(words), np.array([0, 4]))
    assert written == BitMap(words.tolist()).serialize()
    assert sketch_of(digest_of("'a")) == BitMap([0x7631]).serialize()


def test_register_and_rank_codes_round_trip() -> None:
    words = np.arange(2**16)
    assert (word_of(code_of(words)) == words).all()
    assert (code_of(words) & 15 == words >> 4 & 15).all()


@pytest.mark.parametrize("data", [b"", b"x" * 18, bytes(18), BitMap([1, 70_000]).serialize()])
def test_bytes_that_are_not_a_sketch_are_rejected(data: bytes) -> None:
    with pytest.raises(TableError, match="not a sketch of a set"):
        decode_sketches([data])


@pytest.mark.parametrize("distinct", [0, 1, 10, 300, 4_000, 12_000, 60_000])
def test_estimates_are_within_the_documented_error(distinct: int) -> None:
    rng = np.random.default_rng(distinct)
    rounds, errors = 12, []
    for _ in range(rounds):
        # axes: values; a register and a rank as a hash gives them
        registers = rng.integers(0, 4096, distinct)
        ranks = np.minimum(rng.geometric(0.5, distinct), 15)
        best: dict[int, int] = {}
        for register, rank in zip(registers.tolist(), ranks.tolist(), strict=True):
            best[register] = max(best.get(register, 0), rank)
        codes = np.array([register << 4 | rank for register, rank in best.items()], np.int64)
        (estimate,) = estimates(codes, np.array([0, len(codes)]))
        assert estimate == ertl_estimate(best, 4096, 15)
        errors.append(estimate / distinct - 1 if distinct else float(estimate))
    assert abs(np.mean(errors)) <= 3 * RELATIVE_ERROR / rounds**0.5
    assert np.sqrt(np.mean(np.square(errors))) <= 1.6 * RELATIVE_ERROR


def test_only_the_greatest_rank_of_a_register_is_kept() -> None:
    # register 0xd1d with ranks 7, 3 and 9, and another one
    words = [0x1D7D, 0x1D3D, 0x1D9D, 5]
    sketches = column(*(BitMap([word]).serialize() for word in words))
    folded = fold([SKETCH], {"p": sketches}, np.array([0, 4]), 1)["p"]
    assert folded.values[0] == BitMap([5, 0x1D9D]).serialize()
    alone = canonical([SKETCH], {"p": column(BitMap(words).serialize(), None)})["p"]
    assert alone.values[0] == BitMap([5, 0x1D9D]).serialize()
    assert alone.mask.tolist() == [True, False]


def test_lists_keep_their_limit_and_counts_add_up() -> None:
    lists = column("b1,b7", None, "b3,b9,b1", "b7")
    folded = fold([TOP], {"p": lists}, np.array([0, 2, 4, 4]), 1)["p"]
    assert folded.values[:2].tolist() == ["b7,b1", "b9,b7,b3"]
    assert folded.mask.tolist() == [True, True, False]
    merged = merge_rows(COUNTS, column("'a,'b", None), column("+3:'b,'a", None))
    assert merged.values[0] == "+2:'a,+4:'b"
    assert merged.mask.tolist() == [True, False]
