"""Real servers of every kind, started once for the tests of the online store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from paimon_features.testing.servers.redis_server import RedisServer
from tests.servers.online_servers import ClusterServers, SentinelServers

DOWN_AFTER_MS = 60_000
"""No server is replaced because it is slow on a loaded machine: tests do so by a command."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[ClusterServers]:
    """Three primaries, the first one with a replica. Who stops a node starts it again."""
    with ClusterServers(replicas=1, node_timeout_ms=DOWN_AFTER_MS) as servers:
        yield servers


@pytest.fixture(scope="session")
def sentinels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelServers]:
    """A primary, a replica and three sentinels, which may have changed roles meanwhile."""
    folder = tmp_path_factory.mktemp("sentinels")
    with SentinelServers(folder, down_after_ms=DOWN_AFTER_MS) as servers:
        yield servers


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A server that the test may stop, restart, fill."""
    with RedisServer() as server:
        yield server
