"""A real Flink that computes many SQL expressions over a few rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from paimon_features.core.expressions.nodes import date_text, time_text
from paimon_features.core.types.schema import DataType
from tests.conftest import flink_tables

Rows = Sequence[Mapping[str, Any]]
RunFlink = Callable[[Mapping[str, DataType], Rows, Sequence[str]], list[list[Any]]]

IN_A_QUERY = 25_000
"""Characters of SQL: the time to plan a query grows faster than its text."""


def _json(value: Any, kind: DataType) -> Any:
    if value is not None and kind.text == "date":
        return date_text(value)
    if value is not None and kind.text == "timestamp":
        return time_text(value)
    return str(value) if value is not None and kind.is_decimal else value


def _groups(texts: Sequence[str]) -> Iterator[list[str]]:
    group: list[str] = []
    for text in texts:
        if group and sum(map(len, group)) + len(text) > IN_A_QUERY:
            yield group
            group = []
        group.append(text)
    yield group


@pytest.fixture(scope="session")
def run_flink(tmp_path_factory: pytest.TempPathFactory) -> RunFlink:
    """Gives the values of each SQL expression, a list per expression, in batch mode."""

    def run(columns: Mapping[str, DataType], rows: Rows, texts: Sequence[str]) -> list[list[Any]]:
        folder: Path = tmp_path_factory.mktemp("flink")
        lines = [
            json.dumps({"row": at, **{name: _json(row[name], columns[name]) for name in columns}})
            for at, row in enumerate(rows)
        ]
        (folder / "rows.json").write_text("\n".join(lines) + "\n")
        fields = ", ".join(f"`{name}` {kind.flink}" for name, kind in columns.items())
        table = (
            f"CREATE TABLE edges (`row` BIGINT, {fields}) WITH ('connector' = 'filesystem', "
            f"'path' = '{folder / 'rows.json'}', 'format' = 'json')"
        )
        environment = flink_tables(folder)
        environment.execute_sql(table)
        values: list[list[Any]] = []
        for some in _groups(texts):
            group = ", ".join(f"{one} AS c{i}" for i, one in enumerate(some))
            result = environment.execute_sql(f"SELECT `row`, {group} FROM edges")
            found = sorted(([*row] for row in result.collect()), key=lambda row: row[0])
            values += [
                [bytes(value) if isinstance(value, bytearray) else value for value in column]
                for column in zip(*found, strict=True)
            ][1:]
        return values

    return run
