"""Frameworks that deal out to the ranks what is one rank's share already: an error instead.

They wrap what they are given and call nothing that says so. Who iterates is known from the call
stack, by the names of the classes: they need not be installed here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from paimon_features.core.errors import ConfigurationError

_SHARDING = {
    "DataLoaderDispatcher": "Accelerate deals the batches of rank 0 out to all ranks",
    "IterableDatasetShard": "Accelerate or Transformers assigns each rank a part of the batches",
    "_ShardingIterDataPipe": "torch assigns each rank or worker a part of the batches",
    "BatchSamplerShard": "Accelerate assigns each rank a part of the batches",
    "DistributedSampler": "torch's DistributedSampler assigns each rank a part of the samples",
    "_DatasetSamplerWrapper": "Lightning assigns each rank a part of the samples",
    "DatasetFromSampler": "a wrapper of the sampler assigns each rank a part of the samples",
}
"""Classes that give ranks parts of what they iterate over, and what that means."""
_REMEDIES = {
    "loader": "write trainer_bridge.adapters.accelerate.accelerated(loader, accelerator) in place "
    "of accelerator.prepare(DataLoader(loader, ...)), or iterate over the loader itself",
    "sampler": "make it without rank= and world_size=, or turn the other off (Lightning: "
    "use_distributed_sampler=False; Accelerate: do not prepare the DataLoader)",
}


def callers() -> Iterator[Any]:
    """Yield the objects whose methods are running, from the caller's caller on."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if owner is not None:
            yield owner
        frame = frame.f_back


def refuse_sharded_again(what: str, rank: int, world_size: int) -> None:
    """Raise ConfigurationError if one rank's share is dealt out to the ranks once more.

    ``what`` is ``"loader"`` or ``"sampler"``.
    """
    if world_size == 1:
        return
    for owner in callers():
        for kind in type(owner).__mro__:
            if kind.__name__ in _SHARDING:
                raise ConfigurationError(
                    f"this {what} has the share of rank {rank} of {world_size} already, and "
                    f"{_SHARDING[kind.__name__]} ({kind.__module__}.{kind.__name__}): rows would "
                    f"be lost; {_REMEDIES[what]}. See docs/how-to/training/frameworks.md"
                )
