"""Opens a snapshot: which of its files and rows are read, and as which blocks."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import pyarrow as pa

from paimon_features.core.errors import TableError
from paimon_features.lake.catalog import Lake
from paimon_features.lake.reading.deltas import DataFile
from paimon_features.lake.reading.snapshot_content import (
    Content,
    ContentFile,
    content_of,
    read_content,
)
from paimon_features.lake.storage import Storage
from trainer_bridge.blocks.bad_files import bad_files_error, find_bad_files, without_bad_files
from trainer_bridge.blocks.data_files import DataFiles
from trainer_bridge.blocks.layout import Layout, OnBadFile
from trainer_bridge.blocks.mask_cache import MaskCache
from trainer_bridge.blocks.predicates import RowFilter
from trainer_bridge.blocks.row_groups import (
    FOOTER_THREADS,
    bytes_per_row,
    join_groups,
    row_groups,
)
from trainer_bridge.blocks.row_selection import MergeUnit, RowSelection
from trainer_bridge.blocks.row_selector import RowSelector

_MERGE_THREADS = 4

_log = logging.getLogger(__name__)


def read_layout(
    lake: Lake,
    name: str,
    snapshot_id: int,
    block_rows: int,
    *,
    where: str | None = None,
    on_bad_file: OnBadFile = "error",
    cache: Path | None = None,
) -> Layout:
    """Return the blocks of a table at a snapshot.

    For an append table without a condition only the footers of large files are read. Keys that
    several files can contain, and the columns of ``where``, are read once; the resulting masks
    are stored in the folder ``cache``.

    Files are ordered by partition, bucket and commit (of one commit, as it lists them), files that
    merge together at the place of the first of them; the row numbers of a snapshot never change.

    Raises
    ------
    TableError
        For a merge engine, option or file format that cannot be read, and for a bad file
        (unless ``on_bad_file`` is ``"skip"``: then it is left out, with the files that
        contain other rows of its keys).
    SnapshotExpiredError, UnknownNameError
        If the snapshot or the table does not exist.
    RequestError
        If ``where`` is not a condition on the table's columns.
    """
    condition = _condition(lake, name, where)
    content = read_content(lake, name, snapshot_id, () if condition is None else condition.columns)
    return _layout(lake, content, block_rows, condition, on_bad_file, cache)


def layout_of(
    lake: Lake,
    name: str,
    snapshot_id: int,
    files: Iterable[DataFile],
    block_rows: int,
    where: str | None = None,
) -> Layout:
    """Return the blocks of some files of an append table, as a layout of these files alone.

    Raises
    ------
    TableError
        For a table with a primary key, or a file that is bad or not Parquet.
    RequestError
        If ``where`` is not a condition on the table's columns.
    """
    content = content_of(lake, name, snapshot_id, files)
    return _layout(lake, content, block_rows, _condition(lake, name, where), "error", None)


def _condition(lake: Lake, name: str, where: str | None) -> RowFilter | None:
    return None if where is None else RowFilter(where, lake.schema(name), table=name)


def _layout(
    lake: Lake,
    content: Content,
    block_rows: int,
    condition: RowFilter | None,
    on_bad_file: OnBadFile,
    cache: Path | None,
) -> Layout:
    name, snapshot_id = content.table, content.snapshot_id
    selector = RowSelector(DataFiles.of(lake, content), condition)
    selection, units = RowSelection(), list[MergeUnit]()
    for unit in _units(content):
        reason = selector.pruning.prune(unit)
        if reason is None:
            units.append(unit)
        else:
            selection.count(reason, len(unit))
    left_out: dict[str, str] = {}
    if on_bad_file == "skip":
        bad = find_bad_files(
            selector.data_files, [file for unit in units for file in unit], FOOTER_THREADS
        )
        units = without_bad_files(units, bad, left_out)
    units = _select_rows(selector, units, selection, left_out, cache, on_bad_file)
    for path, wrong in left_out.items():
        _log.warning("table %r, snapshot %d: left out %s: %s", name, snapshot_id, path, wrong)
    groups = row_groups(selector, units, selection, block_rows)
    row_bytes = bytes_per_row(selector.data_files, units)
    blocks = tuple(join_groups(groups, block_rows, row_bytes))
    return Layout(name, snapshot_id, blocks, selector, selection, on_bad_file, left_out)


def _units(content: Content) -> list[MergeUnit]:
    """Return the files that merge together as one unit, every other file by itself.

    In reading order.
    """
    sections: dict[int, list[ContentFile]] = {}
    for file in sorted(content.files, key=_reading_order):
        if not file.path.endswith(".parquet"):
            raise TableError(
                f"table {content.table!r}, file {file.path}: only Parquet files can be read; "
                "write the table with file.format=parquet"
            )
        sections.setdefault(file.section, []).append(file)
    units: list[MergeUnit] = []
    for files in sections.values():
        units += [tuple(files)] if files[0].merges else [(file,) for file in files]
    return units


def _select_rows(
    selector: RowSelector,
    units: list[MergeUnit],
    selection: RowSelection,
    left_out: dict[str, str],
    cache: Path | None,
    on_bad_file: OnBadFile,
) -> list[MergeUnit]:
    """Add to ``selection`` which rows are read, from the cache or the files.

    Returns the units that can be read.
    """
    unknown: list[MergeUnit] = []
    for unit in units:
        if selector.pruning.needs_reading(unit):
            unknown.append(unit)
        else:
            selection.complete.update(file.path for file in unit)
    if not unknown:
        return units
    where = None if selector.filter is None else selector.filter.text
    stored = None if cache is None else MaskCache(cache, selector.data_files, where)
    cached = stored.load(unknown) if stored is not None and not left_out else None
    if cached is not None:
        selection.add(cached)
        return units
    computed, bad = RowSelection(), {}
    storage = selector.data_files.lake.storage
    # threads that wait for a processor cost more page faults than they save time
    threads = min(_MERGE_THREADS, _MERGE_THREADS if storage.is_remote else os.cpu_count() or 1)
    results = _in_threads(storage, selector.select, unknown, threads)
    for unit, result in zip(unknown, results, strict=True):
        if isinstance(result, RowSelection):
            computed.add(result)
            continue
        if on_bad_file == "error":
            raise bad_files_error(selector.data_files.content, unit, result) from result
        bad[unit[0].path] = " ".join(str(result).split())
    selection.add(computed)
    if not bad and not left_out and stored is not None:
        stored.save(computed)
    return without_bad_files(units, bad, left_out)


def _reading_order(file: ContentFile) -> tuple[object, ...]:
    # every value as (kind, number, text): null partitions and mixed types still compare
    values = [
        (0, 0, "")
        if value is None
        else (1, value, "")
        if isinstance(value, int | float | Decimal)
        else (2, 0, str(value))
        for value in file.partition.values()
    ]
    return (values, file.bucket, file.place)


def _in_threads(
    storage: Storage,
    work: Callable[[MergeUnit], RowSelection],
    units: Sequence[MergeUnit],
    threads: int,
) -> Iterator[RowSelection | BaseException]:
    """Yield the result or the error of each unit, in their order."""

    def guarded(unit: MergeUnit) -> RowSelection | BaseException:
        try:
            return storage.repeated(lambda: work(unit))
        except (OSError, pa.ArrowException, TableError) as error:
            return error

    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(guarded, units)
