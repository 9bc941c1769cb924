"""What a warehouse asks of the place where its files are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import pyarrow.parquet as pq

T = TypeVar("T")


class Storage(ABC):
    """Files by their full path or address, as the table's manifests name them.

    All methods may be called from several threads. What is not there raises FileNotFoundError;
    anything else that goes wrong raises OSError or one of our own errors.
    """

    is_remote: bool

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """What lies in a folder, unordered; nothing where there is no such folder."""

    @abstractmethod
    def is_folder(self, path: str) -> bool: ...

    @abstractmethod
    def is_file(self, path: str) -> bool: ...

    @abstractmethod
    def size(self, path: str) -> int:
        """Bytes of a file."""

    @abstractmethod
    def read_text(self, path: str) -> str: ...

    @abstractmethod
    def write_json(self, path: str, value: Any) -> None:
        """Replace a file in one step: a reader sees the old content or the new one."""

    @abstractmethod
    def make_folder(self, path: str) -> None: ...

    @abstractmethod
    def delete_folder(self, path: str) -> None:
        """Delete a folder with all that is in it; harmless where there is none."""

    @abstractmethod
    def stamp(self, folder: str) -> Hashable:
        """Something that differs when a file was added to the folder, or it was made anew.

        Raises FileNotFoundError where there is no such folder.
        """

    @abstractmethod
    def open_parquet(self, path: str) -> pq.ParquetFile:
        """A Parquet file, to be closed by the caller. A read of some columns of some row groups
        fetches the bytes of those alone."""

    @abstractmethod
    def repeated(self, read: Callable[[], T], on_retry: Callable[[], None] | None = None) -> T:
        """The result of ``read``, which is called again while it fails for a passing reason.

        ``on_retry`` is called before each repetition.
        """
