"""The cache: the values used last, from any thread."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.errors import DefinitionError
from paimon_features.online_features import FeatureCache


@given(st.integers(1, 5), st.lists(st.tuples(st.booleans(), st.integers(0, 7)), max_size=60))
def test_it_keeps_the_most_recently_used_values(size: int, steps: list[tuple[bool, int]]) -> None:
    cache = FeatureCache(size)
    kept: list[tuple[int, int]] = []  # the one used last stands last
    hits = misses = evictions = 0
    for at, (writes, key) in enumerate(steps):
        found = next((pair for pair in kept if pair[0] == key), None)
        kept = [pair for pair in kept if pair[0] != key]
        if writes:
            cache.put(key, at)
            kept.append((key, at))
            evictions += len(kept) > size
            kept = kept[-size:]
        else:
            assert cache.get(key) == (None if found is None else found[1])
            hits, misses = hits + (found is not None), misses + (found is None)
            kept += [] if found is None else [found]
    assert cache.get_stats() == {
        "size": len(kept), "max_size": size, "hits": hits, "misses": misses,
        "hit_rate": hits / (hits + misses) if hits + misses else 0.0, "evictions": evictions,
    }  # fmt: skip


def test_a_value_that_is_none_is_a_hit() -> None:
    cache = FeatureCache()
    cache.put("k", None)
    assert cache.get("k") is None
    assert (cache.get_stats()["hits"], cache.get_stats()["max_size"]) == (1, 10_000)


def test_a_cleared_cache_is_empty_with_fresh_statistics() -> None:
    cache = FeatureCache(3)
    cache.put("k", 1)
    cache.get("k")
    cache.clear()
    assert cache.get_stats() == FeatureCache(3).get_stats()


def test_a_cache_of_size_zero_is_rejected() -> None:
    with pytest.raises(DefinitionError, match="max_size=0; expected at least 1"):
        FeatureCache(0)


@pytest.fixture
def restless_threads() -> Iterator[None]:
    """Switch between threads as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_can_share_it(restless_threads: None) -> None:
    cache, threads, rounds = FeatureCache(50), 8, 2_000
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(rounds):
            key = rng.randrange(100)
            value = cache.get(key)
            if value is not None and value != key * 3:
                wrong.append((key, value))
            cache.put(key, key * 3)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    stats = cache.get_stats()
    assert not wrong
    assert stats["hits"] + stats["misses"] == threads * rounds
    assert stats["size"] == 50
