"""Fixtures that tests of several packages share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

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
import json, os, sys
from paimon_features.setup.jars import class_path
from paimon_features.setup.java import find_java_home
os.environ["JAVA_HOME"] = str(find_java_home())
os.environ["HADOOP_CLASSPATH"] = class_path(["flink"])
os.environ["JVM_ARGS"] = "-Xmx1g -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
from pyflink.table import EnvironmentSettings, TableEnvironment
work = json.load(sys.stdin)
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
"""


@pytest.fixture(scope="session")
def flink_sql() -> Callable[..., None]:
    """Runs SQL statements in a Flink of its own, in the database ``features`` of a warehouse."""
    pytest.importorskip("pyflink", reason="pip install 'paimon-features[flink]'")

    def run(
        warehouse: str,
        statements: Sequence[str],
        streaming: bool = False,
        config: Mapping[str, str] | None = None,
    ) -> None:
        work = {
            "statements": list(statements),
            "warehouse": warehouse,
            "streaming": streaming,
            "config": dict(config or {}),
        }
        done = subprocess.run(
            [sys.executable, "-c", _FLINK],
            input=json.dumps(work),
            env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr[-4000:]

    return run
