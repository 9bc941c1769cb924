"""State of a runner in a snapshot, and its encoding as plain tuples in savepoints.

A snapshot is taken after every message, so it is stored as tuples without class names: smaller and
faster to pickle than the classes. The layout of the tuples is the format of savepoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from paimon_features.iteration.epoch_tracker import ChannelStates
from paimon_features.iteration.wires import Notice


@dataclass(frozen=True, slots=True)
class NodeState:
    """State of a node that tracks watermarks and nothing else."""

    channels: ChannelStates

    def pack(self) -> Any:
        """Return the plain form that is stored."""
        return self.channels

    @classmethod
    def unpack(cls, packed: Any) -> Self:
        """Rebuild the state from its plain form."""
        return cls(packed)


@dataclass(frozen=True, slots=True)
class HeadState(NodeState):
    """State of a data head."""

    emitted: int
    """The last epoch watermark that it emitted."""

    def pack(self) -> Any:
        return self.emitted, self.channels

    @classmethod
    def unpack(cls, packed: Any) -> Self:
        emitted, channels = packed
        return cls(channels, emitted)


@dataclass(frozen=True, slots=True)
class AllRoundState(NodeState):
    """State of a function with one instance for all rounds; its own state is stored by name."""

    terminated: bool

    def pack(self) -> Any:
        return self.terminated, self.channels

    @classmethod
    def unpack(cls, packed: Any) -> Self:
        terminated, channels = packed
        return cls(channels, terminated)


@dataclass(frozen=True, slots=True)
class PerRoundState(NodeState):
    """State of a function with one instance per round."""

    epochs: tuple[int, ...]
    """Epochs with a live instance."""

    def pack(self) -> Any:
        return self.epochs, self.channels

    @classmethod
    def unpack(cls, packed: Any) -> Self:
        epochs, channels = packed
        return cls(channels, epochs)


@dataclass(frozen=True, slots=True)
class ReplayState(NodeState):
    """State of a replay node; the replayed records are state entries of their own."""

    decided: int
    """The last epoch that the control head has decided."""
    emitted: int
    """The last epoch watermark that the node emitted."""
    terminated: bool
    entries: int
    """Number of state entries with replayed records."""
    size: int
    """Their pickled bytes."""

    def pack(self) -> Any:
        progress = self.decided, self.emitted, self.terminated, self.entries, self.size
        return progress, self.channels

    @classmethod
    def unpack(cls, packed: Any) -> Self:
        progress, channels = packed
        return cls(channels, *progress)


@dataclass(frozen=True, slots=True)
class TailState(NodeState):
    """State of a tail; large feedback entries are state entries of their own."""

    next_seq: int
    counts: Mapping[int, int]
    """Records by round, for rounds that are still open."""
    closed: Mapping[int, tuple[int, bytes | None]]
    """Records and pickled loss by round, for closed rounds that are not decided."""
    small: tuple[Notice, ...]
    """Small feedback entries that are not acknowledged."""

    def pack(self) -> Any:
        small = [tuple(entry) for entry in self.small]
        return self.next_seq, dict(self.counts), dict(self.closed), small, self.channels

    @classmethod
    def unpack(cls, packed: Any) -> Self:
        next_seq, counts, closed, small, channels = packed
        return cls(channels, next_seq, counts, closed, tuple(Notice(*entry) for entry in small))
