"""Replay of a data stream in every epoch (S21)."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

from paimon_features.core.errors import JobError
from paimon_features.iteration.dataflow import DataflowNode
from paimon_features.iteration.envelope import WATERMARK, Envelope, dumps
from paimon_features.iteration.epochs import END, NONE
from paimon_features.iteration.operators.node import NodeRunner
from paimon_features.iteration.operators.protocols import Task
from paimon_features.iteration.operators.runner_states import ReplayState

PART_BYTES = 4 * 2**20
"""Approximate size of replayed data after which the resulting output is sent."""


class ReplayRunner(NodeRunner):
    """Forwards records in epoch 0 and stores them; the control head starts the later epochs.

    The replay of an epoch belongs to one message: a snapshot is taken before or after it.
    """

    state_type = ReplayState

    def __init__(self, task: Task, node: DataflowNode, channels: int) -> None:
        super().__init__(task, node, channels)
        self._decided = NONE
        self._emitted = NONE
        self._terminated = False
        # state entries in order; the first ones are also cached in memory
        self._entries = 0
        self._bytes = 0
        self._held = 0
        self._held_bytes = 0
        self._batches: list[tuple[list[Any], int]] = []

    def open(self) -> None:
        for number in range(self._entries):
            payload = self._stored(number)
            if not self._hold(pickle.loads(payload), len(payload)):
                break

    def records(
        self, input_index: int, epoch: int, values: list[Any], keys: list[Any] | None
    ) -> None:
        payload = dumps(values)
        self._check(len(payload))
        self.task.state.put(("replay", self.node.id, self._entries), payload)
        if self._held == self._entries:
            self._hold(values, len(payload))
        self._entries += 1
        self._bytes += len(payload)
        self.task.touch()
        self.outlet.records(0, values)

    def _hold(self, values: list[Any], size: int) -> bool:
        """Cache the next entry in memory, unless the limit is reached.

        In memory, small batches are merged into large ones; their state entries are not.
        """
        if self._held_bytes + size > self.task.replay_memory.held_bytes:
            return False
        self._held += 1
        self._held_bytes += size
        batches = self._batches
        if batches and len(batches[-1][0]) + len(values) <= self.task.stage.batch:
            batches[-1][0].extend(values)
            batches[-1] = batches[-1][0], batches[-1][1] + size
        else:
            batches.append((list(values), size))
        return True

    def _stored(self, number: int) -> bytes:
        payload = self.task.state.read(("replay", self.node.id, number))
        assert isinstance(payload, bytes)
        return payload

    def _check(self, size: int) -> None:
        most = self.task.replay_memory.state_bytes
        if most is not None and self._bytes + size > most:
            raise JobError(
                f"iteration: the replayed data of stage {self.task.stage.name!r} in subtask "
                f"{self.task.subtask} exceed {most:,} bytes, their share of the Java heap, in "
                "which the state backend 'hashmap' stores them; use IterationSettings(conf={"
                "'state.backend.type': 'rocksdb'}), which stores them on disk, or more or larger "
                "task managers"
            )

    def control(self, envelope: Envelope) -> None:
        if envelope.kind == WATERMARK:
            if envelope.epoch == END:
                self._terminated = True
            else:
                self._decided = max(self._decided, envelope.epoch)
            self.task.touch()
            self._resume()

    def advance(self, before: int, watermark: int) -> None:
        self._resume()

    def _resume(self) -> None:
        if self.tracker.watermark == END and self._emitted != END:
            self.task.do_in_parts(self._replay())

    def _replay(self) -> Iterator[None]:
        """Replay every decided epoch, also if the data end only after the iteration.

        Yields after ``PART_BYTES``, so that the output so far can be sent.
        """
        part = 0
        while self._emitted < self._decided:
            epoch = self._emitted + 1
            if epoch > 0:
                for values, size in self._stored_batches():
                    if part > PART_BYTES:
                        part = 0
                        yield
                    self.outlet.records(epoch, values)
                    part += size
            self._emitted = epoch
            self.outlet.watermark(epoch)
        if self._terminated and self._emitted != END:
            self._emitted = END
            self.outlet.watermark(END)

    def _stored_batches(self) -> Iterator[tuple[list[Any], int]]:
        yield from self._batches
        for number in range(self._held, self._entries):
            payload = self._stored(number)
            yield pickle.loads(payload), len(payload)

    def snapshot(self) -> ReplayState:
        return ReplayState(
            self.tracker.snapshot(),
            self._decided,
            self._emitted,
            self._terminated,
            self._entries,
            self._bytes,
        )

    def restore(self, state: ReplayState) -> None:
        super().restore(state)
        self._decided, self._emitted = state.decided, state.emitted
        self._terminated = state.terminated
        self._entries, self._bytes = state.entries, state.size
