"""Implementation of a function's context and collector."""

from __future__ import annotations

import enum
from typing import Any, Final

from paimon_features.core.errors import JobError
from paimon_features.iteration.epochs import NONE
from paimon_features.iteration.named_state import MapState, NamedStates
from paimon_features.iteration.partitioning import canonical_key
from paimon_features.iteration.state_backend import Key, StateCache
from paimon_features.iteration.timers import TimerService


class _NoKey(enum.Enum):
    # a member of an enumeration keeps its identity when it is pickled
    NO_KEY = "no key"


NO_KEY: Final = _NoKey.NO_KEY


class FunctionContext:
    """The ``ctx`` of one instance of a function."""

    def __init__(
        self,
        name: str,
        subtask: int,
        parallelism: int,
        cache: StateCache,
        scope: Key,
        keyed: bool,
    ) -> None:
        self.name = name
        self.subtask = subtask
        self.parallelism = parallelism
        self.epoch = NONE
        self.current: Any = NO_KEY
        self._scope = scope
        operator_key = self._own
        self.state = NamedStates(cache, operator_key, self._of_key if keyed else operator_key)
        self._timers = TimerService(MapState(cache, lambda: (*scope, "t")), lambda: self.current)

    @property
    def key(self) -> Any:
        return None if self.current is NO_KEY else self.current

    def timer_service(self) -> TimerService:
        return self._timers

    def _own(self) -> Key:
        return self._scope

    def _of_key(self) -> Key:
        if self.current is NO_KEY:
            raise JobError(
                f"keyed state of {self.name!r} is used without a current key: there is one only "
                "while a record or a timer is processed; use ctx.state.broadcast or union_list "
                "in callbacks"
            )
        return (*self._scope, "k", canonical_key(self.current))


class OutBuffer:
    """The ``out`` of a runner: buffers the output of one call."""

    __slots__ = ("collect", "sides", "values")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Start with new lists; the previous ones belong to whoever read them."""
        self.values: list[Any] = []
        # bound once: `out.collect(value)` is the append itself
        self.collect = self.values.append
        self.sides: dict[str, list[Any]] = {}

    def side(self, tag: str, value: Any) -> None:
        self.sides.setdefault(tag, []).append(value)
