"""A warehouse on one of Arrow's file systems: S3, OSS, HDFS, or any of fsspec."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pyarrow.fs as pafs
import pyarrow.parquet as pq

from paimon_features.core.errors import (
    ConfigurationError,
    PaimonFeaturesError,
    StoreUnreachableError,
    TableError,
)
from paimon_features.lake.storage.base import Storage
from paimon_features.lake.storage.conditional import ConditionalStore
from paimon_features.lake.storage.footers import Footers
from paimon_features.lake.storage.retries import Retries, error_code, is_passing
from paimon_features.lake.storage.verified import VerifiedParquetFile, check_size

T = TypeVar("T")

_DENIED = frozenset(
    {
        "ACCESS_DENIED",
        "INCOMPLETE_SIGNATURE",
        "INVALID_ACCESS_KEY_ID",
        "INVALID_CLIENT_TOKEN_ID",
        "INVALID_SIGNATURE",
        "MISSING_AUTHENTICATION_TOKEN",
        "SIGNATURE_DOES_NOT_MATCH",
        "UNRECOGNIZED_CLIENT",
    }
)


class RemoteStorage(Storage):
    """Files of a remote store; transient errors are retried.

    Parameters
    ----------
    address
        The warehouse, for error messages.
    filesystem
        Makes one attempt per request, so that retries are made and counted here.
    patient
        The same with retries of its own, for pypaimon, which makes none.
    endpoint
        The endpoint of the store, for error messages; empty if unknown.
    retries
        The retry policy for transient errors.
    conditional
        Conditional puts to the same store; None if it has none.
    settings
        What the file systems were made from, secrets among them; None for given ones.
    """

    is_remote = True

    def __init__(
        self,
        address: str,
        filesystem: pafs.FileSystem,
        patient: pafs.FileSystem,
        *,
        endpoint: str = "",
        retries: Retries | None = None,
        conditional: ConditionalStore | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.address = address
        self.filesystem = filesystem
        self.patient = patient
        self.endpoint = endpoint
        self.retries = retries or Retries()
        self.conditional = conditional
        self.settings = settings
        self._footers = Footers()

    def place(self, path: str) -> str:
        """Return a URI as a path of the file system: ``bucket/key``, or a path from its root."""
        return place_in(self.filesystem, path)

    def check(self) -> None:
        """Verify bucket, credentials and endpoint before anything is read.

        Raises
        ------
        ConfigurationError
            For a missing bucket, or rejected credentials.
        TableError
            If the object store is unreachable.
        """
        # a failed listing has a reason, a failed lookup of one object does not
        selector = pafs.FileSelector(self.place(self.address))
        with suppress(FileNotFoundError):  # the bucket exists, but nothing of the warehouse yet
            self._do(lambda: self.filesystem.get_file_info(selector))

    def names(self, folder: str) -> list[str]:
        return [info.base_name for info in self._infos(folder)]

    def is_folder(self, path: str) -> bool:
        return self._kind(path) is pafs.FileType.Directory

    def is_file(self, path: str) -> bool:
        return self._kind(path) is pafs.FileType.File

    def size(self, path: str) -> int:
        info = self._do(lambda: self.filesystem.get_file_info(self.place(path)))
        if info.type is not pafs.FileType.File:
            raise FileNotFoundError(path)
        return int(info.size)

    def read_text(self, path: str) -> str:
        def read() -> bytes:
            with self.filesystem.open_input_file(self.place(path)) as file:
                content: bytes = file.read()
                return content

        return self._do(read).decode("utf-8")

    def first_bytes(self, path: str, count: int) -> bytes:
        """Return the first bytes of a file."""

        def read() -> bytes:
            with self.filesystem.open_input_file(self.place(path)) as file:
                content: bytes = file.read(count)
                return content

        return self._do(read)

    def modified_ns(self, path: str) -> int:
        """Return when a file was written, in UTC ns."""
        info = self._do(lambda: self.filesystem.get_file_info(self.place(path)))
        if info.type is not pafs.FileType.File:
            raise FileNotFoundError(path)
        return int(info.mtime_ns)

    def write_json(self, path: str, value: Any) -> None:
        """Replace a file, atomically in an object store; elsewhere a reader may see a partial file
        for a moment."""
        content = (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()

        def write() -> None:
            with self.filesystem.open_output_stream(self.place(path)) as file:
                file.write(content)

        try:
            self._do(write)
        except FileNotFoundError:  # object stores need no folders
            self.make_folder(path.rsplit("/", 1)[0])
            self._do(write)

    def make_folder(self, path: str) -> None:
        self._do(lambda: self.filesystem.create_dir(self.place(path), recursive=True))

    def delete_folder(self, path: str) -> None:
        if self.is_folder(path):
            self._do(lambda: self.filesystem.delete_dir(self.place(path)))

    def open_output(self, path: str) -> Any:
        def open_file() -> Any:
            return self.patient.open_output_stream(self.place(path))

        try:
            return self._do(open_file)
        except FileNotFoundError:  # object stores need no folders
            self.make_folder(path.rsplit("/", 1)[0])
            return self._do(open_file)

    def delete_file(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._do(lambda: self.filesystem.delete_file(self.place(path)))

    def sizes(self, folder: str) -> dict[str, int]:
        place = self.place(folder)
        selector = pafs.FileSelector(place, allow_not_found=True, recursive=True)
        infos = self._do(lambda: self.filesystem.get_file_info(selector))
        return {info.path: info.size for info in infos if info.type is pafs.FileType.File}

    def stamp(self, folder: str) -> Hashable:
        infos = self._infos(folder)
        if not infos and not self.is_folder(folder):
            raise FileNotFoundError(folder)
        return tuple(sorted((info.base_name, info.mtime_ns, info.size) for info in infos))

    def open_parquet(self, path: str, size: int | None = None) -> pq.ParquetFile:
        # pre_buffer: the byte ranges of all requested columns are fetched at once, by Arrow's
        # threads, close ones as one request
        source = self.filesystem.open_input_file(self.place(path))
        try:
            actual_size = source.size()
            check_size(path, actual_size, size)
            return self._footers.open(
                path,
                actual_size,
                lambda footer: VerifiedParquetFile(path, source, None, footer, pre_buffer=True),
            )
        except BaseException:
            source.close()
            raise

    def repeated(self, read: Callable[[], T], on_retry: Callable[[], None] | None = None) -> T:
        return self.retries.call(read, on_retry)

    def _infos(self, folder: str) -> list[pafs.FileInfo]:
        selector = pafs.FileSelector(self.place(folder), allow_not_found=True)
        infos: list[pafs.FileInfo] = self._do(lambda: self.filesystem.get_file_info(selector))
        return infos

    def _kind(self, path: str) -> pafs.FileType:
        return self._do(lambda: self.filesystem.get_file_info(self.place(path))).type

    def _do(self, work: Callable[[], T]) -> T:
        try:
            return self.retries.call(work)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self.explained(error) from error

    def explained(self, error: OSError) -> PaimonFeaturesError:
        """Translate an error of the store into one with a remedy."""
        code, _ = error_code(error)
        detail = str(error).splitlines()[0]
        if code == "NO_SUCH_BUCKET":
            return self._no_bucket()
        if code in _DENIED:
            return ConfigurationError(
                f"warehouse {self.address!r}: the store rejects these credentials ({detail}); "
                "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN (OSS_... "
                "for OSS) or the options, and the permissions on this bucket"
            )
        if code == "NETWORK_CONNECTION":
            where = f" at {self.endpoint}" if self.endpoint else ""
            return StoreUnreachableError(
                f"warehouse {self.address!r}: the store{where} is unreachable ({detail}); check "
                "S3_ENDPOINT (OSS_ENDPOINT) or the option endpoint, S3_USE_HTTPS, and the network"
            )
        if is_passing(error):
            return StoreUnreachableError(
                f"warehouse {self.address!r}: the store failed each of {self.retries.attempts} "
                f"times: {detail}"
            )
        return TableError(f"warehouse {self.address!r}: the store failed: {detail}")

    def _no_bucket(self) -> ConfigurationError:
        where = f" at {self.endpoint}" if self.endpoint else ""
        bucket = self.place(self.address).split("/")[0]
        return ConfigurationError(
            f"warehouse {self.address!r}: bucket {bucket!r}{where} does not exist; create it, or "
            f"check "
            "the address, S3_ENDPOINT and the region"
        )


def place_in(filesystem: pafs.FileSystem, path: str) -> str:
    """Return a URI as a path of a file system.

    >>> place_in(pafs.LocalFileSystem(), "file:///a/b")
    '/a/b'
    """
    if isinstance(filesystem, pafs.PyFileSystem) and isinstance(
        filesystem.handler, pafs.FSSpecHandler
    ):
        stripped: str = filesystem.handler.fs._strip_protocol(path)
        return stripped
    parts = urlsplit(path)
    if isinstance(filesystem, (pafs.HadoopFileSystem, pafs.LocalFileSystem)):
        return parts.path
    return f"{parts.netloc}{parts.path}".rstrip("/")
