"""Uses of loaders that would repeat rows or reshape batches silently: errors instead."""

from __future__ import annotations

import torch.distributed

from paimon_features.core.errors import ConfigurationError
from trainer_bridge.adapters.torch.ranks import rank_and_world_size
from trainer_bridge.order.wrappers import callers


def refuse_batches_of_batches(dataset: object) -> None:
    """Raise ConfigurationError if a ``DataLoader`` collates the batches of a data set."""
    for owner in callers():
        if getattr(owner, "dataset", None) is dataset and getattr(owner, "auto_collation", False):
            raise ConfigurationError(
                "a loader yields batches of the reader's batch_size already, and this DataLoader "
                "would put several of them together; write DataLoader(loader, batch_size=None), "
                "and the number of rows as SnapshotReader(..., batch_size=...)"
            )


def refuse_late_rank(rank: int, world_size: int, in_worker: bool) -> None:
    """Raise ConfigurationError if a loader was made before its rank was known."""
    if in_worker and not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return  # its environment need not be that of the main process
    now = rank_and_world_size()
    if now != (rank, world_size):
        raise ConfigurationError(
            f"this loader was made when the process was rank {rank} of {world_size}, and it is "
            f"rank {now[0]} of {now[1]} now, so that ranks would read the same rows; make the "
            "loader after torch.distributed.init_process_group, or give rank= and world_size="
        )
