"""Fixtures that tests of several packages share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from paimon_features.core.process.verbosity import set_verbosity
from paimon_features.testing.servers.redis_server import RedisServer
from paimon_features.testing.servers.resp import connect
from tests.servers.kafka_server import KafkaServer
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from paimon_features.lake.catalog import Lake
    from paimon_features.project import Project


@pytest.fixture(autouse=True)
def verbosity_of_a_command() -> Iterator[None]:
    """End a command's ``--quiet`` and ``--verbose``, which hold for its process, with its test."""
    yield
    set_verbosity(quiet=False, verbose=0)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One server in memory for the whole session. Whoever stops or restarts it takes its own."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The address of the session's server, empty."""
    with connect(redis_server.url, LONG_S) as connection:
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
def online_url(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of the session's server, empty, as the online store of projects."""
    monkeypatch.setenv("PAIMON_FEATURES_ONLINE_URL", redis_url)
    return redis_url


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake."""
    from paimon_features.lake.catalog import Lake

    return Lake.open(tmp_path / "warehouse", "features")


@pytest.fixture
def project(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Project:
    """The project of the module's ``DEFINITIONS`` and ``CONFIG``, applied; else an empty one.

    Commands run in its folder and write wide tables.
    """
    from tests.shop_projects import SHOP, make_project, write_project

    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    definitions = getattr(request.module, "DEFINITIONS", "")
    make = make_project if definitions else write_project
    return make(tmp_path, definitions, getattr(request.module, "CONFIG", SHOP))


@pytest.fixture
def read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """``init`` and ``try`` read files in this process, for cases of what is read.

    Each process of its own takes a second to import what reads files; ``test_reading_process``
    and cases of each command have it.
    """
    from paimon_features.ingest.inputs import copies, reading_process
    from paimon_features.project.first_steps import trial

    def read(
        path: Path,
        parts: Callable[..., Iterator[Any]],
        *arguments: Any,
        on_rows: Callable[[int], None] = lambda _: None,
        limits: Any = None,
    ) -> Iterator[Any]:
        return parts(*arguments)

    for module in (reading_process, trial, copies):
        monkeypatch.setattr(module, "read_apart", read)


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """An empty folder for a lake."""
    folder = tmp_path / "lake"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def flink_sql(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """Runs SQL statements in the database ``features`` of a warehouse, like another program.

    The options are Flink's own, not those of this project; the JVM is the one of this process.
    A statement that fails raises AssertionError with Flink's message.
    """
    pytest.importorskip("pyflink", reason="pip install 'paimon-features[flink]'")
    logs = tmp_path_factory.mktemp("flink_sql")

    def run(
        warehouse: str,
        statements: Sequence[str],
        streaming: bool = False,
        config: Mapping[str, str] | None = None,
    ) -> None:
        environment = flink_tables(logs, streaming=streaming, config=config)
        try:
            environment.execute_sql(
                f"CREATE CATALOG lake WITH ('type' = 'paimon', 'warehouse' = '{warehouse}')"
            )
            environment.execute_sql("USE CATALOG lake")
            environment.execute_sql("USE `features`")
            for statement in statements:
                result = environment.execute_sql(statement)
                if statement.lstrip().startswith(("INSERT", "CALL", "EXECUTE")):
                    result.wait()
        except Exception as error:
            raise AssertionError(str(error)) from error

    return run


def flink_tables(
    logs: Path, *, streaming: bool = False, config: Mapping[str, str] | None = None
) -> Any:
    """A new table environment of one task, without this project's options, in this process's JVM.

    Starting a JVM and loading Flink's planner takes longer than most of the jobs.
    """
    from paimon_features.flink.gateway import start_gateway

    start_gateway(logs)
    from pyflink.table import EnvironmentSettings, TableEnvironment

    from paimon_features.flink.environment import no_python_server

    settings = EnvironmentSettings.new_instance()
    settings = settings.in_streaming_mode() if streaming else settings.in_batch_mode()
    with no_python_server():
        environment = TableEnvironment.create(settings.build())
    for key, value in {"parallelism.default": "1", **(config or {})}.items():
        environment.get_config().set(key, value)
    return environment
