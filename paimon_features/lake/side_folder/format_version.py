"""The format of all records in a side folder: an earlier release does not misread a later one.

Records have no number of their own: a release that changes one of them in a way that an earlier
one would misread raises ``FORMAT`` and calls ``raise_to`` before it first writes such a record. A
folder without the file has format 1, also those of all releases before the file existed.
"""

from __future__ import annotations

from pathlib import Path

from paimon_features._version import __version__
from paimon_features.core.errors import TableError
from paimon_features.lake.storage.json_files import read_json, write_json

FORMAT = 1
FILE = "format.json"


def check(side_folder: Path) -> None:
    """Raise TableError if a later release has written records that this one cannot read."""
    path = side_folder / FILE
    document = read_json(path)
    written_format = 1 if document is None else _format(path, document)
    if written_format > FORMAT:
        release = document.get("release") if isinstance(document, dict) else None
        raise TableError(
            f"{path}: the records have format {written_format}, written by release {release}; "
            f"this is release {__version__}, which reads formats up to {FORMAT}. Install "
            "that release or a later one; to go back, restore a backup of before it"
        )


def raise_to(side_folder: Path, number: int) -> None:
    """Record that records of this format follow; lower numbers change nothing."""
    path = side_folder / FILE
    document = read_json(path)
    if number > (1 if document is None else _format(path, document)):
        write_json(path, {"format": number, "release": __version__})


def _format(path: Path, document: object) -> int:
    stored_format = document.get("format") if isinstance(document, dict) else None
    if type(stored_format) is not int:
        raise TableError(
            f"{path} has format {stored_format!r}; expected a number: restore it from a copy"
        )
    return stored_format
