"""Whatever the online store contains in place of what was written is not the client's fault."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from paimon_features.online.store import MemoryStore
from paimon_features.testing.sizes import seeds

READS = (
    {"feature_service": "reading_v1", "entities": {"user": [1, 2]}},
    {"feature_service": "visiting_v1", "entities": {"shop": ["north"], "day": ["2011-01-26"]}},
)


def damaged(rng: random.Random, value: bytes) -> Iterator[bytes]:
    yield from (b"", b"[" * 200_000, b"{}", b"[]", b"null", b"\xff" * 50, b'{"format":1}')
    yield from (value[: len(value) // 2], value + b"x", bytes(len(value)))
    for _ in range(20):
        flipped = bytearray(value)
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        yield bytes(flipped)


class DamagedStore:
    """A store in which one key has another value than was written."""

    def __init__(self, store: MemoryStore, key: bytes, value: bytes) -> None:
        self._store, self._key, self._value = store, key, value

    def _changed(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> list[bytes | None]:
        pairs = zip(keys, values, strict=True)
        return [self._value if key == self._key else value for key, value in pairs]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._changed(keys, self._store.get_many(keys))

    def run_and_values(self, keys: Sequence[bytes]) -> tuple[str, list[bytes | None]]:
        run, values = self._store.run_and_values(keys)
        return run, self._changed(keys, values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def written(store: MemoryStore) -> dict[bytes, bytes]:
    keys = [key for page in store.scan(b"pf:") for key in page]
    values = store.get_many(keys)
    return {key: value for key, value in zip(keys, values, strict=True) if value is not None}


@pytest.mark.parametrize("seed", seeds(1))
def test_damaged_values_are_503_for_every_reader(make_client: Any, filled: Any, seed: int) -> None:
    rng = random.Random(seed)
    original = written(filled.store)
    assert any(key.endswith(b"#marker") for key in original)
    assert any(key.endswith(b"#state") for key in original)
    statuses = set()
    for key, value in original.items():
        for wrong in damaged(rng, value):
            client = make_client(store=DamagedStore(filled.store, key, wrong))
            for answer in (
                *map(client.read, READS),
                *map(client.get, ("/health", "/health/ready", "/metrics")),
                client.get("/explain", query="view=clicks&entity=user%3D1"),
            ):
                assert answer.status in (200, 503), (key, wrong[:80], answer.body[:400])
                statuses.add(answer.status)
    assert statuses == {200, 503}
