"""`init --from` on files as people have them: what it finds, what it notes, what it refuses.

What it proposes is tried on the same file: each row must be an event of the proposed source.
"""

from __future__ import annotations

import datetime as dt
import gzip
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from paimon_features.core.types.schema import Int64
from paimon_features.definitions import Definitions, EventSource
from paimon_features.lake import Lake, append_arrow
from paimon_features.project.planning.plan import apply_plan
from tests.commands import invoke as run

pytest.importorskip("duckdb")
COUNT = 60
START_MS = 1_704_067_200_000  # 2024
HOUR_MS = 3_600_000
TIMES = [dt.datetime(2024, 1, 1) + dt.timedelta(hours=n) for n in range(COUNT)]
USERS = [n % 5 for n in range(COUNT)]

Content = bytes | str | pa.Table | Callable[[Path], None]


def csv(head: str, row: Callable[[int], str], count: int = COUNT) -> str:
    return head + "\n" + "".join(f"{row(n)}\n" for n in range(count))


def ms(n: int) -> int:
    return START_MS + n * HOUR_MS


PLAIN = csv("customer_id,time,amount", lambda n: f"{n % 5},{ms(n)},{n}.50")
OBJECTS = [{"user_id": n % 5, "at": ms(n), "x": n} for n in range(COUNT)]


def parquet(**columns: Any) -> pa.Table:
    return pa.table({"customer_id": USERS, **columns})


def write(path: Path, content: Content) -> None:
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        path.write_text(content, "utf-8")
    elif isinstance(content, pa.Table):
        pq.write_table(content, path)
    else:
        content(path)


def stream(path: Path) -> None:
    table = parquet(at=pa.array(TIMES, pa.timestamp("ms")))
    with pyarrow.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)


def first_feather(path: Path) -> None:
    pyarrow.feather.write_feather(parquet(at=[ms(n) for n in range(COUNT)]), str(path), version=1)


def paimon(path: Path) -> None:
    """A table of a warehouse, ``path`` being PATH.db/events_clicks."""
    source = EventSource("clicks", schema={"user_id": Int64, "at": Int64}, event_time="at")
    lake = Lake.open(str(path.parents[1]), path.parent.stem)
    apply_plan(lake, Definitions.of([source]), now_ms=1)
    append_arrow(
        lake, source.table, pa.table({"user_id": USERS, "at": [ms(n) for n in range(COUNT)]})
    )


MIXED = parquet(
    at=pa.array(TIMES, pa.timestamp("us", "Europe/Berlin")),
    shop=pa.array([f"s{n % 4}" for n in range(COUNT)]).dictionary_encode(),
    price=pa.array([Decimal(n) for n in range(COUNT)], pa.decimal128(12, 2)),
    wide=pa.array([Decimal(n) for n in range(COUNT)], pa.decimal256(50, 2)),
    half=pa.array([n / 2 for n in range(COUNT)], pa.float32()).cast(pa.float16()),
    unsigned=pa.array(range(COUNT), pa.uint32()),
    thirds=[n / 3 for n in range(COUNT)],
    nan=[float("nan")] * COUNT,
    ok=[n % 2 == 0 for n in range(COUNT)],
    sometimes=[n if n % 4 else None for n in range(COUNT)],
    large=pa.array([f"n{n}" for n in range(COUNT)], pa.large_string()),
    day=pa.array(TIMES, pa.date32()),
    event_day=USERS,
    p_x=USERS,
    **{"P X": USERS},
    request_no=[f"r{n}" for n in range(COUNT)],
    tags=[["a"]] * COUNT,
    raw=[b"a"] * COUNT,
    nothing=pa.nulls(COUNT, pa.string()),
)

# name: (file, content, options, (column, type, role) of some columns, settings, texts of notes)
Expected = tuple[str, Content, tuple[str, ...], list[tuple[str, str | None, str]], Any, list[str]]
READ: dict[str, Expected] = {
    "every type of Parquet": (
        "a.parquet", MIXED, (),
        [("at", "int64", "event time"), ("shop", "string", "key"), ("price", "float64", "measure"),
         ("wide", "float64", "measure"), ("half", "float64", "measure"),
         ("unsigned", "int64", "measure"), ("thirds", "float64", "measure"),
         ("nan", None, "skipped"), ("ok", "bool", "flag"), ("sometimes", "int64", "measure"),
         ("large", "string", "other"), ("day", "date", "other"), ("event_day", "int64", "measure"),
         ("request_no", "string", "event id"), ("tags", None, "skipped"), ("raw", None, "skipped"),
         ("nothing", None, "skipped")],
        {"columns": {"event_day_value": "event_day", "c_p_x": "p_x", "c_p_x_2": "P X"}},
        ["'at'; 'day' could be it, too", "list<", "flatten or convert it", "no value in the rows",
         "no value is a finite number",
         "midnight in UTC"],
    ),
    "days": (
        "a.parquet", parquet(day=pa.array(TIMES, pa.date32())), ("--sample-rows", "50"),
        [("day", "int64", "event time")], {}, ["midnight in UTC"],
    ),
    "numbers that are days": (
        "a.parquet", parquet(day=[20240101 + n % 28 for n in range(COUNT)]),
        ("--event-time", "day", "--input", "time_format=%Y%m%d"),
        [("day", "int64", "event time")], {"time_format": ["%Y%m%d"]}, [],
    ),
    "texts that are days": (
        "a.csv",
        csv("user,day,n", lambda n: f"u{n % 7},202401{n % 28 + 1:02d},{n % 28 + 20240101}"),
        (), [("day", "int64", "event time"), ("n", "int64", "measure")],
        {"time_format": ["%Y%m%d"]}, ["'n' could be it, too"],
    ),
    "seconds as floats": (
        "a.parquet", parquet(t=[ms(n) / 1000 for n in range(COUNT)]), (),
        [("t", "int64", "event time")], {"time_unit": "s"}, ["read as s since 1970"],
    ),
    "a broken float": (
        "a.parquet", parquet(t=pa.array(TIMES), x=[float("inf"), *range(1, COUNT)]), (),
        [("x", "float64", "measure")], {}, ["1 values are NaN or infinite: ingest rejects these"],
    ),
    "small numbers": (
        "a.csv", csv("user_id,t", lambda n: f"{n % 5},{n}"),
        ("--event-time", "t", "--input", "time_unit=s"),
        [("t", "int64", "event time")], {"time_unit": "s"}, ["read as s since 1970"],
    ),
    "a form that is given": (
        "a.csv", csv("user_id,t", lambda n: f"{n % 5},{n % 12 + 1}/{n % 28 + 1}/24 {n % 24}h"),
        ("--input", "time_format=%m/%d/%y %Hh"),
        [("t", "int64", "event time")], {"time_format": ["%m/%d/%y %Hh"]}, ["no time zone"],
    ),
    "hours of one digit": (
        "a.csv", csv("user_id,t", lambda n: f"{n % 5},2024-01-{n // 24 + 1:02d} {n % 24}:00"), (),
        [("t", "int64", "event time")], {"time_format": ["%Y-%m-%d %H:%M"]}, ["no time zone"],
    ),
    "ISO times with one that is broken": (
        "a.csv", csv("user_id,t", lambda n: f"{n % 5},{TIMES[n] if n != 59 else 'never'}"), (),
        [("t", "int64", "event time")], {}, ["no time zone"],
    ),
    "day and month": (
        "a.csv", csv("user_id,t", lambda n: f"{n % 5},{n % 12 + 1:02d}/{n % 12 + 1:02d}/2024"), (),
        [("t", "int64", "event time")], {"time_format": ["%d/%m/%Y"]},
        ["could be swapped", "time_format='%m/%d/%Y'"],
    ),
    "leading zeros, a broken number, yes and no": (
        "a.csv", csv("zip,time,n,ok", lambda n: f"0{n % 5},{ms(n)},{n if n != 40 else 'oops'},"
                     f"{'yes' if n % 2 else 'no'}"), (),
        [("zip", "string", "category"), ("n", "int64", "measure"), ("ok", "bool", "flag")], {},
        ["leading zeros", "1 of 60 different values are not numbers, as 'oops'"],
    ),
    "texts without a value": (
        "a.csv", csv("user_id,time,n", lambda n: f"{n % 5},{ms(n)},{n if n % 7 else 'NA'}"), (),
        [("n", "int64", "measure")], {"by_column": {"n": {"nulls": ["NA"]}}},
        ["'NA' among numbers"],
    ),
    "texts without a value that are given": (
        "a.csv", csv("user_id;time;n", lambda n: f"{n % 5};{ms(n)};{n if n % 7 else '--'},5"),
        ("--input", "nulls=--,5", "--input", "decimal=,"), [("n", "float64", "measure")],
        {"delimiter": ";", "decimal": ",", "nulls": ["--,5"]}, [],
    ),
    "decimal commas, in one column with points between thousands": (
        "a.csv", csv("user_id;time;a;b;c",
                     lambda n: f"{n % 5};{ms(n)};{n},25;{n},75;{n + 1}.234,50"), (),
        [("a", "float64", "measure"), ("c", "float64", "measure")],
        {"delimiter": ";", "decimal": ",", "thousands": "."},
        ["a decimal comma and '.' between thousands"],
    ),
    "a comma that could be either": (
        "a.csv", csv("user_id;time;a", lambda n: f"{n % 5};{ms(n)};{n % 9 + 1},345"), (),
        [("a", "float64", "measure")], {"delimiter": ";", "decimal": ","},
        ["'1,234' is read as 1.234 (--input decimal=. --input thousands=, reads 1234)"],
    ),
    "quotes within texts": (
        "a.csv", csv("user_id;time;note", lambda n: f'{n % 5};{ms(n)};a 2" nail of {n}'), (),
        [("note", "string", "other")], {"delimiter": ";"}, [],
    ),
    "no header and no key": (
        "a.csv", PLAIN.partition("\n")[2], (),
        [("column_1", "int64", "measure"), ("column_2", "int64", "event time")],
        {"header": False}, ["the first line looks like data", "names=a,b,c"],
    ),
    "lines before the header": (
        "a.csv", "Report of sales\n\n" + PLAIN, (), [("amount", "float64", "measure")],
        {"skip": 2}, ["the first 2 lines are skipped"],
    ),
    "UTF-16 without its mark": (
        "a.csv", PLAIN.encode("utf-16-le"), (), [("amount", "float64", "measure")],
        {"encoding": "utf-16-le"}, [],
    ),
    "UTF-16 in the other order": (
        "a.csv", PLAIN.replace("amount", "Größe").encode("utf-16-be"), (),
        [("Größe", "float64", "measure")],
        {"encoding": "utf-16-be", "columns": {"grosse": "Größe"}}, [],
    ),
    "names that are words of Python or of the file": (
        "pf.csv", PLAIN.replace("customer_id", "class_id"), (), [("class_id", "int64", "key")],
        {}, [],
    ),
    "a stream of Arrow": ("a.arrow", stream, (), [("at", "int64", "event time")], {}, []),
    "Feather's first version": (
        "a.feather", first_feather, (), [("at", "int64", "event time")], {}, [],
    ),
    "a table of Paimon": (
        "w.db/events_clicks", paimon, ("--event-time", "at"), [("user_id", "int64", "key")], {}, [],
    ),
    "keys of JSON that come later or never": (
        "a.json",
        json.dumps([*({**o, "no": None} for o in OBJECTS * 40), {**OBJECTS[0], "new": 1}]),
        (), [("x", "int64", "measure"), ("no", None, "skipped")], {}, [],
    ),
    "types that differ at once": (
        "a.json", json.dumps([*OBJECTS, {**OBJECTS[0], "user_id": "u"}]), (),
        [("user_id", "string", "key")], {}, ["not all are integers: kept as texts"],
    ),
    "types that differ later": (
        "a.json", json.dumps([*OBJECTS * 40, {**OBJECTS[0], "user_id": "u"}]), (),
        [("user_id", "string", "key")], {}, ["not all are integers: kept as texts"],
    ),
    "an integer of more than 64 bits": (
        "a.json", json.dumps([{**o, "x": 2**70} for o in OBJECTS]), (),
        [("x", "string", "other")], {}, ["more than 64 bits: kept as texts"],
    ),
    "an array of many pieces": (
        "a.json", json.dumps([{**o, "note": "x" * 3_000} for o in OBJECTS], indent=2), (),
        [("x", "int64", "measure")], {}, [],
    ),
}  # fmt: skip


READ_APART = {
    "every type of Parquet",
    "types that differ later",
    "a table of Paimon",
    "day and month",
}
"""Of these, profiles and events come from another process, as of every file of a user."""

LONG = {"quotes within texts", "texts without a value that are given", "lines before the header"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long if n in LONG else ()) for n in READ]
)
def test_a_file_is_understood_and_each_row_is_an_event_of_the_proposed_source(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if name not in READ_APART:
        request.getfixturevalue("read_here")
    file, content, options, columns, settings, notes = READ[name]
    path = tmp_path / file
    write(path, content)
    done = run("init", tmp_path / "shop", "--from", path, "--json", *options)
    assert done.exit_code == 0, (done.output, done.exception)
    found = json.loads(done.stdout)
    by_name = {c["field"]: (c["field"], c["type"], c["role"]) for c in found["columns"]}
    assert [by_name[each[0]] for each in columns] == columns
    assert found["settings"] == settings
    all_notes = "; ".join([*found["notes"], *(n for c in found["columns"] for n in c["notes"])])
    assert [text for text in notes if text not in all_notes] == [], all_notes
    tried = run("try", tmp_path / "shop" / "features.py", path, "--json")
    assert tried.exit_code == 0, (tried.output, tried.exception)
    (view,) = json.loads(tried.stdout)
    rejected = 1 if "broken" in name else 0
    assert (sum(view["rejected"].values()), view["notes"]) == (rejected, [])
    if found["complete"]:
        assert view["events"] == found["rows"] - rejected
        assert view["newest_event_ms"] == found["last_ms"]


# name: (file, content, options, what the error says)
REFUSED: dict[str, tuple[str, Content, tuple[str, ...], list[str]]] = {
    "an empty file": ("a.csv", "\n\n", (), ["a.csv", "empty; expected a header"]),
    "no rows": ("a.csv", "user_id,time\n", (), ["it has columns (user_id, time) but no rows"]),
    "a column twice": ("a.csv", "a,a,time\n1,2,3\n", (), ["'a' occurs twice; rename one"]),
    "no times": (
        "a.csv", csv("user_id,x", lambda n: f"{n},{n}"), (),
        ["no column has times", "user_id (as '0')", "--event-time COLUMN"],
    ),
    "a missing column of times": (
        "a.csv", PLAIN, ("--event-time", "tiem"),
        ["--event-time tiem", "did you mean 'time'", "available: amount, customer_id, time"],
    ),
    "a column that has no times": (
        "a.csv", csv("user_id,t", lambda n: f"{n},x{n}"), ("--event-time", "t"),
        ["--event-time t", "as 'x0'", "--input time_format="],
    ),
    "a unit that no number can be in": (
        "a.parquet", parquet(t=[10**17] * COUNT), ("--event-time", "t", "--input", "time_unit=s"),
        ["no value of 't', as '100000000000000000', is a time in s", "--input time_unit="],
    ),
    "a missing key": (
        "a.csv", PLAIN, ("--entity", "custmer_id"), ["--entity custmer_id", "did you mean"],
    ),
    "a key with a fraction": (
        "a.csv", PLAIN, ("--entity", "amount"), ["--entity amount: it is Float64", "a key is an"],
    ),
    "the event time as a key": (
        "a.csv", PLAIN, ("--entity", "time"), ["--entity time: it is event time"],
    ),
    "zero bytes": ("a.csv", PLAIN.encode("utf-32-le"), (), ["zero bytes", "--input encoding="]),
    "no gzip": ("a.csv.gz", PLAIN, (), ["it cannot be read as CSV", "gzip"]),
    "a gzip that is cut off": (
        "a.csv.gz", gzip.compress(PLAIN.encode(), mtime=0)[:-20], (), ["it cannot be read as CSV"],
    ),
    "no Parquet": ("a.parquet", "no", (), ["it cannot be read as Parquet"]),
    "no ORC": ("a.orc", "no", (), ["it cannot be read as ORC"]),
    "no Arrow": ("a.arrow", "no", (), ["it cannot be read as Arrow"]),
    "no JSON": ("a.json", "no", (), ["it cannot be read as JSON: Expecting value"]),
    "no objects": ("a.json", "[]", (), ["no JSON object in it; expected an array of"]),
    "numbers in place of objects": (
        "a.json", '{"a": 1} 5', (), ["expected JSON objects, got int: '5'"],
    ),
    "an array that is cut off": (
        "a.json", json.dumps(OBJECTS)[:-1], (), ["does not end with ']': the file is cut off"],
    ),
    "an object that is cut off": (
        "a.json", json.dumps(OBJECTS)[:-9], (), ["it cannot be read as JSON"],
    ),
    "a table that is in no warehouse": (
        "lake/events_clicks",
        lambda p: [(p / part).mkdir(parents=True) for part in ("schema", "snapshot")],
        (), ["expected a table of a Paimon warehouse, WAREHOUSE/DATABASE.db/TABLE"],
    ),
}  # fmt: skip


@pytest.mark.usefixtures("read_here")
@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_cannot_be_understood_is_refused_with_what_to_do(
    name: str, tmp_path: Path
) -> None:
    file, content, options, messages = REFUSED[name]
    write(tmp_path / file, content)
    done = run("init", tmp_path / "shop", "--from", tmp_path / file, *options)
    assert done.exit_code == 2, (done.output, done.exception)
    assert [text for text in messages if text not in done.stderr] == [], done.stderr
    assert not (tmp_path / "shop").exists()


@pytest.mark.parametrize(
    ("head", "kept"),
    [("Datum", "utf-8"), ("ü" * 7, "utf-8"), ("\udce4" * 7, "cp1252")],
    ids=["ASCII", "a character that the end of the sample cuts", "no UTF-8"],
)
def test_of_a_large_file_the_beginning_decides(head: str, kept: str, tmp_path: Path) -> None:
    from paimon_features.core.configuration.input_settings import InputSettings
    from paimon_features.ingest.inputs.dialects import HEAD_BYTES, sniff

    start = f"{head},customer_id,n\n".encode("utf-8", "surrogateescape")
    row = "üüü,7,8\n".encode() if kept == "utf-8" else b"\xfc\xfc\xfc,7,8\n"
    data = start + row * (HEAD_BYTES // len(row) + 1)
    (tmp_path / "a.csv").write_bytes(data)
    notes: list[str] = []
    found = sniff(tmp_path / "a.csv", InputSettings(), set(), notes)
    assert (found.encoding, found.delimiter, found.header) == (kept, ",", True)
    assert bool(notes) == (kept == "cp1252")


def test_what_was_found_is_printed_and_can_be_tried(tmp_path: Path) -> None:
    path = tmp_path / "sales.parquet"
    write(path, MIXED)
    done = run("init", tmp_path / "shop", "--from", path, "--sample-rows", "40")
    assert done.exit_code == 0, done.output
    assert "read the first 40 of 60 rows of sales.parquet (Parquet); --sample-rows" in done.stdout
    assert "note: event time: 'at'; 'day' could be it, too (--event-time day)" in done.stdout
    assert "entity: customer_id; could be: shop" in done.stdout
    text = (tmp_path / "shop" / "features.py").read_text()
    assert "# request_no is different in each row." in text
    assert "# Not a column of the source: tags: skipped: list<" in text
    assert "25 % empty" in text
    shop = tmp_path / "shop" / "features.py"
    tried = run("try", shop, path, "--entity", "customer_id=3", "--now", "2030-01-01")
    assert tried.exit_code == 0, tried.output
    assert "customer_id=3" in tried.stdout
    assert "leave out --now for the end of the data" in tried.stdout
    missing = run("try", shop, path, "--view", "customer_sale")
    assert (missing.exit_code, "did you mean 'customer_sales'" in missing.stderr) == (2, True)


@pytest.mark.usefixtures("read_here")
def test_rows_that_cannot_be_split_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", PLAIN + f"1,{ms(1)}\n2,{ms(2)},3,4\n")
    done = run("init", tmp_path / "shop", "--from", tmp_path / "a.csv")
    assert "note: 2 rows have another number of fields" in done.stdout
    tried = run("try", tmp_path / "shop" / "features.py", tmp_path / "a.csv")
    assert tried.exit_code == 0, tried.output
    assert "too_few_columns, e.g. expected 3 columns, got 2" in tried.stderr
    assert "too_many_columns, e.g. expected 3 columns, got 4" in tried.stderr


@pytest.mark.usefixtures("read_here")
def test_a_file_without_any_event_cannot_be_tried(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", PLAIN)
    assert run("init", tmp_path / "shop", "--from", tmp_path / "a.csv").exit_code == 0
    shop = tmp_path / "shop" / "features.py"
    write(tmp_path / "b.csv", csv("customer_id,time,amount", lambda n: f"{n},never,1"))
    done = run("try", shop, tmp_path / "b.csv")
    assert done.exit_code == 2, done.output
    assert "60 rows are not events of a: wrong_type, e.g." in done.stderr
    assert "no row of the file is an event: see the reasons above" in done.stderr
    (tmp_path / "empty").mkdir()
    done = run("try", shop, tmp_path / "empty")
    assert (done.exit_code, "no file to ingest in this folder" in done.stderr) == (2, True)
    (tmp_path / "more").mkdir()
    for name in ("a.csv", "b.csv"):
        write(tmp_path / "more" / name, PLAIN)
    done = run("try", shop, tmp_path / "more", "--max-rows", "1", "--json")
    assert (
        "only the first 60 events were read (--max-rows)" in json.loads(done.stdout)[0]["notes"][0]
    )
    write(tmp_path / "no.parquet", "no")
    done = run("try", shop, tmp_path / "no.parquet")
    assert (done.exit_code, "not a Parquet file" in done.stderr) == (2, True)
    done = run("try", shop, tmp_path / "c.csv")
    assert (done.exit_code, "no such file or folder; did you mean" in done.stderr) == (2, True)


TWO_SOURCES = """
import paimon_features as pf

user = pf.Entity("user", keys={"user_id": pf.Int64})
for name in ("clicks", "views"):
    source = pf.EventSource(name, schema={"user_id": pf.Int64, "t": pf.Int64}, event_time="t")
    globals()[name] = pf.FeatureView(
        f"user_{name}", source=source, entity=user, features=[pf.Count(windows=["1d"])]
    )
"""


def test_views_of_several_sources_are_tried_one_by_one(tmp_path: Path) -> None:
    write(tmp_path / "features.py", TWO_SOURCES)
    write(tmp_path / "a.csv", csv("user_id,t", lambda n: f"{n % 5},{ms(n)}"))
    both = run("try", tmp_path / "features.py", tmp_path / "a.csv")
    assert both.exit_code == 2, both.output
    assert "several sources; choose one by --view: user_clicks, user_views" in both.stderr
    words = ("--view", "user_views", "--max-rows", "1", "--json")
    one = run("try", tmp_path / "features.py", tmp_path / "a.csv", *words)
    assert json.loads(one.stdout)[0]["view"] == "user_views"
    source = 'pf.EventSource("a", schema={"t": pf.Int64}, event_time="t")'
    write(tmp_path / "none.py", f"import paimon_features as pf\n\na = {source}\n")
    none = run("try", tmp_path / "none.py", tmp_path / "a.csv")
    assert (none.exit_code, "have no FeatureView to try" in none.stderr) == (2, True)
