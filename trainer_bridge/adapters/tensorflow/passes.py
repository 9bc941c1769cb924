"""Passes of ``tf.data`` over a reader; nothing here knows TensorFlow.

A ``tf.data.Dataset`` is iterated as often as one likes: Keras does so once an epoch, people
look at the first batch, ``prefetch`` fetches what nobody takes. A reader continues from where
it stands. Here the two meet: a pass that handed out its last batch moves the reader to the
next epoch, and one that was broken off puts it back to where the pass began.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

from paimon_features.errors import RequestError
from trainer_bridge.batches.forms import Batch
from trainer_bridge.readers.snapshot_reader import SnapshotReader


class Pass:
    """One iteration, from the reader's position to the end of its epoch."""

    def __init__(self, reader: SnapshotReader) -> None:
        self.left = reader.remaining()
        self._reader = reader
        self._start = reader.state_dict()
        self._batches = reader.iterate()
        self._ended_by: str | None = None
        # tf.data calls from threads of its own, and may end a pass while one of them reads
        self._lock = threading.Lock()

    def take(self) -> Batch:
        """The next batch; the reader's threads end with the last.

        Raises
        ------
        RequestError
            If another pass has begun meanwhile, or the reader was moved or closed.
        """
        with self._lock:
            if self._ended_by is not None:
                raise RequestError(self._ended_by)
            batch = next(self._batches, None)
            if batch is None:
                raise RequestError(
                    f"the reader of table {self._reader.table!r} was moved or closed while "
                    "tf.data was reading it; do that between passes over the dataset"
                )
            self.left -= 1
            if not self.left:
                self._batches.close()
            return batch

    def end(self, reason: str) -> None:
        """Free what the pass holds; unless it is through, the reader goes back to its start."""
        with self._lock:
            if self._ended_by is not None:
                return
            self._ended_by = reason
            if self.left:
                self._batches.close()
                self._reader.load_state_dict(self._start)


class Passes:
    """All passes over one dataset: one at a time, a new one ends the one before.

    Parameters
    ----------
    length
        Batches that a pass has to have, because TensorFlow was promised so.
    """

    def __init__(self, reader: SnapshotReader, length: int) -> None:
        self.length = length
        self._reader = reader
        self._name = f"table {reader.table!r}"
        self._snapshot_id = reader.snapshot_id
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._running: dict[int, Pass] = {}

    def run(self) -> Iterator[int]:
        """Begin a pass and give its number; it ends with this generator."""
        with self._lock:
            for other in self._running.values():
                other.end(
                    f"another iteration over the dataset of {self._name} has begun, and ends "
                    "this one; make a second reader and dataset to read twice at a time"
                )
            if self._reader.snapshot_id != self._snapshot_id:
                raise RequestError(
                    f"the dataset was made for snapshot {self._snapshot_id} of table "
                    f"{self._reader.table!r}, and the reader was moved to snapshot "
                    f"{self._reader.snapshot_id}: create the dataset again"
                )
            if self._reader.remaining() != self.length:
                raise RequestError(
                    f"the dataset was made for {self.length} batches, and the reader of table "
                    f"{self._reader.table!r} stands {self._reader.remaining()} before the end of "
                    f"its epoch: after load_state_dict, or for the epochs after a begun one, "
                    "create the dataset again"
                )
            number = next(self._numbers)
            self._running[number] = Pass(self._reader)
        try:
            yield number
        finally:
            with self._lock:
                ended = self._running.pop(number, None)
            if ended is not None:
                ended.end("the iteration over the dataset has ended")

    def take(self, number: int) -> Batch:
        """The next batch of a pass; see :meth:`Pass.take`."""
        with self._lock:
            running = self._running.get(number)
        if running is None:
            raise RequestError(f"the iteration over the dataset of {self._name} has ended")
        return running.take()
