"""Items of several classes in one sequence, each class spread evenly over all of it.

Two classes: the smaller one's j-th item is placed in the j-th of as many equal cells,

::

    smaller (3 of 10)   [ . a . ][ . . a ][ a . . . ]      any slot of its cell, by a hash
    sequence              b a b    b b a    a b b b

so in any window its count differs from its share by less than 2, and in any prefix by less
than 1. More classes are merged two at a time, the smallest first (Huffman's tree). The slots
are random because ranks take every W-th position: with a strict pattern such as ``abab`` one
of two ranks would see only a. Each position is computed independently; no storage
proportional to the length of the sequence is needed.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from paimon_features.core.types.array_types import Ints
from trainer_bridge.samplers.keys import keys_of

LIMIT = 1 << 31
"""Maximum length: the length times the size of a class has to fit 63 bits."""


class Interleave:
    """A sequence of ``counts[c]`` items of each class c, at least one item in total.

    >>> classes, numbers = Interleave([2, 4]).locate(np.arange(6), key=1)
    >>> sorted(zip(classes.tolist(), numbers.tolist()))
    [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3)]
    """

    def __init__(self, counts: Sequence[int] | Ints) -> None:
        # Nodes: the classes by number, then the merged nodes; each with its size and,
        # if merged, its children.
        leaves = [(int(size), number) for number, size in enumerate(counts) if size]
        nodes = len(counts) + len(leaves) - 1
        self._num_classes = len(counts)
        self._sizes: Ints = np.zeros(nodes, dtype=np.int64)
        self._sizes[: len(counts)] = counts
        self._small: Ints = np.zeros(nodes, dtype=np.int64)
        self._large: Ints = np.zeros(nodes, dtype=np.int64)
        heapq.heapify(leaves)
        for node in range(len(counts), nodes):
            (few, small), (many, large) = heapq.heappop(leaves), heapq.heappop(leaves)
            self._sizes[node], self._small[node], self._large[node] = few + many, small, large
            heapq.heappush(leaves, (few + many, node))
        self._size, self._root = leaves[0]
        assert self._size <= LIMIT

    def __len__(self) -> int:
        return self._size

    def locate(self, positions: Ints, key: int) -> tuple[Ints, Ints]:
        """Return for each position its class, and how many of that class precede it."""
        node: Ints = np.full(len(positions), self._root, dtype=np.int64)
        at: Ints = np.array(positions, dtype=np.int64)
        down = np.arange(len(positions))[node >= self._num_classes]
        while len(down):
            # One tree level per round; index: positions that have not reached a leaf.
            own, place = node[down], at[down]
            size, few = self._sizes[own], self._sizes[self._small[own]]
            cell = ((place + 1) * few - 1) // size
            start = cell * size // few
            room = (cell + 1) * size // few - start
            words = keys_of(key, own, cell) >> np.uint64(32)
            slot = start + (words * room.astype(np.uint64) >> np.uint64(32)).astype(np.int64)
            inside = place == slot
            before = cell + (place > slot)
            node[down] = np.where(inside, self._small[own], self._large[own])
            at[down] = np.where(inside, before, place - before)
            down = down[node[down] >= self._num_classes]
        return node, at
