"""Files that are missing, cut off or damaged: how they are found and reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa

from paimon_features.core.errors import DamagedFileError, SnapshotExpiredError, TableError
from paimon_features.lake.reading.snapshot_content import Content, ContentFile
from trainer_bridge.blocks.data_files import DataFiles
from trainer_bridge.blocks.row_selection import MergeUnit


def bad_files_error(
    content: Content, files: Sequence[ContentFile], error: BaseException, where: str = ""
) -> TableError:
    """Return the error for files of which one cannot be read: which, where, why, and the remedy."""
    names = ", ".join(f"{file.path} ({file.split})" for file in files)
    missing = isinstance(error, FileNotFoundError)
    text = (
        "it is gone. If its snapshot has expired: read a newer one, or hold it by consumer=. "
        "If the file was lost: restore it"
        if missing
        else _without_path(str(error), files)
    )
    kind = DamagedFileError if isinstance(error, DamagedFileError) else TableError
    return (SnapshotExpiredError if missing else kind)(
        f"table {content.table!r}, snapshot {content.snapshot_id}, {where}file {names}: {text}; "
        "or read without it by on_bad_file='skip'"
    )


def find_bad_files(source: DataFiles, files: Sequence[ContentFile], threads: int) -> dict[str, str]:
    """Return what is wrong with files, by path: those missing, cut off, or of another footer."""
    with ThreadPoolExecutor(threads) as pool:
        defects = pool.map(partial(_defect, source), files)
        return {
            f.path: defect for f, defect in zip(files, defects, strict=True) if defect is not None
        }


def without_bad_files(
    units: list[MergeUnit], bad: Mapping[str, str], left_out: dict[str, str]
) -> list[MergeUnit]:
    """Return the units without a bad file: either all rows of a key count, or none.

    The files of the others are added to ``left_out``, with the reason.
    """
    kept = []
    for unit in units:
        wrong = [file for file in unit if file.path in bad]
        for file in unit if wrong else ():
            left_out[file.path] = bad.get(file.path, f"it merges with {wrong[0].path}")
        if not wrong:
            kept.append(unit)
    return kept


def _without_path(text: str, files: Sequence[ContentFile]) -> str:
    for file in files:
        text = text.removeprefix(f"file {file.path} is ") if len(files) == 1 else text
    return " ".join(text.split())  # Arrow's messages have several lines


def _defect(source: DataFiles, file: ContentFile) -> str | None:
    try:
        rows = source.metadata(file.path).num_rows
    except FileNotFoundError:
        return "it is not there"
    except (OSError, pa.ArrowException, DamagedFileError) as error:
        return f"it cannot be opened: {' '.join(str(error).split())}"
    return None if rows == file.rows else f"it has {rows} rows; its manifest says {file.rows}"
