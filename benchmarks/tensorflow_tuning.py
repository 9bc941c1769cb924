"""Feeding a trainer from a table ten times as large as its memory: caches, prefetch, autotune.

First part. The table holds events as a producer wrote them: a JSON text of 64 fields, some 950
bytes, and a label. The pipeline parses the text, takes the logarithm of the 40 fields that the
model wants (a matrix of float32), adds noise to each batch, and hands it to a training step. The
step waits (for an accelerator, say) half as long as preparing a batch takes here, which is measured
at the start. The memory limit is a tenth of the table's bytes in memory; prepared blocks on their
way and the cache keep to it together.

- *uncached*: prepare, then train, in one thread.
- *prefetch*: the same, one thread preparing what comes next while the step runs.
- *partial cache*: that, and as many prepared blocks in memory as the limit allows.
- *disk cache*: uncached, but prepared blocks come from a folder of Arrow files.

An epoch that fills the caches goes before; all give the same batches, which is checked; they take
turns; figures are ratios of medians within this run.

Second part. ``autotune`` chooses parallel calls, prefetch and cache of a ``tf.data`` pipeline that
decodes, crops and normalises PNG images for a step that waits; once with room for its cache, once
without. What it chose is run in turn with the best of all settings, each of them tried.

    python -m benchmarks.tensorflow_tuning --rows 30000 --repeats 5
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from paimon_features.core.types.schema import Float32, String
from paimon_features.lake.catalog import Lake
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import append_arrow
from trainer_bridge.preprocess import PreparedBatches, PreprocessPipeline, Setting, Trials, autotune

TABLE = "events"
FIELDS, NUMBERS = 64, 40
_WANTED = pa.schema([(f"field_{i}", pa.int64()) for i in range(NUMBERS)])


# --- the first part: caches and prefetch under a memory limit ---


def make_table(lake: Lake, rows: int, block_rows: int) -> int:
    """Events as JSON, a block to a file; gives their bytes in memory."""
    lake.create(TableSpec(TABLE, {"event": String, "label": Float32}))
    dice = np.random.default_rng(0)
    size = 0
    for _ in range(rows // block_rows):
        values = dice.integers(0, 10, (block_rows, FIELDS)).tolist()
        texts = [json.dumps({f"field_{i}": v for i, v in enumerate(row)}) for row in values]
        label = dice.random(block_rows, dtype=np.float32)
        table = pa.table({"event": texts, "label": label})
        size += int(table.nbytes)
        append_arrow(lake, TABLE, table)
    return size


def parse(rows: Any) -> dict[str, Any]:
    """The wanted fields of the events, as a matrix."""
    texts = rows["event"]
    lines = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(texts)]), texts), "\n")
    data = lines[0].as_buffer()
    table = pj.read_json(
        pa.BufferReader(data),
        pj.ReadOptions(use_threads=False, block_size=max(data.size, 1)),
        pj.ParseOptions(explicit_schema=_WANTED, unexpected_field_behavior="ignore"),
    )
    columns = [table.column(name).to_numpy() for name in _WANTED.names]
    return {"x": np.log1p(np.stack(columns, axis=1), dtype=np.float32)}


def noise(batch: Any, dice: np.random.Generator) -> dict[str, Any]:
    """New in every epoch, cache or not."""
    return {"x": batch["x"] + dice.normal(0, 0.01, batch["x"].shape).astype(np.float32)}


def one_epoch(batches: PreparedBatches, step_s: float) -> tuple[float, float]:
    """Seconds of an epoch with its training steps, and the sum of its labels."""
    started, total = time.perf_counter(), 0.0
    for batch in batches:
        total += float(batch["label"].sum(dtype=np.float64))
        time.sleep(step_s)
    return time.perf_counter() - started, total


def caches(folder: Path, rows: int, block_rows: int, repeats: int) -> None:
    lake = Lake.open(folder, "bench")
    size = make_table(lake, rows, block_rows)
    limit, batch_rows = size // 10, block_rows // 2
    pipeline = (
        PreprocessPipeline(lake, TABLE)
        .map(parse, reads=["event"])
        .select("x", "label")
        .shuffle(1)
        .batch(batch_rows)
        .augment(noise)
    )
    print(pipeline.cache(limit).prefetch().explain())
    prepared = rows * (4 * NUMBERS + 4)
    print(
        f"\n{rows:,} rows, {size:,} bytes of JSON, {prepared:,} bytes prepared; "
        f"memory limit {limit:,} bytes"
    )
    options: dict[str, Any] = {"block_rows": block_rows, "canonical_streams": 2}
    # the reader keeps blocks that fit its budget for the next epoch: a cache of its own, which is
    # kept small here for all alike
    options["byte_budget"] = limit // 8
    partial = pipeline.cache(limit - limit // 4)
    contenders = {
        "uncached": pipeline.open(threads=0, **options),
        "prefetch": pipeline.prefetch(2).open(threads=1, **options),
        "partial cache": partial.prefetch(2).open(threads=1, **options),
        "disk cache": pipeline.cache(folder=folder / "cache").open(threads=0, **options),
        "partial cache, no prefetch": partial.open(threads=0, **options),
        "disk cache, prefetch": pipeline.cache(folder=folder / "cache")
        .prefetch(2)
        .open(threads=1, **options),
    }
    bare_s, expected = one_epoch(contenders["uncached"], 0)
    step_s = bare_s / (rows / batch_rows) / 2
    print(f"preparing a batch takes {2e3 * step_s:.2f} ms, the step {1e3 * step_s:.2f} ms")
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats + 1):
        for name, batches in contenders.items():
            elapsed_s, total = one_epoch(batches, step_s)
            if abs(total - expected) > 1e-6 * expected:
                raise AssertionError(f"{name}: labels add up to {total}, expected {expected}")
            if turn:  # the first one fills the caches
                times[name].append(elapsed_s)
    print(f"\n{'':28} {'rows/s':>9} {'ratio':>6} {'hits':>6} {'peak bytes':>12}")
    base = statistics.median(times["uncached"])
    for name, batches in contenders.items():
        median = statistics.median(times[name])
        stats = batches.cache_stats
        hits = "" if stats is None else f"{stats.hit_rate:.0%}"
        held = batches.reader.stats.peak_bytes + (0 if stats is None else stats.memory_bytes)
        print(f"{name:28} {rows / median:9,.0f} {base / median:6.2f} {hits:>6} {held:12,}")
        if held > limit:
            raise AssertionError(f"{name} held {held:,} bytes; the limit is {limit:,}")
        if stats is not None:
            print(f"{'':28} {stats}")
        batches.close()


# --- the second part: autotune of tf.data compared with a grid search ---


def image_pipeline(images: int, side: int) -> Callable[[Setting], Any]:
    """Builds the tf.data pipeline with a setting."""
    import tensorflow as tf

    dice = np.random.default_rng(0)
    encoded = [
        tf.io.encode_png(dice.integers(0, 64, (side, side, 3), dtype=np.uint8)).numpy()
        for _ in range(images)
    ]

    def prepare(png: Any) -> Any:
        image = tf.io.decode_png(png, channels=3)
        image = tf.image.resize(image, (side // 2, side // 2))
        return (image - tf.reduce_mean(image)) / (tf.math.reduce_std(image) + 1e-6)

    def build(setting: Setting) -> Any:
        data = tf.data.Dataset.from_tensor_slices(encoded)
        data = data.map(prepare, num_parallel_calls=setting.parallel, deterministic=True)
        if setting.cache == "memory":
            data = data.cache()
        data = data.batch(16)
        return data.prefetch(setting.prefetch) if setting.prefetch else data

    return build


def tuning(images: int, side: int, trial_s: float, repeats: int) -> None:
    build = image_pipeline(images, side)
    step_s = 0.004
    parallel, prefetch = [1, 2, 4], [0, 1, 2, 4, 8]
    needed = images * (side // 2) ** 2 * 12

    def step(_: Any) -> None:
        time.sleep(step_s)

    for what, limit in (("room for its cache", 2 * needed), ("no room for it", needed // 2)):
        print(f"\nautotune, {what}: memory limit {limit:,}, prepared images {needed:,} bytes")
        started = time.perf_counter()
        tuned = autotune(
            build, memory_limit=limit, dataset_bytes=needed, parallel=parallel,
            prefetch=prefetch, step=step, trial_s=trial_s, repeats=repeats,
        )  # fmt: skip
        tuned_s = time.perf_counter() - started
        allowed = ["none", "memory"] if limit > needed else ["none"]
        grid = [Setting(*each) for each in itertools.product(parallel, prefetch, allowed)]
        trials = Trials(build, step, trial_s)
        started = time.perf_counter()
        for _ in range(3):
            for setting in grid:
                trials.measure(setting)
        grid_s = time.perf_counter() - started
        best = max(grid, key=trials.rate)
        # new trials: those that made it the best were in part luck; and pairs, because the machine
        # may be slow for a while
        final = Trials(build, step, 2 * trial_s)
        pairs = [(final.measure(tuned.setting), final.measure(best)) for _ in range(4 * repeats)]
        ratio = statistics.median(own / other for own, other in pairs)
        print(
            f"{tuned.setting} after {len(tuned.trials)} settings, {tuned_s:.0f} s; best of all "
            f"{len(grid)}: {best} ({final.rate(best):,.1f} batches/s, {grid_s:.0f} s); "
            f"ratio {ratio:.3f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--block-rows", type=int, default=1_000)
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--side", type=int, default=96)
    parser.add_argument("--trial-s", type=float, default=0.3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--part", choices=["caches", "autotune", "both"], default="both")
    arguments = parser.parse_args()
    run(**vars(arguments))


def run(
    rows: int, block_rows: int, images: int, side: int, trial_s: float, repeats: int, part: str
) -> None:
    """Both parts; raises where contenders differ in what they read or hold too much."""
    if part != "autotune":
        with tempfile.TemporaryDirectory() as folder:
            caches(Path(folder), rows, block_rows, repeats)
    if part != "caches":
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        tuning(images, side, trial_s, repeats)


if __name__ == "__main__":
    main()
