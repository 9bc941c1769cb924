"""A tile table of clicks, a stream of clicks, and the stores to materialize to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from paimon_features.online.store import MemoryStore, OnlineStore
from tests.clicks import ClickStream, clicks_view
from tests.patient_stores import patient_store
from tests.stored import Stored
from tests.tile_lake import TileLake


@pytest.fixture
def lake(tmp_path: Path) -> TileLake:
    """An empty tile table of the view ``clicks``, with two buckets."""
    return TileLake(tmp_path / "lake", clicks_view())


@pytest.fixture
def stream(lake: TileLake) -> ClickStream:
    return ClickStream(lake)


@pytest.fixture
def redis_store(redis_url: str) -> Iterator[OnlineStore]:
    """A real server, empty."""
    store = patient_store(redis_url)
    yield store
    store.close()


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])
def store(request: pytest.FixtureRequest) -> OnlineStore:
    """Each kind of store, empty."""
    if request.param == "memory":
        return MemoryStore()
    store: OnlineStore = request.getfixturevalue("redis_store")
    return store


@pytest.fixture
def stored(store: OnlineStore) -> Stored:
    """The records of the view ``clicks`` in ``store``."""
    return Stored(store, "clicks")
