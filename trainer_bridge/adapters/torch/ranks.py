"""Which of the processes that train together this one is."""

from __future__ import annotations

import os

import torch.distributed

from paimon_features.core.errors import ConfigurationError


def rank_and_world_size() -> tuple[int, int]:
    """Return the rank of this process, and the number of ranks.

    As ``torch.distributed`` says where it is initialised; else as the variables ``RANK`` and
    ``WORLD_SIZE`` say, which ``torchrun`` sets; else (0, 1).

    Raises
    ------
    ConfigurationError
        Where only one of the variables is set, or one is no number.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    texts = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    given = [text for text in texts.values() if text is not None]
    if not given:
        return 0, 1
    if len(given) < 2 or not all(text.isdigit() for text in given):
        raise ConfigurationError(
            f"the environment has RANK={texts['RANK']!r} and WORLD_SIZE={texts['WORLD_SIZE']!r}; "
            "expected two numbers, as torchrun sets them, or neither: give rank= and world_size="
        )
    return int(given[0]), int(given[1])
