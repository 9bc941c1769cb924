"""Row groups and small files, put together as blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa

from paimon_features.core.errors import DamagedFileError
from paimon_features.core.types.array_types import Bools
from paimon_features.lake.reading.snapshot_content import ContentFile
from trainer_bridge.blocks.bad_files import bad_files_error
from trainer_bridge.blocks.data_files import DataFiles, Span
from trainer_bridge.blocks.layout import Block, BlockPart, Fold
from trainer_bridge.blocks.row_selection import MergeUnit, RowSelection, fold_path
from trainer_bridge.blocks.row_selector import RowSelector

FOOTER_THREADS = 8
_FOOTERS_PER_THREAD = 64
BLOCK_BYTES = 256 << 20
"""Most bytes of a block that is joined from several parts, in files and, about, decoded."""


def join_groups(
    groups: Iterable[tuple[BlockPart, int]], block_rows: int, row_bytes: int = 0
) -> list[Block]:
    """Blocks of at most ``block_rows`` rows, or of one larger group; groups are (part, bytes).

    Nor are groups joined beyond ``BLOCK_BYTES``, of files or by ``row_bytes`` per row.

    >>> spans = [(Span("a", 3), 9), (Span("b", 4), 9), (Span("c", 9), 9), (Span("d", 1), 9)]
    >>> [(block.first_row, block.rows) for block in join_groups(spans, block_rows=8)]
    [(0, 7), (7, 9), (16, 1)]
    >>> [block.rows for block in join_groups(spans, block_rows=99, row_bytes=40 << 20)]
    [3, 4, 9, 1]
    """
    if row_bytes:
        block_rows = min(block_rows, BLOCK_BYTES // row_bytes)
    blocks: list[Block] = []
    held: list[BlockPart] = []
    rows = size = 0

    def close() -> None:
        nonlocal rows, size
        if held:
            first = blocks[-1].first_row + blocks[-1].rows if blocks else 0
            blocks.append(Block(first, rows, size, tuple(_joined(list(held)))))
        held.clear()
        rows = size = 0

    for part, part_bytes in groups:
        if rows + part.rows > block_rows or size + part_bytes > BLOCK_BYTES:
            close()
        if part.rows:
            held.append(part)
            rows, size = rows + part.rows, size + part_bytes
    close()
    return blocks


def row_groups(
    selector: RowSelector, units: Sequence[MergeUnit], selection: RowSelection, block_rows: int
) -> Iterator[tuple[BlockPart, int]]:
    """Yield what is read at once, with its bytes: small files, row groups of large ones, folds."""
    large = [file for unit in units for file in unit if file.rows > block_rows]
    # reading a local footer takes less time than starting a thread, a remote one is a request
    files_per_thread = 1 if selector.data_files.lake.storage.is_remote else _FOOTERS_PER_THREAD
    with ThreadPoolExecutor(min(FOOTER_THREADS, len(large) // files_per_thread + 1)) as pool:
        read = partial(_group_rows, selector.data_files)
        footers = dict(zip([f.path for f in large], pool.map(read, large), strict=True))
    for unit in units:
        path = fold_path(unit)
        if path in selection.folded:
            spans = tuple(Span(file.path, file.rows) for file in unit)
            rows = selection.folded[path]
            mask = selection.mask(path, rows)
            kept = rows if mask is None else int(mask.sum())
            yield Fold(spans, kept, path, kept != rows), sum(file.size for file in unit)
            continue
        for file in unit:
            mask = selection.mask(file.path, file.rows)
            if file.path not in footers:
                yield _span(file, 0, None, 0, file.rows, mask), file.size
                continue
            start = 0
            for number, count in enumerate(footers[file.path]):
                share = file.size * count // max(file.rows, 1)
                yield _span(file, number, number + 1, start, count, mask), share
                start += count


def bytes_per_row(source: DataFiles, units: Sequence[MergeUnit]) -> int:
    """About how many bytes a row takes decoded, by the footer of the largest file.

    0 where it cannot be large: without columns of texts or lists, or with one file. Files of long
    texts may be small: equal ones are stored once, and compressed.
    """
    files = [file for unit in units for file in unit]
    kinds = source.lake.schema(source.content.table).types
    if len(files) < 2 or all(_has_fixed_width(kind) for kind in kinds):
        return 0
    largest = max(files, key=lambda file: (file.size, file.path))
    metadata = _footer(source, largest)
    sizes = (metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    return int(sum(sizes) // max(metadata.num_rows, 1))


def _has_fixed_width(kind: pa.DataType) -> bool:
    try:
        return bool(kind.bit_width)
    except ValueError:
        return False


def _span(
    file: ContentFile,
    first: int,
    stop: int | None,
    skip: int,
    stored: int,
    mask: Bools | None,
) -> Span:
    kept = stored if mask is None else int(mask[skip : skip + stored].sum())
    return Span(file.path, kept, first, stop, skip, None if kept == stored else stored)


def _footer(source: DataFiles, file: ContentFile) -> Any:
    try:
        return source.metadata(file.path)
    except (OSError, pa.ArrowException, DamagedFileError) as error:
        raise bad_files_error(source.content, [file], error) from error


def _group_rows(source: DataFiles, file: ContentFile) -> list[int]:
    metadata = _footer(source, file)
    return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]


def _joined(parts: Sequence[BlockPart]) -> Iterable[BlockPart]:
    """Neighbouring row groups of one file as one span, so that a file is opened once."""
    held = parts[0]
    for part in parts[1:]:
        if _follows(held, part):
            assert isinstance(held, Span)
            assert isinstance(part, Span)
            rows, stored = held.rows + part.rows, held.stored_rows + part.stored_rows
            masked = None if rows == stored else stored
            held = Span(held.path, rows, held.first, part.stop, held.skip, masked)
        else:
            yield held
            held = part
    yield held


def _follows(held: BlockPart, part: BlockPart) -> bool:
    both = isinstance(held, Span) and isinstance(part, Span)
    return both and part.path == held.path and part.first == held.stop  # type: ignore[union-attr]
