"""Configuration of an iteration: life cycles and settings."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from paimon_features.core.configuration.arguments import (
    check_arguments,
    checked_integer,
    plain_arguments,
    shown,
)
from paimon_features.core.errors import DefinitionError


class OperatorLifeCycle(enum.Enum):
    """Lifetime of one instance of a function in a body."""

    ALL_ROUND = "all-round"
    """One instance for the complete iteration."""

    PER_ROUND = "per-round"
    """One instance per epoch, created at the epoch's first record and closed at its watermark."""


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

    def __post_init__(self) -> None:
        plain_arguments(self)
        check_arguments("replay-memory", self)
        for name in ("held_bytes", "state_bytes"):
            if getattr(self, name) is not None:
                checked_integer(f"replay-memory: {name}", getattr(self, name), 0)


@dataclass(frozen=True, slots=True)
class IterationConfig:
    """Settings of one iteration.

    Parameters
    ----------
    lifecycle
        Life cycle of the functions in the body, except inside ``for_each_round``; also as text,
        ``"all-round"`` or ``"per-round"``.
    max_rounds
        Maximum number of epochs of a bounded iteration, equivalent to the termination criterion
        ``terminate_on_max_iter(max_rounds)``; ``None``: the body decides.
    wire
        Transport of feedback from the tails to the heads: ``"redis"`` or ``"memory"``.
    wait_ms
        Maximum time that the head waits for feedback before a checkpoint can pass, milliseconds.
    channel_batch
        Maximum number of records in one envelope.

    Raises
    ------
    DefinitionError
        An argument has another type, a number is less than one, or the life cycle or the wire is
        unknown.

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
        object.__setattr__(self, "lifecycle", _life_cycle(self.lifecycle))
        plain_arguments(self)
        if self.wire not in ("redis", "memory"):
            raise DefinitionError(
                f"iteration-config: unknown wire {self.wire!r}; expected memory or redis"
            )
        check_arguments("iteration-config", self)
        for name in ("max_rounds", "wait_ms", "channel_batch"):
            if getattr(self, name) is not None:
                checked_integer(f"iteration-config: {name}", getattr(self, name))


def _life_cycle(given: object) -> OperatorLifeCycle:
    try:
        return OperatorLifeCycle(given)
    except ValueError:
        expected = " or ".join(
            f"{life_cycle} ({life_cycle.value!r})" for life_cycle in OperatorLifeCycle
        )
        raise DefinitionError(
            f"iteration-config: lifecycle={shown(given)}; expected {expected}"
        ) from None
