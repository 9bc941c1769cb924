"""Tables as Hugging Face data sets; the only importer of ``datasets``.

``datasets`` is installed by whoever uses this, in an environment without Flink, whose Beam pins an
older ``dill``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from paimon_features.core.errors import ConfigurationError, MissingExtraError
from trainer_bridge.readers.snapshot_reader import SnapshotReader

try:
    from datasets import Dataset, DatasetInfo, Features, IterableDataset
    from datasets.iterable_dataset import _BaseExamplesIterable
    from datasets.table import InMemoryTable
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "trainer_bridge.adapters.huggingface needs datasets, which is not installed: "
        "pip install datasets"
    ) from error

_SHARDS = 720_720
"""A number of shards that every number of nodes and workers up to sixteen divides."""


def iterable_dataset(reader: SnapshotReader) -> IterableDataset:
    """Return an ``IterableDataset`` over the batches of a reader with ``output="arrow"``.

    Batches are handed over as Arrow tables, without a copy (``with_format("arrow")``, ``"numpy"``,
    ``"torch"``, and ``iter(batch_size=...)`` work on them by blocks). Each iteration begins at the
    position that the reader has now. ``split_dataset_by_node`` and workers of a ``DataLoader`` deal
    out whole batches, every n-th to each; ``state_dict`` is a number of batches and rows, and a
    resumed data set reads none of the batches before. ``shuffle(seed)`` and ``set_epoch`` choose
    one of the reader's orders of all rows, in addition to their buffer.

    Raises
    ------
    ConfigurationError
        For a reader with another output.
    """
    if reader.output != "arrow":
        raise ConfigurationError(
            f"the reader's output is {reader.output!r}; expected output='arrow', whose tables are "
            "handed over as they are"
        )
    features = Features.from_arrow_schema(reader.schema)
    return IterableDataset(_ReaderBatches(reader), info=DatasetInfo(features=features))


def dataset(reader: SnapshotReader, columns: Sequence[str] | None = None) -> Dataset:
    """Return a ``Dataset`` in memory: all rows of the reader's snapshot, by row number; not
    shuffled.

    Raises
    ------
    UnknownNameError
        For an unknown column.
    """
    table = reader.read_columns(reader.schema.names if columns is None else columns)
    return Dataset(InMemoryTable(table))


class _ReaderBatches(_BaseExamplesIterable):  # type: ignore[misc]
    """The batches ``index``, ``index + count``, ``index + 2 * count``, ... of a reader's epoch.

    ``epoch`` is another epoch than the reader's, from its start.
    """

    def __init__(
        self, reader: SnapshotReader, index: int = 0, count: int = 1, epoch: int | None = None
    ) -> None:
        super().__init__()
        self.reader, self.index, self.count, self.epoch = reader, index, count, epoch

    def _init_state_dict(self) -> dict[str, Any]:
        self._state_dict = {"batch": 0, "row": 0, "type": type(self).__name__}
        return self._state_dict

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, table, first in self._tables():
            for row, example in enumerate(table.to_pylist(), first):
                self._advance(number, row + 1, first + len(table))
                yield row, example

    @property
    def iter_arrow(self) -> Callable[[], Iterator[tuple[int, pa.Table]]]:
        """What hands out whole batches."""
        return self._iter_arrow

    def _iter_arrow(self) -> Iterator[tuple[int, pa.Table]]:
        for number, table, first in self._tables():
            self._advance(number, first + len(table), first + len(table))
            yield number, table

    def _tables(self) -> Iterator[tuple[int, pa.Table, int]]:
        """Yield each batch with its number, what is left of its rows, and the number of the
        first."""
        state: dict[str, Any] = self._state_dict or {"batch": 0, "row": 0}
        number, first = state["batch"], state["row"]
        reader = copy.copy(self.reader)
        if self.epoch is not None:
            reader.set_epoch(self.epoch)
        for batch in reader.iterate(self.index, self.count, number):
            assert batch.arrow is not None
            yield number, batch.arrow.slice(first), first
            number, first = number + 1, 0

    def _advance(self, number: int, row: int, rows: int) -> None:
        if self._state_dict:
            at_end = row == rows
            self._state_dict["batch"] = number + 1 if at_end else number
            self._state_dict["row"] = 0 if at_end else row

    def shuffle_data_sources(self, generator: Any) -> _ReaderBatches:
        """Return the batches of an epoch that the generator draws."""
        epoch = int(copy.deepcopy(generator).integers(1, 1 << 31))
        return _ReaderBatches(self.reader, self.index, self.count, epoch)

    def shard_data_sources(
        self, num_shards: int, index: int, contiguous: bool = True
    ) -> _ReaderBatches:
        """Return every ``num_shards``-th of these batches, whatever ``contiguous`` says."""
        return _ReaderBatches(
            self.reader, self.index + self.count * index, self.count * num_shards, self.epoch
        )

    @property
    def num_shards(self) -> int:
        """How many parts there can be, for the checks of ``datasets``."""
        return max(1, _SHARDS // self.count)
