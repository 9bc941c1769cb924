"""Sizes that steps of ``tf.data`` are given."""

from __future__ import annotations

import tensorflow as tf

from paimon_features.core.errors import ConfigurationError
from trainer_bridge.order.reader_state import is_integer


def check_sizes(*, least: int = 1, tuned: bool = False, **sizes: int | None) -> None:
    """Raise ConfigurationError for a size below ``least``, or that is not an integer.

    None is left to TensorFlow, as is ``tf.data.AUTOTUNE`` where it is ``tuned``: TensorFlow itself
    takes a batch of -1 rows for all rows, and a buffer of -1 for one that it chooses.

    >>> check_sizes(batch_size=-1)
    Traceback (most recent call last):
    ...
    paimon_features.core.errors.ConfigurationError: batch_size=-1: expected at least 1
    """
    for name, size in sizes.items():
        if size is None or (tuned and size == tf.data.AUTOTUNE):
            continue
        if not is_integer(size) or size < least:
            raise ConfigurationError(f"{name}={size!r}: expected at least {least}")
