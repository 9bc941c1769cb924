"""Stratified sampling: classes in proportion, or equally many of each."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core.errors import ConfigurationError
from paimon_features.core.types.array_types import Ints
from trainer_bridge.order.permutation import derive_key, keys_of, permute
from trainer_bridge.samplers.base import AdvancedSampler
from trainer_bridge.samplers.groups import Groups, group_rows
from trainer_bridge.samplers.inputs import as_labels, checksum

LIMIT = 1 << 31
"""Maximum length: the length times the size of a class has to fit 63 bits."""


class StratifiedSampler(AdvancedSampler):
    """Spreads all classes evenly over the order, in proportion or with equal counts.

    - ``proportional`` (the default): all rows, each once. In any window of the order the count
      of a class deviates from its proportion by less than 2 with two classes and by at most 4
      with more; in any prefix of the epoch by less than 1 (at most 2 with more classes).
      See ``Interleave``.
    - ``num_samples_per_class``: that many rows of each class, equally spread in the same sense.
      Of a class with fewer rows, each is drawn once before any is repeated.
    - neither (``proportional=False``): as many of each class as the smallest one has.

    The order within a class is a new permutation in each epoch. 5 bytes per row for up to 256
    classes, in addition to the labels.

    Parameters
    ----------
    labels
        The class of each row: integers, strings, booleans or any sortable type; list,
        NumPy, Arrow, pandas, Polars.
    num_samples_per_class
        Draws per epoch and class, over all ranks.
    seed, rank, world_size
        See :class:`~trainer_bridge.samplers.AdvancedSampler`.

    Raises
    ------
    ConfigurationError
        If a label is null, or there are more than 2^31 draws.

    Examples
    --------
    >>> labels = ["ham"] * 6 + ["spam"] * 2
    >>> order = [labels[i] for i in StratifiedSampler(labels)]
    >>> [order[:4].count("spam"), order[4:].count("spam")]
    [1, 1]
    >>> sampler = StratifiedSampler(labels, num_samples_per_class=3)
    >>> sorted(labels[i] for i in sampler)
    ['ham', 'ham', 'ham', 'spam', 'spam', 'spam']
    """

    def __init__(
        self,
        labels: Any,
        num_samples_per_class: int | None = None,
        proportional: bool = True,
        *,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if num_samples_per_class is not None and num_samples_per_class < 1:
            raise ConfigurationError(
                f"num_samples_per_class={num_samples_per_class}: expected at least 1"
            )
        encoded = as_labels(labels)
        self.classes = encoded.classes
        self._codes = encoded.codes
        self._checksum = checksum(encoded.codes)
        self._groups = group_rows(encoded.codes, len(encoded.classes))
        sizes = self._groups.sizes
        if num_samples_per_class is not None:
            counts = np.full(len(sizes), num_samples_per_class, dtype=np.int64)
        elif proportional:
            counts = sizes
        else:
            counts = np.full(len(sizes), sizes.min(), dtype=np.int64)
        self.num_samples_per_class, self.proportional = num_samples_per_class, proportional
        self._counts = counts
        super().__init__(
            len(encoded.codes), int(counts.sum()), seed=seed, rank=rank, world_size=world_size
        )
        if self.num_samples > LIMIT:
            raise ConfigurationError(
                f"{self.num_samples} draws of {len(sizes)} classes: at most {LIMIT} can be spread"
            )
        self._interleave = Interleave(counts)

    def draw(self, epoch: int, positions: Ints) -> Ints:
        key = derive_key(self.seed, epoch, 0x57A)
        classes, numbers = self._interleave.locate(positions, key)
        return shuffled(self._groups, classes, numbers, key)

    def unbiased_weights(self, epoch: int, indices: Ints) -> npt.NDArray[np.float64]:
        share = self._groups.sizes / self.num_rows
        result: npt.NDArray[np.float64] = (share / (self._counts / self.num_samples))[
            self._codes[indices]
        ]
        return result

    def identity(self) -> dict[str, Any]:
        return {
            "sampler": "stratified",
            "rows": self.num_rows,
            "num_samples": self.num_samples,
            "proportional": self.num_samples_per_class is None and self.proportional,
            "seed": self.seed,
            "checksum": self._checksum,
        }


def shuffled(groups: Groups, classes: Ints, numbers: Ints, key: int) -> Ints:
    """Return the ``numbers[i]``-th row drawn of class ``classes[i]``.

    Each class is drawn in a permutation, and in another one when it is exhausted.
    """
    sizes = groups.sizes[classes]
    cycles, places = np.divmod(numbers, sizes)
    keys = keys_of(derive_key(key, 1), classes, cycles)
    return groups.take(classes, permute(places, sizes, keys))


class Interleave:
    """A sequence of ``counts[c]`` items of each class c, each class spread evenly over all of it.

    There is at least one item. Two classes: the smaller one's j-th item is placed in the j-th of
    as many equal cells::

        smaller (3 of 10)   [ . a . ][ . . a ][ a . . . ]      any slot of its cell, by a hash
        sequence              b a b    b b a    a b b b

    so in any window its count differs from its share by less than 2, and in any prefix by less
    than 1. More classes are merged two at a time, the smallest first (Huffman's tree). The slots
    are random because ranks take every W-th position: with a strict pattern such as ``abab`` one
    of two ranks would see only a. Each position is computed independently; no storage
    proportional to the length of the sequence is needed.

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
            nodes, place = node[down], at[down]
            size, few = self._sizes[nodes], self._sizes[self._small[nodes]]
            cell = ((place + 1) * few - 1) // size
            start = cell * size // few
            room = (cell + 1) * size // few - start
            words = keys_of(key, nodes, cell) >> np.uint64(32)
            slot = start + (words * room.astype(np.uint64) >> np.uint64(32)).astype(np.int64)
            inside = place == slot
            before = cell + (place > slot)
            node[down] = np.where(inside, self._small[nodes], self._large[nodes])
            at[down] = np.where(inside, before, place - before)
            down = down[node[down] >= self._num_classes]
        return node, at
