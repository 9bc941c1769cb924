"""An Iceberg table in a folder, of which nothing outside the folder is read.

pyiceberg builds what opens files from the table's own properties, which name classes, and it opens
whatever addresses the metadata names, with the keys of the user. Here files are opened by
``IcebergFolder`` alone, and the properties are dropped.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.fs as pa_fs

from paimon_features.core.documents.unambiguous_json import parse_unambiguous_json
from paimon_features.core.errors import ConfigurationError, MissingExtraError

_LOCAL = re.compile(r"file:(//(localhost)?(?=/))?", re.I)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_NUMBER = re.compile(r"v?([0-9]+)")
_DATA_ONLY = ("schema.name-mapping.default",)
"""Properties that are needed to read rows, and say nothing else."""
_MAX_METADATA = 256 << 20


def open_iceberg(folder: Path) -> pa.RecordBatchReader:
    """Return the rows of the newest version.

    Raises
    ------
    MissingExtraError
        Without pyiceberg.
    ConfigurationError
        For metadata that cannot be read, or that names a file outside the folder.
    """
    try:
        from pyiceberg.catalog.noop import NoopCatalog
        from pyiceberg.table import StaticTable
        from pyiceberg.table.metadata import TableMetadataUtil
    except ImportError as error:
        raise MissingExtraError.of("pyiceberg", "formats", "reading Iceberg tables") from error
    newest = newest_metadata(folder)
    files = _folder_files(folder)
    try:
        document = _document(newest)
        properties = document.get("properties") or {}
        document["properties"] = {n: str(properties[n]) for n in _DATA_ONLY if n in properties}
        metadata = TableMetadataUtil.parse_obj(document)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise ConfigurationError(f"{newest}: not valid metadata of Iceberg: {reason}") from error
    files.location = _LOCAL.sub("", metadata.location, count=1).rstrip("/")
    table = StaticTable(
        ("static", str(newest)), metadata, str(newest), files, NoopCatalog("static")
    )
    return table.scan().to_arrow_batch_reader()


def newest_metadata(folder: Path) -> Path:
    """Return the metadata of a table's last version: ``v10`` and ``00010-...`` are after ``v9``.

    Of several files of one version (a commit that failed) the one that was updated last.
    """
    files = list((folder / "metadata").glob("*.metadata.json"))
    last = max(map(_version, files))
    newest = sorted(path for path in files if _version(path) == last)
    return newest[0] if len(newest) == 1 else max(newest, key=_updated_ms)


def _version(path: Path) -> int:
    number = _NUMBER.match(path.name)
    return int(number[1]) if number else -1


def _updated_ms(path: Path) -> int:
    try:
        return int(_document(path)["last-updated-ms"])
    except (OSError, ValueError, TypeError, KeyError):
        return -1  # the file of a commit that failed may be incomplete


def _document(path: Path) -> Any:
    with path.open("rb") as file:
        data = file.read(_MAX_METADATA + 1)
    if len(data) > _MAX_METADATA:
        raise ValueError(f"more than {_MAX_METADATA:,} bytes")
    return parse_unambiguous_json(data)


def _folder_files(folder: Path) -> Any:
    from pyiceberg.io import FileIO, InputFile
    from pyiceberg.io.pyarrow import PyArrowFile

    class IcebergFolder(FileIO):
        """Opens the files of one folder, for reading; ``location`` is its name in the metadata."""

        def __init__(self, root: Path) -> None:
            super().__init__({})
            self.root, self.location = root.resolve(), ""

        def new_input(self, location: str) -> InputFile:
            path = self._path(location)
            return PyArrowFile(location, str(path), pa_fs.LocalFileSystem())

        def _path(self, location: str) -> Path:
            """Return the file, which is in the folder; symbolic links are followed first."""
            text = _LOCAL.sub("", location, count=1)
            inside = text.removeprefix(f"{self.location}/")
            if self.location and inside != text:  # also of a table that was copied here
                text = f"{self.root}/{inside}"
            if _SCHEME.match(text) or not text.startswith("/"):
                raise self._outside(location)
            try:
                path = Path(text).resolve()
            except (OSError, ValueError, RuntimeError):
                raise self._outside(location) from None
            if not path.is_relative_to(self.root):
                raise self._outside(location)
            return path

        def _outside(self, location: str) -> ConfigurationError:
            return ConfigurationError(
                f"{self.root}: its metadata names {location[:200]!r}, which is not in this folder; "
                "only a table whose files are all in its folder is read. Copy the table, with its "
                "data, and name the copy"
            )

        def new_output(self, location: str) -> NoReturn:
            raise self._read_only(location)

        def delete(self, location: Any) -> NoReturn:
            raise self._read_only(location)

        def _read_only(self, location: Any) -> ConfigurationError:
            return ConfigurationError(f"{location}: tables of others are only read")

    return IcebergFolder(folder)
