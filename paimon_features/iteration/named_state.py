"""Named state of a function, available as ``ctx.state``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from paimon_features.iteration.state_backend import Key, StateCache


class ValueState:
    """A single value that may be unset."""

    def __init__(self, cache: StateCache, key: Callable[[], Key]) -> None:
        self._cache = cache
        self._key = key

    def value(self, default: Any = None) -> Any:
        """Return the value, or ``default`` if unset. Changes made to it in place are not saved."""
        stored = self._cache.get(self._key())
        return default if stored is None else stored[0]

    def update(self, value: Any) -> None:
        """Set the value."""
        self._cache.put(self._key(), (value,))

    def clear(self) -> None:
        """Unset the value."""
        self._cache.delete(self._key())


class ListState:
    """A list; appending writes one small entry, whatever the length of the list."""

    def __init__(self, cache: StateCache, key: Callable[[], Key]) -> None:
        self._cache = cache
        self._key = key

    def __len__(self) -> int:
        return self._cache.get(self._key()) or 0

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def get(self) -> list[Any]:
        """Return all values in a new list."""
        key = self._key()
        read = self._cache.get
        return [read((*key, number))[0] for number in range(read(key) or 0)]

    def add(self, value: Any) -> None:
        """Append a value."""
        key = self._key()
        number = self._cache.get(key) or 0
        self._cache.put((*key, number), (value,))
        self._cache.put(key, number + 1)

    def add_all(self, values: Iterable[Any]) -> None:
        """Append values."""
        key = self._key()
        number = self._cache.get(key) or 0
        for value in values:
            self._cache.put((*key, number), (value,))
            number += 1
        self._cache.put(key, number)

    def update(self, values: Iterable[Any]) -> None:
        """Replace all values."""
        self.clear()
        self.add_all(values)

    def clear(self) -> None:
        """Empty the list."""
        key = self._key()
        for number in range(self._cache.get(key) or 0):
            self._cache.delete((*key, number))
        self._cache.delete(key)


class MapState:
    """A dictionary with one state entry per key; keys are in order of their first ``put``."""

    # An entry is (key, value) under a slot number; the state itself is the next slot number. The
    # slots by key are memoized in the cache, and rebuilt from the entries after a restore.

    def __init__(self, cache: StateCache, key: Callable[[], Key]) -> None:
        self._cache = cache
        self._key = key

    def _slots(self, key: Key) -> dict[Any, int]:
        slots: dict[Any, int] | None = self._cache.memo(key)
        if slots is None:
            slots = {}
            read = self._cache.get
            for slot in range(read(key) or 0):
                entry = read((*key, slot))
                if entry is not None:
                    slots[entry[0]] = slot
            self._cache.memoize(key, slots)
        return slots

    def get(self, name: Any, default: Any = None) -> Any:
        """Return the value of ``name``, or ``default`` if there is none."""
        key = self._key()
        slot = self._slots(key).get(name)
        return default if slot is None else self._cache.get((*key, slot))[1]

    def put(self, name: Any, value: Any) -> None:
        """Set the value of ``name``."""
        key = self._key()
        slots = self._slots(key)
        slot = slots.get(name)
        if slot is None:
            slot = slots[name] = self._cache.get(key) or 0
            self._cache.put(key, slot + 1)
        self._cache.put((*key, slot), (name, value))

    def remove(self, name: Any) -> None:
        """Delete the entry if it exists."""
        key = self._key()
        slots = self._slots(key)
        slot = slots.pop(name, None)
        if slot is None:
            return
        self._cache.delete((*key, slot))
        if not slots:
            self._cache.delete(key)
        elif self._cache.get(key) > 2 * len(slots) + 16:
            self._close_gaps(key, slots)

    def _close_gaps(self, key: Key, slots: dict[Any, int]) -> None:
        """Renumber the entries, so that a map with changing keys needs few slots."""
        entries = [self._cache.get((*key, slot)) for slot in slots.values()]
        for slot in slots.values():
            self._cache.delete((*key, slot))
        for slot, entry in enumerate(entries):
            slots[entry[0]] = slot
            self._cache.put((*key, slot), entry)
        self._cache.put(key, len(entries))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def contains(self, name: Any) -> bool:
        """Return whether there is an entry for ``name``."""
        return name in self._slots(self._key())

    __contains__ = contains

    def __len__(self) -> int:
        return len(self._slots(self._key()))

    def is_empty(self) -> bool:
        """Return whether there is no entry."""
        return not self._slots(self._key())

    def keys(self) -> list[Any]:
        """Return all keys."""
        return list(self._slots(self._key()))

    def values(self) -> list[Any]:
        """Return all values, in the order of the keys."""
        return [value for _, value in self.items()]

    def items(self) -> list[tuple[Any, Any]]:
        """Return all (key, value) pairs."""
        key = self._key()
        read = self._cache.get
        return [read((*key, slot)) for slot in self._slots(key).values()]

    def clear(self) -> None:
        """Remove all entries."""
        key = self._key()
        for slot in self._slots(key).values():
            self._cache.delete((*key, slot))
        self._cache.delete(key)
        self._cache.memoize(key, {})


class NamedStates:
    """State of one instance of a function, created on first use of a name.

    ``value``, ``list`` and ``map`` belong to the current key if the function reads keyed streams,
    otherwise to the subtask; ``broadcast`` and ``union_list`` always belong to the subtask. A name
    must be used with one of the five only.
    """

    def __init__(self, cache: StateCache, own: Callable[[], Key], keyed: Callable[[], Key]) -> None:
        self._cache = cache
        self._own = own
        self._keyed = keyed

    def value(self, name: str) -> ValueState:
        """Return the value state of this name."""
        return ValueState(self._cache, self._under(self._keyed, "v", name))

    def list(self, name: str) -> ListState:
        """Return the list state of this name."""
        return ListState(self._cache, self._under(self._keyed, "l", name))

    def map(self, name: str) -> MapState:
        """Return the map state of this name."""
        return MapState(self._cache, self._under(self._keyed, "m", name))

    def broadcast(self, name: str) -> MapState:
        """Return a map state per subtask, for records that are broadcast to all subtasks."""
        return MapState(self._cache, self._under(self._own, "b", name))

    def union_list(self, name: str) -> ListState:
        """Return a list state per subtask; iterations are not rescaled, so it is restored as is."""
        return ListState(self._cache, self._under(self._own, "u", name))

    @staticmethod
    def _under(scope: Callable[[], Key], kind: str, name: str) -> Callable[[], Key]:
        return lambda: (*scope(), kind, name)
