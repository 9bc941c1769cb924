"""Fixtures that tests of several packages share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from paimon_features.setup.redis_server import RedisServer
from paimon_features.setup.resp import connect


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One server in memory for the whole session. Whoever stops or restarts it takes its own."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The address of the session's server, empty."""
    with connect(redis_server.url) as connection:
        connection.ask("FLUSHALL")
    return redis_server.url


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """An empty folder for a lake."""
    folder = tmp_path / "lake"
    folder.mkdir()
    return folder
