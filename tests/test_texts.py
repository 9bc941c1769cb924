"""Texts that are no Unicode: rejected where they enter, shown with escapes where they are named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import paimon_features as pf
from paimon_features.core.errors import PaimonFeaturesError
from paimon_features.core.times.utc_ms import conform
from paimon_features.lake import Lake, read_arrow
from paimon_features.lake.specs import events_spec, rejected_spec
from paimon_features.lake.writing.table_writer import EventWriter
from paimon_features.offline.inputs.row_source import arrow_table
from paimon_features.offline.local.features import features

SCHEMA = {"name": pf.String, "tags": pf.List(pf.String), "t": pf.Int64}
SHOP = pf.EventSource("shop", schema=SCHEMA, event_time="t")
USER = pf.Entity("user", keys={"name": pf.String})
VIEW = pf.FeatureView("spend", source=SHOP, entity=USER, features=[pf.Count(windows=["7d"])])

NOT_UTF8 = (b"\xff", b"caf\xe9", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82")
HALVES = ("\ud800", "a\udfff", "\udcff")


def reinterpreted(*values: bytes | None) -> pa.Array:
    """Bytes as texts, which pyarrow does not check."""
    return pa.array(values, pa.binary()).view(pa.string())


def events(names: pa.Array, tags: pa.Array | None = None) -> pa.Table:
    none = pa.array([[]] * len(names), pa.list_(pa.string()))
    times = pa.array(range(len(names)), pa.int64())
    return pa.table({"name": names, "tags": none if tags is None else tags, "t": times})


@pytest.mark.parametrize("bad", NOT_UTF8)
def test_no_array_of_such_texts_passes(bad: bytes) -> None:
    texts = reinterpreted(b"a", bad)
    for array, kind in (
        (texts, pa.string()),
        (texts.cast(pa.large_string()), pa.string()),
        (pa.DictionaryArray.from_arrays([0, 1], texts), pa.string()),
        (pa.ListArray.from_arrays([0, 2], texts), pa.list_(pa.string())),
    ):
        with pytest.raises(pa.ArrowInvalid):
            conform(array, kind)


def test_the_event_writer_rejects_the_row_and_keeps_its_bytes(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", "features")
    lake.create(events_spec(SHOP.table, SHOP.schema))
    lake.create(rejected_spec(SHOP.rejected_table))
    writer = EventWriter.of(lake, SHOP, lambda: 1_000)
    names = reinterpreted(b"a", *NOT_UTF8, None, "\u00e4".encode())
    assert writer.write(events(names)).rejected == {"wrong_type": len(NOT_UTF8)}
    lists = pa.ListArray.from_arrays([0, 1, 2], reinterpreted(b"x", b"\xff"))
    assert writer.write(events(pa.array(["b", "c"]), lists)).rejected == {"wrong_type": 1}
    assert {*read_arrow(lake, SHOP.table)["name"].to_pylist()} == {"a", None, "\u00e4", "b"}
    raws = read_arrow(lake, SHOP.rejected_table)["raw"].to_pylist()
    expected = [bad.decode("utf-8", "backslashreplace") for bad in NOT_UTF8]
    assert sorted(json.loads(raw)["name"] for raw in raws) == sorted([*expected, "c"])


@pytest.mark.parametrize("bad", [*NOT_UTF8, *HALVES])
def test_rows_with_such_a_key_are_refused_with_its_name(bad: Any) -> None:
    good = events(pa.array(["a"]))
    time = pa.array([5], pa.int64())
    frames: list[Any] = [{"name": [bad], "event_time_ms": [5]}, [{"name": bad, "event_time_ms": 5}]]
    if isinstance(bad, bytes):
        frames = [pa.table({"name": reinterpreted(bad), "event_time_ms": time})]
    else:
        frames.append(pd.DataFrame(frames[0]))
    for rows in frames:
        with pytest.raises(PaimonFeaturesError, match=r"name|surrogates not allowed"):
            features(VIEW, good, rows)
        if not isinstance(bad, bytes):
            with pytest.raises(PaimonFeaturesError, match="surrogates not allowed"):
                arrow_table(rows)


def test_events_with_such_a_text_are_refused_by_the_local_engine() -> None:
    rows = {"name": ["a"], "event_time_ms": [5]}
    for bad in NOT_UTF8:
        with pytest.raises(PaimonFeaturesError, match="name"):
            features(VIEW, events(reinterpreted(b"a", bad)), rows)


def test_rows_may_be_a_list_of_dicts() -> None:
    rows = [{"name": "a", "event_time_ms": 5}, {"name": "b", "event_time_ms": 5}]
    assert features(VIEW, events(pa.array(["a"])), rows)["count_7d"].to_pylist() == [1, None]


def test_the_command_line_shows_them_with_escapes(tmp_path: Path) -> None:
    """A file's name may be any bytes; the terminal's encoding has no part for some of them."""
    name = os.fsdecode(b"caf\xe9.toml")
    run = [sys.executable, "-m", "paimon_features", "plan", "--project", name]
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        run, capture_output=True, cwd=tmp_path, env=here, timeout=300, check=False
    )
    assert b"Traceback" not in done.stderr
    shown = [
        sys.executable,
        "-c",
        "from paimon_features.cli import main; import click, sys;"
        "sys.argv[1:] = ['--version']\ntry: main()\nexcept SystemExit: print('\\udce9')",
    ]
    done = subprocess.run(shown, capture_output=True, env=here, timeout=300, check=False)
    assert done.stdout.endswith(b"\\udce9\n"), done
