"""Snapshot readers and samplers for torch; the only module that imports it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from paimon_features.errors import ConfigurationError, MissingExtraError, UnknownNameError
from trainer_bridge.forms import Batch
from trainer_bridge.reader import SAMPLE_WEIGHT, SnapshotReader
from trainer_bridge.samplers import AdvancedSampler

try:
    import torch
    from torch.utils.data import IterableDataset, Sampler, get_worker_info
except ModuleNotFoundError as error:
    raise MissingExtraError.of("torch", "torch", "trainer_bridge.adapters.torch") from error

Tensors = dict[str, torch.Tensor]


def loader(
    reader: SnapshotReader,
    *,
    stack: Mapping[str, Sequence[str]] | None = None,
    row_numbers: bool = False,
) -> TorchLoader:
    """The reader's batches as dicts of tensors, sharing memory with the reader's blocks.

    Iterate over it directly (the reader's threads fetch ahead), or hand it to
    ``DataLoader(..., batch_size=None)``: worker processes then take the batches in turn,
    and the order stays the same for every number of them.

    Parameters
    ----------
    stack
        Matrices to make, ``{name: columns}``: shape (rows, columns), in place of these
        columns. Columns of one dtype that were read side by side are not copied.
    row_numbers
        Adds ``row_number``, int64: each row's number in the snapshot.

    Raises
    ------
    ConfigurationError
        For a reader with ``output="arrow"``, or columns of several dtypes in one stack.
    UnknownNameError
        For a column in ``stack`` that is not read.
    """
    return TorchLoader(reader, stack or {}, row_numbers)


class TorchLoader(IterableDataset[Tensors]):
    """What :func:`loader` makes. Length, state and epoch are the reader's."""

    def __init__(
        self, reader: SnapshotReader, stack: Mapping[str, Sequence[str]], row_numbers: bool
    ) -> None:
        super().__init__()
        self.reader = reader
        self.row_numbers = row_numbers
        self.stack = {name: list(columns) for name, columns in stack.items()}
        kinds = reader.column_dtypes()
        for name, columns in self.stack.items():
            for column in columns:
                if column not in kinds:
                    raise UnknownNameError.of("column read", column, kinds)
            found = sorted({kinds[column].name for column in columns})
            if len(found) != 1:
                raise ConfigurationError(
                    f"stack {name!r} has columns of {', '.join(found) or 'no'} dtype; expected "
                    "one: cast floats by float_dtype=, or make several stacks"
                )
            if name in kinds and name not in columns:
                raise ConfigurationError(f"stack {name!r} is called like another column")

    def __iter__(self) -> Iterator[Tensors]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for batch in self.reader.iterate(worker, workers):
            yield self.tensors(batch)

    def __len__(self) -> int:
        return len(self.reader)

    def tensors(self, batch: Batch) -> Tensors:
        """One batch as tensors."""
        stacked = {column for columns in self.stack.values() for column in columns}
        result = {
            name: torch.from_numpy(values)
            for name, values in batch.columns.items()
            if name not in stacked
        }
        for name, columns in self.stack.items():
            result[name] = torch.from_numpy(_matrix(batch, columns))
        if self.row_numbers:
            result["row_number"] = torch.from_numpy(batch.row_numbers)
        return result

    def set_epoch(self, epoch: int) -> None:
        """See ``SnapshotReader.set_epoch``."""
        self.reader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """See ``SnapshotReader.state_dict``; in a loop over worker processes use
        ``reader.state_after(batches)``, because there it is their readers that advance."""
        return self.reader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See ``SnapshotReader.load_state_dict``."""
        self.reader.load_state_dict(state)


class TorchSampler(Sampler[int]):
    """A sampler as torch's ``Sampler``; its length is that of the rank, as torch expects."""

    def __init__(self, sampler: AdvancedSampler) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[int]:
        return iter(self.sampler)

    def __len__(self) -> int:
        return self.sampler.rank_len

    def set_epoch(self, epoch: int) -> None:
        self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        return self.sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.sampler.load_state_dict(state)


def as_sampler(sampler: AdvancedSampler) -> TorchSampler:
    """A sampler of ``trainer_bridge.samplers`` for ``DataLoader(data, sampler=...)``."""
    return TorchSampler(sampler)


def _matrix(batch: Batch, columns: Sequence[str]) -> np.ndarray[Any, Any]:
    for dtype, names in batch.names.items():
        if columns[0] in names:
            first = names.index(columns[0])
            if list(names[first : first + len(columns)]) == list(columns):
                return batch.blocks[dtype][:, first : first + len(columns)]
    return np.stack([batch.columns[column] for column in columns], axis=1)


__all__ = ["SAMPLE_WEIGHT", "TorchLoader", "TorchSampler", "as_sampler", "loader"]
