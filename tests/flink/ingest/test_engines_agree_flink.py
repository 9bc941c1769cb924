"""Both engines accept the same rows of hostile files, and reject the others in the same words."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from paimon_features.core.types.schema import Bool, Date, Float32, Float64, Int64, String, Timestamp
from paimon_features.core.windows import DAY_MS, MAX_TIME_MS, MIN_TIME_MS
from paimon_features.definitions import EventSource, TableSource
from paimon_features.ingest.file_ingestion import IngestResult
from paimon_features.ingest.flink import files as flink
from paimon_features.ingest.local import files as local
from paimon_features.lake import Lake, read_arrow
from paimon_features.testing.sizes import every_seed
from tests.flink.ingest.click_source import new_lake
from tests.flink.ingest.hostile_inputs import RAW, STORED, write_hostile, write_raw, write_stored
from tests.flink.ingest.ingest_inputs import SOURCE, write_all

pytestmark = pytest.mark.flink
_FLOAT = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")


def shown(value: Any) -> Any:
    """A value that equals itself, with the sign of zero."""
    return repr(value) if isinstance(value, float) else value


def events(lake: Lake, source: EventSource) -> Counter[tuple[Any, ...]]:
    rows = read_arrow(lake, source.table).to_pylist()
    names = [*source.schema, "event_day"]
    return Counter(tuple(shown(row[name]) for name in names) for row in rows)


def rejects(lake: Lake, source: EventSource) -> Counter[tuple[str, ...]]:
    rows = read_arrow(lake, source.rejected_table).to_pylist()
    return Counter(
        (r["reason"], r["detail"], by_value(str(r["raw"]), source), r["origin"]) for r in rows
    )


def by_value(raw: str, source: EventSource) -> str:
    """The raw text with its 32-bit floats by value.

    Java before 19 prints some of them with more digits than they need (JDK-4511638).
    """
    try:
        values = json.loads(raw)
    except (json.JSONDecodeError, RecursionError):
        return raw
    if not isinstance(values, dict):
        return raw
    for name, kind in source.schema.items():
        text = values.get(name)
        if kind == Float32 and isinstance(text, str) and _FLOAT.fullmatch(text):
            with np.errstate(over="ignore"):
                values[name] = str(np.float32(text))
    return json.dumps(values)


def ingest_twice(
    folder: Path, source: EventSource, inputs: Path
) -> tuple[Mapping[str, Lake], Mapping[str, IngestResult]]:
    lakes, results = {}, {}
    for name, ingest in (("flink", flink.ingest_files), ("local", local.ingest_files)):
        (folder / name).mkdir()
        lakes[name] = new_lake(folder / name, source)
        results[name] = ingest(lakes[name], source, [inputs], state_dir=folder / "state")
    return lakes, results


def compare(folder: Path, source: EventSource, inputs: Path) -> Counter[str]:
    """Ingest by both engines and compare all that they wrote; the rejected rows by reason."""
    lakes, results = ingest_twice(folder, source, inputs)
    by_flink, by_local = (events(lakes[name], source) for name in ("flink", "local"))
    assert by_local - by_flink == Counter()
    assert by_flink - by_local == Counter()
    bad_flink, bad_local = (rejects(lakes[name], source) for name in ("flink", "local"))
    assert bad_local - bad_flink == Counter()
    assert bad_flink - bad_local == Counter()
    for name in ("accepted", "rejected", "ignored_columns", "absent_columns", "files"):
        assert getattr(results["local"], name) == getattr(results["flink"], name), name
    return Counter(dict(results["local"].rejected))


@every_seed(1)
def test_text_files(tmp_path: Path, seed: int) -> None:
    inputs = tmp_path / str(seed) / "in puts"
    inputs.mkdir(parents=True)
    write_hostile(inputs, seed)
    for _ in write_all(inputs, seed):
        pass
    found = compare(inputs.parent, SOURCE, inputs)
    assert set(found) >= {"unreadable", "wrong_type", "not_finite", "too_many_columns"}


@pytest.mark.long
def test_stored_types(tmp_path: Path) -> None:
    write_stored(tmp_path / "in")
    found = compare(tmp_path, STORED, tmp_path / "in")
    assert set(found) >= {"wrong_type", "not_finite"}


def test_bytes(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_raw(tmp_path / "in")
    assert compare(tmp_path, RAW, tmp_path / "in") == {"time_out_of_range": 1}


def test_days_out_of_range_and_texts_of_created_times(tmp_path: Path) -> None:
    inputs = tmp_path / "in"
    inputs.mkdir()
    source = TableSource(
        "contracts",
        schema={"at_ms": Int64, "day": Date, "known": Timestamp},
        event_time="at_ms",
        created_time="known",
    )
    first, last = MIN_TIME_MS // DAY_MS, MAX_TIME_MS // DAY_MS
    days = pa.array([first - 1, first, last, last + 1, 10**7, None], pa.int32()).cast(pa.date32())
    texts = pa.array(["2024-01-02", "2024-01-02T00:00:00.0001+01:00", "soon", "7", "", None])
    pq.write_table(
        pa.table({"at_ms": range(6), "day": days, "known": texts}), inputs / "texts.parquet"
    )
    known = pa.array([0, 1, None, 20_000, 3, 4], pa.int32()).cast(pa.date32())
    pq.write_table(
        pa.table({"at_ms": range(6), "day": days[::-1], "known": known}), inputs / "days.parquet"
    )
    written = pa.table({"at_ms": range(6), "day": days[5:].take([0] * 6), "known": texts})
    pyarrow.csv.write_csv(written, inputs / "texts.csv")
    lakes, results = ingest_twice(tmp_path, source, inputs)
    # the engines write days after 9999 in different ways, in the details
    assert events(lakes["flink"], source) == events(lakes["local"], source)
    assert results["flink"].rejected == results["local"].rejected == {"wrong_type": 8}


def test_duplicates(tmp_path: Path) -> None:
    source = EventSource(
        "orders",
        schema={
            "order_id": String, "gone": Bool, "price": Float64, "note": String, "at_ms": Int64,
        },
        event_time="at_ms", retraction="gone", event_id="order_id", dedup_horizon="1h",
    )  # fmt: skip
    (tmp_path / "in").mkdir()
    rng = random.Random(3)
    for number in range(3):
        rows = [
            {
                "order_id": rng.choice(["a", "b", "é", "", None, str(rng.randrange(200))]),
                "gone": rng.choice([True, False, False, None]),
                "price": rng.choice([1.5, -1.5, None]),
                "note": rng.choice(["x", "X", "ä", None]),
                "at_ms": rng.choice([0, 1, 2]),
            }
            for _ in range(300)
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "in" / f"{number}.jsonl").write_text(text)
    found = compare(tmp_path, source, tmp_path / "in")
    assert set(found) == {"duplicate", "bad_retraction", "missing_event_id"}
