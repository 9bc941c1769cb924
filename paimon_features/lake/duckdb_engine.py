"""DuckDB, opened as this package needs it: the only module that imports it."""

from __future__ import annotations

import json
import queue
import tempfile
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from paimon_features.core.errors import (
    ConfigurationError,
    JobError,
    MissingExtraError,
    RequestError,
)
from paimon_features.core.expressions.nodes import quoted
from paimon_features.core.process.closeable import Closeable

_BATCHES_AHEAD = 2
_TABLE_ROWS = 1_000_000
QUOTE = '"'

SUM_TOO_LARGE = (
    "the sum of an integer partial leaves 64 bits, where the lake would wrap; give its aggregate a "
    "smaller bound="
)


class DuckDBEngine(Closeable):
    """A DuckDB in this process, empty at first; a context manager.

    ``memory`` is what it may use, such as ``"4GB"`` (DuckDB's own default is four fifths of the
    machine's); what does not fit is spilled below ``folder`` (the system's folder for temporary
    files by default) and gone at the end. ``threads`` is one per core by default.

    Raises
    ------
    MissingExtraError
        If DuckDB is not installed.
    ConfigurationError
        For a memory limit that is none.
    """

    def __init__(
        self,
        *,
        memory: str | None = None,
        threads: int | None = None,
        folder: Path | None = None,
    ) -> None:
        duckdb = _duckdb()
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self._spill = tempfile.TemporaryDirectory(prefix="duckdb-", dir=folder)
        settings: dict[str, Any] = {
            "temp_directory": self._spill.name,
            # what has an order says so; else a scan need not wait for its turn
            "preserve_insertion_order": False,
            "autoinstall_known_extensions": False,
            # a name in a statement is a table, never a variable of some caller
            "python_enable_replacements": False,
        }
        if memory is not None:
            settings["memory_limit"] = memory
        if threads is not None:
            settings["threads"] = threads
        try:
            self._connection = duckdb.connect(config=settings)
            # in a notebook without ipywidgets DuckDB has no such bar, and refuses the setting
            with suppress(duckdb.InvalidInputException):
                # a separate line on the terminal would appear between ours
                self._connection.execute("SET enable_progress_bar = false")
        except duckdb.Error as error:
            self._spill.cleanup()
            raise ConfigurationError(
                f"DuckDB does not start with memory={memory!r}, threads={threads!r}: {error}"
            ) from error

    def close(self) -> None:
        """Forget everything, also what was spilled; harmless to repeat."""
        self._connection.close()
        self._spill.cleanup()

    def add(self, name: str, rows: pa.Table) -> None:
        """Let statements read an Arrow table under this name."""
        self._connection.register(name, rows)

    def load(self, name: str, rows: pa.RecordBatchReader) -> None:
        """Copy a stream into a table of that name, which may be larger than memory."""
        with _reported("loading events"):
            self._connection.register("__stream", rows)
            try:
                self._connection.execute(
                    f'CREATE OR REPLACE TEMP TABLE "{name}" AS SELECT * FROM "__stream"'
                )
            finally:
                self._connection.unregister("__stream")

    def remove(self, name: str) -> None:
        """Forget what ``add`` gave this name."""
        self._connection.unregister(name)

    def add_files(self, name: str, paths: Sequence[str]) -> None:
        """Let statements read Parquet files under this name, lazily; see ``confine``."""
        listed = ", ".join(quoted(path, "'") for path in paths)
        # partition folders are not columns: the files contain them
        rows = f"SELECT * FROM read_parquet([{listed}], hive_partitioning = false)"
        self._connection.execute(f"CREATE VIEW {quoted(name, QUOTE)} AS {rows}")

    def confine(self, paths: Sequence[str]) -> None:
        """Restrict later statements: they read only these files, write none, change no setting."""
        listed = ", ".join(quoted(path, "'") for path in paths)
        self._connection.execute(f"SET allowed_paths = [{listed}]")
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")

    def syntax_tree(self, statement: str) -> dict[str, Any]:
        """Return a query as DuckDB parses it; with ``error`` and ``error_message`` where it cannot,
        or where it is something else than queries."""
        [row] = self._connection.execute("SELECT json_serialize_sql(?)", [statement]).fetchall()
        tree: dict[str, Any] = json.loads(row[0])
        return tree

    def plan_text(self, statement: str, parameters: Any = None) -> str:
        """Return the optimized plan of a query, as text.

        Raises
        ------
        RequestError
            For a query that cannot be: unknown names, wrong types.
        """
        duckdb = _duckdb()
        try:
            rows = self._connection.execute(f"EXPLAIN (FORMAT json) {statement}", parameters)
            return "\n".join(str(row[1]) for row in rows.fetchall())
        except duckdb.Error as error:
            # its further lines draw the place in another statement than the user's
            raise RequestError(f"SQL: {str(error).splitlines()[0]}") from error

    def query(
        self, statement: str, parameters: Any, batch_rows: int
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the schema and the rows of a query with parameters; closing the rows ends it."""
        rows = self._run(statement, batch_rows, "SQL", parameters)
        return next(rows), rows

    def stream(self, statement: str, batch_rows: int, what: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a statement, in batches of about this size. One statement at a time.

        Raises
        ------
        JobError
            If DuckDB cannot compute it; ``what`` says what it was for.
        """
        rows = self._run(statement, batch_rows, what)
        try:
            next(rows)
            yield from rows
        finally:
            rows.close()

    def table(self, statement: str, what: str) -> pa.Table:
        """Return all rows of a statement; raises as ``stream`` does."""
        schema, *batches = self._run(statement, _TABLE_ROWS, what)
        return pa.Table.from_batches(batches, schema)

    def _run(
        self, statement: str, batch_rows: int, what: str, parameters: Any = None
    ) -> Generator[Any, None, None]:
        """Yield the schema of the result, then its batches.

        DuckDB works in a thread, so that Ctrl-C ends a statement at once (inside a call of its
        own it may not be heard), and that the next batches are made while one is used.
        """
        ready: queue.Queue[Any] = queue.Queue(_BATCHES_AHEAD)
        left = threading.Event()

        def put(item: Any) -> None:
            while not left.is_set():
                with suppress(queue.Full):
                    ready.put(item, timeout=0.1)
                    return

        def work() -> None:
            try:
                result = self._connection.sql(statement, params=parameters)
                reader = result.to_arrow_reader(batch_rows)
                put(reader.schema)
                for batch in reader:
                    put(batch)
                    if left.is_set():
                        return
                put(None)
            except BaseException as error:
                put(error)

        worker = threading.Thread(target=work, name="duckdb", daemon=True)
        worker.start()
        try:
            while (item := _next(ready)) is not None:
                if isinstance(item, BaseException):
                    with _reported(what):
                        raise item
                yield item
        finally:
            left.set()
            while worker.is_alive():
                # again and again: it may be between two steps, in which nothing is interrupted
                self._connection.interrupt()
                worker.join(0.05)


def _next(ready: queue.Queue[Any]) -> Any:
    """Return the next item.

    Looks up now and then, for a signal may not wake a thread that waits.
    """
    while True:
        with suppress(queue.Empty):
            return ready.get(timeout=0.1)


@contextmanager
def _reported(what: str) -> Iterator[None]:
    """Raise errors of DuckDB as those of this package."""
    duckdb = _duckdb()
    try:
        yield
    except duckdb.InterruptException as error:  # it may be the one to hear of Ctrl-C
        raise KeyboardInterrupt from error
    except (duckdb.Error, pa.ArrowException) as error:
        text = str(error)
        if "INT128" in text:
            text = f"{SUM_TOO_LARGE} ({text.splitlines()[0]})"
        raise JobError(f"{what}: {text}") from error


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise MissingExtraError.of("duckdb", "local", "the local engine") from error
    return duckdb


def identifier(name: str) -> str:
    """Return a DuckDB identifier: always quoted."""
    return quoted(name, '"')


def literal(text: str) -> str:
    """Return a DuckDB string literal."""
    return quoted(text, "'")
