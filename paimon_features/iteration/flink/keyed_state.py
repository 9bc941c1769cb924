"""State of a subtask in Flink's keyed state: one key per subtask, one map per family."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from paimon_features.iteration.envelope import dumps
from paimon_features.iteration.flink.memory_limits import MemoryLimits
from paimon_features.iteration.state_backend import Key

if TYPE_CHECKING:
    from pyflink.datastream import MapState, RuntimeContext

FAMILIES = ("control", "entry", "replay", "all", "round")


class FlinkStateBackend:
    """A ``StateBackend`` that can be used while Flink processes an element of the subtask's key."""

    def __init__(self, context: RuntimeContext, memory: MemoryLimits) -> None:
        self._memory = memory
        from pyflink.common import Types
        from pyflink.datastream.state import MapStateDescriptor

        # created here: a descriptor whose types were used on the client cannot be shipped
        self._maps: dict[str, MapState] = {
            family: context.get_map_state(
                MapStateDescriptor(family, Types.STRING(), Types.PICKLED_BYTE_ARRAY())
            )
            for family in FAMILIES
        }

    def get(self, key: Key) -> Any:
        pickled = self._maps[key[0]].get(_name(key))
        return None if pickled is None else pickle.loads(pickled)[1]

    def put(self, key: Key, value: Any) -> None:
        # a byte array as a key would be hashed by identity on the heap, hence a string; as that
        # cannot be parsed, the key is stored with the value; pickled here, because Flink's own
        # pickle cannot serialize classes that were shipped with the job
        name = _name(key)
        data = self._memory.checked(dumps((key, value)), f"iteration: the state {name}")
        self._maps[key[0]].put(name, data)

    def delete(self, key: Key) -> None:
        self._maps[key[0]].remove(_name(key))

    def scan(self, family: str) -> Iterator[tuple[Key, Any]]:
        return iter([pickle.loads(pickled) for pickled in self._maps[family].values() or ()])


def _name(key: Any) -> str:
    """Return a string that is equal exactly for equal keys.

    >>> _name(("all", 3, 1)) == _name(("all", 3.0, True))
    True
    >>> _name(("all", "1")) == _name(("all", 1))
    False
    """
    if isinstance(key, tuple):
        return "(" + ",".join(map(_name, key)) + ")"
    item = getattr(key, "item", None)
    if item is not None:  # a scalar of NumPy
        key = item()
    if isinstance(key, float) and key.is_integer():
        key = int(key)
    return repr(int(key) if isinstance(key, bool) else key)
