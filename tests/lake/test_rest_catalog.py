"""A warehouse whose tables belong to a REST catalog, against Paimon's own server."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pypaimon.write.file_store_commit import FileStoreCommit

from paimon_features.core.configuration.project_config import CatalogConfig
from paimon_features.core.errors import ConfigurationError, TableError
from paimon_features.flink.environment import catalog_options
from paimon_features.lake import Lake, append_arrow, latest_snapshot, read_arrow, table_options
from paimon_features.lake.metadata.rollback import roll_back_table
from paimon_features.lake.ownership.commit_lock import commit_lock
from paimon_features.lake.storage.rest_catalog import TOKEN_VARIABLE, RestCatalog
from tests.rest_catalog_server import TOKEN, CatalogServer, catalog_server

pytestmark = pytest.mark.flink  # its jars have Paimon's server

SCHEMA = pa.schema([("k", pa.int64())])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CatalogServer, Path]]:
    folder = tmp_path_factory.mktemp("catalog")
    with catalog_server(folder) as server:
        yield server, folder


@pytest.fixture
def server(served: tuple[CatalogServer, Path]) -> CatalogServer:
    return served[0]


@pytest.fixture
def lake(served: tuple[CatalogServer, Path]) -> Iterator[Lake]:
    server, folder = served
    lake = Lake.open(folder, "features", rest=server.settings)
    lake.create_like("numbers", SCHEMA)
    yield lake
    for name in lake.list():
        lake.drop(name)


def add(lake: Lake, *numbers: int) -> int:
    return append_arrow(lake, "numbers", pa.table({"k": pa.array(numbers, pa.int64())}))


def numbers(lake: Lake) -> list[int]:
    return sorted(read_arrow(lake, "numbers")["k"].to_pylist())


def test_a_commit_is_one_request(lake: Lake, server: CatalogServer) -> None:
    add(lake, 1)
    server.requests()
    add(lake, 2)
    assert server.requests() == 1
    assert numbers(lake) == [1, 2]
    server.requests()
    numbers(lake)
    assert server.requests() == 0


def test_a_commit_of_somebody_else_is_never_overwritten(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(lake, 1)
    other = pickle.loads(pickle.dumps(lake)).table("numbers")
    commit_once = FileStoreCommit._try_commit

    def commit_without_the_lock() -> None:
        builder = other.new_batch_write_builder()
        write, commit = builder.new_write(), builder.new_commit()
        write.write_arrow(pa.table({"k": [2]}, schema=SCHEMA))
        commit.commit(write.prepare_commit())

    def after_another(*given: Any, **named: Any) -> None:
        monkeypatch.undo()
        with ThreadPoolExecutor(1) as threads:  # a thread of its own: without this one's guard
            threads.submit(commit_without_the_lock).result()
        commit_once(*given, **named)

    monkeypatch.setattr(FileStoreCommit, "_try_commit", after_another)
    with pytest.raises(TableError, match="nothing was committed, because another process"):
        add(lake, 3)
    assert numbers(lake) == [1, 2]
    add(lake, 3)
    assert numbers(lake) == [1, 2, 3]


def test_a_lost_reply_is_no_lost_commit(lake: Lake, server: CatalogServer) -> None:
    add(lake, 1)
    server.lose_replies(True)
    try:
        assert add(lake, 2) == 2
    finally:
        server.lose_replies(False)
    assert numbers(lake) == [1, 2]
    assert add(lake, 3) == 3


def test_a_rollback_is_one_of_the_server(lake: Lake) -> None:
    for number in range(3):
        add(lake, number)
    with commit_lock(lake, "numbers", "a test"):
        roll_back_table(lake, "numbers", 1)
    assert numbers(lake) == [0]
    assert add(lake, 7) == 2
    assert numbers(lake) == [0, 7]


def test_properties_and_a_new_table_of_the_same_name(lake: Lake, server: CatalogServer) -> None:
    table_options.set_properties(lake, "numbers", {"a": "b"})
    assert table_options.properties(lake, "numbers") == {"a": "b"}
    add(lake, 1)
    lake.drop("numbers")
    assert server.tables("features") == lake.list() == []
    lake.create_like("numbers", SCHEMA)
    assert latest_snapshot(lake, "numbers") is None
    add(lake, 2)
    assert numbers(lake) == [2]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"token": "wrong-token"}, ConfigurationError, f"the token of {TOKEN_VARIABLE}"),
        ({"warehouse": "nothing"}, ConfigurationError, "warehouse = 'nothing'"),
        ({"uri": "http://127.0.0.1:9"}, TableError, "refused"),
    ],
)
def test_settings_that_the_server_does_not_accept(
    lake: Lake, change: dict[str, str], error: type[Exception], message: str
) -> None:
    given = replace(lake.rest, **change)  # type: ignore[type-var]
    with pytest.raises(error, match=message) as raised:
        add(Lake.open(lake.warehouse, "features", rest=given), 1)
    assert "wrong-token" not in str(raised.value)
    assert TOKEN not in repr(given)


def test_a_table_that_the_catalog_has_elsewhere_or_not_at_all(lake: Lake, tmp_path: Path) -> None:
    elsewhere = Lake.open(tmp_path, "features", rest=lake.rest)
    with pytest.raises(TableError, match=r"servers that choose other folders are not supported"):
        elsewhere.create_like("others", SCHEMA)
    assert lake.list() == ["numbers"]
    Lake.open(lake.warehouse, "features").create_like("by_files", SCHEMA)
    with pytest.raises(TableError, match="does not know it: it was created without the catalog"):
        append_arrow(lake, "by_files", pa.table({"k": pa.array([1], pa.int64())}))
    assert read_arrow(lake, "by_files").num_rows == 0
    Lake.open(lake.warehouse, "features").drop("by_files")


def test_a_host_that_only_reads_needs_neither_server_nor_token(lake: Lake) -> None:
    add(lake, 1)
    away = RestCatalog("http://127.0.0.1:9", "shop")
    reader = Lake.open(lake.warehouse, "features", rest=away)
    assert numbers(reader) == [1]
    for write in (lambda: add(reader, 2), lambda: reader.create_like("others", SCHEMA)):
        with pytest.raises(ConfigurationError, match=f"set {TOKEN_VARIABLE} in the environment"):
            write()
    with pytest.raises(ConfigurationError, match="requires a token"):
        catalog_options(reader)


def test_the_token_comes_from_the_environment() -> None:
    config = CatalogConfig("https://catalog.example.com", "shop")
    assert RestCatalog.of(config, {}).token is None
    catalog = RestCatalog.of(config, {TOKEN_VARIABLE: "secret-token"})
    assert catalog.options()["token"] == "secret-token"
    assert "secret-token" not in repr(catalog)
