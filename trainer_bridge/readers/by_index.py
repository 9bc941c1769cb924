"""Errors for what takes rows by index, which neither readers nor loaders have."""

from __future__ import annotations

import sys
from typing import Never

from paimon_features.core.errors import ConfigurationError


def refuse_index(what: str) -> Never:
    """Raise ConfigurationError, with what to write instead.

    A ``DataLoader`` without ``batch_size=None``, a ``Subset`` or a sampler get here.
    """
    raise ConfigurationError(
        f"{what} yields batches in the order of its seed and has no rows by index: iterate over "
        "it, with torch as trainer_bridge.adapters.torch.loader(reader) or "
        "DataLoader(loader(reader), batch_size=None); in place of random_split use two readers "
        'with where="hash_bucket(CAST(id AS STRING), 10) < 8" and ">= 8"'
    )


def refuse_random_split(what: str) -> None:
    """Raise ConfigurationError if the caller's caller is torch's ``random_split``.

    It takes the number of batches for that of rows, and fails with the first index only.
    """
    code = sys._getframe(2).f_code
    if code.co_name == "random_split":
        refuse_index(what)
