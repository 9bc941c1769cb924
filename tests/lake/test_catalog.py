"""The lake: creating, opening, validating and dropping tables."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from paimon_features.core.errors import (
    ConfigurationError,
    DamagedFileError,
    TableError,
    UnknownNameError,
)
from paimon_features.core.types.schema import (
    Bool,
    Bytes,
    Date,
    Decimal,
    Float32,
    Float64,
    Int32,
    Int64,
    List,
    String,
    Timestamp,
)
from paimon_features.lake import table_options
from paimon_features.lake.catalog import Lake
from paimon_features.lake.reading.table_reader import read_arrow
from paimon_features.lake.specs import TableSpec, events_spec, registry_spec, tiles_spec
from paimon_features.lake.writing.table_writer import append_arrow
from tests.lake.lease_model import KilledError


def test_a_table_is_listed_from_its_creation_to_its_drop(lake: Lake) -> None:
    assert lake.list() == []
    assert not lake.exists("registry")
    lake.create(registry_spec())
    assert lake.list() == ["registry"]
    assert lake.exists("registry")
    assert Path(lake.path("registry")).is_dir()
    lake.drop("registry")
    lake.drop("registry")
    assert lake.list() == []


def test_every_column_type_keeps_its_arrow_type(lake: Lake) -> None:
    kinds = [Bool, Int32, Int64, Float32, Float64, String, Bytes, Date, Timestamp]
    kinds += [Decimal(10, 2), List(Float32, 3)]
    columns = {f"c{i}": kind for i, kind in enumerate(kinds)}
    lake.create(events_spec("events_all", columns))
    schema = lake.schema("events_all")
    for name, kind in columns.items():
        assert schema.field(name).type == kind.arrow
    lake.create(events_spec("events_all", columns))  # and is the same table the second time


def test_creating_a_table_again_does_nothing_unless_forbidden(lake: Lake) -> None:
    lake.create(registry_spec())
    lake.create(registry_spec())
    with pytest.raises(TableError, match="'registry' already exists"):
        lake.create(registry_spec(), ignore_existing=False)


def test_an_existing_table_that_differs_is_rejected_with_every_difference(lake: Lake) -> None:
    lake.create(tiles_spec("tiles", {"k": Int64}, [("p_a", Int64, "sum")], 4))
    other = tiles_spec("tiles", {"k": String}, [("p_a", Int64, "max"), ("p_b", Int64, "sum")], 8)
    with pytest.raises(TableError) as caught:
        lake.create(other)
    message = str(caught.value)
    assert "column 'p_b' is missing" in message
    assert "column 'k' is int64, expected string" in message
    assert "option 'bucket' is '4', expected '8'" in message
    assert "option 'fields.p_a.aggregate-function' is 'sum', expected 'max'" in message


def test_another_key_or_partition_is_a_difference(lake: Lake) -> None:
    columns = {"a": Int32, "b": Int64, "c": Int64}
    lake.create(TableSpec("t", columns, ("a", "b"), ("a",), {"bucket": "1"}))
    with pytest.raises(TableError, match=r"primary key is \(a, b\), expected \(a, b, c\)"):
        lake.create(TableSpec("t", columns, ("a", "b", "c"), ("a",), {"bucket": "1"}))
    with pytest.raises(TableError, match=r"partition is \(a\), expected \(\)"):
        lake.create(TableSpec("t", columns, ("a", "b"), (), {"bucket": "1"}))


def test_an_unknown_table_is_rejected_with_the_known_ones(lake: Lake) -> None:
    lake.create(registry_spec())
    with pytest.raises(UnknownNameError, match="unknown table 'tiles'; available: registry"):
        lake.table("tiles")


def test_properties_are_stored_in_the_table(lake: Lake) -> None:
    lake.create(registry_spec())
    other = Lake.open(lake.warehouse, lake.database)
    assert table_options.properties(other, "registry") == {}
    table_options.set_properties(lake, "registry", {"source": "events_retail@7", "note": "x"})
    table_options.set_properties(lake, "registry", {"note": None})
    assert table_options.properties(other, "registry") == {"source": "events_retail@7"}


def test_a_table_recreated_by_another_process_is_reloaded(lake: Lake) -> None:
    other = Lake.open(lake.warehouse, lake.database)
    lake.create(TableSpec("t", {"a": Int64}))
    assert other.schema("t").names == ["a"]
    lake.drop("t")
    lake.create(TableSpec("t", {"b": Int64}))
    assert other.schema("t") == pa.schema([pa.field("b", pa.int64())])


def test_a_warehouse_is_a_path_or_a_file_address(tmp_path: Path) -> None:
    lake = Lake.open(f"file://{tmp_path}/a%20b", "features")
    assert lake.warehouse == f"{tmp_path}/a b"
    with pytest.raises(ConfigurationError, match="'gs://bucket/x': expected a folder, or"):
        Lake.open("gs://bucket/x", "features")


def test_the_side_folder_is_neither_a_database_nor_a_table(lake: Lake) -> None:
    lake.create(registry_spec())
    lake.side_folder.mkdir(exist_ok=True)
    assert lake.catalog.list_databases() == ["features"]
    assert lake.list() == ["registry"]


@contextmanager
def killed_at(number: int) -> Iterator[None]:
    """Before this thread's operation on files that has this number, counted from 1."""
    left = itertools.count(number - 1, -1)
    thread = threading.get_ident()

    def limited(name: str) -> None:
        operation = getattr(os, name)

        def run(*arguments: object, **options: object) -> object:
            if threading.get_ident() == thread and next(left) <= 0:
                raise KilledError
            return operation(*arguments, **options)

        patch.setattr(os, name, run)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("mkdir", "rename", "replace", "unlink", "rmdir"):
            limited(name)
        yield


def test_what_an_interrupted_creation_leaves_is_no_table(lake: Lake) -> None:
    spec = TableSpec("t", {"a": Int64})
    for number in itertools.count(1):
        try:
            with killed_at(number):
                lake.create(spec)
        except KilledError:
            other = Lake.open(lake.warehouse, lake.database)
            if not other.exists("t"):
                assert other.list() == []
                with pytest.raises(UnknownNameError, match="unknown table 't'"):
                    other.table("t")
        else:
            break
        other.create(spec)
        append_arrow(other, "t", pa.table({"a": [number]}))
        assert read_arrow(other, "t")["a"].to_pylist() == [number]
        other.drop("t")
    assert number > 3


def test_a_table_in_the_place_of_an_interrupted_drop_has_none_of_its_rows(lake: Lake) -> None:
    spec = TableSpec("t", {"a": Int64})
    states = []
    for number in itertools.count(1):
        lake.create(spec)
        for value in (1, 2):
            append_arrow(lake, "t", pa.table({"a": [value]}))
        try:
            with killed_at(number):
                lake.drop("t")
        except KilledError:
            other = Lake.open(lake.warehouse, lake.database)
            found = read_arrow(other, "t")["a"].to_pylist() if other.exists("t") else None
            states.append(found)
            assert found in ([1, 2], [1], [], None)
            if found:  # it has not been dropped
                other.drop("t")
            other.create(spec)
            append_arrow(other, "t", pa.table({"a": [3]}))
            assert read_arrow(other, "t")["a"].to_pylist() == [3]
            other.drop("t")
        else:
            break
    assert [1, 2] in states
    assert [] in states
    assert None in states


def test_a_table_that_is_being_created_is_unknown_and_one_without_its_schemas_damaged(
    lake: Lake,
) -> None:
    folder = Path(lake.path("t"))
    (folder / "schema").mkdir(parents=True)
    (folder / "schema" / ".schema-0.7f0c.tmp").write_text("{")
    assert not lake.exists("t")
    assert lake.list() == []
    with pytest.raises(UnknownNameError, match="unknown table 't'"):
        read_arrow(lake, "t")
    lake.create(TableSpec("t", {"a": Int64}))
    append_arrow(lake, "t", pa.table({"a": [1]}))
    (folder / "schema" / "schema-0").unlink()
    other = Lake.open(lake.warehouse, lake.database)
    assert other.exists("t")
    with pytest.raises(DamagedFileError, match="a schema in .* is damaged"):
        read_arrow(other, "t")
    with pytest.raises(DamagedFileError, match="a schema in .* is damaged"):
        other.create(TableSpec("t", {"a": Int64}))
