"""Small JSON files next to the tables, or objects: written atomically, changed under a lock.

They contain what must outlive a table's snapshots: leases, generations, commit identifiers, in
``<warehouse>/_paimon_features``, which no catalog considers a database.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paimon_features.core.documents.checksummed_json import next_document, read_document
from paimon_features.lake.storage.exclusive_folder import ExclusiveFolder, sync_folder
from paimon_features.lake.storage.object_path import ObjectPath, SidePath
from paimon_features.lake.storage.write_errors import write_errors


def read_json(path: SidePath) -> Any | None:
    """Return the content of a JSON file or object, None if it does not exist.

    Raises
    ------
    DamagedFileError
        For a file that is not JSON, or not what ``write_json`` wrote.
    """
    document = read_document(path)
    return None if document is None else document.value


def write_json(path: SidePath, value: Mapping[str, Any], after: int = 0) -> None:
    """Replace a JSON file or object, with a digest and the number of its writes.

    The number is greater than that of the content before, and than ``after``.

    Raises
    ------
    StorageWriteError
        If the file system refuses the write; the old content stays.
    DamagedFileError
        If the file is not what was written before.
    """
    document = next_document(path, value, after)
    if isinstance(path, ObjectPath):
        path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    else:
        write_plain_json(path, document)


def write_plain_json(path: Path, value: Any) -> None:
    """Replace a JSON file atomically: a reader sees the old content or the new one.

    Of several concurrent writers the last one wins.

    The content is synced to disk, so that a record is not lost in a power failure.

    Raises
    ------
    StorageWriteError
        If the file system refuses the write; the old content stays.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    with write_errors(f"{path} cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("w", encoding="utf-8") as file:
                json.dump(value, file, indent=1, sort_keys=True)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)


def create_file(path: SidePath, text: str) -> bool:
    """Create a file or object; return False, without any change, if it exists.

    Of several concurrent callers one gets True. ``text`` is unique to the caller.
    """
    if isinstance(path, ObjectPath):
        return path.create_text(text)
    return ExclusiveFolder(path.parent).create(path.name, text)
