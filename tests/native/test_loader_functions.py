"""The loader's permutation and gather by the native core: the numbers and bytes of NumPy's."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.native import CORE
from paimon_features.testing.sizes import cases
from trainer_bridge.batches import ragged
from trainer_bridge.order import permutation

pytestmark = pytest.mark.skipif(CORE is None, reason="the native core is not built")
SIZES = (1, 2, 3, 1_023, 1_024, 10**6, 2**31, 2**53 + 1, 2**62 - 1)


@given(seed=st.integers(0, 2**32 - 1))
@cases(60)
def test_a_permutation_is_the_reference_s(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.choice((0, 1, 5, 300))
    sizes = np.array([rng.choice(SIZES) for _ in range(count)], np.uint64)
    if rng.random() < 0.5:
        sizes = np.full(1, rng.choice(SIZES), np.uint64)
    each = np.broadcast_to(sizes, count).tolist()
    numbers = np.array([rng.randrange(size) for size in each], np.uint64)
    keys = np.array([rng.randrange(2**64) for _ in range(rng.choice((1, count)))], np.uint64)
    if len(keys) not in (1, count):
        keys = keys[:1]
    got = permutation.permute(numbers, sizes, keys)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(permutation, "CORE", None)
        assert got.tolist() == permutation.permute(numbers, sizes, keys).tolist()


def test_a_number_that_is_not_below_its_size_is_refused() -> None:
    with pytest.raises(ValueError, match="not below its size"):
        permutation.permute([5], [5], [1])


@given(seed=st.integers(0, 2**32 - 1))
@cases(60)
def test_rows_are_moved_as_by_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kind = rng.choice(["u1", "i4", "f8", "M8[ms]", "?"])
    width = int(rng.integers(1, 7))
    source = rng.integers(0, 100, (int(rng.integers(1, 50)), width)).astype(kind)
    count = int(rng.integers(0, 60))
    rows, places = rng.integers(0, len(source), count), rng.permutation(60)[:count]
    results = []
    for core in (CORE, None):
        out = np.zeros((60, width), kind)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ragged, "CORE", core)
            ragged.move_items(ragged.items(source), rows, ragged.items(out), places)
        results.append(out.tobytes())
    assert results[0] == results[1]
