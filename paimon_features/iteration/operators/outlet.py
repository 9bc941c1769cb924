"""Output of a node: records and watermarks for the next runner or for the outbox."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paimon_features.iteration.dataflow import Partition
from paimon_features.iteration.envelope import RECORDS, WATERMARK, Envelope, StageMessage
from paimon_features.iteration.execution_plan import StageRoute
from paimon_features.iteration.operators.protocols import Receiver
from paimon_features.iteration.partitioning import (
    canonical_key,
    positions_by_subtask,
    stable_hash,
    subtasks_of,
)

_MOST_BYTES = 4 * 2**20


class Outbox:
    """Messages of one call, by receiver.

    Small batches for the same receiver are merged. A message has at most ``batch`` records and
    about 4 MiB of arrays: a replay of much data consists of many messages.
    """

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._messages: list[StageMessage] = []
        self._last: dict[tuple[int, int], list[Envelope]] = {}
        self._room: dict[tuple[int, int], int] = {}

    def records(
        self,
        address: tuple[int, int],
        head: tuple[int, int, int, int, int],
        values: list[Any],
        keys: list[Any] | None,
    ) -> None:
        """Send records; ``head`` is (node, kind, epoch, input, channel)."""
        most = self._most(values[0])
        start = 0
        while start < len(values):
            box = self._last.get(address)
            room = min(self._room.get(address, 0), most)
            if box is None or room < 1:
                box, room = self._begin(address), most
            some = values[start : start + room]
            cut = None if keys is None else keys[start : start + room]
            last = box[-1] if box else None
            if last is not None and last[:5] == head:
                merged = None if cut is None or last.keys is None else last.keys + cut
                box[-1] = Envelope(*head, last.values + some, merged)
            else:
                box.append(Envelope(*head, some, cut))
            self._room[address] = room - len(some)
            start += len(some)

    def add(self, address: tuple[int, int], envelope: Envelope) -> None:
        """Send one envelope unchanged."""
        box = self._last.get(address)
        if box is None:
            box = self._begin(address)
        box.append(envelope)

    def take(self) -> list[StageMessage]:
        """Return and clear the messages since the last call."""
        messages, self._messages = self._messages, []
        self._last.clear()
        return messages

    def _begin(self, address: tuple[int, int]) -> list[Envelope]:
        """Start a new message for a receiver."""
        box = self._last[address] = []
        self._room[address] = self._batch
        self._messages.append(StageMessage(*address, box))
        return box

    def _most(self, value: Any) -> int:
        """Return the maximum number of records per message, estimated from one record."""
        size = getattr(value, "nbytes", 0)
        return max(1, min(self._batch, _MOST_BYTES // size)) if size else self._batch


def _one_subtask(route: StageRoute) -> Callable[[list[Any]], list[Any] | None]:
    """Return the function of a route that does not split records: the keys of a list of values.

    It checks what a route to several subtasks has to check, so that a program does not depend on
    the parallelism.
    """
    key, partitioner = route.key, route.partitioner
    if key is None:
        return lambda values: None

    def keys_of(values: list[Any]) -> list[Any] | None:
        keys = list(map(key, values))
        if route.keyed:
            for record_key in keys:
                canonical_key(record_key)
            return keys
        if partitioner is not None:
            subtasks_of(keys, partitioner, route.target_parallelism)
        return None

    return keys_of


class LocalRoute:
    """A route to a runner of the same subtask, by a call."""

    def __init__(self, route: StageRoute, target: Receiver) -> None:
        self._input = route.input
        self._channel = route.channel
        self._keys = _one_subtask(route)
        self._target = target

    def records(self, epoch: int, values: list[Any]) -> None:
        self._target.records(self._input, epoch, values, self._keys(values))

    def watermark(self, epoch: int) -> None:
        self._target.watermark(self._channel, epoch)


class RemoteRoute:
    """A route to subtasks of another stage, through the outbox."""

    def __init__(self, route: StageRoute, subtask: int, outbox: Outbox) -> None:
        self._route = route
        self._outbox = outbox
        self._next = subtask
        self._key: Any = route.key
        stage, count = route.target_stage, route.target_parallelism
        if route.partition is Partition.FORWARD:
            self._addresses = [(stage, subtask)]
            self._channel = route.channel
        else:
            self._addresses = [(stage, target) for target in range(count)]
            self._channel = route.channel + subtask
        self._checked_keys = _one_subtask(route)
        if len(self._addresses) == 1:
            self._split = self._to_all
        else:
            self._split = {
                Partition.REBALANCE: self._in_turn,
                Partition.BROADCAST: self._to_all,
                Partition.HASH: self._by_key,
                Partition.CUSTOM: self._by_partitioner,
            }[route.partition]

    def records(self, epoch: int, values: list[Any]) -> None:
        route = self._route
        self._split((route.target, RECORDS, epoch, route.input, self._channel), values)

    def watermark(self, epoch: int) -> None:
        route = self._route
        envelope = Envelope(route.target, WATERMARK, epoch, route.input, self._channel)
        for address in self._addresses:
            self._outbox.add(address, envelope)

    def _to_all(self, head: tuple[int, int, int, int, int], values: list[Any]) -> None:
        keys = self._checked_keys(values)
        for address in self._addresses:
            self._outbox.records(address, head, values, keys)

    def _in_turn(self, head: tuple[int, int, int, int, int], values: list[Any]) -> None:
        count = len(self._addresses)
        for offset in range(min(count, len(values))):
            address = self._addresses[(self._next + offset) % count]
            self._outbox.records(address, head, values[offset::count], None)
        self._next = (self._next + len(values)) % count

    def _by_key(self, head: tuple[int, int, int, int, int], values: list[Any]) -> None:
        count = len(self._addresses)
        keys = list(map(self._key, values))
        self._by_target(head, values, [stable_hash(key) % count for key in keys], keys)

    def _by_partitioner(self, head: tuple[int, int, int, int, int], values: list[Any]) -> None:
        count, choose = len(self._addresses), self._route.partitioner
        assert choose is not None
        self._by_target(head, values, subtasks_of(map(self._key, values), choose, count), None)

    def _by_target(
        self,
        head: tuple[int, int, int, int, int],
        values: list[Any],
        targets: list[int],
        keys: list[Any] | None,
    ) -> None:
        for target, positions in positions_by_subtask(targets).items():
            self._outbox.records(
                self._addresses[target],
                head,
                [values[position] for position in positions],
                None if keys is None else [keys[position] for position in positions],
            )


class Outlet:
    """All routes of one node: the main output and its side outputs."""

    def __init__(self) -> None:
        self._routes: dict[str | None, list[LocalRoute | RemoteRoute]] = {None: []}

    def add(self, tag: str | None, route: LocalRoute | RemoteRoute) -> None:
        """Add a reader of an output."""
        self._routes.setdefault(tag, []).append(route)

    def records(self, epoch: int, values: list[Any], tag: str | None = None) -> None:
        """Send a batch; readers must not modify the list."""
        if values:
            for route in self._routes.get(tag, ()):
                route.records(epoch, values)

    def watermark(self, epoch: int) -> None:
        """Send a watermark to every reader, including those of side outputs."""
        for routes in self._routes.values():
            for route in routes:
                route.watermark(epoch)
