"""Which items of a list occur more than once, in time linear in its length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def duplicates(items: Iterable[T]) -> list[T]:
    """Return the items that occur more than once, in the order of their first occurrence.

    >>> duplicates(["b", "a", "c", "a", "b", "a"])
    ['b', 'a']
    """
    return [item for item, count in Counter(items).items() if count > 1]
