"""A process that reads a file may die, or need too much: the error names the file."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest

from paimon_features.core.errors import ConfigurationError, RequestError
from paimon_features.ingest.inputs.reading_process import ReadingLimits, progressed, read_apart

PATH = Path("events.parquet")


def items(*values: Any) -> Iterator[Any]:
    for value in values:
        progressed(2)
        yield value


def death(number: int) -> Iterator[int]:
    yield os.getpid()
    os.kill(os.getpid(), number)


def failure(message: str) -> Iterator[int]:
    yield 1
    raise RequestError(message)


def endless() -> Iterator[int]:
    yield 1
    while True:
        pass


def large(size: int, path: Path) -> Iterator[int]:
    yield len(pa.py_buffer(pa.array(range(10)).buffers()[1]))
    yield len(pa.allocate_buffer(size).to_pybytes())


def test_items_and_progress_arrive_in_order() -> None:
    rows: list[int] = []
    given = (1, pa.table({"x": [1]}), MappingProxyType({"a": 1}))
    assert tuple(read_apart(PATH, items, *given, on_rows=rows.append)) == given
    assert rows == [2, 2, 2]


def test_who_takes_enough_ends_the_process() -> None:
    parts = read_apart(PATH, death, signal.SIGSTOP)
    pid = next(parts)
    parts.close()  # type: ignore[attr-defined]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_death_is_an_error_that_names_the_file(number: int) -> None:
    name = signal.Signals(number).name
    with pytest.raises(ConfigurationError, match=rf"^events\.parquet: .* with signal {name}"):
        list(read_apart(PATH, death, number))


def test_errors_of_the_function_are_its_own() -> None:
    with pytest.raises(RequestError, match=r"^two$"):
        list(read_apart(PATH, failure, "two"))


def test_a_part_that_never_ends_is_an_error() -> None:
    limits = ReadingLimits(step_s=1)
    with pytest.raises(ConfigurationError, match=r"^events\.parquet: .* 1 s of processor time"):
        list(read_apart(PATH, endless, limits=limits))


def test_more_memory_than_allowed_is_an_error() -> None:
    limits = ReadingLimits(memory_bytes=1 << 30)
    with pytest.raises(ConfigurationError, match=r"^events\.parquet: .* 1 GiB of memory"):
        list(read_apart(PATH, large, 8 << 30, PATH, limits=limits))
