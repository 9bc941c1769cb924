"""Tables as data sets of Ray Data.

Ray is installed by whoever uses this, in an environment without Flink; nothing else imports it.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from paimon_features.errors import ConfigurationError, MissingExtraError
from trainer_bridge.readers.snapshot_reader import SnapshotReader

try:
    import ray.data
    from ray.data import Dataset
    from ray.data.block import BlockMetadata
    from ray.data.datasource import Datasource, ReadTask
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "trainer_bridge.adapters.ray needs Ray, which is not installed: pip install 'ray[data]'"
    ) from error


def dataset(reader: SnapshotReader, *, tasks: int | None = None, **options: Any) -> Dataset:
    """A ``ray.data.Dataset`` of the batches that a reader with ``output="arrow"`` has left.

    Each of ``tasks`` read tasks (by default as many as Ray chooses) reads every n-th batch of the
    pinned snapshot in its own process and hands out one Arrow block per batch, without a copy.
    ``options`` are those of ``ray.data.read_datasource``. Every host of the cluster reads the
    warehouse itself. To resume, load the state into the reader first: batches before it are
    not read.

    Raises
    ------
    ConfigurationError
        For a reader with another output, or with the share of one rank: Ray splits by itself.
    """
    if reader.output != "arrow":
        raise ConfigurationError(
            f"the reader's output is {reader.output!r}; expected output='arrow', whose tables are "
            "Ray's blocks"
        )
    if reader.world_size != 1:
        raise ConfigurationError(
            f"the reader has the share of rank {reader.rank} of {reader.world_size}; Ray Data "
            "splits a data set by itself (streaming_split, get_dataset_shard)"
        )
    return ray.data.read_datasource(
        SnapshotDatasource(reader), override_num_blocks=tasks, **options
    )


class SnapshotDatasource(Datasource):  # type: ignore[misc]
    """What :func:`dataset` reads: the batches of a reader from its position to the epoch's end."""

    def __init__(self, reader: SnapshotReader) -> None:
        super().__init__()
        self._reader = copy.copy(reader)

    def get_name(self) -> str:
        """The name of the read tasks."""
        return f"Paimon:{self._reader.table}"

    def estimate_inmemory_data_size(self) -> int:
        """The bytes of the decoded rows."""
        return self._reader.decoded_bytes()

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """A task for each n-th batch; none without batches."""
        batches = self._reader.remaining()
        count = max(1, min(parallelism, batches))
        share = self._reader.decoded_bytes() // count
        found = BlockMetadata(
            num_rows=None, size_bytes=share, exec_stats=None, input_files=None
        )  # fmt: skip
        return [
            ReadTask(
                functools.partial(_read, self._reader, index, count),
                found,
                schema=self._reader.schema,
                per_task_row_limit=per_task_row_limit,
            )
            for index in range(count if batches else 0)
        ]


def _read(reader: SnapshotReader, index: int, count: int) -> Iterator[pa.Table]:
    for batch in copy.copy(reader).iterate(index, count):
        assert batch.arrow is not None
        yield batch.arrow
