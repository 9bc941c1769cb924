"""Packed columns: how the cells of a record take a third of their own size.

::

    columns of numbers, in this order                  each coded as follows
      counts   the cells of each level, and of the lifetime
      newest   for each level: the tile of the newest event of the entity - that of its last cell
      gaps     of the tile indices within a level, n - (levels that have cells)
      partials in the layout's order                   n each; of a text its length, of
                                                       event_time_max the ms since its tile began
      bytes of validity bits                           n each

    coding u1, width u1, then by the coding's lower four bits; e are its upper four
      0 integers   base + unit[e] * number             base i(width >> 4), numbers u(width & 15)
      1 decimals   (base + number) / 10^e              the same
      2 bits       the number's bits                   the upper (width & 15) bytes of each
      3 alike      as the column ``width`` before      e = 1: where a mask of n bits is set, other
                                                       numbers follow, coded as one of the above

A number takes as many bytes as the greatest of its column in this record needs, none where all are
equal. The units are powers of ten and a minute, an hour and a day in ms. A column of floats is
that of decimals if all of them are read back to the bit. ``core.c`` packs and unpacks the same
bytes; this is the reference, for many records at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core.types.array_types import Bools, Bytes, Floats, Ints, Words

MAX_CELLS = 1 << 14
"""Records of more cells are not packed: few bytes could stand for much memory."""
INTEGERS, FLOATS, TEXTS, BYTES = range(4)
"""The kinds of columns."""
_NUMBERS, _DECIMALS, _BITS, _ALIKE = range(4)
_UNITS = np.array([1, 10, 100, 1_000, 60_000, 3_600_000, 86_400_000], np.uint64)
_POWERS = np.array([1.0, 10.0, 100.0, 1_000.0, 10_000.0])
_NEAR = 8
"""A column may be like one of so many before it of its kind."""
_FARTHEST = 255
_EXACT = 2.0**53


class DamagedError(ValueError):
    """Bytes that are not packed columns."""


@dataclass(frozen=True, slots=True, eq=False)
class _Coded:
    """One column of many records, each coded on its own; ``numbers`` are all that is stored."""

    counts: Ints
    head: Bytes
    base: Words
    base_width: Ints
    width: Ints
    numbers: Words

    @property
    def sizes(self) -> Ints:
        """The bytes in each record."""
        return 2 + self.base_width + self.counts * self.width

    def take(self, records: Bools) -> _Coded:
        """Return those of some records."""
        return _Coded(
            self.counts[records],
            self.head[records],
            self.base[records],
            self.base_width[records],
            self.width[records],
            self.numbers[np.repeat(records, self.counts)],
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Alike:
    """Where a column is like one before it; ``differs`` is per number, ``rest`` of the records."""

    records: Bools
    back: Ints
    differs: Bools
    rest: _Coded
    counts: Ints

    @property
    def sizes(self) -> Ints:
        """The bytes in each of the records."""
        return _alike_sizes(self.counts[self.records], self.rest)


# -- packing -----------------------------------------------------------------------------------


def pack(
    kinds: Sequence[int],
    columns: Sequence[Words],
    runs: Sequence[tuple[Ints, Words]],
    counts: Ints,
    times: tuple[int, Words],
) -> list[bytes]:
    """Return the packed bytes of each record, of ``counts`` cells.

    ``runs`` are the columns before the partials, each with its numbers in each record; ``columns``
    those of the partials and of validity bits, with their ``kinds``. ``times`` are the place of the
    event times among them, and what is stored instead.
    """
    parts: list[_Coded | tuple[_Coded, _Alike]] = [
        _integers(numbers, run_counts, with_unit=True) for run_counts, numbers in runs
    ]
    for place, kind in enumerate(kinds):
        numbers = times[1] if place == times[0] else columns[place]
        coded = _own(numbers, counts, kind == FLOATS)
        alike = _alike(kinds, columns, place, numbers, counts, coded)
        parts.append(coded if alike is None else (coded, alike))
    sizes = []
    for part in parts:
        if isinstance(part, _Coded):
            sizes.append(part.sizes)
        else:
            size = part[0].sizes.copy()
            size[part[1].records] = part[1].sizes
            sizes.append(size)
    total: Ints = np.sum(sizes, axis=0)
    ends = np.cumsum(total)
    at = ends - total
    out = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    for part, size in zip(parts, sizes, strict=True):
        if isinstance(part, _Coded):
            _put(out, at, part)
        else:
            coded, alike = part
            _put(out, at[~alike.records], coded.take(~alike.records))
            _put_alike(out, at[alike.records], alike)
        at = at + size
    data, stops = out.tobytes(), ends.tolist()
    return [data[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]


def _starts(counts: Ints) -> tuple[Bools, Ints]:
    """Return which records have numbers, and where those begin."""
    full = counts > 0
    return full, (np.cumsum(counts) - counts)[full]


def _integers(numbers: Words, counts: Ints, *, with_unit: bool) -> _Coded:
    full, starts = _starts(counts)
    least = np.zeros(len(counts), np.int64)
    span = np.zeros(len(counts), np.uint64)
    unit = np.zeros(len(counts), np.int64)
    if len(starts):
        signed = numbers.view(np.int64)
        least[full] = np.minimum.reduceat(signed, starts)
        greatest = np.maximum.reduceat(signed, starts)
        span[full] = greatest.view(np.uint64) - least[full].view(np.uint64)
    base = least.view(np.uint64)
    stored = numbers - np.repeat(base, counts)
    if with_unit and len(starts):
        common = np.gcd.reduceat(stored, starts)
        for place, size in enumerate(_UNITS):
            fits = (common % size == 0) & (span[full] > 0)
            unit[np.flatnonzero(full)[fits]] = place
        span //= _UNITS[unit]
        stored //= np.repeat(_UNITS[unit], counts)
    width, base_width = _bytes_of(span), _signed_bytes(base)
    head = np.stack([_NUMBERS | unit << 4, width | base_width << 4], axis=1).astype(np.uint8)
    return _Coded(counts, head, base, base_width, width, stored)


def _own(numbers: Words, counts: Ints, floats: bool) -> _Coded:
    """Return the best coding without another column."""
    if not floats:
        return _integers(numbers, counts, with_unit=True)
    full, starts = _starts(counts)
    bits = np.zeros(len(counts), np.uint64)
    if len(starts):
        bits[full] = np.bitwise_or.reduceat(numbers, starts)
    width = np.full(len(counts), 8)
    for empty in range(1, 8):
        width[bits & np.uint64((1 << 8 * empty) - 1) == 0] = 8 - empty
    width[bits == 0] = 0
    zeros = np.zeros(len(counts), np.int64)
    head = np.stack([np.full(len(counts), _BITS), width], axis=1).astype(np.uint8)
    shift = 8 * (8 - np.repeat(width, counts))
    stored = np.where(shift < 64, numbers >> (shift & 63).astype(np.uint64), 0).astype(np.uint64)
    coded = _Coded(counts, head, zeros.view(np.uint64), zeros, width, stored)
    open_ = np.ones(len(counts), np.bool_)
    values = numbers.view(np.float64)
    for decimals, power in enumerate(_POWERS):
        if not open_.any():
            break
        with np.errstate(all="ignore"):
            whole = np.rint(values * power)
            inside = np.abs(whole) < _EXACT
            units = np.where(inside, whole, 0).astype(np.int64)
            same = inside & ((units / power).view(np.uint64) == numbers)
        fits = np.ones(len(counts), np.bool_)
        if len(starts):
            fits[full] = np.logical_and.reduceat(same, starts)
        fits &= open_
        open_ &= ~fits
        other = _integers(units.view(np.uint64), counts, with_unit=False)
        coded = _merged(
            coded, other, fits & (other.sizes <= coded.sizes), _DECIMALS | decimals << 4
        )
    return coded


def _merged(coded: _Coded, other: _Coded, records: Bools, coding: int) -> _Coded:
    """Return ``coded``, but for some records ``other`` as ``coding``."""
    if not records.any():
        return coded
    head = other.head.copy()
    head[:, 0] = coding
    return _Coded(
        coded.counts,
        np.where(records[:, None], head, coded.head),
        np.where(records, other.base, coded.base),
        np.where(records, other.base_width, coded.base_width),
        np.where(records, other.width, coded.width),
        np.where(np.repeat(records, coded.counts), other.numbers, coded.numbers),
    )


def _alike(
    kinds: Sequence[int],
    columns: Sequence[Words],
    place: int,
    numbers: Words,
    counts: Ints,
    own: _Coded,
) -> _Alike | None:
    """Return the records in which a column is smaller as one before it; None if there are none."""
    kind = kinds[place]
    nearest = range(place - 1, max(-1, place - 1 - _FARTHEST), -1)
    near = [i for i in nearest if kinds[i] == kind][:_NEAR]
    full, starts = _starts(counts)
    if kind == TEXTS or not near or not len(starts):
        return None
    least, back = counts.copy(), np.zeros(len(counts), np.int64)
    differs = np.ones(len(numbers), np.bool_)
    for other in near:
        different = columns[other] != numbers
        number = np.zeros(len(counts), np.int64)
        number[full] = np.add.reduceat(different.astype(np.int64), starts)
        better = number < least
        least[better] = number[better]
        back[better] = place - other
        differs = np.where(np.repeat(better, counts), different, differs)
    rest = _own(numbers[differs], least, kind == FLOATS)
    records = (back > 0) & (_alike_sizes(counts, rest) < own.sizes)
    if not records.any():
        return None
    chosen = differs & np.repeat(records, counts)
    return _Alike(records, back[records], chosen, rest.take(records), counts)


def _alike_sizes(counts: Ints, rest: _Coded) -> Ints:
    sizes: Ints = 2 + np.where(rest.counts > 0, (counts + 7) // 8 + rest.sizes, 0)
    return sizes


def _put(out: Bytes, at: Ints, coded: _Coded) -> None:
    out[at], out[at + 1] = coded.head[:, 0], coded.head[:, 1]
    octets = coded.base.view(np.uint8).reshape(-1, 8)
    for place in range(8):
        has = coded.base_width > place
        out[at[has] + 2 + place] = octets[has, place]
    starts = at + 2 + coded.base_width
    for width, cells, places in _by_width(starts, coded.counts, coded.width):
        octets = np.ascontiguousarray(coded.numbers[cells]).view(np.uint8).reshape(-1, 8)
        out[places[:, None] + np.arange(width)] = octets[:, :width]


def _put_alike(out: Bytes, at: Ints, alike: _Alike) -> None:
    rest = alike.rest
    some = rest.counts > 0
    out[at] = _ALIKE | some << 4
    out[at + 1] = alike.back
    counts = alike.counts[alike.records]
    cells = alike.differs[np.repeat(alike.records, alike.counts)]
    rank = _ranks(counts)[cells]
    np.bitwise_or.at(
        out, np.repeat(at + 2, rest.counts) + rank // 8, (1 << rank % 8).astype(np.uint8)
    )
    _put(out, (at + 2 + (counts + 7) // 8)[some], rest.take(some))


def _ranks(counts: Ints) -> Ints:
    """Return the place of each number in its record."""
    ranks: Ints = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return ranks


def _by_width(starts: Ints, counts: Ints, width: Ints) -> list[tuple[int, Bools, Ints]]:
    """Return for each width the numbers that have it, and where their bytes begin."""
    groups = []
    rank = _ranks(counts)
    for size in np.unique(width[counts > 0]).tolist():
        if size:
            cells = np.repeat(width == size, counts)
            groups.append((size, cells, np.repeat(starts, counts)[cells] + rank[cells] * size))
    return groups


def _bytes_of(values: Words) -> Ints:
    """Return how many bytes each number needs; none for 0."""
    sizes = np.zeros(len(values), np.int64)
    for place in range(8):
        sizes[values >> np.uint64(8 * place) > 0] = place + 1
    return sizes


def _signed_bytes(values: Words) -> Ints:
    size = np.where(values.view(np.int64) < 0, ~values, values)
    needed = np.minimum(_bytes_of(size >> np.uint64(7)) + 1, 8)
    return np.where(values == 0, 0, needed)


# -- unpacking ---------------------------------------------------------------------------------


class Unpacker:
    """Takes one column after another from packed records.

    ``data`` has their bytes; those of record i are ``starts[i]`` to ``ends[i]`` (exclusive).

    Raises
    ------
    DamagedError
        From each method, for bytes that are not what is taken.
    """

    def __init__(self, data: Bytes, starts: Ints, ends: Ints) -> None:
        self._data, self._at, self._ends = data, starts.copy(), ends
        self._taken: list[tuple[int, Words]] = []

    def integers(self, counts: Ints) -> Words:
        """Return a column of integers before the partials."""
        every = np.ones(len(counts), np.bool_)
        return self._take(every, counts, floats=False)

    def column(self, kind: int, counts: Ints) -> Words:
        """Return the next column of the partials, or of the validity bits."""
        self._need(np.full(len(counts), 2))
        alike = self._data[self._at] & 15 == _ALIKE
        cells = np.repeat(alike, counts)
        out = np.zeros(int(counts.sum()), np.uint64)
        out[~cells] = self._take(~alike, counts[~alike], floats=kind == FLOATS)
        if alike.any():
            if kind == TEXTS:
                raise DamagedError("lengths are not like others")
            self._take_alike(kind, alike, counts, out)
        if kind == BYTES and (out > 255).any():
            raise DamagedError("a byte is too large")
        return out

    def remember(self, kind: int, numbers: Words) -> None:
        """Keep a column that was taken, as later ones may be like it."""
        self._taken.append((kind, numbers))

    def end(self) -> None:
        """Check that all bytes are taken."""
        if (self._at != self._ends).any():
            raise DamagedError("bytes are left")

    def _need(self, sizes: Ints, records: Bools | None = None) -> None:
        at, ends = self._at, self._ends
        if records is not None:
            at, ends = at[records], ends[records]
        if (ends - at < sizes).any():
            raise DamagedError("bytes are missing")

    def _take(self, records: Bools, counts: Ints, *, floats: bool) -> Words:
        """Return a column of some records that refers to no other."""
        self._need(np.full(len(counts), 2), records)
        at = self._at[records]
        head = self._data[at].astype(np.int64)
        widths = self._data[at + 1].astype(np.int64)
        coding, extra, width, base_width = head & 15, head >> 4, widths & 15, widths >> 4
        wrong = (width > 8) | (base_width > 8)
        if floats:
            wrong |= (coding != _DECIMALS) & (coding != _BITS)
            wrong |= (coding == _DECIMALS) & (extra >= len(_POWERS))
            wrong |= (coding == _BITS) & ((extra > 0) | (base_width > 0))
        else:
            wrong |= (coding != _NUMBERS) | (extra >= len(_UNITS))
        if wrong.any():
            raise DamagedError("a coding is not known")
        self._need(2 + base_width + counts * width, records)
        base = self._bases(at + 2, base_width)
        numbers = np.zeros(int(counts.sum()), np.uint64)
        octets = numbers.view(np.uint8).reshape(-1, 8)
        for size, cells, places in _by_width(at + 2 + base_width, counts, width):
            octets[np.flatnonzero(cells)[:, None], np.arange(size)] = self._data[
                places[:, None] + np.arange(size)
            ]
        self._at[records] = at + 2 + base_width + counts * width
        if not floats:
            return np.repeat(base, counts) + np.repeat(_UNITS[extra], counts) * numbers
        whole = (np.repeat(base, counts) + numbers).view(np.int64)
        powers = _POWERS[np.where(coding == _DECIMALS, extra, 0)]
        decimals: Floats = whole / np.repeat(powers, counts)
        shift = 8 * (8 - np.repeat(width, counts))
        bits = np.where(shift < 64, numbers << (shift & 63).astype(np.uint64), 0).astype(np.uint64)
        return np.where(np.repeat(coding == _DECIMALS, counts), decimals.view(np.uint64), bits)

    def _bases(self, at: Ints, width: Ints) -> Words:
        octets = np.zeros((len(at), 8), np.uint8)
        for place in range(8):
            has = width > place
            octets[has, place] = self._data[at[has] + place]
        has = width > 0
        negative = np.zeros(len(at), np.bool_)
        negative[has] = self._data[at[has] + width[has] - 1] >= 128
        for place in range(8):
            octets[negative & (width <= place), place] = 255
        return octets.view(np.uint64).ravel()

    def _take_alike(self, kind: int, alike: Bools, counts: Ints, out: Words) -> None:
        at = self._at[alike]
        differs, back = self._data[at] >> 4, self._data[at + 1].astype(np.int64)
        if (differs > 1).any():
            raise DamagedError("a coding is not known")
        for distance in np.unique(back).tolist():
            if not 0 < distance <= len(self._taken) or self._taken[-distance][0] != kind:
                raise DamagedError("a column is like none")
            records = alike.copy()
            records[alike] = back == distance
            cells = np.repeat(records, counts)
            out[cells] = self._taken[-distance][1][cells]
        self._at[alike] = at + 2
        some = alike.copy()
        some[alike] = differs == 1
        if not some.any():
            return
        cell_counts = counts[some]
        sizes = (cell_counts + 7) // 8
        self._need(sizes, some)
        rank = _ranks(cell_counts)
        octets = self._data[np.repeat(self._at[some], cell_counts) + rank // 8]
        others = (octets >> (rank % 8).astype(np.uint8)) & 1 == 1
        self._at[some] += sizes
        offsets = np.concatenate([[0], np.cumsum(cell_counts)])
        places = np.diff(np.concatenate([[0], np.cumsum(others)])[offsets])
        numbers = self._take(some, places, floats=kind == FLOATS)
        out[np.flatnonzero(np.repeat(some, counts))[others]] = numbers


def layout_words(
    id_: int, time_column: int, steps_ms: Sequence[int], kinds: Sequence[int]
) -> npt.NDArray[Any]:
    """Return a layout as the native core takes it."""
    words = [id_, time_column, len(steps_ms), len(kinds), *steps_ms, *kinds]
    return np.array(words, "<i8")
