"""Columns are matched by name in files and messages, or reported as missing."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paimon_features.core.errors import ConfigurationError
from paimon_features.core.types.schema import Bytes, Float64, Int64, List, String
from paimon_features.definitions import EventSource
from paimon_features.ingest.flink.kafka_sql import KafkaTopic, topic_columns
from paimon_features.ingest.input_columns import (
    find_columns,
    group_files,
    parse_mapping,
)
from paimon_features.ingest.input_files import inspect_file
from tests.ingest.conftest import HEADER, Write

SALES = EventSource(
    "sales",
    schema={"customer_id": Int64, "unit_price": Float64, "country": String, "at_ms": Int64},
    event_time="at_ms",
)


def test_column_names_are_matched_regardless_of_case_and_underscores(write: Write) -> None:
    file = inspect_file(write("a.csv", "Country,CustomerID,unit price,At-Ms,other\n"))
    (group,) = group_files([file], SALES, {})
    assert [(c.name, c.field, c.position) for c in group.columns] == [
        ("customer_id", "CustomerID", 2),
        ("unit_price", "unit price", 3),
        ("country", "Country", 1),
        ("at_ms", "At-Ms", 4),
    ]
    assert group.ignored == ("other",)
    assert group.width == 5


def test_an_exact_name_is_preferred_to_a_similar_one(write: Write) -> None:
    file = inspect_file(write("a.csv", f"{HEADER},CustomerID\n"))
    assert find_columns(file, SALES, {})[0].field == "customer_id"
    assert find_columns(file, SALES, {"customer_id": "CustomerID"})[0].field == "CustomerID"


@pytest.mark.parametrize(
    ("header", "mapping", "message"),
    [
        (
            "customer_id,unit_price,at_ms",
            {},
            "unknown column 'country'; available: at_ms, customer_id",
        ),
        (HEADER, {"country": "Land"}, "unknown column 'Land'.*--column country=<name in the file>"),
        ("CustomerID,CUSTOMER_ID,unit_price,country,at_ms", {}, "could both be 'customer_id'"),
        (HEADER, {"zip": "Zip"}, "unknown column 'zip' of source 'sales'; available: at_ms"),
    ],
)
def test_a_missing_or_ambiguous_column_is_reported_with_those_available(
    write: Write, header: str, mapping: dict[str, str], message: str
) -> None:
    file = inspect_file(write("a.csv", header + "\n"))
    with pytest.raises(ConfigurationError, match=message):
        group_files([file], SALES, mapping)


def test_a_json_row_may_lack_any_column_but_the_event_time(write: Write) -> None:
    file = inspect_file(write("a.jsonl", '{"CustomerId": 1, "AT_MS": 5, "more": 0}'))
    (group,) = group_files([file], SALES, {})
    assert [c.field for c in group.columns] == ["CustomerId", "unit_price", "country", "AT_MS"]
    assert group.absent == ("unit_price", "country")
    assert group.ignored == ("more",)
    timeless = inspect_file(write("b.jsonl", '{"customer_id": 1}'))
    with pytest.raises(ConfigurationError, match="unknown key 'at_ms' of the first rows"):
        group_files([timeless], SALES, {})
    (empty,) = group_files([inspect_file(write("c.jsonl", "\n"))], SALES, {})
    assert empty.absent == ()


def test_files_of_a_folder_with_equal_column_positions_are_one_scan(write: Write) -> None:
    files = [
        inspect_file(write("x/a.csv", HEADER + "\n1,2,3,4\n")),
        inspect_file(write("x/b.csv", HEADER + "\n")),
        inspect_file(write("x/turned.csv", "at_ms,country,unit_price,customer_id\n")),
        inspect_file(write("y/a.csv", HEADER + "\n")),
        inspect_file(write("x/a.jsonl", '{"at_ms": 1, "country": "x"}')),
        inspect_file(write("x/b.jsonl", '{"at_ms": 1, "unit_price": 2, "a": 3}')),
    ]
    groups = group_files(files, SALES, {})
    assert [[f"{f.path.parent.name}/{f.path.name}" for f in g.files] for g in groups] == [
        ["x/a.csv", "x/b.csv"],
        ["x/turned.csv"],
        ["y/a.csv"],
        ["x/a.jsonl", "x/b.jsonl"],
    ]
    # absent is what no file of the group has, ignored what any has
    assert (groups[3].absent, groups[3].ignored) == (("customer_id",), ("a",))


def test_an_unreadable_column_type_is_an_error_with_a_remedy(write: Write) -> None:
    lists = EventSource("s", schema={"v": List(Float64), "t": Int64}, event_time="t")
    with pytest.raises(ConfigurationError, match="EventWriter"):
        topic_columns(lists, {})
    raw = EventSource("s", schema={"v": Bytes, "t": Int64}, event_time="t")
    with pytest.raises(ConfigurationError, match="a.csv: column 'v'.*binary Parquet columns"):
        group_files([inspect_file(write("a.csv", "v,t\n"))], raw, {})


def test_a_mapping_is_read_with_equal_signs_in_the_files_name() -> None:
    assert parse_mapping(["a=b", "c=d = e"]) == {"a": "b", "c": "d = e"}
    for text in ("a", "=b", "a="):
        with pytest.raises(ConfigurationError, match="expected <column of the source>="):
            parse_mapping([text])


def test_a_topic_requires_a_name_and_valid_addresses() -> None:
    columns = topic_columns(SALES, {"country": "Land"})
    assert [c.field for c in columns] == ["customer_id", "unit_price", "Land", "at_ms"]
    KafkaTopic("a:9092,[::1]:9093", "clicks.v1-eu_2", "g", columns)
    for servers, topic, message in (
        ("a", "t", "'a' is not host:port"),
        ("a:9092,", "t", "'' is not host:port"),
        ("http://a:1", "t", "is not host:port"),
        ("a:1", "../t", "topic '../t'"),
        ("a:1", "..", "topic '..'"),
        ("a:1", "", "topic ''"),
    ):
        with pytest.raises(ConfigurationError, match=re.escape(message)):
            KafkaTopic(servers, topic, "g", columns)


def test_an_unsupported_stored_type_is_reported_with_file_and_column(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"list": [[1]], "i": [1]}), path)
    file = inspect_file(path)
    source = EventSource("s", schema={"list": Int64, "i": Int64}, event_time="i")
    with pytest.raises(ConfigurationError, match="a.parquet: column 'list'"):
        find_columns(file, source, {})
