"""DuckDB as it is opened here: bounded, interruptible, and missing where it is not installed."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from paimon_features.core.errors import ConfigurationError, JobError, MissingExtraError
from paimon_features.lake.duckdb_engine import DuckDBEngine
from tests.os_processes import interrupted

FOR_EVER = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(1000000) b"


def test_ctrl_c_ends_a_statement_at_once() -> None:
    with DuckDBEngine() as engine:
        for run in (
            lambda: list(engine.stream(FOR_EVER, 10, "x")),
            lambda: engine.table(FOR_EVER, "x"),
        ):
            with pytest.raises(KeyboardInterrupt):
                interrupted(run, 0.2)
        assert engine.table("SELECT 1 AS one", "x").to_pylist() == [{"one": 1}]


def test_a_stream_that_is_left_early_leaves_nothing_behind() -> None:
    with DuckDBEngine() as engine:
        stream = engine.stream("SELECT range AS n FROM range(5000000)", 1000, "x")
        assert next(stream).num_rows > 0
        stream.close()  # type: ignore[attr-defined]
        assert "duckdb" not in {thread.name for thread in threading.enumerate()}
        found = pa.Table.from_batches(engine.stream("SELECT range AS n FROM range(3)", 2, "x"))
        assert sorted(found.column("n").to_pylist()) == [0, 1, 2]


def size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:  # DuckDB has just deleted it
        return 0


def test_what_does_not_fit_into_memory_is_spilled_and_gone_at_the_end(tmp_path: Path) -> None:
    with DuckDBEngine(memory="60MB", threads=1, folder=tmp_path) as engine:
        statement = "SELECT range AS n, range % 9 AS m FROM range(6000000) ORDER BY m, n DESC"
        most, rows = 0, 0
        for batch in engine.stream(statement, 100_000, "x"):
            rows += batch.num_rows
            most = max(most, sum(map(size, tmp_path.rglob("*"))))
        assert rows == 6_000_000
        assert most > 0
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_duckdb_says_what_it_was_for() -> None:
    with DuckDBEngine() as engine, pytest.raises(JobError, match=r"backfill of x: .*nowhere"):
        list(engine.stream("SELECT * FROM nowhere", 10, "backfill of x"))


def test_a_memory_limit_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="memory='lots'"):
        DuckDBEngine(memory="lots")


def test_without_duckdb_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'paimon-features\[local\]'"):
        DuckDBEngine()
