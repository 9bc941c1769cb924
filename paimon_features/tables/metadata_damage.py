"""Errors of damaged snapshots, schemas and manifests, and the counts that they must agree on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from paimon_features.errors import DamagedFileError, PaimonFeaturesError


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
    found = sum(count if key[0] == 0 else -count for key, count in rows.items())
    if expected is not None and found != expected:
        raise DamagedFileError(
            f"table {name!r}, snapshot {snapshot.id}: by its manifests its files have {found} "
            f"rows, by the snapshot {expected}: one of them is damaged. {_REMEDY}"
        )


_REMEDY = "Restore it from a backup, or roll the table back to a snapshot without it"


def _damaged(path: str, what: str, error: Exception) -> DamagedFileError:
    text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return DamagedFileError(f"{what}: {path} is damaged ({text}). {_REMEDY}")
