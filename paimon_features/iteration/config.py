"""How an iteration runs: life cycles and settings."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from paimon_features.errors import DefinitionError


class OperatorLifeCycle(enum.Enum):
    """How long one instance of a body's function lives."""

    ALL_ROUND = "all-round"
    """One instance for the whole iteration."""

    PER_ROUND = "per-round"
    """One instance per epoch, made at the epoch's first record and closed at its watermark."""


@dataclass(frozen=True, slots=True)
class ReplayMemory:
    """Limits for the replayed data of one subtask, in pickled bytes.

    Parameters
    ----------
    held_bytes
        Maximum in Python's memory. The rest is read from the engine's state in every epoch.
    state_bytes
        Maximum in the engine's state, for a backend that keeps its state in memory; ``None`` for
        one that keeps it on disk.
    """

    held_bytes: int = 256 * 2**20
    state_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class IterationConfig:
    """Settings of one iteration.

    Parameters
    ----------
    lifecycle
        Life cycle of the functions in the body, unless ``for_each_round`` says otherwise.
    max_rounds
        Number of epochs after which a bounded iteration ends, the same as a termination
        criterion of ``terminate_on_max_iter(max_rounds)``; ``None`` leaves the end to the body.
    wire
        What carries feedback from the tails to the heads: ``"redis"`` or ``"memory"``.
    wait_ms
        How long the head waits for feedback before it lets a checkpoint pass, milliseconds.
    channel_batch
        Most records in one envelope.

    Raises
    ------
    DefinitionError
        A number is below one or the wire is unknown.

    Examples
    --------
    >>> IterationConfig(max_rounds=10).lifecycle
    <OperatorLifeCycle.ALL_ROUND: 'all-round'>
    """

    lifecycle: OperatorLifeCycle = OperatorLifeCycle.ALL_ROUND
    max_rounds: int | None = None
    wire: str = "redis"
    wait_ms: int = 50
    channel_batch: int = 512

    def __post_init__(self) -> None:
        for name in ("max_rounds", "wait_ms", "channel_batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise DefinitionError(f"iteration-config: {name} is {value}; it is at least 1")
        if self.wire not in ("redis", "memory"):
            raise DefinitionError(
                f"iteration-config: there is no wire {self.wire!r}; there is: memory, redis"
            )
