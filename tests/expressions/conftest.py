"""A real Flink that computes many SQL expressions over a few rows."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from paimon_features.expressions.nodes import date_text, time_text
from paimon_features.schema import DataType

Rows = Sequence[Mapping[str, Any]]
RunFlink = Callable[[Mapping[str, DataType], Rows, Sequence[str]], list[list[Any]]]

# In a process of its own: one JVM at a time per process, and PyFlink warns at import. A query of
# too many expressions grows beyond what the JVM compiles well, so they go in groups.
_WORKER = """
import os, pickle, sys
from paimon_features.setup.java import find_java_home
os.environ["JAVA_HOME"] = str(find_java_home())
os.environ["JVM_ARGS"] = "-Xmx1g -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
from pyflink.table import EnvironmentSettings, TableEnvironment
with open(sys.argv[1], "rb") as file:
    table, expressions = pickle.load(file)
environment = TableEnvironment.create(EnvironmentSettings.in_batch_mode())
environment.get_config().set("parallelism.default", "1")
environment.execute_sql(table)
columns = []
for at in range(0, len(expressions), 100):
    group = ", ".join(f"{text} AS c{i}" for i, text in enumerate(expressions[at : at + 100]))
    result = environment.execute_sql(f"SELECT `row`, {group} FROM edges")
    rows = sorted(([*row] for row in result.collect()), key=lambda row: row[0])
    columns += [
        [bytes(value) if isinstance(value, bytearray) else value for value in column]
        for column in zip(*rows)
    ][1:]
with open(sys.argv[1], "wb") as file:
    pickle.dump(columns, file)
"""


def _json(value: Any, kind: DataType) -> Any:
    if value is not None and kind.text == "date":
        return date_text(value)
    if value is not None and kind.text == "timestamp":
        return time_text(value)
    return str(value) if value is not None and kind.is_decimal else value


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
        work = folder / "work.pickle"
        work.write_bytes(pickle.dumps((table, list(texts))))
        done = subprocess.run(
            [sys.executable, "-c", _WORKER, str(work)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
            capture_output=True,
            text=True,
            timeout=280,
        )
        said = [line for line in done.stderr.splitlines() if not line.startswith("\tat ")]
        assert done.returncode == 0, "\n".join(said)[-6000:]
        values: list[list[Any]] = pickle.loads(work.read_bytes())
        return values

    return run
