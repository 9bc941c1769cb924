"""A warehouse in a local or mounted folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq

from paimon_features.lake.storage.base import Storage
from paimon_features.lake.storage.footers import Footers
from paimon_features.lake.storage.json_files import write_plain_json
from paimon_features.lake.storage.verified import VerifiedParquetFile, check_size, damage_of

T = TypeVar("T")


class LocalStorage(Storage):
    """Local files; Parquet is memory mapped."""

    is_remote = False

    def __init__(self) -> None:
        self._footers = Footers()

    def names(self, folder: str) -> list[str]:
        try:
            return os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def is_file(self, path: str) -> bool:
        return os.path.isfile(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def read_text(self, path: str) -> str:
        with open(path, encoding="utf-8") as file:
            return file.read()

    def write_json(self, path: str, value: Any) -> None:
        write_plain_json(Path(path), value)

    def make_folder(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def delete_folder(self, path: str) -> None:
        shutil.rmtree(path, ignore_errors=True)

    def open_output(self, path: str) -> Any:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return open(path, "wb")

    def delete_file(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)

    def sizes(self, folder: str) -> dict[str, int]:
        sizes = {}
        for path, _, names in os.walk(folder):
            for name in names:
                file = os.path.join(path, name)
                sizes[file] = os.path.getsize(file)
        return sizes

    def stamp(self, folder: str) -> Hashable:
        status = os.stat(folder)
        return (status.st_ino, status.st_mtime_ns)

    def open_parquet(self, path: str, size: int | None = None) -> pq.ParquetFile:
        with damage_of(path):  # a damaged manifest can name any path
            status = os.stat(path)
        check_size(path, status.st_size, size)
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        return self._footers.open(
            path, stamp, lambda footer: VerifiedParquetFile.local(path, status.st_size, footer)
        )

    def repeated(self, read: Callable[[], T], on_retry: Callable[[], None] | None = None) -> T:
        return read()
