"""Remote warehouses: the real S3 protocol, its faults, and the storage options."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from paimon_features.core.errors import ConfigurationError, TableError, UnknownNameError
from paimon_features.core.types.schema import Float64, Int64
from paimon_features.flink.environment import catalog_options
from paimon_features.lake import table_options
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.consumers import (
    advance_consumer,
    consumers,
    delete_consumer,
    register_consumer,
)
from paimon_features.lake.metadata.tags import create_tag
from paimon_features.lake.reading.deltas import live_files, read_file
from paimon_features.lake.reading.table_reader import read_arrow, snapshots
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.storage.filesystems import make_filesystem, s3_arguments, settings
from paimon_features.lake.storage.remote import RemoteStorage
from paimon_features.lake.writing.table_writer import append_arrow
from tests.servers.object_store import ObjectStore, object_store

CLOUD = ("AWS_", "S3_", "OSS_")


@pytest.fixture(scope="module")
def running() -> Iterator[ObjectStore]:
    with object_store("bucket") as store:
        yield store


@pytest.fixture
def store(running: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    for name in list(os.environ):
        if name.startswith(CLOUD):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    running.fail(0)
    running.requests.clear()
    return running


def address(request: pytest.FixtureRequest, scheme: str = "s3") -> str:
    return f"{scheme}://bucket/{request.node.name.split('[')[0]}"


def fill(lake: Lake, table: str = "points") -> str:
    lake.create(TableSpec(table, {"x": Int64, "y": Float64}))
    for first in (0, 10):
        x = np.arange(first, first + 10)
        append_arrow(lake, table, pa.table({"x": x, "y": x / 2}))
    return table


def round_trip(lake: Lake, reading: Lake) -> None:
    """Read a table in every way, with a lake that did not create it."""
    table = fill(lake)
    assert reading.list() == [table]
    assert [found.id for found in snapshots(reading, table)] == [1, 2]
    assert sorted(read_arrow(reading, table).column("x").to_pylist()) == list(range(20))
    files = live_files(reading, table, 1)
    assert [read_file(file, ["x"]).column("x").to_pylist() for file in files] == [list(range(10))]
    register_consumer(reading, table, "trainer", 1)
    advance_consumer(reading, table, "trainer", 2)
    assert consumers(reading, table) == {"trainer": 2}
    delete_consumer(reading, table, "trainer")
    assert consumers(reading, table) == {}
    create_tag(lake, table, "first", 1)
    lake.drop(table)
    assert reading.list() == []


def test_a_lake_on_s3_equals_one_in_a_folder(
    store: ObjectStore, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = address(request)
    lake = Lake.open(place, "features", options=store.options, side_folder=tmp_path)
    round_trip(lake, Lake.open(f"{place}/", "features", options=store.options))
    assert {path.name for path in tmp_path.iterdir()} >= {"locks"}


def test_oss_options_have_their_own_names(
    store: ObjectStore,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # unlike OSS, the server has no host name per bucket: hence the path style
    place = address(request, "oss")
    options = {
        "fs.oss.endpoint": store.endpoint,
        "fs.oss.accessKeyId": store.key,
        "fs.oss.accessKeySecret": "secret",
        "fs.oss.path-style-access": "true",
    }
    lake = Lake.open(place, "features", options=options, side_folder=tmp_path)
    monkeypatch.setenv("OSS_ENDPOINT", store.endpoint)
    monkeypatch.setenv("OSS_ACCESS_KEY_ID", store.key)
    monkeypatch.setenv("OSS_ACCESS_KEY_SECRET", "secret")
    monkeypatch.setenv("S3_ADDRESSING_STYLE", "path")
    round_trip(lake, Lake.open(place, "features"))


def test_any_file_system_of_fsspec_or_arrow_can_be_a_warehouse(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    lake = Lake.open("memory://lake", "features", filesystem=memory, side_folder=tmp_path)
    round_trip(lake, Lake.open("memory://lake", "features", filesystem=memory))
    folder = pafs.SubTreeFileSystem(str(tmp_path / "sub"), pafs.LocalFileSystem())
    (tmp_path / "sub").mkdir()
    lake = Lake.open("any://lake", "features", filesystem=folder, side_folder=tmp_path)
    round_trip(lake, Lake.open("any://lake", "features", filesystem=folder))
    with pytest.raises(ConfigurationError, match="filesystem=str: expected one of pyarrow.fs"):
        Lake.open("any://lake", "features", filesystem="s3fs")
    with pytest.raises(ConfigurationError, match="configure the given file system itself"):
        Lake.open("any://lake", "features", filesystem=folder, options={"endpoint": "x"})


def test_options_override_the_environment(
    store: ObjectStore, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3_ENDPOINT", store.endpoint.removeprefix("http://"))
    monkeypatch.setenv("S3_USE_HTTPS", "0")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", store.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert Lake.open(address(request), "features").list() == []
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    with pytest.raises(ConfigurationError, match="rejects these credentials"):
        Lake.open(address(request), "features")
    assert Lake.open(address(request), "features", options={"access-key": store.key}).list() == []


@pytest.mark.parametrize(
    ("scheme", "options", "environment", "expected"),
    [
        ("s3", {}, {}, {"scheme": "https", "force_virtual_addressing": False}),
        ("s3", {}, {"AWS_REGION": "eu-1", "AWS_DEFAULT_REGION": "us-2"}, {"region": "eu-1"}),
        ("s3", {}, {"AWS_DEFAULT_REGION": "us-2"}, {"region": "us-2"}),
        ("s3", {"s3.region": "x"}, {"AWS_REGION": "eu-1"}, {"region": "x"}),
        (
            "s3a",
            {"endpoint": "http://h:1/"},
            {},
            {"endpoint_override": "h:1", "scheme": "http", "region": "us-east-1"},
        ),
        ("s3", {"endpoint": "h:1"}, {"S3_USE_HTTPS": "0"}, {"scheme": "http"}),
        ("s3", {"endpoint": "http://h"}, {"S3_USE_HTTPS": "1"}, {"scheme": "https"}),
        ("s3", {}, {"S3_ADDRESSING_STYLE": "virtual"}, {"force_virtual_addressing": True}),
        ("s3", {}, {"S3_ADDRESSING_STYLE": "path"}, {"force_virtual_addressing": False}),
        (
            "s3",
            {"s3.path-style-access": "true"},
            {"S3_ADDRESSING_STYLE": "virtual"},
            {"force_virtual_addressing": False},
        ),
        (
            "s3",
            {},
            {
                "AWS_ACCESS_KEY_ID": "a",
                "AWS_SECRET_ACCESS_KEY": "b",
                "AWS_SESSION_TOKEN": "c",
            },
            {"access_key": "a", "secret_key": "b", "session_token": "c"},
        ),
        (
            "oss",
            {"endpoint": "oss-cn-hangzhou.aliyuncs.com"},
            {"OSS_ACCESS_KEY_ID": "a", "OSS_ACCESS_KEY_SECRET": "b", "AWS_ACCESS_KEY_ID": "z"},
            {"force_virtual_addressing": True, "access_key": "a", "scheme": "https"},
        ),
        ("s3", {"request-timeout-s": "7"}, {}, {"request_timeout": 7.0, "connect_timeout": 5.0}),
    ],
)
def test_options_and_environment_become_arguments_of_arrow(
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    options: dict[str, str],
    environment: dict[str, str],
    expected: dict[str, Any],
) -> None:
    for name in list(os.environ):
        if name.startswith(CLOUD):
            monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    place = f"{scheme}://bucket/lake"
    arguments = s3_arguments(place, settings(place, options))
    assert {name: arguments.get(name) for name in expected} == expected
    make_filesystem(place, settings(place, options))  # Arrow accepts them


@pytest.mark.parametrize(
    ("place", "options", "message"),
    [
        ("gs://bucket/lake", {}, "expected a folder, or a URI of s3"),
        (
            "s3://bucket/lake",
            {"endpont": "x"},
            "unknown option 'endpont'; expected one of: .*endpoint",
        ),
        ("s3://bucket/lake", {"access-key": "a"}, "key's id is set and its secret is not"),
        ("s3://bucket/lake", {"secret-key": "a"}, "key's secret is set and its id is not"),
        ("s3://bucket/lake", {"addressing-style": "x"}, "expected path, virtual or auto"),
        ("s3://bucket/lake", {"use-https": "maybe"}, "use-https is 'maybe': expected 1 or 0"),
        ("s3://bucket/lake", {"attempts": "0"}, "attempts is '0': expected a number of at least 1"),
        ("oss://bucket/lake", {}, "OSS requires an endpoint"),
    ],
)
def test_invalid_settings_are_rejected_before_any_request(
    store: ObjectStore, place: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Lake.open(place, "features", options=options)
    assert store.requests == []


def test_missing_buckets_credentials_and_servers_are_reported(
    store: ObjectStore,
) -> None:
    with pytest.raises(ConfigurationError, match=f"bucket 'nowhere' at {store.endpoint}"):
        Lake.open("s3://nowhere/lake", "features", options=store.options)
    with pytest.raises(ConfigurationError, match=r"rejects these credentials .*AWS_SECRET_ACCESS"):
        Lake.open("s3://bucket/x", "features", options={**store.options, "access-key": "other"})
    nobody = {**store.options, "endpoint": "http://127.0.0.1:9", "attempts": "2"}
    with pytest.raises(TableError, match=r"at http://127.0.0.1:9 is unreachable.*S3_ENDPOINT"):
        Lake.open("s3://bucket/x", "features", options=nobody)


def test_hdfs_uses_libhdfs_and_reports_if_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requested: list[dict[str, Any]] = []

    def hadoop(**arguments: Any) -> pafs.FileSystem:
        requested.append(arguments)
        raise OSError("Unable to load libjvm\ndlopen(...) failed")

    monkeypatch.setattr(pafs, "HadoopFileSystem", hadoop)
    for place, options in (
        ("hdfs://node:8020/lake", {"hdfs.user": "ann", "replication": "2"}),
        ("hdfs://service/lake", {}),
        ("viewfs://mounts/lake", {"kerberos-ticket": "/tmp/t"}),
    ):
        with pytest.raises(ConfigurationError, match="Unable to load libjvm. It requires Java"):
            Lake.open(place, "features", options=options)
    assert requested == [
        {"host": "node", "port": 8020, "user": "ann", "replication": 2},
        {"host": "default", "port": 0, "replication": 3},
        {"host": "default", "port": 0, "kerb_ticket": "/tmp/t", "replication": 3},
    ]


def test_a_remote_lake_with_neither_conditional_puts_nor_a_side_folder_is_read_only(
    store: ObjectStore, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = address(request)
    fill(Lake.open(place, "features", options=store.options, side_folder=tmp_path))
    given = make_filesystem(place, settings(place, store.options))
    reading = Lake.open(place, "features", filesystem=given)
    for change in (
        lambda: append_arrow(reading, "points", pa.table({"x": [1]})),
        lambda: reading.create(TableSpec("other", {"x": Int64})),
        lambda: reading.drop("points"),
    ):
        with pytest.raises(TableError, match=r"is read-only.*side_folder=PATH"):
            change()
    assert read_arrow(reading, "points").num_rows == 20
    with pytest.raises(UnknownNameError, match="unknown table 'pints'; available: points"):
        reading.table("pints")
    with pytest.raises(ConfigurationError, match="Flink cannot open .* open it by its address"):
        catalog_options(reading)


def test_transient_errors_are_retried_a_bounded_number_of_times(
    store: ObjectStore, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = address(request)
    fill(Lake.open(place, "features", options=store.options, side_folder=tmp_path))
    reading = Lake.open(place, "features", options={**store.options, "attempts": "4"})
    storage = reading.storage
    assert isinstance(storage, RemoteStorage)
    store.fail(3)
    assert reading.list() == ["points"]
    store.fail(4)
    with pytest.raises(TableError, match="the store failed each of 4 times: .*SLOW_DOWN"):
        reading.exists("points")
    store.fail(0)
    (file,) = live_files(reading, "points", 1)
    store.fail(2, lambda method, path: path.endswith(".parquet"))
    assert read_file(file, ["x"]).num_rows == 10
    assert store.failures == 0


def test_a_changed_schema_or_recreated_table_is_detected(
    store: ObjectStore, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = address(request)
    lake = Lake.open(place, "features", options=store.options, side_folder=tmp_path)
    other = Lake.open(place, "features", options=store.options)
    fill(lake)
    assert other.schema("points").names == ["x", "y"]
    table_options.set_properties(lake, "points", {"colour": "red"})
    assert table_options.properties(other, "points") == {"colour": "red"}
    lake.drop("points")
    lake.create(TableSpec("points", {"z": Int64}))
    assert other.schema("points").names == ["z"]
