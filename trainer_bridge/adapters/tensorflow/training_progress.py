"""Position of a training loop that prefetches: batches consumed, not fetched."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from trainer_bridge.readers.snapshot_reader import SnapshotReader


class TrainingProgress:
    """Counts the batches that a training loop has consumed; its state is that of the reader then.

    ``tf.data`` requests batches before they are needed, so the reader's own state is
    ahead. A loop calls :meth:`advance` after each step, Keras calls
    ``trainer_bridge.tensorflow.ProgressCallback``; a checkpoint contains :meth:`state_dict`.
    Create it while the reader is positioned where training begins. It is the position of the
    training: a pass over a dataset of the reader that is broken off, as by
    ``fit(steps_per_epoch=...)``, leaves the reader there, and the next pass continues.

    >>> from tempfile import TemporaryDirectory
    >>> from paimon_features.lake import Lake
    >>> from trainer_bridge.testing.sample_tables import make_samples
    >>> with TemporaryDirectory() as folder:
    ...     lake = Lake.open(folder, "shop")
    ...     reader = SnapshotReader(lake, make_samples(lake, [10]), columns=["x"], batch_size=4)
    ...     progress = TrainingProgress(reader)
    ...     for _ in range(4):  # an epoch has three batches
    ...         progress.advance()
    >>> state = progress.state_dict()
    >>> state["epoch"], state["position"]
    (1, 4)
    """

    def __init__(self, reader: SnapshotReader) -> None:
        self._reader = reader
        self._state = reader.state_dict()
        _newest[reader] = weakref.ref(self)

    def advance(self, batches: int = 1) -> None:
        """So many batches more were had; epoch follows on epoch."""
        for _ in range(batches):
            self._state = self._reader.state_after(1, self._state)

    def state_dict(self) -> dict[str, Any]:
        """Return a state for ``SnapshotReader.load_state_dict``: small JSON."""
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go, with the reader, to where a state was taken; make the dataset after that."""
        self._reader.load_state_dict(state)
        self._state = self._reader.state_dict()


_newest: weakref.WeakKeyDictionary[SnapshotReader, weakref.ref[TrainingProgress]] = (
    weakref.WeakKeyDictionary()
)


def trained_state(reader: SnapshotReader) -> dict[str, Any] | None:
    """Return the state of the newest progress of a reader; None without one."""
    reference = _newest.get(reader)
    progress = None if reference is None else reference()
    return None if progress is None else progress.state_dict()
