"""Connections to Flink's JVM: each thread of Python keeps its own; what SQL does not start."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from paimon_features.flink.environment import open_environment
from paimon_features.flink.gateway import ThreadConnections


class Connection:
    closed = False

    def close(self, reset: bool) -> None:
        self.closed = True


def in_a_thread(work: Callable[[], object]) -> object:
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


def test_a_thread_gets_the_connection_back_that_it_used_last() -> None:
    first, nested = Connection(), Connection()
    connections = ThreadConnections([first])
    assert connections.pop() is first
    connections.append(nested)  # a call inside the call opened it, and ended first
    connections.append(first)
    assert len(connections) == 2
    assert connections.pop() is first


def test_no_thread_gets_the_connection_of_another_one() -> None:
    connections = ThreadConnections([Connection()])
    assert in_a_thread(lambda: len(connections)) == 0
    assert len(connections) == 1


def test_closing_closes_the_connections_of_all_threads() -> None:
    here, there = Connection(), Connection()
    connections = ThreadConnections([here])
    in_a_thread(lambda: connections.append(there))
    connections.close()
    assert here.closed
    assert there.closed
    assert len(connections) == 0


@pytest.mark.flink
def test_an_environment_of_sql_has_no_server_for_functions_in_python(tmp_path: Path) -> None:
    # it would import Beam: 3 s of processor time for each process
    env = open_environment("batch", 1, state_dir=tmp_path)
    assert env.get_config().get("python.loopback-server.address", "none") == "none"
