"""Scans as SQL text; their rows are tested with the complete job, in test_ingest_flink."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.ingest.flink.kafka_sql import KafkaTopic, kafka_scan
from paimon_features.ingest.flink.scan_sql import (
    _java_literal,
    file_scan,
    raw_text,
    sql_options,
)
from paimon_features.ingest.input_columns import FileGroup, InputColumn
from paimon_features.ingest.input_files import InputFile
from paimon_features.ingest.physical import TEXT, Physical

ID = InputColumn("id", "Id", 1, TEXT, True)
NAME = InputColumn("name", "it's", 2, TEXT, False)
DAY = InputColumn("day", "day", 0, Physical("date", "DATE"), False)


def group(form: str, *names: str, columns: tuple[InputColumn, ...] = (ID, NAME)) -> FileGroup:
    files = tuple(
        InputFile(Path("/data") / name, form, 1, name, "Id,it's", ("Id", "it's")) for name in names
    )
    return FileGroup(form, files, columns, (), ())


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_every_scan_has_the_same_columns(form: str) -> None:
    scan = file_scan("in_3", group(form, "a"))
    query = scan.views[-1][1]
    for column in ("raw", "origin", "broken", "c_id", "c_name"):
        assert f"`{column}`" in query
    assert scan.table.startswith("CREATE TEMPORARY TABLE `in_3` (")
    assert scan.cells == scan.views[-1][0]


def test_a_single_file_is_read_by_path_and_several_by_a_pattern() -> None:
    assert "'path' = 'file:///data/a b%.csv'" in file_scan("x", group("csv", "a b%.csv")).table
    several = file_scan("x", group("csv", "a.csv", "b'.csv")).table
    assert "'path' = 'file:///data'" in several
    assert r"'source.path.regex-pattern' = '/data/(?:a\.csv|b\''\.csv)'" in several


@given(st.text(max_size=20))
def test_the_pattern_of_a_name_matches_only_that_name(name: str) -> None:
    pattern = re.compile(_java_literal(name))
    assert pattern.fullmatch(name)
    assert not pattern.fullmatch(name + "x")
    assert not pattern.fullmatch("x" + name)


def test_only_cells_that_are_cast_are_trimmed() -> None:
    id_cell, _, name_cell = file_scan("x", group("csv", "a")).views[-1][1].partition("AS `c_id`")
    assert "BTRIM(" in id_cell
    assert "BTRIM(" not in name_cell


def test_a_rejected_row_is_kept_as_its_line_or_as_json_of_its_columns() -> None:
    assert raw_text("csv", (ID,)) == raw_text("json", (ID,)) == "`raw`"
    assert raw_text("parquet", (ID, NAME, DAY)) == (
        "JSON_OBJECT('Id' VALUE `c_id`, 'it''s' VALUE `c_name`, "
        "'day' VALUE CAST(`c_day` AS STRING) NULL ON NULL)"
    )


def test_a_topic_is_read_from_the_groups_offsets_or_else_from_its_beginning() -> None:
    scan = kafka_scan("in_0", KafkaTopic("a:1,b:2", "clicks", "g'1", (ID,)))
    for option in (
        "'connector' = 'kafka'",
        "'properties.bootstrap.servers' = 'a:1,b:2'",
        "'properties.group.id' = 'g''1'",
        "'scan.startup.mode' = 'group-offsets'",
        "'properties.auto.offset.reset' = 'earliest'",
        "'value.format' = 'raw'",
    ):
        assert option in scan.table
    # the origin of a rejected row: topic/partition@offset
    assert "CONCAT('kafka:', `topic`, '/', CAST(`partition` AS STRING), '@'" in scan.table


def test_options_are_quoted() -> None:
    assert sql_options({"a": "b's", "c": "d"}) == "'a' = 'b''s', 'c' = 'd'"
