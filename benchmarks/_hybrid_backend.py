"""HybridBackend's reading benchmark: steps of 20,000 rows of 200 integer columns.

HybridBackend publishes 21.51 times ``TextLineDataset`` and ``decode_csv`` for files of 8.4 bytes
a value as Parquet (Snappy), so these were numbers that do not compress: here int64 of the whole
positive range. Its script of today draws them from [0, 100) (``limit=100``): short texts, which
a CSV parser reads many times as fast. The rows stand in a CSV file without a header, in one
Parquet file and in a Paimon append table. Every contender reads all of them in batches of
20,000 to arrays and adds up the first and the last column, so that nobody returns early.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from paimon_features.core.types.schema import Int64
from paimon_features.lake.catalog import Lake
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import append_arrow
from trainer_bridge.readers.snapshot_reader import SnapshotReader

BATCH = 20_000
COLUMNS = 200
TABLE = "samples"

Seen = tuple[int, int]
"""How many rows were read, and the sum of their first and last columns."""


@dataclass(frozen=True)
class Data:
    """The same rows three times, and what reading them has to give."""

    csv: Path
    parquet: Path
    lake: Lake
    names: list[str]
    seen: Seen


def make_data(
    folder: Path,
    steps: int = 5,
    columns: int = COLUMNS,
    batch: int = BATCH,
    limit: int = (1 << 63) - 1,
) -> Data:
    """``steps`` batches of rows with values in [0, limit), in files below ``folder``."""
    dice = np.random.default_rng(0)
    names = [f"f{number}" for number in range(columns)]
    lake = Lake.open(folder / "lake", "bench")
    # numbers that neither repeat nor compress, as they are: dictionaries cost reading the most
    plain = {"file.compression": "none", "parquet.enable.dictionary": "false"}
    lake.create(TableSpec(TABLE, dict.fromkeys(names, Int64), options=plain))
    total = 0
    csv, parquet = folder / "benchmark.csv", folder / "benchmark.parquet"
    schema = pa.schema([(name, pa.int64()) for name in names])
    with (
        open(csv, "wb") as text,
        pq.ParquetWriter(parquet, schema, compression="snappy", use_dictionary=False) as writer,
    ):
        for _ in range(steps):
            values = {name: dice.integers(0, limit, batch) for name in names}
            total += ends_sum(values[names[0]], values[names[-1]])
            rows = pa.table(values, schema)
            writer.write_table(rows)
            pacsv.write_csv(rows, text, pacsv.WriteOptions(include_header=False))
            append_arrow(lake, TABLE, rows)
    return Data(csv, parquet, lake, names, (steps * batch, total))


def ends_sum(first: np.ndarray[Any, Any], last: np.ndarray[Any, Any]) -> int:
    """What every contender adds up: bits beyond the 40th are cut, so that nothing overflows."""
    return int((first & 0xFF_FFFF_FFFF).sum() + (last & 0xFF_FFFF_FFFF).sum())


def blocks(data: Data, batch: int = BATCH, **options: Any) -> Seen:
    """The reader of this project: one contiguous array a batch."""
    rows, total = 0, 0
    options = {"shuffle": False, "threads": 0, "block_rows": batch, **options}
    with SnapshotReader(data.lake, TABLE, batch_size=batch, **options) as reader:
        for found in reader:
            block = found.blocks["int64"]
            total += ends_sum(block[:, 0], block[:, -1])
            rows += len(block)
    return rows, total


def torch_tensors(data: Data, batch: int = BATCH, **options: Any) -> Seen:
    """The reader through its torch adapter: a tensor for each column."""
    from trainer_bridge.adapters.torch import loader

    rows, total = 0, 0
    options = {"shuffle": False, "threads": 0, "block_rows": batch, **options}
    with SnapshotReader(data.lake, TABLE, batch_size=batch, **options) as reader:
        for found in loader(reader):
            first, last = found[data.names[0]], found[data.names[-1]]
            total += ends_sum(first.numpy(), last.numpy())
            rows += len(first)
    return rows, total


def data_frame(data: Data, batch: int = BATCH) -> Seen:
    """The same Parquet file that HybridBackend reads, through ``Dataset.from_parquet``."""
    from trainer_bridge.dataframe import Dataset

    rows, total = 0, 0
    for found in Dataset.from_parquet(str(data.parquet)).batch(batch):
        first, last = found[data.names[0]], found[data.names[-1]]
        total += ends_sum(first, last)
        rows += len(first)
    return rows, total


def tensorflow_csv(data: Data, batch: int = BATCH) -> Seen:
    """``TextLineDataset``, ``batch``, ``decode_csv``, with one thread, as HybridBackend does.

    TensorFlow must be limited to one thread before it runs anything: ``one_thread``.
    """
    import tensorflow as tf

    defaults = [[1 << 32] for _ in data.names]
    lines = tf.data.TextLineDataset(str(data.csv)).batch(batch, drop_remainder=True)
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    parsed = lines.map(lambda line: tf.io.decode_csv(line, defaults)).with_options(options)
    rows, total = 0, 0
    for found in parsed:
        first, last = found[0].numpy(), found[-1].numpy()
        total += ends_sum(first, last)
        rows += len(first)
    return rows, total


def one_thread() -> None:
    """Hold TensorFlow, torch and Arrow to one thread each, before anything runs."""
    import tensorflow as tf
    import torch

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    torch.set_num_threads(1)
    pa.set_cpu_count(1)


def contenders(data: Data) -> dict[str, Callable[[], Seen]]:
    """Those of this project in addition to tf.data, by name."""
    return {
        "reader, blocks": lambda: blocks(data),
        "reader, torch": lambda: torch_tensors(data),
        "Dataset.from_parquet": lambda: data_frame(data),
    }
