"""The position of a loader, passed to its worker processes and back through shared memory.

A ``DataLoader`` copies its data set into worker processes, for each epoch or, persistent, once
for all of them. Without more, ``set_epoch`` and ``load_state_dict`` of the main process would
not reach persistent workers, and the end of an epoch in the workers would not reach the main
process. One page of shared memory does both: the state from which to start, as JSON, and for
each worker the epoch that it has come to, and that it began.
"""

from __future__ import annotations

import time
import zlib
from typing import Any

import numpy as np
import torch

from paimon_features.core.errors import ConfigurationError, RequestError

MAX_WORKERS = 256
_ROOM = 1 << 16
_LENGTH, _CHECKSUM, _VERSION, _BEGUN_TAG, _BEGUN_EPOCH, _BEGUN_WORKERS = range(6)
_ENDED = 6
_LEFT = _ENDED + 2 * MAX_WORKERS
_WORDS = _LEFT + 2 * MAX_WORKERS


def tag(command: str) -> int:
    """Return a number that identifies the result of :meth:`SharedPlace.read`; never 0."""
    return zlib.crc32(command.encode()) + 1


def version_of(command: str) -> int:
    """Return the version that a result of :meth:`SharedPlace.read` begins with."""
    return int(command.split(" ", 1)[0])


class SharedPlace:
    """The page. Copies in other processes show the same memory; it ends with the last of them."""

    def __init__(self, text: str) -> None:
        # file and name are gone at once, so that nothing is left if processes are killed
        self._memory = torch.zeros(_WORDS * 8 + _ROOM, dtype=torch.uint8).share_memory_()
        self.write(text)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._memory.share_memory_()  # a copy within a process begins a page of its own

    @property
    def _words(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return self._memory.numpy()[: _WORDS * 8].view(np.int64)

    @property
    def _bytes(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return self._memory.numpy()[_WORDS * 8 :]

    def write(self, text: str) -> None:
        """Say from which state to start; what was begun and ended before counts no more."""
        self._store(f"{self.version + 1} {text}")

    def resume(self, text: str, worker: int) -> None:
        """Record that a worker was resumed from a state, as all others are now."""
        self.end(0, worker, 0)
        self._store(f"{self.version} {text}")

    def read(self) -> str:
        """From which state to start: a version, a space, the state."""
        for _ in range(1_000):
            length, checksum = int(self._words[_LENGTH]), int(self._words[_CHECKSUM])
            data = self._bytes[:length].tobytes()
            if zlib.crc32(data) + 1 == checksum:
                return data.decode()
            time.sleep(0.001)  # another process is writing
        raise RequestError(
            "a process ended while it wrote the position of the loader: create the loader again"
        )

    @property
    def version(self) -> int:
        """How often it was said from which state to start."""
        return int(self._words[_VERSION])

    def _store(self, command: str) -> None:
        data = np.frombuffer(command.encode(), dtype=np.uint8)
        if len(data) > _ROOM:
            raise ConfigurationError(
                f"a state of {len(data):,} bytes; workers can receive at most {_ROOM:,}"
            )
        words = self._words
        words[_VERSION] = version_of(command)
        words[_CHECKSUM] = 0
        self._bytes[: len(data)] = data
        words[_LENGTH], words[_CHECKSUM] = len(data), tag(command)

    def was_left(self, start: int, worker: int, epoch: int) -> bool:
        """Return True if this worker began that epoch before, and its loop did not come to the
        end."""
        begun = self._words[_LEFT + 2 * worker : _LEFT + 2 * worker + 2]
        return bool(begun[0] == start and begun[1] == epoch)

    def begin(self, start: int, epoch: int, workers: int, worker: int | None) -> None:
        """Record that a worker begins an epoch, of the state with the tag ``start``.

        ``worker`` is its number, if it is an error to begin the epoch again before its end.
        """
        if worker is not None:
            self._words[_LEFT + 2 * worker : _LEFT + 2 * worker + 2] = start, epoch
        self._words[_BEGUN_EPOCH], self._words[_BEGUN_WORKERS] = epoch, workers
        self._words[_BEGUN_TAG] = start

    def begun(self, start: int) -> tuple[int, int] | None:
        """Epoch and number of workers of the last iteration; None: none from that state."""
        if self._words[_BEGUN_TAG] != start:
            return None
        return int(self._words[_BEGUN_EPOCH]), int(self._words[_BEGUN_WORKERS])

    def end(self, start: int, worker: int, epoch: int) -> None:
        """Record that a worker has delivered its share, and is at the start of ``epoch``."""
        self._words[_LEFT + 2 * worker] = 0
        self._words[_ENDED + 2 * worker : _ENDED + 2 * worker + 2] = start, epoch

    def epoch(self, start: int, workers: int) -> int:
        """Return the epoch that all workers have come to; 0 where one has ended none."""
        # axes: (worker, (tag, epoch))
        ended = self._words[_ENDED : _ENDED + 2 * workers].reshape(-1, 2)
        return int(np.where(ended[:, 0] == start, ended[:, 1], 0).min(initial=1 << 62))
