"""Fits compared with one NumPy pass over the same files; six pipeline steps with plain NumPy.

A scaler is fitted on a Paimon table of float64 columns, block after block as its files are read.
NumPy's one pass reads the same files in the same blocks and adds up values and squares, which is
less than a scaler does: it loses its digits where a mean is far from zero.

    python -m benchmarks.transformers --rows 10000000 --columns 100    # 8 GB of files

``--files`` keeps them in a folder for further runs, so that a long measurement can be parted:

    python -m benchmarks.transformers --rows 10000000 --files /tmp/numbers --repeats 0
    python -m benchmarks.transformers --rows 10000000 --files /tmp/numbers --part 1/5 \\
        --only StandardScaler
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paimon_features.core.types.schema import Float64
from paimon_features.lake.catalog import Lake
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import append_arrow
from paimon_features.transformers import (
    Clip,
    Imputer,
    LogTransform,
    MaxAbsScaler,
    MinMaxScaler,
    Pipeline,
    StandardScaler,
)
from trainer_bridge.readers.snapshot_reader import SnapshotReader

TABLE = "numbers"
BLOCK = 65_536
PART = 250_000


def make_files(lake: Lake, rows: int, columns: int) -> list[str]:
    """The files of a table of random numbers that do not compress; those that are there stay."""
    names = [f"f{number}" for number in range(columns)]
    is_there = lake.exists(TABLE)
    lake.create(TableSpec(TABLE, dict.fromkeys(names, Float64)))
    dice = np.random.default_rng(0)
    for start in () if is_there else range(0, rows, PART):
        count = min(PART, rows - start)
        append_arrow(lake, TABLE, pa.table({name: dice.normal(5, 2, count) for name in names}))
    with SnapshotReader(lake, TABLE, batch_size=BLOCK) as reader:
        paths = [span.path for block in reader.layout.blocks for span in block.spans]
    found = sum(pq.read_metadata(path).num_rows for path in dict.fromkeys(paths))
    if found != rows:
        raise SystemExit(f"the files have {found:,} rows, not {rows:,}; delete their folder")
    return list(dict.fromkeys(paths))


def blocks(paths: list[str], columns: int) -> Iterator[pa.RecordBatch]:
    """The blocks of the files, decoded by one thread."""
    names = [f"f{number}" for number in range(columns)]
    for path in paths:
        yield from pq.ParquetFile(path).iter_batches(BLOCK, columns=names, use_threads=False)


def read_only(paths: list[str], columns: int) -> Any:
    """What both contenders wait for."""
    return sum(len(block) for block in blocks(paths, columns))


def numpy_one_pass(paths: list[str], columns: int) -> Any:
    """Mean and deviation from sums of values and of squares."""
    count, total, squares = 0, np.zeros(columns), np.zeros(columns)
    for block in blocks(paths, columns):
        count += len(block)
        for place, column in enumerate(block.columns):
            values = column.to_numpy()
            total[place] += values.sum()
            squares[place] += np.einsum("i,i->", values, values)
    mean = total / count
    return mean, np.sqrt(squares / count - mean * mean)


def fit(make: Callable[[], Any]) -> Callable[[list[str], int], Any]:
    """A transformer that learns block after block."""

    def fitted(paths: list[str], columns: int) -> Any:
        transformer = make()
        for block in blocks(paths, columns):
            transformer.partial_fit(block)
        return transformer

    return fitted


Took = dict[str, list[tuple[float, float]]]
"""Of each contender and turn the seconds, by the clock and of the processor."""


def alternating(contenders: dict[str, Callable[[], Any]], repeats: int) -> Took:
    """Each contender turn by turn, the first to run another one each time."""
    took: Took = {name: [] for name in contenders}
    for turn in range(repeats):
        names = list(contenders)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            started, worked = time.perf_counter(), time.process_time()
            contenders[name]()
            took[name].append((time.perf_counter() - started, time.process_time() - worked))
    return took


def report(took: Took, base: str, rows: int) -> None:
    """Medians, and the median of the speeds as multiples of the base's in the same turn."""
    for name, turns in took.items():
        clock = statistics.median(seconds for seconds, _ in turns)
        print(f"{name:36} {clock:8.4f} s {rows / clock:12,.0f} rows/s", end="")
        for which, label in ((0, "by the clock"), (1, "by processor time")):
            pairs = zip(took[base], turns, strict=True)
            speeds = [other[which] / own[which] for other, own in pairs]
            middle = statistics.median(speeds)
            print(f"  {middle:5.2f} ({min(speeds):.2f} to {max(speeds):.2f}) {label}", end="")
        print()


def steps() -> Pipeline:
    """Six steps, of which three learn."""
    return Pipeline(
        [
            ("impute", Imputer()),
            ("clip", Clip(-3.0, 9.0)),
            ("log", LogTransform(signed=True)),
            ("scale", StandardScaler()),
            ("most", MaxAbsScaler()),
            ("range", MinMaxScaler((-1, 1))),
        ]
    )


def plain(pipeline: Pipeline) -> Callable[[Any], Any]:
    """The same six steps, as one writes them in NumPy."""
    fill = np.array(pipeline["impute"].statistics_)
    scale, most, spread = pipeline["scale"], pipeline["most"], pipeline["range"]

    def made(values: Any) -> Any:
        values = np.where(np.isnan(values), fill, values)
        values = np.clip(values, -3.0, 9.0)
        values = np.copysign(np.log1p(np.abs(values)), values)
        values = (values - scale.mean_) / scale.scale_
        values = values / most.scale_
        return values * spread.scale_ + spread.min_

    return made


def pipelines(rows: int, columns: int, repeats: int) -> None:
    """Six steps on one row and on many."""
    dice = np.random.default_rng(1)
    data = dice.normal(3, 2, (rows, columns))
    data[dice.random(data.shape) < 0.02] = np.nan
    pipeline = steps().fit(data[: 10 * BLOCK])
    by_hand = plain(pipeline)
    assert np.array_equal(pipeline.transform(data[:1000]), by_hand(data[:1000]))
    table = pa.table({f"f{j}": pa.array(data[:, j], from_pandas=True) for j in range(columns)})
    print(f"\nsix steps, {rows:,} rows of {columns} columns")
    contenders = {
        "plain NumPy": lambda: by_hand(data),
        "pipeline, an array": lambda: pipeline.transform(data),
        "pipeline, an Arrow table with nulls": lambda: pipeline.transform(table),
    }
    report(alternating(contenders, repeats), "plain NumPy", rows)
    row = np.nan_to_num(data[:1], nan=1.0)
    values = row.tolist()
    print(f"\nsix steps, one row of {columns} columns, microseconds")
    for name, call in (
        ("plain NumPy, an array", lambda: by_hand(row)),
        ("pipeline, an array", lambda: pipeline.transform(row)),
        ("pipeline, a list", lambda: pipeline.transform(values)),
    ):
        best = []
        for _ in range(5):
            started = time.perf_counter()
            for _ in range(2_000):
                call()
            best.append((time.perf_counter() - started) / 2_000 * 1e6)
        print(f"{name:44} {min(best):7.1f} at best, {statistics.median(best):7.1f} in the median")


def fits(
    rows: int,
    columns: int,
    repeats: int,
    kept: Path | None,
    only: Sequence[str] | None,
    part: tuple[int, int],
) -> None:
    """Scalers over the files of a table, in a folder that is kept or a temporary one."""
    with tempfile.TemporaryDirectory() as temporary:
        lake = Lake.open(kept or Path(temporary), "bench")
        paths = make_files(lake, rows, columns)[part[0] - 1 :: part[1]]
        rows = sum(pq.read_metadata(path).num_rows for path in paths)
        size = sum(Path(path).stat().st_size for path in paths)
        print(f"fits over {rows:,} rows of {columns} columns, {len(paths)} files, {size:,} bytes")
        if not repeats:
            return
        contenders = {
            "reading alone": read_only,
            "NumPy, one pass": numpy_one_pass,
            "StandardScaler": fit(StandardScaler),
            "MinMaxScaler": fit(MinMaxScaler),
            "MaxAbsScaler": fit(MaxAbsScaler),
            "Imputer of means": fit(Imputer),
        }
        found: dict[str, Any] = {}

        def one(name: str) -> None:
            found[name] = contenders[name](paths, columns)

        chosen = [n for n in contenders if only is None or n in (*only, "NumPy, one pass")]
        report(
            alternating({name: partial(one, name) for name in chosen}, repeats),
            "NumPy, one pass",
            rows,
        )
        if "StandardScaler" in found:
            mean, deviation = found["NumPy, one pass"]
            assert np.allclose(found["StandardScaler"].mean_, mean, rtol=1e-9)
            assert np.allclose(found["StandardScaler"].scale_, deviation, rtol=1e-6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=500_000, help="of the files; full: 10000000")
    parser.add_argument("--columns", type=int, default=100, help="of the files")
    parser.add_argument("--pipeline-rows", type=int, default=1_000_000)
    parser.add_argument("--pipeline-columns", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--files", type=Path, help="a folder for the files, which keeps them")
    parser.add_argument("--only", nargs="+", help="only these fits, compared with one NumPy pass")
    parser.add_argument("--part", default="1/1", help="2/5: of five parts of the files the second")
    given = parser.parse_args()
    number, parts = map(int, given.part.split("/"))
    fits(given.rows, given.columns, given.repeats, given.files, given.only, (number, parts))
    if given.repeats and given.pipeline_rows:
        pipelines(given.pipeline_rows, given.pipeline_columns, given.repeats)


if __name__ == "__main__":
    main()
