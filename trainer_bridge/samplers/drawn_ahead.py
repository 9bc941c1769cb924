"""What a ``DataLoader`` has drawn from a sampler for its worker processes, and not delivered yet.

It draws several batches for each worker before the loop gets the first one, so the sampler is ahead
of the loop. Who draws is known from the call stack, by the names of the classes: torch need not be
installed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paimon_features.core.errors import RequestError
from trainer_bridge.order.wrappers import callers

_WITH_WORKERS = {"_MultiProcessingDataLoaderIter", "_StatefulMultiProcessingDataLoaderIter"}
"""The iterators of torch and torchdata that send batches of indices to worker processes."""


@dataclass(frozen=True)
class DrawnAhead:
    """The draws of one loop of a ``DataLoader`` with worker processes.

    Attributes
    ----------
    epoch, start
        The sampler's epoch and position when the loop began.
    identity
        What the draws depend on besides.
    tasks
        The batches that were sent to workers and not delivered to the loop: the loader's own
        dictionary, which outlives the loop.
    items
        How many of the sampler's items a batch has; None if that is not known.
    drop_last
        Whether items that do not fill the last batch are left out.
    """

    epoch: int
    start: int
    identity: Mapping[str, Any]
    tasks: Mapping[int, Any]
    items: int | None
    drop_last: bool

    def asks(self) -> bool:
        """Return True within a call of the loader, which wants to know what it has drawn."""
        return any(getattr(owner, "_task_info", None) is self.tasks for owner in _loaders())

    def delivered(self, drawn: int, ended: bool) -> int:
        """Return how many of the ``drawn`` items the loop has had.

        Raises
        ------
        RequestError
            If that is not known.
        """
        if not self.tasks:
            return drawn
        if self.items is None:
            raise RequestError(
                "a DataLoader with worker processes has drawn more of this sampler than its loop "
                "has had, and a batch sampler of another kind decides how much: say where to "
                "continue by load_state_dict() or set_epoch(), use num_workers=0, or read through "
                "SnapshotReader.with_sampler and loader.in_workers(n)"
            )
        batches, short = divmod(drawn, self.items)
        batches += bool(short and ended and not self.drop_last)
        return (batches - len(self.tasks)) * self.items


def drawn_by_caller(sampler: Any) -> DrawnAhead | None:
    """Return the draws of the loop that a ``DataLoader`` begins; None if it has no workers."""
    for loader in _loaders():
        index, drop_last = loader._index_sampler, False
        items = 1 if _is(index, sampler) else None
        if type(index).__name__ == "BatchSampler" and _is(index.sampler, sampler):
            items, drop_last = index.batch_size, index.drop_last
        place = sampler.epoch, sampler.position
        return DrawnAhead(*place, sampler.identity(), loader._task_info, items, drop_last)
    return None


def _loaders() -> list[Any]:
    return [
        owner
        for owner in callers()
        if any(kind.__name__ in _WITH_WORKERS for kind in type(owner).__mro__)
    ]


def _is(found: Any, sampler: Any) -> bool:
    """Return whether an object is the sampler, or torch's form of it (``as_sampler``)."""
    return found is sampler or (type(found).__name__ == "TorchSampler" and found.sampler is sampler)
