"""The same rows give the same features, in whatever form and dialect they are written."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from paimon_features.core.configuration.input_settings import InputSettings
from paimon_features.definitions import FeatureView, load_definitions
from paimon_features.ingest.inputs.profiles import profile_input
from paimon_features.project.first_steps.proposal import definitions_text, propose
from paimon_features.project.first_steps.trial import read_events, try_view

pytest.importorskip("duckdb")
UTC_OF_BERLIN = 3_600_000
NAMES = ["customer_id", "time", "amount", "note"]
BASE_MS = 1_297_000_000_000


def rows() -> list[tuple[int, int, float, str]]:
    """Events of seven customers over some weeks, by time; amounts with two decimals."""
    notes = ["plain", 'with "quotes"', "semi;colon, comma", "two\nlines", "Grüße, Zoë", "tab\there"]
    out = []
    for n in range(600):
        amount = round(((n * 7919) % 400_000) / 100 - 500, 2)
        out.append((n * n % 7 + 10, BASE_MS + n * 3_601_000, amount, notes[n % len(notes)]))
    return out


def text_time(ms: int, form: str, shift_ms: int = 0) -> str:
    import datetime as dt

    moment = dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=ms + shift_ms)
    return moment.strftime(form)


def local(number: float, decimal: str, thousands: str) -> str:
    text = f"{number:,.2f}"
    return text.replace(",", "\0").replace(".", decimal).replace("\0", thousands)


def write_csv(
    path: Path,
    *,
    delimiter: str = ",",
    quote: str = '"',
    encoding: str = "utf-8",
    header: bool = True,
    time: Callable[[int], object] = lambda ms: ms,
    number: Callable[[float], object] = lambda x: f"{x:.2f}",
    note: Callable[[str], str] = lambda text: text,
    before: str = "",
    end: str = "\n",
) -> None:
    out = io.StringIO()
    out.write(before)
    writer = csv.writer(out, delimiter=delimiter, quotechar=quote, lineterminator=end)
    if header:
        writer.writerow(NAMES)
    writer.writerows([k, time(t), number(x), note(s)] for k, t, x, s in rows())
    data = out.getvalue().encode(encoding, "replace")
    openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    if path.suffix == ".zst":
        with pa.CompressedOutputStream(str(path), "zstd") as file:
            file.write(data)
        return
    with openers.get(path.suffix, open)(path, "wb") as file:
        file.write(data)


def arrow_rows() -> pa.Table:
    ids, times, amounts, notes = zip(*rows(), strict=True)
    return pa.table(
        {
            "customer_id": pa.array(ids, pa.int64()),
            "time": pa.array(times, pa.timestamp("ms")),
            "amount": pa.array(amounts, pa.float64()),
            "note": pa.array(notes, pa.string()),
        }
    )


def write_avro(path: Path) -> None:
    fastavro = pytest.importorskip("fastavro")
    kinds = ["long", {"type": "long", "logicalType": "timestamp-millis"}, "double", "string"]
    fields = [{"name": n, "type": t} for n, t in zip(NAMES, kinds, strict=True)]
    schema = fastavro.parse_schema({"type": "record", "name": "event", "fields": fields})
    with path.open("wb") as file:
        fastavro.writer(file, schema, (dict(zip(NAMES, row, strict=True)) for row in rows()))


def write_json(path: Path, array: bool) -> None:
    objects = [dict(zip(NAMES, row, strict=True)) for row in rows()]
    if array:
        path.write_text(json.dumps(objects, indent=1), "utf-8")
    else:
        path.write_text("".join(json.dumps(o) + "\n" for o in objects), "utf-8")


def write_delta(path: Path) -> None:
    pytest.importorskip("deltalake").write_deltalake(str(path), arrow_rows())


def write_iceberg(path: Path) -> None:
    pytest.importorskip("pyiceberg")
    pytest.importorskip("sqlalchemy")
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("t", uri="sqlite://", warehouse=f"file://{path.parent}/warehouse")
    catalog.create_namespace("n")
    times = arrow_rows().column("time").cast(pa.timestamp("us"))
    data = arrow_rows().set_column(1, "time", times)
    table = catalog.create_table("n.events", data.schema, location=f"file://{path}")
    pq.write_table(data, path / "rows.parquet")
    table.add_files([str(path / "rows.parquet")])
    catalog.engine.dispose()


def german(ms: int) -> str:
    return text_time(ms, "%d.%m.%Y %H:%M:%S")


FORMS: dict[str, tuple[str, Callable[[Path], None], tuple[str, ...]]] = {
    "semicolon, decimal comma, thousands": (
        "a.csv",
        lambda p: write_csv(
            p, delimiter=";", time=german, number=lambda x: local(x, ",", ".")
        ),
        (),
    ),
    "tab, cp1252, apostrophes": (
        "a.tsv",
        lambda p: write_csv(
            p, delimiter="\t", encoding="cp1252", number=lambda x: local(x, ".", "'")
        ),
        (),
    ),
    "pipe, single quotes, CRLF": (
        "a.txt",
        lambda p: write_csv(p, delimiter="|", quote="'", end="\r\n"),
        (),
    ),
    "BOM and ISO times": (
        "a.csv",
        lambda p: write_csv(
            p, encoding="utf-8-sig", time=lambda t: text_time(t, "%Y-%m-%dT%H:%M:%S")
        ),
        (),
    ),
    "UTF-16": ("a.csv", lambda p: write_csv(p, encoding="utf-16"), ()),
    "no header": (
        "a.csv",
        lambda p: write_csv(p, header=False),
        ("header=false", "names=customer_id,time,amount,note"),
    ),
    "seconds, gzip": ("a.csv.gz", lambda p: write_csv(p, time=lambda t: t // 1000), ()),
    "microseconds, zstd": ("a.csv.zst", lambda p: write_csv(p, time=lambda t: t * 1000), ()),
    "nanoseconds, bzip2": ("a.csv.bz2", lambda p: write_csv(p, time=lambda t: t * 10**6), ()),
    "American times, xz": (
        "a.csv.xz",
        lambda p: write_csv(p, time=lambda t: text_time(t, "%m/%d/%Y %I:%M:%S %p")),
        (),
    ),
    "offsets": (
        "a.csv",
        lambda p: write_csv(
            p, time=lambda t: text_time(t, "%Y-%m-%d %H:%M:%S+01:00", UTC_OF_BERLIN)
        ),
        (),
    ),
    "a time zone": (
        "a.csv",
        lambda p: write_csv(p, time=lambda t: text_time(t, "%d.%m.%Y %H:%M:%S", UTC_OF_BERLIN)),
        ("time_zone=Europe/Berlin",),
    ),
    "JSON array": ("a.json", lambda p: write_json(p, True), ()),
    "JSON lines": ("a.jsonl", lambda p: write_json(p, False), ()),
    "Parquet": ("a.parquet", lambda p: pq.write_table(arrow_rows(), p), ()),
    "ORC": ("a.orc", lambda p: pyarrow.orc.write_table(arrow_rows(), str(p)), ()),
    "Feather": ("a.feather", lambda p: pyarrow.feather.write_feather(arrow_rows(), str(p)), ()),
    "Avro": ("a.avro", write_avro, ()),
    "Delta": ("delta", write_delta, ()),
    "Iceberg": ("iceberg", write_iceberg, ()),
}  # fmt: skip


def values(path: Path, options: tuple[str, ...], folder: Path) -> tuple[list[Any], FeatureView]:
    given = InputSettings().with_options("events", options)
    profile = profile_input(path, given, {o.partition("=")[0] for o in options})
    file = folder / "features.py"
    file.write_text(definitions_text(profile, propose(profile, "events")), "utf-8")
    (view,) = load_definitions(file).views.values()
    assert list(view.entity.keys) == ["customer_id"]
    read = read_events(path, view.source, profile.settings, profile.settings.columns)
    assert read.rejected == {}
    trial = try_view(view, read.events)
    return [read.events.num_rows, trial.as_of_ms, trial.rows.to_pylist()], view


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("plain")
    write_csv(folder / "plain.csv")
    found, view = values(folder / "plain.csv", (), folder)
    assert found[0] == 600
    # counted by hand: a loop over the rows
    last = max(t for _, t, _, _ in rows()) + 1
    assert found[1] == last
    row = found[2][0]
    key = row["customer_id"]
    feature = [f for f in view.compiled.features if f.name.startswith("sum_amount_")][-1]
    start = feature.window.bounds(np.array([last]))[0][0]
    mine = [x for k, t, x, _ in rows() if k == key and start <= t < last]
    assert row[feature.name] == pytest.approx(sum(mine), abs=1e-6)
    return found


@pytest.mark.parametrize("form", FORMS)
def test_the_same_rows_give_the_same_features(
    form: str, tmp_path: Path, expected: list[Any]
) -> None:
    name, write, options = FORMS[form]
    write(tmp_path / name)
    assert values(tmp_path / name, options, tmp_path)[0] == expected
