"""`init` and `ingest` of files that used to change values: each row is exact, or it is counted."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paimon_features.core.configuration.input_settings import InputSettings
from paimon_features.core.errors import ConfigurationError, JobError
from paimon_features.core.types.schema import Date, Float64, Int64, String
from paimon_features.definitions import EventSource
from paimon_features.ingest.inputs.iceberg import newest_metadata
from paimon_features.ingest.inputs.profiles import InputProfile, profile_input
from paimon_features.ingest.local.files import ingest_files
from paimon_features.lake import latest_snapshot
from paimon_features.project.first_steps.trial import read_events
from tests.flink.ingest.click_source import CLICKS, new_lake
from tests.long_cases import quick_cases

pytest.importorskip("duckdb")
TIME = "2024-03-01T10:00:00Z"
TIME_MS = 1_709_287_200_000


@dataclass
class Read:
    """What `init` proposes for a file, and what `ingest` then reads from it."""

    profile: InputProfile
    rows: list[dict[str, Any]]
    rejected: dict[str, int]

    @property
    def kinds(self) -> dict[str, str | None]:
        return {c.field: None if c.type is None else repr(c.type) for c in self.profile.columns}

    @property
    def settings(self) -> dict[str, Any]:
        return self.profile.settings.to_document()

    @property
    def keys(self) -> list[str]:
        return [c.field for c in self.profile.of_role("key")]


def read(path: Path, **options: Any) -> Read:
    profile = profile_input(path, InputSettings(), set(), **options)
    schema = {c.name: c.type for c in profile.columns if c.type is not None}
    source = EventSource("events", schema=schema, event_time=profile.event_time.name)
    found = read_events(path, source, profile.settings, profile.settings.columns)
    rows = found.events.sort_by(profile.event_time.name).to_pylist()
    return Read(profile, rows, dict(found.rejected))


def csv(path: Path, head: str, row: Callable[[int], str], count: int = 60) -> Path:
    path.write_text("\n".join([head, *map(row, range(count)), ""]), "utf-8")
    return path


def at(n: int) -> str:
    return f"2024-03-01T10:{n // 60 % 60:02d}:{n % 60:02d}Z"


def days(first: str, later: str, change: int) -> Callable[[int], str]:
    def written(n: int) -> str:
        day = dt.date(2020, 1, 1) + dt.timedelta(days=n)
        return day.strftime(first if n < change else later)

    return written


# -- settings of columns


def test_seconds_and_days_of_another_column_have_settings_of_their_own(tmp_path: Path) -> None:
    path = csv(
        tmp_path / "a.csv", "user_id,ts,signup",
        lambda n: f"{n % 3},{1_600_000_000 + n},{n % 28 + 1:02d}/03/2019",
    )  # fmt: skip
    found = read(path)
    assert found.settings == {
        "time_unit": "s", "by_column": {"signup": {"time_format": ["%d/%m/%Y"]}},
    }  # fmt: skip
    assert found.rows[0] == {
        "user_id": 0, "ts": 1_600_000_000_000, "signup": dt.date(2019, 3, 1),
    }  # fmt: skip


def test_two_columns_have_days_in_two_orders(tmp_path: Path) -> None:
    def row(n: int) -> str:
        day = dt.date(2020, 1, 1) + dt.timedelta(days=n)
        return f"{n % 9},{day:%d/%m/%Y},{day:%m/%d/%Y}"

    found = read(csv(tmp_path / "a.csv", "user_id,ordered,shipped", row, 300))
    assert len(found.rows) == 300
    epoch = dt.date(1970, 1, 1)
    assert {epoch + dt.timedelta(milliseconds=r["ordered"]) for r in found.rows} == {
        r["shipped"] for r in found.rows
    }


def test_null_texts_and_decimal_commas_are_those_of_one_column(tmp_path: Path) -> None:
    path = csv(
        tmp_path / "a.csv", "user_id;at;n;country;old;new",
        lambda n: f"{n % 3};{at(n)};{n if n % 7 else 'NA'};{'NA' if n % 5 else 'DE'};{n},5;{n}.25",
    )  # fmt: skip
    found = read(path)
    own = found.settings["by_column"]
    assert own["n"] == {"nulls": ["NA"]}
    assert {c.field for c in found.profile.columns if "nulls" in own.get(c.name, {})} == {"n"}
    row = found.rows[7]
    assert row == {
        "user_id": 1, "at": TIME_MS + 7_000, "n": None, "country": "NA", "old": 7.5, "new": 7.25,
    }  # fmt: skip
    assert found.rejected == {}


def test_columns_whose_names_differ_in_case_and_blanks_keep_their_values(tmp_path: Path) -> None:
    path = csv(
        tmp_path / "a.csv", "User ID,user_id,at,Amount,amount",
        lambda n: f"{n % 3},{100 + n},{at(n)},{n}.5,{n}.25",
    )  # fmt: skip
    found = read(path)
    names = {c.field: c.name for c in found.profile.columns}
    row = found.rows[4]
    stored = {field: row[name] for field, name in names.items()}
    assert stored == {
        "User ID": 1, "user_id": 104, "at": TIME_MS + 4_000, "Amount": 4.5, "amount": 4.25,
    }  # fmt: skip


def test_a_column_that_is_read_as_two_types_is_refused(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", "at", lambda n: f"{n % 28 + 1}.03.2024 10:00")
    schema = {"at": Int64, "day": Date}
    source = EventSource("events", schema=schema, event_time="at")
    given = {"time_format": ["%d.%m.%Y %H:%M"], "columns": {"day": "at"}}
    settings = InputSettings.of("events", given)
    with pytest.raises(ConfigurationError, match="'at' and 'day' are both read from 'at'"):
        read_events(path, source, settings, settings.columns)


# -- order of day and month


def test_the_order_of_day_and_month_is_that_of_all_rows(tmp_path: Path) -> None:
    # the first 300 rows could be either, and ascend as days and months
    def row(n: int) -> str:
        day, month = (n // 25 + 1, n // 25 + 1) if n < 300 else (n % 28 + 1, n % 12 + 1)
        return f"{n % 9},{month:02d}/{day:02d}/2020"

    found = read(csv(tmp_path / "a.csv", "user_id,at", row, 4_000))
    assert found.settings == {"time_format": ["%m/%d/%Y"]}
    assert (len(found.rows), found.rejected) == (4_000, {})


def test_of_two_orders_in_a_column_only_certain_days_are_read(tmp_path: Path) -> None:
    written = days("%d/%m/%Y", "%m/%d/%Y", 500)
    path = csv(tmp_path / "a.csv", "n,at", lambda n: f"{n},{written(n)}", 1_000)
    found = read(path, sample_rows=500)
    assert found.settings == {"time_format": ["%d/%m/%Y"]}
    first = dt.datetime(2020, 1, 1)
    for row in found.rows:
        day = first + dt.timedelta(days=row["n"])
        assert row["at"] == (day - dt.datetime(1970, 1, 1)) // dt.timedelta(milliseconds=1)
    assert found.rejected == {"wrong_type": 1_000 - len(found.rows)}
    # 13 to 31, and days like 05/05, of the first 500
    assert 300 < len(found.rows) < 500


def test_formats_that_are_given_in_the_wrong_order_are_those_that_the_texts_show(
    tmp_path: Path,
) -> None:
    written = days("%m/%d/%Y", "%m/%d/%Y", 0)
    path = csv(tmp_path / "a.csv", "n,at", lambda n: f"{n},{written(n)}", 300)
    source = EventSource("events", schema={"n": Int64, "at": Int64}, event_time="at")
    settings = InputSettings.of("events", {"time_format": ["%d/%m/%Y", "%m/%d/%Y"]})
    found = read_events(path, source, settings, {})
    assert (found.events.num_rows, found.rejected) == (300, {})
    day_ms = 86_400_000
    assert found.events.sort_by("n").column("at").to_pylist() == [
        (18_262 + n) * day_ms for n in range(300)
    ]


# -- text that another setting would read


@pytest.mark.parametrize(
    ("settings", "good", "bad"),
    [
        ({"decimal": ","}, {"1,5": 1.5, "7": 7.0}, ["1.5", "1.234"]),
        ({"decimal": ",", "thousands": "."}, {"1.234,5": 1234.5}, ["1.5", "1.23,4"]),
        ({"thousands": ","}, {"1,234": 1234.0, "5.5": 5.5}, ["1,5", "12,34"]),
    ],
)
def test_a_number_that_is_written_in_another_way_is_rejected(
    tmp_path: Path, settings: dict[str, str], good: dict[str, float], bad: list[str]
) -> None:
    texts = [*good, *bad]
    path = csv(tmp_path / "a.csv", "x;at", lambda n: f"{texts[n]};{at(n)}", len(texts))
    source = EventSource("events", schema={"x": Float64, "at": Int64}, event_time="at")
    given = InputSettings.of("events", {"delimiter": ";", **settings})
    found = read_events(path, source, given, {})
    assert found.events.sort_by("at").column("x").to_pylist() == list(good.values())
    assert found.rejected == {"wrong_type": len(bad)}


def test_a_number_among_times_of_a_format_is_rejected(tmp_path: Path) -> None:
    texts = ["01.03.2024", "20240301", "1709287200", "2024-03-01", "1.3.2024 "]
    path = csv(tmp_path / "a.csv", "n,at", lambda n: f"{n},{texts[n]}", len(texts))
    source = EventSource("events", schema={"n": Int64, "at": Int64}, event_time="at")
    given = InputSettings.of("events", {"time_format": ["%d.%m.%Y"]})
    found = read_events(path, source, given, {})
    assert sorted(found.events.column("n").to_pylist()) == [0, 3, 4]
    assert found.rejected == {"wrong_type": 2}
    assert "expected times like '%d.%m.%Y'" in found.examples["wrong_type"]


@pytest.mark.parametrize(
    ("unit", "texts", "expected"),
    [
        ("s", ["1.9999999", "-0.0001", "1600000000"], [1_999, -1, 1_600_000_000_000]),
        ("us", ["1999.5", "-1", "1600000000000000"], [1, -1, 1_600_000_000_000]),
        ("ns", ["1999999.9", "-1", "1600000000000000000"], [1, -1, 1_600_000_000_000]),
    ],
)
def test_fractions_of_units_are_rounded_down_exactly(
    tmp_path: Path, unit: str, texts: list[str], expected: list[int]
) -> None:
    path = csv(tmp_path / "a.csv", "n,at", lambda n: f"{n},{texts[n]}", len(texts))
    source = EventSource("events", schema={"n": Int64, "at": Int64}, event_time="at")
    found = read_events(path, source, InputSettings.of("events", {"time_unit": unit}), {})
    assert found.events.sort_by("n").column("at").to_pylist() == expected


def test_a_day_of_a_format_has_no_zone_and_no_time(tmp_path: Path) -> None:
    texts = ["01.03.2024", "02.03.2024 10:00"]
    path = csv(tmp_path / "a.csv", "day,at", lambda n: f"{texts[n]},{1_600_000_000_000 + n}", 2)
    source = EventSource("events", schema={"day": Date, "at": Int64}, event_time="at")
    given = {"time_format": ["%d.%m.%Y", "%d.%m.%Y %H:%M"], "time_zone": "Europe/Berlin"}
    found = read_events(path, source, InputSettings.of("events", given), {})
    assert found.events.column("day").to_pylist() == [dt.date(2024, 3, 1)]
    assert found.rejected == {"wrong_type": 1}


def test_times_with_fractions_and_without_are_of_the_zone(tmp_path: Path) -> None:
    texts = ["2024-03-01 10:00:00.123456789", "2024-03-01T10:00", "2024-03-01T10:00:00+00:00"]
    path = csv(tmp_path / "a.csv", "n,at", lambda n: f"{n},{texts[n]}", len(texts))
    source = EventSource("events", schema={"n": Int64, "at": Int64}, event_time="at")
    given = InputSettings.of("events", {"time_zone": "Europe/Berlin"})
    found = read_events(path, source, given, {})
    hour = 3_600_000
    expected = [TIME_MS - hour + 123, TIME_MS - hour, TIME_MS]
    assert found.events.sort_by("n").column("at").to_pylist() == expected


# -- types


@pytest.mark.parametrize(
    "time",
    [
        lambda n: f"2024-03-01T10:00:{n % 60:02d}+00:00",
        lambda n: f"2024-03-01 10:00:{n % 60:02d}" + (".5" if n % 2 else ""),
        lambda n: f"2024-03-01 10:00:00.123456{n:03d}",
        lambda n: f"2024-03-01t10:00:{n % 60:02d}.5z",
        lambda n: f"{n % 31 + 1:02d}.12.2019",
        lambda n: f"{n % 28 + 1:02d}/03/2024 10:00:00" + (".25" if n % 2 else ""),
        lambda n: f"2024-03-01 10:00:{n % 60:02d},123",
        lambda n: "TBD" if n < 2 else f"{n % 28 + 1:02d}/{n % 9 + 1:02d}/2024 10:00",
    ],
)
@pytest.mark.parametrize("name", quick_cases(["a.csv", "a.jsonl"], "a.csv"))
def test_times_as_programs_write_them_are_times(
    tmp_path: Path, time: Callable[[int], str], name: str
) -> None:
    if name == "a.csv":
        csv(tmp_path / name, "user_id;at", lambda n: f"{n % 3};{time(n)}", 600)
    else:
        rows = [json.dumps({"user_id": n % 3, "at": time(n)}) for n in range(600)]
        (tmp_path / name).write_text("\n".join(rows))
    found = read(tmp_path / name)
    assert found.profile.event_time.field == "at"
    assert len(found.rows) == 600 - (time(0) == "TBD") * 2
    assert len(found.rows) + sum(found.rejected.values()) == 600


def test_integers_of_many_digits_are_different_entities(tmp_path: Path) -> None:
    first = 12_345_678_901_234_567_890
    path = csv(tmp_path / "a.csv", "account,at", lambda n: f"{first + n % 5},{at(n)}")
    found = read(path)
    assert (found.kinds["account"], found.keys) == ("String", ["account"])
    assert {row["account"] for row in found.rows} == {str(first + n) for n in range(5)}


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (pa.decimal128(38, 0), [Decimal(10**20 + n) for n in range(60)], "String"),
        (pa.decimal128(38, 0), [Decimal(n) for n in range(60)], "Int64"),
        (pa.decimal128(38, 4), [Decimal(10**20 + n) / 4 for n in range(60)], "Decimal(38, 4)"),
        (pa.uint64(), [2**63 + n for n in range(60)], "String"),
        (pa.uint64(), list(range(60)), "Int64"),
        (pa.float64(), [float(n) for n in range(60)], "Int64"),
    ],
)
def test_numbers_of_parquet_keep_all_digits(
    tmp_path: Path, kind: pa.DataType, values: list[Any], expected: str
) -> None:
    columns = {"user_id": pa.array(values, kind), "at": [TIME_MS + n for n in range(60)]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    found = read(tmp_path / "a.parquet")
    assert (found.kinds["user_id"], found.rejected) == (expected, {})
    stored = [row["user_id"] for row in found.rows]
    assert [Decimal(value) for value in stored] == [Decimal(value) for value in values]


def test_integers_of_pandas_are_keys(tmp_path: Path) -> None:
    found = read(csv(tmp_path / "a.csv", "customer_id,at", lambda n: f"{n % 5}.0,{at(n)}"))
    assert (found.kinds["customer_id"], found.keys) == ("Int64", ["customer_id"])
    assert {row["customer_id"] for row in found.rows} == {0, 1, 2, 3, 4}


def test_quoted_commas_between_thousands_are_no_decimal_commas(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", "user_id,at,n", lambda n: f'{n % 3},{at(n)},"{n % 9 + 1},234"')
    found = read(path)
    assert (found.kinds["n"], found.settings) == ("Int64", {"thousands": ","})
    assert "'1,234' is read as 1234" in " ".join(found.profile.notes)
    assert found.rows[0]["n"] == 1_234


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_keys_of_json_have_no_type_from_the_first_rows(tmp_path: Path, name: str) -> None:
    rows = [
        {"user_id": n % 3, "at": at(n), "price": 10 if n < 1_000 else 9.75} for n in range(1_100)
    ]
    rows.append({"user_id": 1, "at": at(0), "price": 5, "late": 2**70})
    lines = "\n".join(map(json.dumps, rows))
    (tmp_path / name).write_text(json.dumps(rows) if name == "a.json" else lines)
    found = read(tmp_path / name)
    assert {row["price"] for row in found.rows} == {10, 9.75, 5}
    assert {row["late"] for row in found.rows} == {None, str(2**70)}
    assert found.rejected == {}


def test_a_broken_line_of_json_is_counted(tmp_path: Path) -> None:
    lines = [json.dumps({"user_id": n % 3, "t": 1_600_000_000 + n}) for n in range(60)]
    lines[30] = lines[30][:-5]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    found = read(tmp_path / "a.jsonl")
    assert (len(found.rows), found.rejected) == (59, {"unreadable": 1})


def test_avro_values_have_the_types_of_the_schema(tmp_path: Path) -> None:
    fastavro = pytest.importorskip("fastavro")
    uuid = {"type": "string", "logicalType": "uuid"}
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 4}
    kinds = {
        "user_id": "long", "ts": {"type": "long", "logicalType": "timestamp-micros"},
        "price": ["null", "long", "double"], "u": uuid, "exact": decimal,
        "tags": {"type": "array", "items": "string"},
    }  # fmt: skip
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    schema = fastavro.parse_schema({"type": "record", "name": "r", "fields": fields})
    moment = dt.datetime(2024, 3, 1, 10, tzinfo=dt.UTC)
    rows: list[dict[str, Any]] = [
        {
            "user_id": n % 3, "ts": moment + dt.timedelta(seconds=n), "tags": [],
            "price": n if n < 10_000 else 9.75, "u": f"00000000-0000-0000-0000-{n:012d}",
            "exact": Decimal(10**20 + n) / 10**4,
        }
        for n in range(10_050)
    ]  # fmt: skip
    with (tmp_path / "a.avro").open("wb") as file:
        fastavro.writer(file, schema, rows)
    found = read(tmp_path / "a.avro", sample_rows=1_000)
    assert found.kinds["exact"] == "Decimal(30, 4)"
    assert found.kinds["tags"] is None
    assert len(found.rows) + sum(found.rejected.values()) == len(rows)
    prices = {row["price"] for row in found.rows[10_000:]}
    assert prices <= {9.75}
    assert [row["exact"] for row in found.rows[:3]] == [row["exact"] for row in rows[:3]]


# -- lines


def test_an_apostrophe_is_no_quote(tmp_path: Path) -> None:
    places = ["Den Haag", "'s-Gravenhage", "Utrecht", "'s-Hertogenbosch"]
    path = csv(
        tmp_path / "a.csv", "customer_id,at,city", lambda n: f"{n % 5},{at(n)},{places[n % 4]}"
    )
    found = read(path)
    assert found.settings == {}
    assert [row["city"] for row in found.rows] == [places[n % 4] for n in range(60)]


def test_escaped_quotes_are_read_as_such(tmp_path: Path) -> None:
    path = csv(
        tmp_path / "a.csv", "user_id,at,note", lambda n: rf'{n % 3},{at(n)},"say \"hi, {n}\" x\\"'
    )
    found = read(path)
    assert found.settings == {"escape": "\\"}
    assert found.rows[3]["note"] == 'say "hi, 3" x\\'


def test_rows_of_another_width_are_counted_and_not_skipped(tmp_path: Path) -> None:
    path = csv(
        tmp_path / "a.csv", "user_id,at,n",
        lambda n: f"{n % 3},{at(n)},{n}" + (",x" if n >= 100 else ""), 1_100,
    )  # fmt: skip
    found = read(path)
    assert (len(found.rows), found.rejected) == (100, {"too_many_columns": 1_000})
    notes = " ".join(found.profile.notes)
    assert "ingest rejects 1,000 of these 1,100 rows: too_many_columns" in notes
    assert "--input skip=101" in notes


def test_rows_that_are_wider_than_the_header_are_explained(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", "user_id,ts,v", lambda n: f"{n % 3},{at(n)},{n},")
    with pytest.raises(
        ConfigurationError, match="none of the 60 rows .* expected 3 columns, got 4"
    ):
        read(path)


def test_a_quote_that_is_not_closed_takes_no_other_row_with_it(tmp_path: Path) -> None:
    notes = {5: '"open', 9: '"two\nlines"', 20: '"a ""quoted"" one"', 40: 'end"'}
    path = csv(
        tmp_path / "a.csv", "user_id;at;note",
        lambda n: f"{n % 3};{at(n)};{notes.get(n, 'plain')}",
    )  # fmt: skip
    schema = {"user_id": Int64, "at": Int64, "note": String}
    source = EventSource("events", schema=schema, event_time="at")
    settings = InputSettings.of("events", {"delimiter": ";", "line_breaks": True})
    found = read_events(path, source, settings, {})
    assert found.rejected == {"unreadable": 1}
    rows = {row["at"]: row["note"] for row in found.events.to_pylist()}
    assert len(rows) == 59
    assert rows[TIME_MS + 9_000] == "two\nlines"
    assert rows[TIME_MS + 20_000] == 'a "quoted" one'
    assert rows[TIME_MS + 40_000] == 'end"'


def test_rows_within_quotes_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f'a;at;b\n1;{at(1)};"x\n2;{at(2)};y\n3;{at(3)};"\n4;{at(4)};z\n')
    schema = {"a": Int64, "at": Int64, "b": String}
    source = EventSource("events", schema=schema, event_time="at")
    settings = InputSettings.of("events", {"delimiter": ";", "line_breaks": True})
    found = read_events(path, source, settings, {})
    assert found.events.column("a").to_pylist() == [4]
    assert found.rejected == {"unreadable": 3}


@pytest.mark.parametrize("block", [7, 50, 1 << 20])
def test_records_are_the_same_whatever_the_size_of_blocks(
    tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paimon_features.ingest.inputs import csv_rows

    monkeypatch.setattr(csv_rows, "BLOCK_BYTES", block)
    notes = ["plain", '"two\r\n\r\nlines, Zoë"', '""', "", '"a;b"', '"""q"""']
    path = csv(tmp_path / "a.csv", "n;at;note", lambda n: f"{n};{at(n)};{notes[n % 6]}", 30)
    path.write_bytes(path.read_bytes().decode().encode("utf-16"))
    schema = {"n": Int64, "at": Int64, "note": String}
    source = EventSource("events", schema=schema, event_time="at")
    given = {"delimiter": ";", "line_breaks": True, "encoding": "utf-16"}
    found = read_events(path, source, InputSettings.of("events", given), {})
    stored = found.events.sort_by("n").column("note").to_pylist()
    assert stored == ["plain", "two\r\n\r\nlines, Zoë", "", None, "a;b", '"q"'] * 5


def test_lines_that_end_with_returns_are_lines(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", "user_id,at,v", lambda n: f"{n % 3},{at(n)},{n}")
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r"))
    assert len(read(path).rows) == 60


def test_a_character_that_is_none_of_the_encoding_rejects_its_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"a,at\nK\xf6ln,1600000000000\n\x81,1600000000000\n")
    source = EventSource("events", schema={"a": String, "at": Int64}, event_time="at")
    found = read_events(path, source, InputSettings.of("events", {"encoding": "cp1252"}), {})
    assert found.events.column("a").to_pylist() == ["Köln"]
    assert found.rejected == {"unreadable": 1}


# -- damaged and versioned files


def test_a_parquet_file_with_a_flipped_byte_is_an_error_or_harmless(tmp_path: Path) -> None:
    rows = {
        "id": range(60),
        "page": ["p"] * 60,
        "at_ms": [1_600_000_000_000 + n for n in range(60)],
    }
    good = tmp_path / "good.parquet"
    pq.write_table(pa.table(rows), good)
    bad = tmp_path / "bad.parquet"
    damaged = []
    for place in range(4, 400, 3):
        data = bytearray(good.read_bytes())
        data[place] ^= 0xFF
        bad.write_bytes(data)
        try:
            found = read_events(bad, CLICKS, InputSettings(), {})
        except (ConfigurationError, JobError):
            damaged.append(place)
            continue
        assert found.events.num_rows + sum(found.rejected.values()) == 60, place
    assert damaged
    lake = new_lake(tmp_path)
    data = bytearray(good.read_bytes())
    data[damaged[-1]] ^= 0xFF
    bad.write_bytes(data)
    with pytest.raises((ConfigurationError, JobError), match=r"bad\.parquet"):
        ingest_files(lake, CLICKS, [bad], state_dir=tmp_path / "state")
    assert latest_snapshot(lake, CLICKS.table) is None


def test_the_last_version_of_an_iceberg_table_is_by_number(tmp_path: Path) -> None:
    folder = tmp_path / "metadata"
    folder.mkdir()
    for number in (1, 2, 9, 10):
        (folder / f"v{number}.metadata.json").write_text("{}")
    assert newest_metadata(tmp_path).name == "v10.metadata.json"
    for name, updated in (("00011-bb", 5), ("00011-aa", 7)):
        (folder / f"{name}.metadata.json").write_text(json.dumps({"last-updated-ms": updated}))
    assert newest_metadata(tmp_path).name == "00011-aa.metadata.json"
