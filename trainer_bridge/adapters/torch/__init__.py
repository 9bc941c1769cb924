"""Snapshot readers and samplers for torch; with its modules the only importer of it."""

from __future__ import annotations

from paimon_features.core.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtraError.of("torch", "torch", "trainer_bridge.adapters.torch") from error

from trainer_bridge.adapters.torch.batch import TensorBatch
from trainer_bridge.adapters.torch.jagged import Jagged, KeyedJagged, keyed_jagged
from trainer_bridge.adapters.torch.loading import TorchLoader, loader
from trainer_bridge.adapters.torch.ranks import rank_and_world_size
from trainer_bridge.adapters.torch.sampler import TorchSampler, as_sampler
from trainer_bridge.adapters.torch.streams import StreamLoader
from trainer_bridge.readers.loss_weights import SAMPLE_WEIGHT

__all__ = [
    "SAMPLE_WEIGHT",
    "Jagged",
    "KeyedJagged",
    "StreamLoader",
    "TensorBatch",
    "TorchLoader",
    "TorchSampler",
    "as_sampler",
    "keyed_jagged",
    "loader",
    "rank_and_world_size",
]
