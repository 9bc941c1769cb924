"""Errors of damaged snapshots, schemas and manifests, and the counts that they must agree on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from paimon_features.core.errors import DamagedFileError, PaimonFeaturesError
from paimon_features.lake.storage import Storage


@contextmanager
def metadata_damage(path: str, what: str) -> Iterator[None]:
    """Raise what damaged metadata makes a parser raise as DamagedFileError.

    ``path`` is the file, or the folder of the files, that is read; ``what`` names their table.
    Missing files and failures of the store pass.
    """
    try:
        yield
    except (PaimonFeaturesError, MemoryError):
        raise
    except OSError as error:
        if error.errno is not None or isinstance(error, FileNotFoundError):
            raise
        raise _damaged(path, what, error) from error
    except Exception as error:
        raise _damaged(path, what, error) from error


def check_rows(name: str, snapshot: Any, files: Iterable[Any], delta: bool = False) -> None:
    """Verify that the rows of all files of a snapshot (or of its delta) are those it counts.

    ``files`` are manifest entries with ``kind`` and ``file``.

    Raises
    ------
    DamagedFileError
        If a manifest, a manifest list or the snapshot is not what was written.
    """
    expected = snapshot.delta_record_count if delta else snapshot.total_record_count
    rows = {  # of a file that is there twice, once
        (e.kind, tuple(e.partition.values), e.bucket, e.file.file_name): e.file.row_count
        for e in files
    }
    row_count = sum(count if key[0] == 0 else -count for key, count in rows.items())
    if expected is not None and row_count != expected:
        raise DamagedFileError(
            f"table {name!r}, snapshot {snapshot.id}: by its manifests its files have {row_count} "
            f"rows, by the snapshot {expected}: one of them is damaged. {REMEDY}"
        )


def check_manifest(storage: Storage, path: str, manifest: Any, entries: Sequence[Any]) -> None:
    """Verify that a manifest has the size, entries and partitions that its list says.

    Of a delta, rows alone do not show that the manifest of another commit is in its place.

    Raises
    ------
    DamagedFileError
        If it is not what was written.
    """
    size, count = storage.size(path), manifest.num_added_files + manifest.num_deleted_files
    stats = manifest.partition_stats
    partition_values = zip(*(tuple(entry.partition.values) for entry in entries), strict=True)
    bounds = [(min(v), max(v)) for v in partition_values if None not in v]
    least, greatest = stats.min_values, stats.max_values
    listed = [(least.get_field(n), greatest.get_field(n)) for n in range(len(least.fields))]
    problem = None
    if size != manifest.file_size:
        problem = f"it has {size} bytes; its list says {manifest.file_size}"
    elif len(entries) != count:
        problem = f"it has {len(entries)} entries; its list says {count}"
    elif len(bounds) == len(listed) and bounds != listed:
        problem = f"its partitions are {bounds}; its list says {listed}"
    if problem is not None:
        raise DamagedFileError(f"{path} is damaged: {problem}. {REMEDY}")


REMEDY = "Restore it from a backup, or roll the table back to a snapshot without it"


def _damaged(path: str, what: str, error: Exception) -> DamagedFileError:
    text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return DamagedFileError(f"{what}: {path} is damaged ({text}). {REMEDY}")


def check_inside(folder: str, paths: Iterable[str]) -> None:
    """Raise DamagedFileError for a data file that is not in its table's folder.

    A manifest can name any file, which would be read with the keys of this process.
    """
    start = f"{folder.removeprefix('file:').rstrip('/')}/"
    for path in paths:
        plain = path.removeprefix("file:")
        plain = "/" + plain.lstrip("/") if plain.startswith("//") else plain
        if not plain.startswith(start) or ".." in plain[len(start) :].split("/"):
            raise DamagedFileError(
                f"{path[:300]} is not in the table's folder {folder}; only files of the table are "
                f"read. {REMEDY}"
            )


def check_entries(folder: str, entries: Iterable[Any]) -> None:
    """Call ``check_inside`` for the entries of a manifest."""
    names = (entry.file.external_path or f"{folder}/{entry.file.file_name}" for entry in entries)
    check_inside(folder, names)
