"""Verify the pages of a Parquet file before its values are decoded.

A column chunk is a sequence of pages, each a header (Thrift, compact protocol) and a body. A header
can contain the CRC32 of its body; parquet-mr (Flink) and the writers of this package store it,
pypaimon's native writer does not. Arrow verifies it on request: that takes 7 to 22 % of the
processor time of decoding a file of 50 to 70 MB, reading the headers here and ISA-L's CRC32 take
3 to 9 %. Both find the same damage that changes rows. Pages are verified here without decoding
them, as is needed for DuckDB, which reads files itself, and for checking a complete warehouse.

Format: https://github.com/apache/parquet-format, ``parquet.thrift``.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from paimon_features.core.errors import DamagedFileError
from paimon_features.core.native import CORE

try:
    from isal.isal_zlib import crc32
except ImportError:  # pypaimon installs it on x86-64 and ARM
    from zlib import crc32

_DATA, _INDEX, _DICTIONARY, _DATA_V2 = range(4)
"""Types of pages."""
_HEADER_BYTES = 1 << 12
"""A header is looked for in so many bytes: longer ones (long statistics) take a second look."""
_DAMAGE = (DamagedFileError, IndexError, ValueError, OverflowError)
"""What bytes that are no footer or no page header raise."""
_PARSED = 16
"""Bytes in memory for each byte of a footer."""


@dataclass(frozen=True, slots=True)
class PageCounts:
    """Pages that were verified, and how many of them have no CRC."""

    pages: int = 0
    without_crc: int = 0

    def __add__(self, other: PageCounts) -> PageCounts:
        return PageCounts(self.pages + other.pages, self.without_crc + other.without_crc)


class ColumnChunk(NamedTuple):
    """Where the pages of a column in a row group are, by the footer: from inclusive, to exclusive.

    ``place`` names it in messages.
    """

    place: str
    begin: int
    end: int
    values: int


class Leaf(NamedTuple):
    """A column of numbers or texts, which may be within one of the table's."""

    number: int
    path: str
    physical_type: str
    is_repeated: bool


class KnownFooter:
    """A footer, and what was found in it: to walk through it takes longer than to verify pages."""

    def __init__(self, metadata: Any) -> None:
        self.metadata = metadata
        self.schema: pa.Schema | None = None
        """The columns, once they were derived from it."""
        self._leaves: dict[str, list[Leaf]] | None = None
        self._chunks: dict[Hashable, tuple[ColumnChunk, ...]] = {}
        self._sums: dict[tuple[ColumnChunk, ...], tuple[int, PageCounts]] = {}

    @property
    def size(self) -> int:
        """About how many bytes it takes in memory."""
        return _PARSED * int(self.metadata.serialized_size)

    def chunks(
        self, columns: Collection[str] | None, groups: Iterable[int] | None
    ) -> tuple[ColumnChunk, ...]:
        """Return the chunks of some columns (by top-level name) and row groups; all by default.

        Raises
        ------
        DamagedFileError
            If the footer contradicts itself.
        """
        groups = None if groups is None else tuple(groups)
        key = (None if columns is None else tuple(columns), groups)
        if key not in self._chunks:
            chunks = tuple(self._find(columns, groups))
            # of several groups one after another each is requested once
            if groups is None or self.metadata.num_row_groups == 1:
                self._chunks[key] = chunks
            return chunks
        return self._chunks[key]

    def _find(
        self, columns: Collection[str] | None, groups: Iterable[int] | None
    ) -> Iterator[ColumnChunk]:
        leaves_by_column = self._leaves_of_columns()
        wanted = leaves_by_column if columns is None else dict.fromkeys(columns)
        leaves = [leaf for name in wanted for leaf in leaves_by_column.get(name, ())]
        for group in range(self.metadata.num_row_groups) if groups is None else groups:
            row_group = self.metadata.row_group(group)
            for leaf in leaves:
                place = f"column {leaf.path!r}, row group {group}"
                try:
                    chunk = _chunk_of(row_group, leaf, place)
                except _DAMAGE as error:
                    raise _named(place, error) from None
                yield chunk

    def _leaves_of_columns(self) -> dict[str, list[Leaf]]:
        if self._leaves is None:
            # the property of that name is a cycle: what Arrow has parsed of each file would stay
            # until Python looks for cycles among its oldest objects, which it seldom does if they
            # are many
            schema = pq.ParquetSchema(self.metadata)
            self._leaves = {}
            for number in range(self.metadata.num_columns):
                column = schema.column(number)
                leaf = Leaf(
                    number, column.path, column.physical_type, column.max_repetition_level > 0
                )
                self._leaves.setdefault(column.path.split(".", 1)[0], []).append(leaf)
        return self._leaves

    def verify_again(self, content: memoryview, chunks: tuple[ColumnChunk, ...]) -> PageCounts:
        """Verify chunks as ``verify_chunks`` does, of a small file that is opened often.

        What was verified has the same checksum later: one of all bytes from the first chunk to
        the last, which is a fraction of the time of parsing the headers of their pages.
        """
        if not chunks:
            return PageCounts()
        begin, end = min(chunk.begin for chunk in chunks), max(chunk.end for chunk in chunks)
        checksum = crc32(content[max(begin, 0) : max(end, 0)])
        verified = self._sums.get(chunks)
        if verified is None or verified[0] != checksum:
            verified = self._sums[chunks] = checksum, verify_chunks(content, chunks)
        return verified[1]


def verify_pages(
    content: memoryview,
    metadata: Any,
    columns: Collection[str] | None = None,
    groups: Iterable[int] | None = None,
) -> PageCounts:
    """Verify the pages of some columns (by top-level name) and row groups; all by default.

    ``content`` is the complete file, ``metadata`` its footer. Every header must parse, the pages
    must fill the chunk, contain as many values as the footer says, and match their CRCs.

    Raises
    ------
    DamagedFileError
        Names column, row group and offset; the caller adds the file.
    """
    return verify_chunks(content, KnownFooter(metadata).chunks(columns, groups))


def verify_chunks(content: memoryview, chunks: Iterable[ColumnChunk]) -> PageCounts:
    """Verify the pages of some chunks of a file; raises as ``verify_pages`` does."""
    pages = without = 0
    for chunk in chunks:
        try:
            page_count, lacking = _verify_chunk(content, chunk)
        except _DAMAGE as error:
            raise _named(chunk.place, error) from None
        pages += page_count
        without += lacking
    return PageCounts(pages, without)


def _chunk_of(row_group: Any, leaf: Leaf, place: str) -> ColumnChunk:
    chunk = row_group.column(leaf.number)
    if chunk.physical_type != leaf.physical_type:
        raise DamagedFileError(
            f"its footer has two types, {leaf.physical_type} and {chunk.physical_type}"
        )
    if chunk.file_path:
        raise DamagedFileError(
            f"its footer says that its pages are in the file {chunk.file_path[:80]!r}"
        )
    if not leaf.is_repeated and chunk.num_values != row_group.num_rows:
        raise DamagedFileError(
            f"its footer has {row_group.num_rows} rows and {chunk.num_values} values"
        )
    begin = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < begin:
        begin = chunk.dictionary_page_offset
    return ColumnChunk(place, begin, begin + chunk.total_compressed_size, chunk.num_values)


def _named(place: str, error: Exception) -> DamagedFileError:
    """Return the error that says where the damage is."""
    if isinstance(error, DamagedFileError):
        return DamagedFileError(f"{place}: {error}")
    return DamagedFileError(f"{place}: its footer or a page header cannot be parsed ({error})")


def _verify_chunk(content: memoryview, chunk: ColumnChunk) -> tuple[int, int]:
    """Verify the pages of a chunk; returns how many there are, and how many without a CRC."""
    at, end = chunk.begin, chunk.end
    if not 0 < at <= end <= len(content):
        raise DamagedFileError(
            f"its pages are at bytes {at} to {end} of {len(content)}, by the footer"
        )
    pages = None if CORE is None else CORE.pages(content, at, end)
    if pages is None:
        pages = pages_by_python(content, at, end)
    without = values = 0
    for start, stop, crc, count in pages:
        if crc is None:
            without += 1
        elif crc32(content[start:stop]) != crc:
            raise DamagedFileError(
                f"the page whose body is at byte {start} does not match its CRC32"
            )
        values += count
    if values != chunk.values:
        raise DamagedFileError(f"its pages have {values} values; the footer says {chunk.values}")
    return len(pages), without


def pages_by_python(
    content: memoryview, at: int, end: int
) -> list[tuple[int, int, int | None, int]]:
    """Return the reference of ``Core.pages``, which also says what is wrong with a header."""
    pages = []
    while at < end:
        header = _header(content, at, end)
        stop = header.end + header.size
        if stop > end:
            raise DamagedFileError(f"the page at byte {at} ends after its column, at byte {stop}")
        pages.append((header.end, stop, header.crc, header.values))
        at = stop
    return pages


@dataclass(slots=True)
class _Header:
    """What a page header says; ``values`` is zero for pages without data."""

    end: int
    size: int
    crc: int | None
    values: int


def _header(content: memoryview, at: int, end: int) -> _Header:
    data = bytes(content[at : min(end, at + _HEADER_BYTES)])
    try:
        return _parsed(data, at)
    except IndexError:
        if len(data) == end - at:
            raise DamagedFileError(f"the page header at byte {at} is cut off") from None
    try:
        return _parsed(bytes(content[at:end]), at)
    except IndexError:
        raise DamagedFileError(f"the page header at byte {at} is cut off") from None


def _parsed(data: bytes, at: int) -> _Header:
    """Return the header at the beginning of ``data``; IndexError if it is longer."""
    kind, size, crc, values = -1, -1, None, 0
    place = field = 0
    while tag := data[place]:
        place += 1
        if tag < 16:  # the number of the field as a varint, not as a difference
            field, place = _signed(data, place)
        else:
            field += tag >> 4
        tag &= 15
        if tag == 5:
            number, place = _signed(data, place)
            if field == 1:
                kind = number
            elif field == 3:
                size = number
            elif field == 4:
                crc = number & 0xFFFFFFFF
        elif tag == 12 and field in (5, 8):
            if data[place] != 0x15:
                raise DamagedFileError(f"the page header at byte {at} has no number of values")
            values, _ = _signed(data, place + 1)
            place = _skip(data, place, tag, 0)
        else:
            place = _skip(data, place, tag, 0)
    if kind not in (_DATA, _INDEX, _DICTIONARY, _DATA_V2) or size < 0 or values < 0:
        raise DamagedFileError(f"the page header at byte {at} is invalid")
    return _Header(at + place + 1, size, crc, values)


def _varint(data: bytes, place: int) -> tuple[int, int]:
    byte = data[place]
    place += 1
    if byte < 128:
        return byte, place
    number, shift = byte & 127, 7
    while True:
        byte = data[place]
        place += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, place
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than ten bytes")


def _signed(data: bytes, place: int) -> tuple[int, int]:
    number, place = _varint(data, place)
    return (number >> 1) ^ -(number & 1), place


def _skip(data: bytes, place: int, kind: int, depth: int) -> int:
    """Return the place after a value of any Thrift type (compact protocol)."""
    if depth > 8:
        raise ValueError("structs are nested more than eight deep")
    if kind in (1, 2):  # true, false
        return place
    if kind == 3:
        return place + 1
    if kind in (4, 5, 6):
        return _varint(data, place)[1]
    if kind == 7:
        return place + 8
    if kind == 8:
        size, place = _varint(data, place)
        data[place + size]  # a header ends after it: IndexError if there is no more
        return place + size
    if kind == 12:
        while tag := data[place]:
            place += 1
            if tag < 16:
                place = _varint(data, place)[1]
            place = _skip(data, place, tag & 15, depth + 1)
        return place + 1
    raise ValueError(f"unknown type {kind}")
