"""A table that grows, as tensors: batches without an end, in one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Never

from torch.utils.data import IterableDataset, get_worker_info

from paimon_features.core.errors import ConfigurationError
from paimon_features.core.process.closeable import Closeable
from trainer_bridge.adapters.torch.batch import TensorBatch
from trainer_bridge.adapters.torch.misuse import refuse_batches_of_batches
from trainer_bridge.adapters.torch.tensors import TensorForm
from trainer_bridge.order.wrappers import refuse_sharded_again
from trainer_bridge.readers.by_index import refuse_index
from trainer_bridge.streams.following_reader import FollowingReader


class StreamLoader(IterableDataset[TensorBatch], Closeable):
    """What :func:`~.loader` makes of a ``FollowingReader``: batches, and a place to resume from.

    A stream has no length and no epochs. It cannot be dealt out to worker processes: whoever is
    waiting for the next commit would hold back those behind it. Threads read ahead.
    """

    def __init__(self, reader: FollowingReader, form: TensorForm) -> None:
        super().__init__()
        self.reader = reader
        self.tensors = form

    def __iter__(self) -> Iterator[TensorBatch]:
        """Return the batches from the reader's position; see ``FollowingReader.iterate``."""
        info = get_worker_info()
        if info is not None:
            raise ConfigurationError(
                f"a stream in {info.num_workers} worker processes: expected none; say "
                "DataLoader(..., num_workers=0), the reader's threads read ahead"
            )
        refuse_sharded_again("loader", self.reader.rank, self.reader.world_size)
        refuse_batches_of_batches(self)
        return map(self.tensors, self.reader)

    def __getitem__(self, index: object) -> Never:
        """Raise ConfigurationError: a loader has no rows by index."""
        refuse_index("a loader")

    def state_dict(self) -> dict[str, Any]:
        """Return what was handed out, as small JSON: see ``FollowingReader.state_dict``."""
        return self.reader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the position of a state: see ``FollowingReader.load_state_dict``."""
        self.reader.load_state_dict(state)

    def close(self) -> None:
        """Stop the running iteration and release the reader. Idempotent."""
        self.reader.close()
