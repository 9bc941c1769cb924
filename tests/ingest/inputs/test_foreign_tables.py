"""Tables of others name no class, and no file outside of their folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paimon_features.core.configuration.input_settings import InputSettings
from paimon_features.core.errors import ConfigurationError, DamagedFileError, PaimonFeaturesError
from paimon_features.core.types.schema import Int64
from paimon_features.ingest.inputs.opening import open_input
from paimon_features.lake import Lake
from paimon_features.lake.specs import events_spec
from paimon_features.lake.writing.table_writer import append_arrow

ROWS = pa.table({"user": pa.array([1, 2, 3], pa.int64())})
SECRET = pa.table({"user": pa.array([42], pa.int64())})


def rows_of(path: Path) -> list[int]:
    opened = open_input(path, InputSettings())
    return [row["user"] for batch in opened.batches for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pyiceberg")
    pytest.importorskip("sqlalchemy")
    from pyiceberg.catalog.sql import SqlCatalog

    folder = tmp_path_factory.mktemp("iceberg")
    catalog = SqlCatalog("t", uri="sqlite://", warehouse=f"file://{folder}/warehouse")
    catalog.create_namespace("n")
    table = catalog.create_table("n.events", ROWS.schema, location=f"file://{folder}/events")
    pq.write_table(ROWS, folder / "events" / "rows.parquet")
    table.add_files([str(folder / "events" / "rows.parquet")])
    catalog.engine.dispose()
    return folder / "events"


@pytest.fixture
def iceberg(written: Path, tmp_path: Path) -> Path:
    """A copy, whose metadata has the addresses of the original."""
    return Path(shutil.copytree(written, tmp_path / "events"))


def newest(table: Path) -> Path:
    return max((table / "metadata").glob("*.metadata.json"), key=lambda p: p.name)


def edited(table: Path, edit: Callable[[Any], None]) -> None:
    document = json.loads(newest(table).read_text())
    edit(document)
    newest(table).write_text(json.dumps(document))


def test_an_iceberg_table_is_read_where_it_is_and_where_it_was_copied_to(
    written: Path, iceberg: Path
) -> None:
    assert rows_of(written) == rows_of(iceberg) == [1, 2, 3]


@pytest.mark.parametrize(
    "name",
    ["py-io-impl", "write.py-location-provider.impl", "s3.retry-strategy-impl", "py-catalog-impl"],
)
def test_a_property_of_an_iceberg_table_names_no_class(
    iceberg: Path, tmp_path: Path, name: str
) -> None:
    marker = tmp_path / "ran"
    words = {"/bin/sh": "x", "-c": "x", f"touch {marker}": "x", name: "subprocess.Popen"}
    edited(iceberg, lambda document: document["properties"].update(words))
    assert rows_of(iceberg) == [1, 2, 3]
    assert not marker.exists()


@pytest.mark.parametrize(
    "location",
    ["s3://bucket/list.avro", "http://127.0.0.1:1/x", "file://host/list.avro", "hdfs://h/x",
     "gs://b/x", "/etc/hostname", "file:/etc/hostname", "file:///etc/hostname", "../x", "x",
     "{table}/../secret", "{table}/metadata/link", "abfss://c@h/x", "\x00"],
)  # fmt: skip
def test_an_iceberg_table_reads_nothing_outside_of_its_folder(
    iceberg: Path, tmp_path: Path, location: str
) -> None:
    (tmp_path / "secret").write_text("x")
    os.symlink(tmp_path / "secret", iceberg / "metadata" / "link")

    def edit(document: Any) -> None:
        for each in document["snapshots"]:
            each["manifest-list"] = location.format(table=document["location"])

    edited(iceberg, edit)
    with pytest.raises(ConfigurationError, match="which is not in this folder"):
        rows_of(iceberg)


def test_a_location_of_the_metadata_opens_no_other_folder(iceberg: Path, tmp_path: Path) -> None:
    for location in ("/", "file:///", "", str(tmp_path), "file:"):
        edited(iceberg, lambda document, text=location: document.update(location=text))
        with pytest.raises(PaimonFeaturesError):
            rows_of(iceberg)


def test_the_newest_version_of_an_iceberg_table_is_the_one_with_the_greatest_number(
    iceberg: Path,
) -> None:
    text = newest(iceberg).read_text()
    for file in (iceberg / "metadata").glob("*.metadata.json"):
        file.unlink()
    empty = {**json.loads(text), "current-snapshot-id": -1, "snapshots": [], "refs": {}}
    (iceberg / "metadata" / "v9.metadata.json").write_text(json.dumps(empty))
    (iceberg / "metadata" / "v10.metadata.json").write_text(text)
    assert rows_of(iceberg) == [1, 2, 3]


def test_a_delta_table_reads_nothing_outside_of_its_folder(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    pq.write_table(SECRET, tmp_path / "secret.parquet")
    table = tmp_path / "events"
    deltalake.write_deltalake(str(table), ROWS)
    assert rows_of(table) == [1, 2, 3]
    os.symlink(tmp_path / "secret.parquet", table / "link.parquet")
    log = table / "_delta_log" / "00000000000000000000.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    secret = str(tmp_path / "secret.parquet")
    for path in ("link.parquet", "../secret.parquet", secret, f"file://{secret}", "s3://b/x"):
        for line in lines:
            if "add" in line:
                size = (tmp_path / "secret.parquet").stat().st_size
                line["add"] = {**line["add"], "path": path, "size": size, "stats": None}
        log.write_text("\n".join(map(json.dumps, lines)))
        with pytest.raises(ConfigurationError):
            rows_of(table)


@pytest.fixture
def paimon(tmp_path: Path) -> Path:
    lake = Lake.open(tmp_path / "lake", "features")
    lake.create(events_spec("events", {"user": Int64}))
    days, now = pa.array([20_000] * 3, pa.int32()), pa.array([1] * 3, pa.int64())
    rows = ROWS.append_column("event_day", days).append_column("ingest_time_ms", now)
    append_arrow(lake, "events", rows)
    return tmp_path / "lake" / "features.db" / "events"


@pytest.mark.parametrize(
    "option",
    ["commit.callbacks", "tag.callbacks", "commit.callback.x.Evil.param", "commit.custom-listeners",
     "partition.mark-done-action.custom.class", "partition.mark-done-action.http.url",
     "data-file.external-paths", "data-file.path-directory", "global-index.external-path",
     "object-location"],
)  # fmt: skip
def test_an_option_of_a_paimon_table_names_no_class_and_no_other_place(
    paimon: Path, option: str
) -> None:
    assert rows_of(paimon) == [1, 2, 3]
    schema = paimon / "schema" / "schema-0"
    document = json.loads(schema.read_text())
    document["options"][option] = "x.Evil"
    schema.write_text(json.dumps(document))
    with pytest.raises(PaimonFeaturesError, match="names a class, or a place outside"):
        rows_of(paimon)


def test_a_manifest_of_a_paimon_table_names_no_other_file(
    paimon: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fastavro = pytest.importorskip("fastavro")
    (data,) = paimon.rglob("*.parquet")
    shutil.copy(data, tmp_path / data.name)
    manifest = next(p for p in (paimon / "manifest").glob("manifest-*") if "list" not in p.name)
    for name, external in (
        (data.name, f"file:{tmp_path / data.name}"),
        (data.name, "s3://bucket/x.parquet"),
        (f"../../../../../{data.name}", None),
    ):
        with manifest.open("rb") as file:
            reader = fastavro.reader(file)
            schema, codec, entries = reader.writer_schema, reader.codec, list(reader)
        for entry in entries:
            entry["_FILE"] |= {"_FILE_NAME": name, "_EXTERNAL_PATH": external}
        with manifest.open("wb") as file:
            fastavro.writer(file, schema, entries, codec)
        with pytest.raises(PaimonFeaturesError):
            rows_of(paimon)
        # also without the check of the manifest's size
        monkeypatch.setattr(
            "paimon_features.lake.reading.table_reader._Reader._check_rows", lambda *_: None
        )
        with pytest.raises(DamagedFileError, match="is not in the table's folder"):
            rows_of(paimon)
