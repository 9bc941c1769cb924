"""Wide tables: a write visits each column a constant number of times."""

from __future__ import annotations

import dis
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any

import pyarrow as pa
import pytest

from paimon_features.core.types.schema import DataType, Int64
from paimon_features.definitions.source import EventSource
from paimon_features.lake.catalog import Lake
from paimon_features.lake.specs import TableSpec, events_spec
from paimon_features.lake.writing.table_writer import EventWriter, append_arrow

LISTS = ("column_names", "names", "schema", "itercolumns", "to_pylist")
"""What visits every column of a table, a batch or a schema when it is read."""
NARROW, WIDE = 100, 400


@cache
def _listing(code: CodeType) -> dict[int, str]:
    """The instructions of a function that read one of ``LISTS``, by their offset."""
    return {
        one.offset: one.argval
        for one in dis.get_instructions(code)
        if one.opname in ("LOAD_ATTR", "LOAD_METHOD") and one.argval in LISTS
    }


def listings(call: Callable[[], object]) -> Counter[str]:
    """How often our code lists all columns during a call, by function and attribute."""
    found: Counter[str] = Counter()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if event == "call":
            if "/paimon_features/" not in code.co_filename or not _listing(code):
                return None
            frame.f_trace_opcodes = True
        elif event == "opcode" and (name := _listing(code).get(frame.f_lasti)) is not None:
            found[f"{code.co_qualname}: .{name}"] += 1
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(previous)
    return found


def calls(call: Callable[[], object]) -> int:
    """The number of calls of Python and C functions during a call."""
    count = 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    previous = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(previous)
    return count


def columns(number: int) -> dict[str, DataType]:
    return {f"c{i:03}": Int64 for i in range(number)}


def append(lake: Lake, number: int) -> Callable[[], object]:
    name = f"t{number}"
    lake.create(TableSpec(name, columns(number)))
    rows = pa.table({column: [1, 2] for column in columns(number)})
    return lambda: append_arrow(lake, name, rows)


def write(lake: Lake, number: int) -> Callable[[], object]:
    schema = {**columns(number), "t": Int64}
    source = EventSource(f"wide{number}", schema, event_time="t")
    lake.create(events_spec(source.table, schema))
    rows = pa.table({column: [1, 2] for column in schema})
    writer = EventWriter.of(lake, source, lambda: 10)
    return lambda: writer.write(rows)


@pytest.mark.parametrize("entrance", [append, write])
def test_all_columns_are_listed_as_often_for_many_as_for_few(
    lake: Lake, entrance: Callable[[Lake, int], Callable[[], object]]
) -> None:
    entrance(lake, 2)()  # imports and caches
    few, many = listings(entrance(lake, NARROW)), listings(entrance(lake, WIDE))
    assert few
    assert many == few


@pytest.mark.parametrize("entrance", [append, write])
def test_calls_grow_with_the_columns_and_not_with_their_square(
    lake: Lake, entrance: Callable[[Lake, int], Callable[[], object]]
) -> None:
    entrance(lake, 2)()
    few, many = calls(entrance(lake, NARROW)), calls(entrance(lake, WIDE))
    assert many / few < 1.2 * WIDE / NARROW
