"""Tables as data sets of Ray Data, and the position of a reader in checkpoints of Ray Train.

Ray is installed by whoever uses this, in an environment without Flink; nothing else imports it.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from paimon_features.core.documents.typed_json import mapping
from paimon_features.core.errors import ConfigurationError, MissingExtraError, RequestError
from trainer_bridge.readers.snapshot_reader import SnapshotReader

try:
    import ray.data
    from ray.data import Dataset
    from ray.data.block import BlockMetadata
    from ray.data.datasource import Datasource, ReadTask
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "trainer_bridge.adapters.ray needs Ray, which is not installed: pip install 'ray[data]', "
        "or 'ray[data,train]' to train"
    ) from error

if TYPE_CHECKING:
    from ray.train import Checkpoint

POSITION_FILE = "reader.json"
"""The file of a checkpoint that contains a reader's position."""

_MOST_BYTES = 1 << 20
"""Of a position; a reader's takes some hundred."""


class HasPosition(Protocol):
    """A reader or a loader: what has a position that can be stored."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position, as small JSON."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where a state was taken."""


def dataset(reader: SnapshotReader, *, tasks: int | None = None, **options: Any) -> Dataset:
    """Return a ``ray.data.Dataset`` of the batches that a reader with ``output="arrow"`` has left.

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


def save_position(checkpoint: Checkpoint, loader: HasPosition) -> None:
    """Write a reader's or loader's position into a checkpoint, before ``ray.train.report``.

    The position is the same on every worker that has taken as many batches, and so is the file
    ``reader.json``: workers that report a checkpoint each, whose files Ray merges, may all call
    this, and one is enough.

    Raises
    ------
    RequestError
        While a plain ``DataLoader`` reads the loader by worker processes, so that the position
        is not known: see ``TorchLoader.state_dict``.
    """
    text = json.dumps(loader.state_dict())
    with checkpoint.filesystem.open_output_stream(_position_path(checkpoint)) as file:
        file.write(text.encode())


def load_position(checkpoint: Checkpoint, loader: HasPosition) -> None:
    """Send a reader or loader to the position of a checkpoint, for any number of workers.

    Reads ``reader.json`` alone, from wherever the checkpoint is.

    Raises
    ------
    RequestError
        For a checkpoint without a position or with a damaged one, and as the loader's
        ``load_state_dict`` does: for the position of another table, for example.
    """
    path = _position_path(checkpoint)
    try:
        with checkpoint.filesystem.open_input_stream(path) as file:
            text = file.read(_MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise RequestError(
            f"the checkpoint has no reader's position, {path}: call "
            "save_position(checkpoint, loader) before ray.train.report(metrics, checkpoint)"
        ) from error
    try:
        if len(text) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
        state = mapping(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"{path} is not a reader's position: {error}; expected what save_position wrote"
        ) from error
    loader.load_state_dict(state)


def _position_path(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.path}/{POSITION_FILE}"


class SnapshotDatasource(Datasource):  # type: ignore[misc]
    """What :func:`dataset` reads: the batches of a reader from its position to the epoch's end."""

    def __init__(self, reader: SnapshotReader) -> None:
        super().__init__()
        self._reader = copy.copy(reader)

    def get_name(self) -> str:
        """Return the name of the read tasks."""
        return f"Paimon:{self._reader.table}"

    def estimate_inmemory_data_size(self) -> int:
        """Return the bytes of the decoded rows."""
        return self._reader.decoded_bytes()

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return a task for each n-th batch; none without batches."""
        batches = self._reader.remaining()
        count = max(1, min(parallelism, batches))
        share = self._reader.decoded_bytes() // count
        metadata = BlockMetadata(
            num_rows=None, size_bytes=share, exec_stats=None, input_files=None
        )  # fmt: skip
        return [
            ReadTask(
                functools.partial(_read, self._reader, index, count),
                metadata,
                schema=self._reader.schema,
                per_task_row_limit=per_task_row_limit,
            )
            for index in range(count if batches else 0)
        ]


def _read(reader: SnapshotReader, index: int, count: int) -> Iterator[pa.Table]:
    for batch in copy.copy(reader).iterate(index, count):
        assert batch.arrow is not None
        yield batch.arrow
