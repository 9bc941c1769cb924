"""What verifying the CRC32 of every page costs a read: the same file with and without, in turns."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paimon_features.lake.storage import LocalStorage


def write(path: Path, rows: int) -> None:
    """Columns as events have them: keys, times, amounts, words."""
    dice = np.random.default_rng(0)
    words = np.array([f"word {n}" for n in range(1_000)])
    columns: dict[str, Any] = {f"key_{n}": dice.integers(0, 10**6, rows) for n in range(4)}
    columns |= {f"value_{n}": dice.random(rows) for n in range(8)}
    columns["time"] = np.sort(dice.integers(0, 10**12, rows))
    columns["word"] = words[dice.integers(0, len(words), rows)]
    options: dict[str, Any] = {"compression": "zstd", "write_page_checksum": True}
    pq.write_table(pa.table(columns), path, **options)


def seconds(file: Any) -> float:
    """Processor time of decoding all columns."""
    with file:
        start = time.process_time()
        file.read(use_threads=False)
        return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=15)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.parquet"
        write(path, given.rows)
        storage = LocalStorage()
        ratios, plain = [], []
        for _ in range(given.repeats):
            without = seconds(pq.ParquetFile(path, memory_map=True))
            ratios.append(seconds(storage.open_parquet(str(path))) / without)
            plain.append(without)
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    print(f"{path.name}: {given.rows:,} rows, {statistics.median(plain) * 1e3:.1f} ms to decode")
    print(f"verified / not: {middle:.3f} (quartiles {low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
