"""A least-recently-used cache of feature values."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from paimon_features.core.errors import DefinitionError


class FeatureCache:
    """The ``max_size`` most recently used values, by key; safe to share between threads.

    ``put`` and ``get`` take constant time; both mark a value as used.

    >>> cache = FeatureCache(max_size=2)
    >>> for key in "abc":
    ...     cache.put(key, key.upper())
    >>> cache.get("a"), cache.get("c"), cache.get_stats()["evictions"]
    (None, 'C', 1)

    Raises
    ------
    DefinitionError
        For a ``max_size`` below 1.
    """

    def __init__(self, max_size: int = 10000) -> None:
        if max_size < 1:
            raise DefinitionError(f"max_size={max_size!r}; expected at least 1")
        self.max_size = max_size
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, Any] = OrderedDict()
        self._hits = self._misses = self._evictions = 0

    def put(self, key: Hashable, value: Any) -> None:
        """Store a value; the least recently used one is evicted if the cache is full."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > self.max_size:
                self._values.popitem(last=False)
                self._evictions += 1

    def get(self, key: Hashable) -> Any:
        """Return the value of a key, None if there is none."""
        with self._lock:
            if key not in self._values:
                self._misses += 1
                return None
            self._hits += 1
            self._values.move_to_end(key)
            return self._values[key]

    def clear(self) -> None:
        """Remove all values and reset the statistics."""
        with self._lock:
            self._values.clear()
            self._hits = self._misses = self._evictions = 0

    def get_stats(self) -> dict[str, Any]:
        """Return ``size``, ``max_size``, ``hits``, ``misses``, ``hit_rate`` (0.0 without lookups),
        and ``evictions``."""
        with self._lock:
            lookups = self._hits + self._misses
            return {
                "size": len(self._values),
                "max_size": self.max_size,
                "hits": self._hits,
                "misses": self._misses,
                "hit_rate": self._hits / lookups if lookups else 0.0,
                "evictions": self._evictions,
            }
