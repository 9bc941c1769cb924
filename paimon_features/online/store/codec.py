"""The binary format of records: the stored state of one entity of one view.

::

    header                                       56 bytes, little endian, fixed
      format u1, flags u1 (1: has a lifetime cell), reserved u2,
      bucket u4, layout u4, incarnation u4, cells u4, tail bytes u4,
      snapshot i8, event_high i8, pruned_high i8, bucket_high i8
    cells, ascending by key
      format 1: one after the other              8 * (1 + partials) + validity bytes each
      format 2: columns, packed                  see ``packing``
      key i8 = level << 56 | tile index + 2^55   (tile index = tile start // level's step)
      partials in the view's order: i8, f8, or for strings and bytes (offset u4, length u4)
      into the tail
      validity bits of the nullable partials
    tail                                         strings in UTF-8, and bytes

``snapshot`` is the newest snapshot of the tile table applied to the record; ``event_high`` the
newest event time of the entity; ``pruned_high`` the newest event time among pruned cells;
``bucket_high`` the newest event time of the bucket when it was pruned (all ms). The lifetime
cell (level 127) contains everything before the retained cells of the top level. Within an
epoch, equal headers mean equal records, so a compare-and-set compares headers.

A record is written in format 2 where that is smaller, and both are read. Releases before format 2
refuse it, and name it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import OnlineStoreError
from paimon_features.core.native import CORE
from paimon_features.core.types.array_types import Array, Ints
from paimon_features.definitions import CompiledView
from paimon_features.definitions.aggregates import EVENT_TIME_MAX, HIDDEN_PARTIALS, Partial
from paimon_features.online.store import packing
from paimon_features.online.store.packing import DamagedError

PLAIN, PACKED = FORMATS = (1, 2)
HAS_LIFETIME = 1
LIFETIME_LEVEL = 127
LEVEL_SHIFT = 56
INDEX_BIAS = 1 << 55

HEADER = np.dtype(
    [
        ("format", "u1"),
        ("flags", "u1"),
        ("reserved", "<u2"),
        ("bucket", "<u4"),
        ("layout", "<u4"),
        ("incarnation", "<u4"),
        ("cells", "<u4"),
        ("tail", "<u4"),
        ("snapshot", "<i8"),
        ("event_high", "<i8"),
        ("pruned_high", "<i8"),
        ("bucket_high", "<i8"),
    ]
)
HEADER_SIZE = HEADER.itemsize


LIFETIME_KEY = LIFETIME_LEVEL << LEVEL_SHIFT | INDEX_BIAS


def cell_keys(level: int, indices: Ints) -> Ints:
    """Return the keys of the cells of ``level`` with these tile indices.

    >>> cell_keys(0, np.array([-1, 0])).tolist() == [2**55 - 1, 2**55]
    True
    """
    keys: Ints = indices + ((level << LEVEL_SHIFT) + INDEX_BIAS)
    return keys


def cell_key(level: int, index: int) -> int:
    """Return the key of one cell."""
    return (level << LEVEL_SHIFT) + INDEX_BIAS + index


@dataclass(frozen=True, slots=True)
class Cells:
    """Cells with their tail: the form between bytes and columns.

    ``rows`` has the layout's cell type, shape ``(cells,)``. Strings are (offset, length) into
    ``text``, which may contain unreferenced bytes.
    """

    rows: Array
    text: bytes = b""

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: npt.NDArray[Any]) -> Cells:
        """Return the cells at ``indices``, or those selected by a boolean mask."""
        return Cells(_plain(self.rows)[indices].view(self.rows.dtype), self.text)

    def copy_of_rows(self) -> Array:
        """Return a writable copy of the rows."""
        return _plain(self.rows).copy().view(self.rows.dtype)


def _plain(rows: Array) -> Array:
    """Return the rows as opaque bytes, which NumPy copies ten times faster than structured rows."""
    return rows.view(f"V{rows.dtype.itemsize}")


@dataclass(frozen=True, slots=True)
class Records:
    """Decoded records: headers, and the concatenated cells.

    The cells of record ``i`` are ``offsets[i]:offsets[i + 1]``.
    """

    headers: Array
    cells: Cells
    offsets: Ints


class RecordLayout:
    """Encode and decode the records of one view, in batches."""

    def __init__(self, view: CompiledView) -> None:
        self.view = view
        self.id = int(view.online_fingerprint[:8], 16)
        self.texts = tuple(p.name for p in view.partials if p.type.text in ("string", "bytes"))
        """Partials of variable length, stored in the tail."""
        always = {p.name for p in HIDDEN_PARTIALS}
        nullable = [p.name for p in view.partials if p.name not in always]
        self._bit = {name: divmod(i, 8) for i, name in enumerate(nullable)}
        fields: list[tuple[Any, ...]] = [("key", "<i8")]
        fields += [(p.name, *_stored(p)) for p in view.partials]
        if nullable:
            fields.append(("valid", "u1", ((len(nullable) + 7) // 8,)))
        self.cell = np.dtype(fields)
        self._kinds = [_kind(p) for p in view.partials]
        self._kinds += [packing.BYTES] * ((len(nullable) + 7) // 8)
        self._time_column = [p.name for p in view.partials].index(EVENT_TIME_MAX.name)
        self.words: bytes = packing.layout_words(
            self.id, self._time_column, view.levels_ms, self._kinds
        ).tobytes()
        """The layout as the native core takes it."""

    def empty(self) -> Cells:
        """Return an empty sequence of cells."""
        return Cells(np.empty(0, self.cell))

    # -- columns and cells -----------------------------------------------------------------

    def cells(self, keys: Ints, columns: Mapping[str, Column]) -> Cells:
        """Return cells with these keys (see ``cell_keys``) from one column per partial."""
        rows = np.zeros(len(keys), self.cell)
        rows["key"] = keys
        texts: list[bytes] = []
        size = 0
        for partial in self.view.partials:
            column = columns[partial.name]
            mask = column.valid
            if partial.name in self.texts:
                pairs = zip(column.values.tolist(), column.mask.tolist(), strict=True)
                if partial.type.text == "bytes":
                    encoded = [value if ok else b"" for value, ok in pairs]
                else:
                    encoded = [text.encode() if ok else b"" for text, ok in pairs]
                lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
                ends = size + np.cumsum(lengths)
                rows[partial.name][:, 0] = ends - lengths
                rows[partial.name][:, 1] = lengths
                texts += encoded
                size += int(lengths.sum())
            else:
                # null slots are zero, so that equal cells have equal bytes
                values = column.values
                rows[partial.name] = values if mask is None else np.where(mask, values, 0)
            if partial.name in self._bit:
                byte, bit = self._bit[partial.name]
                flags = np.uint8(1 << bit)
                valid = rows["valid"]
                valid[:, byte] |= flags if mask is None else mask * flags
        return Cells(rows, b"".join(texts))

    def columns(self, cells: Cells, names: Sequence[str]) -> dict[str, Column]:
        """Return the partials of ``names`` as columns, one row per cell."""
        return {name: self.column(cells, name) for name in names}

    def column(self, cells: Cells, name: str) -> Column:
        """Return one partial as a column, one row per cell.

        Raises
        ------
        OnlineStoreError
            For a text that is none.
        """
        values = cells.rows[name]
        valid = None
        if name in self._bit:
            byte, bit = self._bit[name]
            valid = (cells.rows["valid"][:, byte] & (1 << bit)) != 0
            if valid.all():
                valid = None
        if name in self.texts:
            texts = np.empty(len(values), np.object_)
            text = cells.text
            encoded = [text[start : start + length] for start, length in values.tolist()]
            is_text = self.view.partial[name].type.text == "string"
            try:
                texts[:] = [part.decode() for part in encoded] if is_text else encoded
            except UnicodeDecodeError as error:
                raise self.damaged(f"a text of {name!r} is not UTF-8 ({error})") from None
            return Column(texts, valid)
        return Column(values, valid)

    def validity(self, name: str) -> tuple[int, int] | None:
        """Return where a cell says whether a partial has a value: a byte of ``valid``, and a mask
        for it.

        None for a partial that always has one.
        """
        if name not in self._bit:
            return None
        byte, bit = self._bit[name]
        return byte, 1 << bit

    def concat(self, parts: Sequence[Cells]) -> Cells:
        """Concatenate cells."""
        rows = np.concatenate([_plain(part.rows) for part in parts]).view(self.cell)
        if not self.texts:
            return Cells(rows)
        bases = np.cumsum([0] + [len(part.text) for part in parts[:-1]])
        shift = np.repeat(bases, [len(part) for part in parts])
        for name in self.texts:
            rows[name][:, 0] += shift.astype(np.uint32)
        return Cells(rows, b"".join([part.text for part in parts]))

    def packed(self, cells: Cells) -> Cells:
        """Return the same cells with their strings in order and no unreferenced bytes in
        ``text``."""
        if not self.texts:
            return cells
        # axes: (cells, text partials), the order in which strings are stored
        spans = np.stack([cells.rows[name] for name in self.texts], axis=1).astype(np.int64)
        starts, lengths = spans[..., 0].ravel(), spans[..., 1].ravel()
        begins = np.cumsum(lengths) - lengths
        gather = np.repeat(starts - begins, lengths) + np.arange(lengths.sum())
        rows = cells.copy_of_rows()
        for i, name in enumerate(self.texts):
            rows[name][:, 0] = begins[i :: len(self.texts)]
        return Cells(rows, np.frombuffer(cells.text, np.uint8)[gather].tobytes())

    # -- bytes -----------------------------------------------------------------------------

    def encode(self, headers: Array, cells: Cells, offsets: Ints) -> list[bytes]:
        """Return the bytes of each record; cells of record ``i`` are ``offsets[i]:offsets[i + 1]``.

        The cells of a record must be ascending by key. Format, layout, flags and sizes of the
        headers are set here.
        """
        rows, tails = self._tails(cells, offsets)
        counts = np.diff(offsets)
        last = np.zeros(len(headers), np.int64)
        full = counts > 0
        last[full] = rows["key"][offsets[1:][full] - 1]
        headers = headers.copy()
        packed = self._pack(rows, offsets, np.ascontiguousarray(headers["event_high"]))
        headers["format"] = [PLAIN if part is None else PACKED for part in packed]
        headers["layout"] = self.id
        headers["flags"] = np.where(last == LIFETIME_KEY, HAS_LIFETIME, 0)
        headers["cells"] = counts
        headers["tail"] = 0 if tails is None else [len(tail) for tail in tails]
        head, body = headers.tobytes(), rows.tobytes()
        ends = (offsets * self.cell.itemsize).tolist()
        records = [
            head[i * HEADER_SIZE : (i + 1) * HEADER_SIZE]
            + (body[ends[i] : ends[i + 1]] if part is None else part)
            for i, part in enumerate(packed)
        ]
        if tails is not None:
            records = [record + tail for record, tail in zip(records, tails, strict=True)]
        return records

    def decode(self, records: Sequence[bytes]) -> Records:
        """Return the inverse of ``encode``.

        Raises
        ------
        OnlineStoreError
            For bytes that are not a record of this layout.
        """
        heads = b"".join([record[:HEADER_SIZE] for record in records])
        lengths = np.fromiter(map(len, records), np.int64, len(records))
        if len(heads) != HEADER_SIZE * len(records):
            raise self.damaged("a record is shorter than its header")
        headers = np.frombuffer(heads, HEADER)
        if not np.isin(headers["format"], FORMATS).all() or (headers["layout"] != self.id).any():
            raise self.damaged(
                f"records of format {sorted(set(headers['format'].tolist()))} and layout "
                f"{sorted(set(headers['layout'].tolist()))}, expected "
                f"{' or '.join(map(str, FORMATS))} and {self.id}"
            )
        counts = headers["cells"].astype(np.int64)
        tails = headers["tail"].astype(np.int64)
        packed = headers["format"] == PACKED
        sizes = lengths - HEADER_SIZE - tails
        plain_sizes = counts * self.cell.itemsize
        if np.where(packed, (sizes < 0) | (counts > packing.MAX_CELLS), sizes != plain_sizes).any():
            raise self.damaged("the length of a record does not match its header")
        stops = (lengths - tails).tolist()
        offsets = np.zeros(len(records) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        if packed.any():
            try:
                rows = self._unpack(records, headers, offsets, lengths)
            except DamagedError as error:
                raise self.damaged(f"a packed record cannot be read ({error})") from None
        else:
            body = b"".join(
                # memoryviews: slicing bytes would copy once more
                [
                    memoryview(record)[HEADER_SIZE:stop]
                    for record, stop in zip(records, stops, strict=True)
                ]
            )
            rows = np.frombuffer(body, self.cell)
        keys, owners = rows["key"], np.repeat(np.arange(len(counts)), counts)
        # compared, not subtracted: damaged keys may be further apart than an integer counts
        if ((owners[1:] == owners[:-1]) & (keys[1:] <= keys[:-1])).any():
            raise self.damaged("the cells of a record are not ascending by key")
        text = b""
        if self.texts:
            text = b"".join([record[stop:] for record, stop in zip(records, stops, strict=True)])
            bases = np.repeat(np.cumsum(tails) - tails, counts).astype(np.uint32)
            rows = Cells(rows).copy_of_rows()
            for name in self.texts:
                rows[name][:, 0] += bases
        return Records(headers, Cells(rows, text), offsets)

    def _pack(self, rows: Array, offsets: Ints, event_high: Ints) -> list[bytes | None]:
        """Return the packed cells of each record; None where that is not smaller, or not done."""
        counts = np.diff(offsets)
        if CORE is None:
            few = counts <= packing.MAX_CELLS
            packed = iter(self._packed_by_numpy(rows, offsets, event_high, few))
            bodies = [next(packed) if is_few else None for is_few in few.tolist()]
            most = (counts * self.cell.itemsize).tolist()
            return [
                part if part is not None and len(part) < size else None
                for part, size in zip(bodies, most, strict=True)
            ]
        rows = np.ascontiguousarray(rows)
        out, sizes = np.empty(rows.nbytes, np.uint8), np.empty(len(counts), np.int64)
        offsets = np.ascontiguousarray(offsets, np.int64)
        CORE.pack(self.words, _plain(rows), offsets, event_high, out, sizes)
        data, starts = out.data, (offsets[:-1] * self.cell.itemsize).tolist()
        return [
            None if size < 0 else bytes(data[start : start + size])
            for start, size in zip(starts, sizes.tolist(), strict=True)
        ]

    def _packed_by_numpy(
        self, rows: Array, offsets: Ints, event_high: Ints, few: npt.NDArray[np.bool_]
    ) -> list[bytes]:
        """Return the packed cells of the records that have few."""
        counts = np.diff(offsets)
        cells = np.repeat(few, counts)
        rows = _plain(rows)[cells].view(self.cell)
        counts, event_high = counts[few], event_high[few]
        top, levels = len(self.view.levels_ms), len(self.view.levels_ms) + 1
        keys = rows["key"]
        level = keys >> LEVEL_SHIFT
        index = keys - (level << LEVEL_SHIFT) - INDEX_BIAS
        level = np.where(level == LIFETIME_LEVEL, top, level)
        record = np.repeat(np.arange(len(counts)), counts)
        run = record * levels + level
        if (level > top).any() or (np.diff(run) < 0).any():
            raise ValueError("pack: cells that are not in the order of the view's levels")
        of_runs = np.bincount(run, minlength=len(counts) * levels)
        newest = np.zeros(len(counts) * levels, np.int64)
        newest[run] = index  # of several the last one
        is_used = of_runs > 0
        newest = np.where(is_used, self._newest(event_high).ravel() - newest, 0)
        follows = np.concatenate([[False], np.diff(run) == 0])[: len(run)]
        gaps = np.diff(index, prepend=0)[follows]
        every = np.full(len(counts), levels)
        return packing.pack(
            self._kinds,
            [column.view(np.uint64) for column in self._columns_of(rows)],
            [
                (every, of_runs.view(np.uint64)),
                (every, newest.view(np.uint64)),
                (counts - is_used.reshape(-1, levels).sum(axis=1), gaps.view(np.uint64)),
            ],
            counts,
            (
                self._time_column,
                (rows[EVENT_TIME_MAX.name] - index * self._steps[level]).view(np.uint64),
            ),
        )

    @property
    def _steps(self) -> Ints:
        """The length of a tile of each level; the lifetime begins at 0."""
        return np.array([*self.view.levels_ms, 0])

    def _newest(self, event_high: Ints) -> Ints:
        """Return the index of the newest event's tile in each level; axes: records, levels."""
        steps = np.array(self.view.levels_ms)
        newest = np.zeros((len(event_high), len(steps) + 1), np.int64)
        newest[:, :-1] = event_high[:, None] // steps
        return newest

    def _columns_of(self, rows: Array) -> list[Ints]:
        """Return the numbers of each packed column; of texts their lengths."""
        columns = []
        for partial in self.view.partials:
            values = rows[partial.name]
            is_text = partial.name in self.texts
            columns.append(values[:, 1].astype(np.int64) if is_text else values.copy())
        valid = rows["valid"] if self._bit else np.empty((len(rows), 0), np.uint8)
        columns += [valid[:, byte].astype(np.int64) for byte in range(valid.shape[1])]
        return columns

    def _unpack(
        self, records: Sequence[bytes], headers: Array, offsets: Ints, lengths: Ints
    ) -> Array:
        """Return the cells of records, some of which are packed; DamagedError if one is damaged."""
        rows = np.zeros(int(offsets[-1]), self.cell)
        if CORE is not None:
            if CORE.unpack(self.words, list(records), _plain(rows)) != len(records):
                raise DamagedError("its columns do not fit")
            return rows
        packed = headers["format"] == PACKED
        counts = np.diff(offsets)
        data = np.frombuffer(b"".join(records), np.uint8)
        starts = np.cumsum(lengths) - lengths + HEADER_SIZE
        plain = np.repeat(~packed, counts)
        body = [
            records[i][HEADER_SIZE : HEADER_SIZE + counts[i] * self.cell.itemsize]
            for i in np.flatnonzero(~packed)
        ]
        _plain(rows)[plain] = _plain(np.frombuffer(b"".join(body), self.cell))
        ends = np.cumsum(lengths) - headers["tail"]
        packed_rows = rows[~plain]
        self._unpack_columns(
            packing.Unpacker(data, starts[packed], ends[packed]), headers[packed], packed_rows
        )
        _plain(rows)[~plain] = _plain(packed_rows)
        return rows

    def _unpack_columns(self, packed: packing.Unpacker, headers: Array, rows: Array) -> None:
        counts = headers["cells"].astype(np.int64)
        levels = len(self.view.levels_ms) + 1
        every = np.full(len(counts), levels)
        of_runs = packed.integers(every).reshape(-1, levels)
        too_many = (of_runs > counts[:, None].astype(np.uint64)).any()
        of_level = of_runs.astype(np.int64)
        if too_many or (of_level.sum(axis=1) != counts).any():
            raise DamagedError("the levels do not have its cells")
        newest = packed.integers(every).view(np.int64).reshape(-1, levels)
        is_used = of_level > 0
        gaps = packed.integers(counts - is_used.sum(axis=1)).view(np.int64)
        run = np.repeat(np.arange(of_level.size), of_level.ravel())
        level = run % levels
        last = np.cumsum(of_level.ravel())[is_used.ravel()] - 1
        follows = np.concatenate([[False], np.diff(run) == 0])[: len(run)]
        # from the last cell of a run back: its index less all gaps behind a cell
        ahead = np.zeros(len(run), np.int64)
        ahead[follows] = gaps
        sums = np.cumsum(ahead)
        newest_of_run = (self._newest(headers["event_high"]) - newest)[is_used]
        index = np.repeat(newest_of_run - sums[last], of_level[is_used]) + sums
        rows["key"] = (
            (np.where(level == levels - 1, LIFETIME_LEVEL, level) << LEVEL_SHIFT)
            + INDEX_BIAS
            + index
        )
        lengths: list[Ints] = []
        for place, kind in enumerate(self._kinds):
            numbers = packed.column(kind, counts)
            if place == self._time_column:
                numbers = numbers + (index * self._steps[level]).view(np.uint64)
            packed.remember(kind, numbers)
            if kind == packing.BYTES:
                rows["valid"][:, place - len(self.view.partials)] = numbers
                continue
            partial = self.view.partials[place]
            if kind == packing.TEXTS:
                if (numbers > headers["tail"].max(initial=0)).any():
                    raise DamagedError("a text is longer than all")
                lengths.append(numbers.astype(np.int64))
            else:
                rows[partial.name] = numbers.view(rows[partial.name].dtype)
        packed.end()
        if lengths:
            self._place_texts(lengths, headers, counts, rows)

    def _place_texts(self, lengths: list[Ints], headers: Array, counts: Ints, rows: Array) -> None:
        """Place the texts, which follow each other, cell after cell."""
        of_cells = np.stack(lengths, axis=1)
        ends = np.cumsum(of_cells.ravel()).reshape(of_cells.shape)
        begins = ends - of_cells
        full = counts > 0
        last = np.cumsum(counts)[full] - 1
        first = (np.cumsum(counts) - counts)[full]
        sizes = np.zeros(len(counts), np.int64)
        sizes[full] = ends[last, -1] - begins[first, 0]
        if (sizes != headers["tail"]).any():
            raise DamagedError("the texts do not have the length of all")
        bases = np.repeat(begins[first, 0], counts[full])
        for place, name in enumerate(self.texts):
            rows[name][:, 0] = begins[:, place] - bases
            rows[name][:, 1] = of_cells[:, place]

    def _tails(self, cells: Cells, offsets: Ints) -> tuple[Array, list[bytes] | None]:
        """Return cells with offsets relative to their record's tail, and the tails."""
        if not self.texts:
            return cells.rows, None
        packed = self.packed(cells)
        rows = packed.rows
        # the offset of each cell's first string, and the end of the last one
        begins = np.append(rows[self.texts[0]][:, 0].astype(np.int64), len(packed.text))
        edges = begins[offsets]
        bases = np.repeat(edges[:-1], np.diff(offsets)).astype(np.uint32)
        for name in self.texts:
            rows[name][:, 0] -= bases
        cuts = edges.tolist()
        return rows, [packed.text[cuts[i] : cuts[i + 1]] for i in range(len(cuts) - 1)]

    def damaged(self, what: str) -> OnlineStoreError:
        """Return the error of a read that met damaged bytes."""
        return OnlineStoreError(
            f"feature view {self.view.name!r}: {what}; the records are damaged or were written by "
            "another version or definition: run 'paimon-features materialize --rebuild'"
        )


def _stored(partial: Partial) -> tuple[Any, ...]:
    if partial.type.text in ("string", "bytes"):
        return ("<u4", (2,))
    return ("<i8",) if partial.type.text == "int64" else ("<f8",)


def _kind(partial: Partial) -> int:
    """Return how its column is packed."""
    if partial.type.text in ("string", "bytes"):
        return packing.TEXTS
    return packing.INTEGERS if partial.type.text == "int64" else packing.FLOATS
