"""Passes of ``tf.data`` over a reader; nothing here knows TensorFlow.

A ``tf.data.Dataset`` is iterated as often as one likes: Keras does so once an epoch, people
look at the first batch, ``prefetch`` fetches what nobody takes. A reader continues from where
it stands. Here the two meet: a pass that handed out its last batch moves the reader to the
next epoch, and one that was broken off puts it back to where the pass began.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from paimon_features.core.errors import RequestError
from trainer_bridge.adapters.tensorflow.training_progress import trained_state
from trainer_bridge.batches.forms import Batch
from trainer_bridge.readers.snapshot_reader import SnapshotReader

Place: TypeAlias = tuple[int, int]
"""Epoch and position of a reader."""


class Pass:
    """One iteration of some batches from the reader's position on, usually to the epoch's end.

    ``counted_from`` is the place from which on a ``TrainingProgress`` counts its batches.
    """

    def __init__(self, reader: SnapshotReader, batches: int, counted_from: Place) -> None:
        self.left = batches
        self.start, self.counted_from = reader.state_dict(), counted_from
        self._reader = reader
        self._begin_epoch()
        self._ended_by: str | None = None
        # tf.data calls from threads of its own, and may end a pass while one of them reads
        self._lock = threading.Lock()

    def take(self) -> Batch:
        """Return the next batch; the reader's threads end with the last.

        Raises
        ------
        RequestError
            If another pass has begun meanwhile, or the reader was moved or closed.
        """
        with self._lock:
            if self._ended_by is not None:
                raise RequestError(self._ended_by)
            if not self._left_of_epoch:
                self._begin_epoch()
            batch = next(self._batches, None)
            if batch is None:
                raise RequestError(
                    f"the reader of table {self._reader.table!r} was moved or closed while "
                    "tf.data was reading it; do that between passes over the dataset"
                )
            self.left -= 1
            self._left_of_epoch -= 1
            if not self.left:
                self._batches.close()
            return batch

    def _begin_epoch(self) -> None:
        self._left_of_epoch = self._reader.remaining()
        self._batches = self._reader.iterate()

    def trained(self) -> dict[str, Any] | None:
        """Return where the training is, if a ``TrainingProgress`` counts the batches of this
        pass."""
        state = trained_state(self._reader)
        if state is None or {**state, **_place(self.start)} != self.start:
            return None
        within = self.counted_from <= place_of(state) <= self._reader.place
        return state if within else None

    def end(self, reason: str) -> None:
        """Free what the pass holds; unless it is through, the reader goes back: see above."""
        with self._lock:
            if self._ended_by is not None:
                return
            self._ended_by = reason
            if self.left:
                self._batches.close()
                self._reader.load_state_dict(self.trained() or self.start)


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
        self._newest: Pass | None = None
        self._left_at: dict[str, Any] | None = None

    def run(self) -> Iterator[int]:
        """Begin a pass and give its number; it ends with this generator."""
        with self._lock:
            for other in self._running.values():
                other.end(
                    f"another iteration over the dataset of {self._name} has begun, and ends "
                    "this one; make a second reader and dataset to read twice at a time"
                )
            if self._running:
                self._left_at = self._reader.state_dict()
            if self._reader.snapshot_id != self._snapshot_id:
                raise RequestError(
                    f"the dataset was made for snapshot {self._snapshot_id} of table "
                    f"{self._reader.table!r}, and the reader was moved to snapshot "
                    f"{self._reader.snapshot_id}: create the dataset again"
                )
            state = self._reader.state_dict()
            continued = state == self._left_at and state["position"]
            if self._reader.remaining() != self.length and not continued:
                raise RequestError(
                    f"the dataset was made for {self.length} batches, and the reader of table "
                    f"{self._reader.table!r} stands {self._reader.remaining()} before the end of "
                    f"its epoch: after load_state_dict, or for the epochs after a begun one, "
                    "create the dataset again"
                )
            number = next(self._numbers)
            self._newest = Pass(self._reader, self.length, self._counted_from(state))
            self._running[number] = self._newest
        try:
            yield number
        finally:
            with self._lock:
                ended = self._running.pop(number, None)
            if ended is not None:
                ended.end("the iteration over the dataset has ended")
                if ended is self._newest:
                    self._left_at = self._reader.state_dict()

    def _counted_from(self, start: Mapping[str, Any]) -> Place:
        """Return the place from which on batches count as trained by a pass that starts now.

        ``repeat()`` starts a pass while the trainer has not had the last batches of the one before.
        """
        before = self._newest
        if before is not None and start == self._left_at:
            trained = before.trained()
            if trained is not None and trained != before.start:
                return min(place_of(trained), place_of(start))
        return place_of(start)

    def take(self, number: int) -> Batch:
        """Return the next batch of a pass; see :meth:`Pass.take`."""
        with self._lock:
            running = self._running.get(number)
        if running is None:
            raise RequestError(f"the iteration over the dataset of {self._name} has ended")
        return running.take()


def place_of(state: Mapping[str, Any]) -> Place:
    """Return epoch and position of a state."""
    return state["epoch"], state["position"]


def _place(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: state[name] for name in ("epoch", "position")}
