"""Cells: exact conversion of texts and stored values to column types, or rejection."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paimon_features.core.errors import ConfigurationError
from paimon_features.core.expressions.flink_floors import first_day_sql
from paimon_features.core.types.schema import (
    Bool,
    Bytes,
    DataType,
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
from paimon_features.core.windows import DAY_MS, MAX_TIME_MS, MIN_TIME_MS
from paimon_features.flink.environment import open_environment
from paimon_features.ingest.flink.cell_sql import (
    cell_value,
    is_not_finite,
    is_present,
    now_ms_sql,
)
from paimon_features.ingest.flink.scan_sql import once
from paimon_features.ingest.physical import TEXT, Physical, check_readable
from paimon_features.lake.ddl import literal
from tests.flink.ingest.reference_ingest import (
    EPOCH,
    TEXTS,
    Bad,
    stored_float,
    stored_integer,
    value_of,
)

if TYPE_CHECKING:
    from pyflink.table import TableEnvironment

INTEGER, FLOAT = Physical("integer", "BIGINT"), Physical("float", "DOUBLE")
DATE, BOOLEAN, BYTES = (
    Physical("date", "DATE"),
    Physical("boolean", "BOOLEAN"),
    Physical("bytes", "BYTES"),
)
MICROS, NANOS = Physical("timestamp[us]", "BIGINT"), Physical("timestamp[ns]", "BIGINT")
INT96 = Physical("timestamp[int96]", "TIMESTAMP(9)")
PRICE = Decimal(10, 2)
KINDS: tuple[tuple[DataType, bool], ...] = (
    (Int64, False), (Int64, True), (Int32, False), (Float64, False), (Float32, False),
    (PRICE, False), (Decimal(3, 0), False), (Decimal(4, 4), False), (Decimal(38, 10), False),
    (Bool, False), (Date, False), (Timestamp, False), (String, False),
)  # fmt: skip


def test_types_without_conversion_are_rejected_at_once() -> None:
    refused = [
        (TEXT, List(Int64), "EventWriter"),
        (Physical("unsupported", "STRING"), Int64, "convert the column"),
        (TEXT, Bytes, "binary"),
        (BYTES, String, "binary"),
        (MICROS, Date, "Timestamp columns"),
        (INT96, Float64, "Timestamp columns"),
    ]
    for physical, kind, message in refused:
        with pytest.raises(ConfigurationError, match=message) as raised:
            check_readable("amount", physical, kind)
        assert "column 'amount'" in str(raised.value)
    accepted = [(TEXT, k) for k, _ in KINDS] + [(BYTES, Bytes), (MICROS, Int64), (INT96, Timestamp)]
    for physical, kind in accepted:
        check_readable("amount", physical, kind)


def test_values_stored_in_the_type_of_the_column_are_unchanged() -> None:
    assert cell_value("`c`", TEXT, String) == "`c`"
    assert cell_value("`c`", BOOLEAN, Bool) == "`c`"
    assert cell_value("`c`", BYTES, Bytes) == "`c`"
    assert cell_value("`c`", INTEGER, Int64) == "`c`"
    assert cell_value("`c`", Physical("integer", "INT"), Int32) == "`c`"
    assert cell_value("`c`", Physical("integer", "INT"), Int64) == "CAST(`c` AS BIGINT)"


def test_a_stored_day_out_of_range_is_null() -> None:
    within = "`c` BETWEEN DATE '0001-01-01' AND DATE '9999-12-31'"
    assert cell_value("`c`", DATE, Date) == f"CASE WHEN {within} THEN `c` END"


def test_an_empty_text_is_a_string_and_null_in_all_other_types() -> None:
    assert is_present("`c`", TEXT, String) == "`c` IS NOT NULL"
    assert is_present("`c`", TEXT, Int64) == "`c` <> ''"
    assert is_present("`c`", FLOAT, Int64) == "`c` IS NOT NULL"


def test_only_numbers_can_be_infinite() -> None:
    for kind in (String, Bool, Date, Timestamp):
        assert is_not_finite("`c`", TEXT, "`v`", kind) is None
    assert is_not_finite("`c`", INTEGER, "`v`", Float64) is None


# -- against Flink, and the naive reading


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> TableEnvironment:
    return open_environment("batch", 1, state_dir=tmp_path_factory.mktemp("state"))


def rows(env: TableEnvironment, query: str) -> list[list[Any]]:
    with env.execute_sql(query).collect() as found:
        return sorted([*row] for row in found)


def table(env: TableEnvironment, folder: Path, texts: Sequence[str]) -> str:
    """A table of numbered texts (so many VALUES would be planned row by row)."""
    lines = [json.dumps({"n": n, "c": text}) for n, text in enumerate(texts)]
    (folder / "texts.json").write_text("\n".join(lines), "utf-8")
    env.execute_sql("DROP TEMPORARY TABLE IF EXISTS texts")
    env.execute_sql(
        "CREATE TEMPORARY TABLE texts (`n` INT, `c` STRING) WITH ('connector' = 'filesystem', "
        f"'path' = {literal(str(folder / 'texts.json'))}, 'format' = 'json')"
    )
    return "texts"


def computed(
    env: TableEnvironment,
    folder: Path,
    texts: Sequence[str],
    physical: Physical,
    kinds: Sequence[tuple[DataType, bool]],
) -> list[list[str | None]]:
    """For each text, as it is or cast to what is stored, and each kind: the value as text, or the
    reason why it has none."""
    cell = "BTRIM(`c`)" if physical == TEXT else f"CAST(`c` AS {physical.flink})"
    names = [f"`v{n}`" for n in range(len(kinds))]
    taken = ", ".join(
        f"{once(cell_value('`c`' if kind == String else '`b`', physical, kind, is_time))} AS {name}"
        for (kind, is_time), name in zip(kinds, names, strict=True)
    )
    shown = []
    for (kind, _), name in zip(kinds, names, strict=True):
        where = "`c`" if kind == String else "`b`"
        infinite = is_not_finite(where, physical, name, kind)
        present = is_present(where, physical, kind)
        cases = [] if infinite is None else [f"WHEN {present} AND {infinite} THEN 'not_finite'"]
        cases.append(f"WHEN {present} AND {name} IS NULL THEN 'wrong_type'")
        shown.append(f"CASE {' '.join(cases)} ELSE CAST({name} AS STRING) END")
    query = (
        f"SELECT `n`, {', '.join(shown)} FROM (SELECT `n`, `c`, `b`, {taken} FROM "
        f"(SELECT `n`, `c`, {once(cell)} AS `b` FROM {table(env, folder, texts)}))"
    )
    return [row[1:] for row in rows(env, query)]


def as_text(value: Any, kind: DataType) -> Any:
    """Format an expected value like Flink; floats remain floats."""
    if value is None or isinstance(value, Bad):
        return None if value is None else value.reason
    if kind.is_float:
        return float(value)
    if kind == Timestamp:
        return (
            value.strftime(f"{value.year:04d}-%m-%d %H:%M:%S.") + f"{value.microsecond // 1000:03d}"
        )
    return (
        str(value).upper()
        if kind == Bool
        else format(value, "f")
        if kind.is_decimal
        else str(value)
    )


def same(text: str | None, expected: Any, kind: DataType) -> bool:
    if (
        isinstance(expected, float)
        and text is not None
        and text not in ("not_finite", "wrong_type")
    ):
        number = float(np.float32(text)) if kind == Float32 else float(text)
        return number == expected
    return text == expected


@pytest.mark.flink
def test_texts_are_parsed_like_the_reference(env: TableEnvironment, tmp_path: Path) -> None:
    rng = random.Random(4)
    texts = list(TEXTS)
    for text in rng.choices(TEXTS, k=300):  # a typo in a valid text
        at = rng.randrange(len(text) + 1)
        texts.append(text[:at] + rng.choice("0159.-+eE:TZ tfn ") + text[at + rng.randrange(2) :])
    found = computed(env, tmp_path, texts, TEXT, KINDS)
    wrong = []
    for text, cells in zip(texts, found, strict=True):
        for (kind, is_time), cell in zip(KINDS, cells, strict=True):
            expected = as_text(value_of(text, kind, is_time), kind)
            if not same(cell, expected, kind):
                wrong.append((text, kind, is_time, cell, expected))
    assert not wrong, "\n".join(map(str, wrong))
    reasons = {cell for cells in found for cell in cells} & {"not_finite", "wrong_type"}
    assert len(reasons) == 2


@pytest.mark.flink
def test_stored_numbers_keep_their_value_or_are_rejected(
    env: TableEnvironment, tmp_path: Path
) -> None:
    whole = (0, 1, -1, 12, 2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, -(2**62))
    kinds = [(kind, False) for kind in (Int64, Int32, Float64, Float32, PRICE, Decimal(38, 10))]
    found = computed(env, tmp_path, list(map(str, whole)), INTEGER, kinds)
    for number, (kind, cell) in _pairs(whole, kinds, found):
        assert same(cell, as_text(stored_integer(number, kind), kind), kind), (number, kind, cell)

    times = (0, 1, -1, 1_291_191_960_000, -(10**12))
    found = computed(env, tmp_path, list(map(str, times)), INTEGER, [(Timestamp, False)])
    for number, (kind, cell) in _pairs(times, [(Timestamp, False)], found):
        assert cell == as_text(stored_integer(number, kind), kind)

    floats = (
        0.0, 12.0, -3.0, 12.7, 0.1, 0.1 + 0.2, 1.005, 99999999.99, 1e8, 2.0**31, 2.0**63,
        -(2.0**63), 2.0**53, 1e300, 3.5e38, -1e39, math.nan, math.inf, -math.inf, 2.675, 5e-324,
    )  # fmt: skip
    kinds = [(kind, False) for kind in (Int64, Int32, Float64, Float32, PRICE)]
    found = computed(env, tmp_path, list(map(_java, floats)), FLOAT, kinds)
    for value, (kind, cell) in _pairs(floats, kinds, found):
        expected = as_text(stored_float(value, kind), kind)
        assert same(cell, expected, kind), (value, kind, cell, expected)


def _java(value: float) -> str:
    return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(
        value, repr(value).replace("nan", "NaN")
    )


def _pairs(values: Any, kinds: Any, found: Any) -> Iterator[tuple[Any, tuple[DataType, Any]]]:
    for value, cells in zip(values, found, strict=True):
        for (kind, _), cell in zip(kinds, cells, strict=True):
            yield value, (kind, cell)


@pytest.mark.flink
def test_stored_times_are_rounded_down_also_before_1970(
    env: TableEnvironment, tmp_path: Path
) -> None:
    ticks = [0, 1, -1, 999, -999, 1000, -1000, 10**15 + 1, -(10**15) - 1, 999_999, -1_000_001]
    numbers = list(map(str, ticks))
    for physical, per_ms in ((MICROS, 1_000), (NANOS, 1_000_000)):
        found = computed(env, tmp_path, numbers, physical, [(Int64, False), (Timestamp, False)])
        for tick, (plain, stamp) in zip(ticks, found, strict=True):
            assert plain == str(tick // per_ms)
            at = EPOCH + timedelta(milliseconds=tick // per_ms)
            assert stamp == as_text(at, Timestamp)
    old = [datetime(1960, 2, 29, 12, 0, 0, 999_999), datetime(2010, 12, 1, 8, 26)]
    texts = [at.isoformat(" ") for at in old]
    found = computed(env, tmp_path, texts, INT96, [(Int64, False)])
    assert [int(cell or 0) for (cell,) in found] == [
        (at - EPOCH) // timedelta(milliseconds=1) for at in old
    ]
    days = [date(1, 1, 1), date(1969, 12, 31), date(2011, 12, 9)]
    found = computed(env, tmp_path, list(map(str, days)), DATE, [(Int64, True), (Timestamp, False)])
    for day, (plain, stamp) in zip(days, found, strict=True):
        assert plain == str((day - EPOCH.date()).days * DAY_MS)
        assert stamp == f"{day} 00:00:00.000"


@pytest.mark.flink
def test_days_are_rounded_down_and_the_clock_is_in_milliseconds(
    env: TableEnvironment, tmp_path: Path
) -> None:
    times = [0, -1, 1, DAY_MS, DAY_MS - 1, -DAY_MS, -DAY_MS - 1, MIN_TIME_MS, MAX_TIME_MS]
    numbers = (
        f"SELECT `n`, CAST(`c` AS BIGINT) AS `t` FROM {table(env, tmp_path, [*map(str, times)])}"
    )
    found = rows(env, f"SELECT `n`, {first_day_sql('`t`')} FROM ({numbers})")
    assert [day for _, day in found] == [t // DAY_MS for t in times]
    before = time.time_ns() // 1_000_000
    ((clock,),) = rows(env, f"SELECT {now_ms_sql()}")
    assert before - 1_000 <= clock <= time.time_ns() // 1_000_000 + 1_000
