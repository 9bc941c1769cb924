"""Files that a user names for a result: whether they can be written, before it is computed."""

from __future__ import annotations

from pathlib import Path

from paimon_features.core.errors import RequestError


def check_output_folder(path: Path) -> None:
    """Check that the folder of a file exists.

    Raises
    ------
    RequestError
        If it is missing.
    """
    if not path.parent.is_dir():
        raise RequestError(f"cannot write {path}: no such folder: {path.parent}")


def check_output_file(path: Path) -> None:
    """Check that a file can be put at ``path``.

    Raises
    ------
    RequestError
        If its folder is missing, or something else than a file is there.
    """
    check_output_folder(path)
    if path.exists() and not path.is_file():
        # a folder, or a device: putting a file in its place would do harm
        raise RequestError(f"cannot write {path}: it exists and is not a file; name another path")
