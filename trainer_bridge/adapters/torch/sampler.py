"""The samplers of the trainer bridge as torch's ``Sampler``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import Sampler

from trainer_bridge.samplers import AdvancedSampler


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
    """Return a sampler of ``trainer_bridge.samplers`` for ``DataLoader(data, sampler=...)``."""
    return TorchSampler(sampler)
