"""Murmur3 over many rows: the same hash row by row, for a cost in proportion to the bytes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from paimon_features.core.hashing.buckets import bucket_of
from paimon_features.core.hashing.murmur3 import FEW, absorb, absorb_words, finish
from paimon_features.core.types.schema import String
from paimon_features.testing.sizes import seeds
from paimon_features.transformers.murmur import hash_text, hash_texts


class Rows:
    """Rows of words in memory that count how they are read."""

    def __init__(self, rows: list[list[int]]) -> None:
        self.rows = sorted(rows, key=len, reverse=True)
        self.steps = self.words = 0

    def states(self, seed: int) -> list[int]:
        def column(active: int, step: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
            self.steps += 1
            self.words += active
            return np.array([row[step] for row in self.rows[:active]], np.uint32)

        def rest(row: int, step: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
            self.words += len(self.rows[row]) - step
            return np.array(self.rows[row][step:], np.uint32)

        counts = np.array([len(row) for row in self.rows], np.int64)
        return [int(state) for state in absorb(counts, seed, column, rest)]


@pytest.mark.parametrize("seed", seeds(30))
def test_each_row_has_the_state_that_it_has_alone_and_each_word_is_read_once(seed: int) -> None:
    rng = random.Random(seed)
    longest = rng.choice((0, 1, 5, 400))
    rows = Rows(
        [
            [rng.randrange(2**32) for _ in range(rng.randrange(longest + 1))]
            for _ in range(rng.choice((0, 1, FEW, FEW + 1, 60)))
        ]
    )
    assert rows.states(seed) == [absorb_words(seed, row) for row in rows.rows]
    total = sum(map(len, rows.rows))
    assert rows.words == total
    assert rows.steps <= total / FEW, "a step in NumPy is for more than a few rows"


def test_a_long_row_among_short_ones_takes_no_steps_of_its_own() -> None:
    rows = Rows([[7] * 100_000] + [[1, 2]] * 1_000)
    rows.states(42)
    assert rows.steps == 2


def test_long_texts_have_the_buckets_and_hashes_of_the_reference() -> None:
    rng = random.Random(3)
    texts = ["", "é", "north", *("x" * rng.randrange(3_000) + str(i) for i in range(40))]
    column = np.array(texts, object)
    alone = [int(bucket_of([column[i : i + 1]], [String], 1_000)[0]) for i in range(len(texts))]
    assert bucket_of([column], [String], 1_000).tolist() == alone
    assert hash_texts(column, 5).tolist() == [hash_text(text, 5) for text in texts]


def test_hashes_are_those_of_scikit_learn() -> None:
    hashing = pytest.importorskip("sklearn.utils")
    for size in (0, 1, 3, 4, 5, 70_000, 300_001):
        text = "aé" * (size // 3) + "b" * (size % 3)
        assert hash_text(text, 9) == hashing.murmurhash3_32(text, seed=9)
    assert int(finish(np.array([0], np.uint32), np.array([0]))[0]) == 0
