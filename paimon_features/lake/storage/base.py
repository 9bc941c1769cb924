"""The interface of a warehouse's storage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import pyarrow.parquet as pq

T = TypeVar("T")


class Storage(ABC):
    """Files by their full path or URI, as in the table's manifests.

    All methods are thread safe. Missing files raise FileNotFoundError; other failures raise
    OSError or
    one of our own errors.
    """

    is_remote: bool

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Return the entries of a folder, unordered; empty if the folder does not exist."""

    @abstractmethod
    def is_folder(self, path: str) -> bool: ...

    @abstractmethod
    def is_file(self, path: str) -> bool: ...

    @abstractmethod
    def size(self, path: str) -> int:
        """Return the bytes of a file."""

    @abstractmethod
    def read_text(self, path: str) -> str: ...

    @abstractmethod
    def write_json(self, path: str, value: Any) -> None:
        """Replace a file atomically: a reader sees the old content or the new one."""

    @abstractmethod
    def make_folder(self, path: str) -> None: ...

    @abstractmethod
    def delete_folder(self, path: str) -> None:
        """Delete a folder with its contents, if it exists."""

    @abstractmethod
    def open_output(self, path: str) -> Any:
        """Return a new binary file to write, visible once it is closed; its folder is created."""

    @abstractmethod
    def delete_file(self, path: str) -> None:
        """Delete a file, if it exists."""

    @abstractmethod
    def sizes(self, folder: str) -> dict[str, int]:
        """Return the bytes of each file below a folder, by its path; empty if it does not exist."""

    @abstractmethod
    def stamp(self, folder: str) -> Hashable:
        """Return a value that changes when a file is added to the folder, or the folder is
        recreated.

        Raises FileNotFoundError if the folder does not exist.
        """

    @abstractmethod
    def open_parquet(self, path: str, size: int | None = None) -> pq.ParquetFile:
        """Return a Parquet file, to be closed by the caller; its pages are verified before
        decoding.

        Reading some columns of some row groups fetches only their bytes. ``size`` are the bytes
        that the file must have, by its manifest. It and its reads raise DamagedFileError.
        """

    @abstractmethod
    def repeated(self, read: Callable[[], T], on_retry: Callable[[], None] | None = None) -> T:
        """Return the result of ``read``, which is retried on transient errors.

        ``on_retry`` is called before each retry.
        """
