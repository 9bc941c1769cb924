"""Fixtures that tests of several packages share."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

import pytest

from paimon_features.setup.kafka_server import KafkaServer
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
        connection.request("FLUSHALL")
    return redis_server.url


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """One broker for the whole session, also with TLS and logins. A test makes its own topics; one
    that kills the broker starts it again."""
    from tests.kafka_topics import secure_listener

    with KafkaServer(secure_listener(tmp_path_factory.mktemp("kafka"))) as broker:
        yield broker


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """An empty folder for a lake."""
    folder = tmp_path / "lake"
    folder.mkdir()
    return folder


_FLINK = """
import json, os, sys, traceback
from paimon_features.setup.jars import class_path
from paimon_features.setup.java import find_java_home
os.environ["JAVA_HOME"] = str(find_java_home())
os.environ["HADOOP_CLASSPATH"] = class_path(["flink"])
os.environ["JVM_ARGS"] = "-Xmx1g -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
from pyflink.table import EnvironmentSettings, TableEnvironment

def run(work):
    settings = EnvironmentSettings.new_instance()
    settings = settings.in_streaming_mode() if work["streaming"] else settings.in_batch_mode()
    environment = TableEnvironment.create(settings.build())
    for key, value in {"parallelism.default": "1", **work["config"]}.items():
        environment.get_config().set(key, value)
    environment.execute_sql(
        f"CREATE CATALOG lake WITH ('type' = 'paimon', 'warehouse' = '{work['warehouse']}')")
    environment.execute_sql("USE CATALOG lake")
    environment.execute_sql("USE `features`")
    for statement in work["statements"]:
        result = environment.execute_sql(statement)
        if statement.lstrip().startswith(("INSERT", "CALL")):
            result.wait()

for line in sys.stdin:
    try:
        run(json.loads(line))
        error = ""
    except Exception:
        error = traceback.format_exc()
    os.write(3, (json.dumps(error) + chr(10)).encode())
"""


class FlinkSql:
    """A Flink in a process of its own, started at its first use, for SQL statements."""

    def __init__(self) -> None:
        self._ends = contextlib.ExitStack()
        self._process: subprocess.Popen[str] | None = None
        self._replies: TextIO

    def run(
        self,
        warehouse: str,
        statements: Sequence[str],
        streaming: bool = False,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Execute statements, one after another, in the database ``features`` of a warehouse."""
        work = {
            "statements": list(statements),
            "warehouse": warehouse,
            "streaming": streaming,
            "config": dict(config or {}),
        }
        process = self._process or self._start()
        assert process.stdin is not None
        process.stdin.write(json.dumps(work) + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([self._replies], [], [], 240)
        assert ready, "no reply of Flink"
        error = json.loads(self._replies.readline() or '"the process of Flink has ended"')
        assert not error, error[-4000:]

    def _start(self) -> subprocess.Popen[str]:
        read, write = os.pipe()
        self._replies = self._ends.enter_context(os.fdopen(read))
        # the pipe is number 3 there: what Flink prints is on the standard output
        command = ["bash", "-c", f'exec "$@" 3>&{write}', "flink", sys.executable, "-c", _FLINK]
        path = os.pathsep.join([os.getcwd(), *sys.path])
        self._process = self._ends.enter_context(
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[write],
                env={**os.environ, "PYTHONPATH": path},
                text=True,
            )
        )
        os.close(write)
        return self._process

    def stop(self) -> None:
        """End the process, if it was started."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._ends.close()


@pytest.fixture(scope="session")
def flink_sql() -> Iterator[Callable[..., None]]:
    """Runs SQL statements in one Flink of the session (see ``FlinkSql.run``)."""
    pytest.importorskip("pyflink", reason="pip install 'paimon-features[flink]'")
    flink = FlinkSql()
    yield flink.run
    flink.stop()
