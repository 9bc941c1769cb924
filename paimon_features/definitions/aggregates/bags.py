"""Partials that contain many items: lists of texts and sketches of sets, merged as bags of numbers.

The items of a column become numbers once, in an order that suits the merge; merging bags is then
sorting numbers, whether they are cells of a tile, ranges of a training row, or nodes of
a tree over ranges::

    "'b,'a"  "'a"  null        column of lists
    [1, 0]   [0]   []          bags: the indices of the items in 'a, 'b
    [0, 0, 1]                  one bag of all three rows
    "+2:'a,'b"                 ... of a merge that counts

A bag is written in the order of its numbers, so that equal bags are equal texts or bytes.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import DamagedValueError, shortened
from paimon_features.core.expressions import DELIMITER
from paimon_features.core.types.array_types import Ints
from paimon_features.definitions.aggregates import registers
from paimon_features.definitions.aggregates.base import Merge, Partial
from paimon_features.definitions.aggregates.text_lists import (
    Texts,
    as_texts,
    distinct_texts,
    join_texts,
    sort_texts,
    split_texts,
)


@dataclass(frozen=True, slots=True)
class Bags:
    """Numbered items of some bags, one bag after another.

    The items of bag ``i`` are ``offsets[i]:offsets[i + 1]``; ``weights`` are their multiplicities.
    """

    offsets: Ints
    codes: Ints
    weights: Ints

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def owners(self) -> Ints:
        """The bag of each item."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def positions(self, bags: Ints) -> tuple[Ints, Ints]:
        """Return the positions of the items of these bags, and the number of items of each bag."""
        sizes = np.diff(self.offsets)[bags]
        begins = np.cumsum(sizes) - sizes
        return np.repeat(self.offsets[bags] - begins, sizes) + np.arange(sizes.sum()), sizes


def is_bag(merge: Merge) -> bool:
    """Return whether partials of this merge contain many items."""
    return merge in _KINDS


def bag_column(partial: Partial, column: Column) -> BagColumn:
    """Return the column of such a partial as bags."""
    bags: BagColumn = _KINDS[partial.merge](column, partial)
    return bags


class BagColumn(ABC):
    """One column as bags: ``bags`` has one for each row, empty where it is null."""

    bags: Bags

    @abstractmethod
    def merge(self, owners: Ints, codes: Ints, weights: Ints, count: int) -> Bags:
        """Return ``count`` merged bags of items in any order; ``owners`` are their bags."""

    @abstractmethod
    def write(self, bags: Bags) -> Column:
        """Return the column of merged bags; null where they are empty."""

    def merge_groups(self, offsets: Ints) -> Bags:
        """Merge bags ``offsets[i]:offsets[i + 1]`` to bag ``i``."""
        bounds = self.bags.offsets[offsets]
        owners = np.repeat(np.arange(len(offsets) - 1), np.diff(bounds))
        inside = slice(bounds[0], bounds[-1])
        return self.merge(
            owners, self.bags.codes[inside], self.bags.weights[inside], len(offsets) - 1
        )


class _Lists(BagColumn):
    """Lists of texts. ``words`` are the texts of the items, ascending by code point."""

    def __init__(self, column: Column, partial: Partial) -> None:
        sizes, texts, codes = split_texts(column, DELIMITER)
        offsets = np.zeros(len(column) + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        self._number(texts, codes, offsets)

    def _number(self, texts: Texts, codes: Ints, offsets: Ints) -> None:
        self.words, ranks = sort_texts(texts)
        self.bags = Bags(offsets, ranks[codes], np.ones(len(codes), np.int64))

    def _keys(self, owners: Ints, codes: Ints) -> tuple[Ints, int]:
        """Return numbers in the order of owner and code, and the step between owners."""
        step = max(len(self.words), 1)
        return owners * step + codes, step

    def _written(self, bags: Bags, items: Texts) -> Column:
        full = np.diff(bags.offsets) > 0
        values = join_texts(items, bags.offsets, DELIMITER)
        return Column(values, None if full.all() else full)


class _Best(_Lists):
    """The first items in order, up to the partial's limit; all of them without one."""

    descending: ClassVar[bool]

    def __init__(self, column: Column, partial: Partial) -> None:
        self.limit = partial.limit
        super().__init__(column, partial)

    def _number(self, texts: Texts, codes: Ints, offsets: Ints) -> None:
        super()._number(texts, codes, offsets)
        if self.descending:
            self.words = self.words[::-1]
            codes = len(self.words) - 1 - self.bags.codes
            self.bags = Bags(offsets, codes, self.bags.weights)

    def merge(self, owners: Ints, codes: Ints, weights: Ints, count: int) -> Bags:
        keys, step = self._keys(owners, codes)
        keys.sort()
        owners = keys // step
        sizes = np.bincount(owners, minlength=count)
        if self.limit is not None and sizes.max(initial=0) > self.limit:
            place = np.arange(len(keys)) - (np.cumsum(sizes) - sizes)[owners]
            keys, owners = keys[place < self.limit], owners[place < self.limit]
            sizes = np.minimum(sizes, self.limit)
        return Bags(_offsets(sizes), keys - owners * step, np.ones(len(keys), np.int64))

    def write(self, bags: Bags) -> Column:
        return self._written(bags, self.words[bags.codes])


class _Greatest(_Best):
    descending = True


class _Least(_Best):
    descending = False


class _Counts(_Lists):
    """Items with counts: ``'a`` is one, ``+3:'a`` is three of them.

    In an item a ``+`` is followed by a letter, so the count can be distinguished from it.
    """

    def _number(self, texts: Texts, codes: Ints, offsets: Ints) -> None:
        pairs = [counted_item(text) for text in texts.tolist()]
        plain, text_codes = distinct_texts([text for text, _ in pairs])
        super()._number(plain, text_codes[codes], offsets)
        numbers = np.array([number for _, number in pairs], np.int64)
        self.bags = Bags(offsets, self.bags.codes, numbers[codes])

    def merge(self, owners: Ints, codes: Ints, weights: Ints, count: int) -> Bags:
        keys, step = self._keys(owners, codes)
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        totals = np.add.reduceat(weights[order], first) if len(first) else weights[:0]
        owners = keys[first] // step
        sizes = np.bincount(owners, minlength=count)
        return Bags(_offsets(sizes), keys[first] - owners * step, totals)

    def write(self, bags: Bags) -> Column:
        words = self.words[bags.codes].tolist()
        items = [
            word if number == 1 else f"+{number}:{word}"
            for word, number in zip(words, bags.weights.tolist(), strict=True)
        ]
        return self._written(bags, as_texts(items))


class _Registers(BagColumn):
    """Sketches of sets: of the ranks of a register the greatest is kept."""

    def __init__(self, column: Column, partial: Partial) -> None:
        mask = column.mask
        codes, counts = registers.decode_sketches(column.values[mask].tolist())
        sizes = np.zeros(len(column), np.int64)
        sizes[mask] = counts
        self.bags = Bags(_offsets(sizes), codes, np.ones(len(codes), np.int64))

    def merge(self, owners: Ints, codes: Ints, weights: Ints, count: int) -> Bags:
        keys = np.sort(owners << 16 | codes)
        best = np.ones(len(keys), np.bool_)
        best[:-1] = keys[1:] >> 4 != keys[:-1] >> 4
        keys = keys[best]
        sizes = np.bincount(keys >> 16, minlength=count)
        return Bags(_offsets(sizes), keys & 0xFFFF, np.ones(len(keys), np.int64))

    def write(self, bags: Bags) -> Column:
        full = np.diff(bags.offsets) > 0
        values = registers.encode_sketches(bags.codes, bags.offsets)
        return Column(values, None if full.all() else full)


_KINDS: dict[Merge, Any] = {
    Merge.TOP: _Greatest,
    Merge.BOTTOM: _Least,
    Merge.COUNTS: _Counts,
    Merge.REGISTERS: _Registers,
}


def _offsets(sizes: Ints) -> Ints:
    out = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=out[1:])
    return out


def counted_item(item: str) -> tuple[str, int]:
    """Return an item of a merge that counts, and its count.

    Raises
    ------
    DamagedValueError
        For a count that is not an integer of 64 bits.
    """
    if item[:1] != "+" or not item[1:2].isdigit():
        return item, 1
    number, _, text = item[1:].partition(":")
    if not re.fullmatch("[0-9]{1,18}", number):
        raise DamagedValueError(f"{shortened(number)!r} is not the count of an item")
    return text, int(number)
