"""Loaders for Accelerate, and so for the Trainer of Transformers; the only importer of it.

``accelerator.prepare`` deals the batches of an iterable data set out from rank 0, whose loader has
the rows of one rank only. A loader that is prepared here stays the share of its rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Unpack

from paimon_features.core.errors import ConfigurationError, MissingExtraError
from trainer_bridge.adapters.torch import TensorBatch, TorchLoader
from trainer_bridge.adapters.torch.loading import DataLoaderKeywords

try:
    from accelerate import Accelerator
    from accelerate.data_loader import DataLoaderShard
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "trainer_bridge.adapters.accelerate needs accelerate, which is not installed: "
        "pip install accelerate"
    ) from error


def accelerated(
    loader: TorchLoader,
    accelerator: Accelerator,
    *,
    num_workers: int = 0,
    **options: Unpack[DataLoaderKeywords],
) -> AcceleratedLoader:
    """Return a loader as Accelerate prepares its own: on the device, with the end of the epoch
    known.

    ``accelerator.prepare`` leaves it as it is. Each rank reads its own share; gradients that are
    accumulated are applied at the end of the epoch; ``accelerator.register_for_checkpointing``
    stores the position.

    Parameters
    ----------
    loader
        What ``trainer_bridge.adapters.torch.loader`` returned, on every rank.
    num_workers, options
        Arguments of torch's ``DataLoader``; threads of the reader fetch ahead without any.

    Raises
    ------
    ConfigurationError
        If the loader has the share of another rank than the accelerator.
    """
    process, world = accelerator.process_index, accelerator.num_processes
    reader = loader.reader
    if not loader.own_rank and (reader.rank, reader.world_size) != (process, world):
        raise ConfigurationError(
            f"the loader has the share of rank {reader.rank} of {reader.world_size}, the "
            f"accelerator is rank {process} of {world}: make it after the Accelerator, or give "
            "rank=accelerator.process_index and world_size=accelerator.num_processes"
        )
    return AcceleratedLoader(loader, accelerator, num_workers=num_workers, **options)


class AcceleratedLoader(DataLoaderShard):  # type: ignore[misc]
    """What :func:`accelerated` returns: a ``DataLoader`` that Accelerate has prepared already."""

    _is_accelerate_prepared = True

    def __init__(self, loader: TorchLoader, accelerator: Accelerator, **options: Any) -> None:
        device = accelerator.device if accelerator.device_placement else None
        super().__init__(
            loader,
            device=device,
            _non_blocking=accelerator.non_blocking,
            iteration=loader.reader.epoch,
            batch_size=None,
            **options,
        )
        self.loader = loader

    def __iter__(self) -> Iterator[TensorBatch]:
        """Yield the batches from the loader's position to the end of the epoch.

        None is fetched before it is handed out, so that a loop that is left early loses none.
        """
        self.begin()
        try:
            left = self.loader.remaining()
            batches = iter(self.base_dataloader)
            for batch in self.loader.counted(batches) if self.num_workers else batches:
                left -= 1
                self.end_of_dataloader = not left
                if self.device is None:
                    yield batch
                else:
                    yield batch.to(self.device, non_blocking=self._non_blocking)
        finally:
            self.end()
            self.iteration = self.loader.reader.epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; stays where it is if it is in that epoch already."""
        self.loader.set_epoch(epoch)
        self.iteration = epoch

    def state_dict(self) -> dict[str, Any]:
        """Return what was handed out: see ``TorchLoader.state_dict``."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where a state was taken: see ``TorchLoader.load_state_dict``."""
        self.loader.load_state_dict(state)
        self.iteration = self.loader.reader.epoch
