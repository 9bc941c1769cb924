"""``Project.sql`` and ``paimon-features sql``."""

from __future__ import annotations

import csv
import io
import json
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from paimon_features.core.errors import (
    DamagedFileError,
    PaimonFeaturesError,
    RequestError,
    SnapshotExpiredError,
    UnknownNameError,
)
from paimon_features.core.types.schema import Int64, String
from paimon_features.lake import Lake, TableSpec, append_arrow, read_arrow
from paimon_features.project import Project
from tests.commands import invoke

pytest.importorskip("duckdb")

run = partial(invoke, "sql")


@pytest.fixture
def project(project: Project) -> Project:
    orders = pa.table({"country": ["FR", "DE", "FR"], "amount": [1.0, 2.0, 4.0]})
    project.lake.create_like("orders", orders.schema)
    append_arrow(project.lake, "orders", orders)
    append_arrow(project.lake, "orders", pa.table({"country": ["IT"], "amount": [8.0]}))
    plans = TableSpec(
        "plans",
        {"country": String, "price": Int64, "note": String},
        primary_key=("country",),
        options={"bucket": "1", "merge-engine": "deduplicate"},
    )
    project.lake.create(plans)
    for price in (5, 7):
        rows = pa.table({"country": ["FR"], "price": [price], "note": ["x"]})
        append_arrow(project.lake, "plans", rows)
    return project


def rows(project: Project, statement: str, *parameters: object) -> list[object]:
    return [tuple(r.values()) for r in project.sql(statement, parameters).read_all().to_pylist()]


def test_tables_are_joined_merged_and_pinned(project: Project) -> None:
    assert rows(project, "SELECT count(*) FROM orders") == [(4,)]
    assert rows(project, 'SELECT count(*) FROM "orders@1"') == [(3,)]
    # of a key the newest row, whatever columns are read
    assert rows(project, "SELECT price FROM plans") == [(7,)]
    assert rows(project, "SELECT count(*) FROM plans") == [(1,)]
    joined = "SELECT o.amount, p.* FROM orders o JOIN plans p USING (country) WHERE amount > ?"
    assert rows(project, joined, 1.5) == [(4.0, "FR", 7, "x")]
    # names by position mean the table's columns, though not all are read
    renamed = "WITH x AS (SELECT b FROM plans AS p(a, b, c)) SELECT sum(b)::INT FROM x, plans"
    assert rows(project, renamed) == [(7,)]
    assert rows(project, "SELECT a.country FROM plans a, plans b") == [("FR",)]


def test_only_the_columns_of_a_query_are_read(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:

    read: list[list[str]] = []

    def reading(
        lake: Lake, name: str, columns: list[str], snapshot_id: int | None
    ) -> pa.Table:  # fmt: skip
        read.append(columns)
        return read_arrow(lake, name, columns, snapshot_id)

    monkeypatch.setattr("paimon_features.offline.local.sql.read_arrow", reading)
    assert rows(project, "SELECT price FROM plans WHERE country = 'FR'") == [(7,)]
    assert read == [["country", "price"]]


@pytest.mark.parametrize(
    ("statement", "error", "message"),
    [
        ("", RequestError, "got 0"),
        ("SELECT 1; SELECT 2", RequestError, "got 2"),
        ("SELEC 1", RequestError, "syntax error"),
        ("INSERT INTO orders VALUES ('FR', 1.0)", RequestError, "expected SELECT"),
        ("SET memory_limit = '9GB'", RequestError, "expected SELECT"),
        ("COPY orders TO 'stolen.csv'", RequestError, "expected SELECT"),
        ("ATTACH 'other.db'", RequestError, "expected SELECT"),
        ("SELECT nothing FROM orders", RequestError, '"nothing" not found'),
        ("SELECT * FROM order", RequestError, "syntax error"),
        ("SELECT * FROM ordrs", UnknownNameError, "did you mean 'orders'"),
        ('SELECT * FROM "ordrs@1"', UnknownNameError, "did you mean 'orders'"),
        ('SELECT * FROM "orders@9"', SnapshotExpiredError, "no snapshot 9"),
        ("SELECT * FROM 'features.py'", UnknownNameError, "unknown table 'features.py'"),
        ("SELECT * FROM read_text('features.py')", RequestError, "Permission"),
        ("SELECT * FROM read_csv('paimon-features.toml')", RequestError, "Permission"),
        ("SELECT * FROM glob('*')", RequestError, "Permission"),
    ],
)
def test_a_statement_reads_tables_and_nothing_else(
    project: Project, statement: str, error: type[PaimonFeaturesError], message: str
) -> None:
    with pytest.raises(error, match=message):
        project.sql(statement).read_all()


def test_a_damaged_page_of_a_column_that_is_read_is_reported(project: Project) -> None:
    [file, *_] = sorted(Path(project.lake.path("orders")).rglob("*.parquet"))
    content = bytearray(file.read_bytes())
    content[8] ^= 0xFF
    file.write_bytes(content)
    with pytest.raises(DamagedFileError):
        project.sql("SELECT country FROM orders").read_all()


def test_the_command_prints_tables_csv_and_json(project: Project) -> None:
    assert [line.split()[:3] for line in run().stdout.splitlines()] == [
        ["table", "rows", "snapshot"],
        ["orders", "4", "2"],
        ["plans", "2", "2"],
    ]
    listed = json.loads(run("--json").stdout)
    assert listed[0]["columns"] == {"country": "string", "amount": "double"}
    summed = (
        "SELECT country, sum(amount) AS s, list(country) AS l FROM orders "
        "WHERE country <> $c GROUP BY 1 ORDER BY 1"
    )
    assert json.loads(run(summed, "--param", "c=IT", "--json").stdout) == [
        {"country": "DE", "s": 2.0, "l": ["DE"]},
        {"country": "FR", "s": 5.0, "l": ["FR", "FR"]},
    ]
    assert json.loads(run("SELECT sum(price) AS s, 1.50 AS d FROM plans", "--json").stdout) == [
        {"s": 7, "d": "1.50"}
    ]
    printed = run("-", "--csv", typed="SELECT country, list(amount) AS l FROM orders GROUP BY 1")
    found = list(csv.reader(io.StringIO(printed.stdout)))
    assert found[0] == ["country", "l"]
    assert sorted(found[1:])[1] == ["FR", "[1.0, 4.0]"]
    assert run("SELECT * FROM orders WHERE false", "--json").stdout == "[]\n"
    cut = run("SELECT * FROM orders ORDER BY amount", "--limit", "2")
    assert cut.stdout.splitlines() == ["country  amount", "FR       1", "DE       2"]
    assert "the first 2 rows" in cut.stderr


def test_wrong_use_of_the_command_exits_with_two(project: Project) -> None:
    for arguments, message in (
        (("SELECT * FROM ordrs",), "did you mean 'orders'"),
        (("SELECT 1", "--csv", "--json"), "exclude one another"),
        (("SELECT 1", "--param", "x"), "expected NAME=VALUE"),
        (("DROP TABLE orders",), "expected SELECT"),
    ):
        done = run(*arguments)
        assert (done.exit_code, message in done.output) == (2, True), done.output
