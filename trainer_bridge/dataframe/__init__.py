"""Columns of Parquet files and tables as arrays and lists: HybridBackend's data frames.

Names and arguments are those of ``hybridbackend.tensorflow.data``; what comes are NumPy arrays,
which ``trainer_bridge.adapters`` turn into tensors::

    fields = [DataFrame.Field("A", np.int64), DataFrame.Field("C", np.int64, ragged_rank=1)]
    for batch in Dataset.from_parquet("/data/*.parquet", fields).batch(1024):
        batch["A"], batch["C"].values, batch["C"].nested_row_splits
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trainer_bridge.batches.ragged import SparseValue
from trainer_bridge.dataframe.batching import Batches
from trainer_bridge.dataframe.dataset import Dataset
from trainer_bridge.dataframe.dedup import Deduplicated
from trainer_bridge.dataframe.frame import DataFrame, Features, Field, Pad, Value
from trainer_bridge.dataframe.writing import (
    deduplicate,
    write_deduplicated_parquet,
    write_deduplicated_table,
)

__all__ = [
    "Batches",
    "DataFrame",
    "Dataset",
    "Deduplicated",
    "Features",
    "Field",
    "SparseValue",
    "Value",
    "deduplicate",
    "parse",
    "rebatch",
    "to_sparse",
    "unbatch_and_to_sparse",
    "write_deduplicated_parquet",
    "write_deduplicated_table",
]


def parse(pad: Pad | Mapping[str, Pad] = False) -> Callable[[Batches], Batches]:
    """For ``apply``: lists become sparse values, or dense where ``pad`` says so."""
    return lambda batches: batches.map(lambda batch: DataFrame.parse(batch, pad))


def to_sparse() -> Callable[[Batches], Batches]:
    """For ``apply``: lists become sparse values."""
    return parse()


def unbatch_and_to_sparse() -> Callable[[Batches], Batches]:
    """For ``apply``: batches of one row become rows."""
    return lambda batches: batches.map(DataFrame.unbatch_and_to_sparse)


def rebatch(
    batch_size: int, min_batch_size: int | None = None, drop_remainder: bool = False
) -> Callable[[Batches], Batches]:
    """For ``apply``: batches of another size."""
    return lambda batches: batches.rebatch(batch_size, min_batch_size, drop_remainder)
