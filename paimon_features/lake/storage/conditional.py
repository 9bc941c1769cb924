"""A client of an object store that creates and replaces small objects conditionally.

Arrow's file systems have no conditional put. This client has (``If-None-Match: *`` and
``If-Match``), by the package obstore, which is the Rust crate ``object_store``. It is for records,
leases, locks and snapshot files, not for data.

The first conditional request of a process tests the store: one that ignores the condition would let
two owners write to a table.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import urlsplit

from paimon_features.core.errors import (
    ConfigurationError,
    MissingExtraError,
    StoreUnreachableError,
    TableError,
)
from paimon_features.lake.storage.filesystems import s3_arguments
from paimon_features.lake.storage.retries import PASSING_STATUS, Retries

T = TypeVar("T")

PROBES = "_paimon_features/probes"
"""The folder of the objects that test the store."""
_CREATE_ATTEMPTS = 5
_STATUS = re.compile(r"non-2xx status code: (\d{3})")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """The content of an object, and its version: what ``replace_if`` compares."""

    text: str
    version: Any


class ConditionalStore:
    """The objects below a warehouse ``s3://bucket/prefix``, by their key relative to it.

    Thread safe. Pickling carries the settings; a forked process cannot use it.

    Raises
    ------
    ConfigurationError
        From each conditional request, if the store ignores the condition; from any request, if
        the credentials are rejected.
    StoreUnreachableError
        If the store does not reply, after the attempts of its settings.
    """

    def __init__(self, address: str, settings: Mapping[str, str], attempts: int = 6) -> None:
        self.address = address
        self._settings = dict(settings)
        self._retries = Retries(attempts)
        self._start()

    def __repr__(self) -> str:
        return f"ConditionalStore({self.address!r})"

    def __getstate__(self) -> dict[str, Any]:
        kept = ("address", "_settings", "_retries")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._client: Any = None
        self._process = 0
        self._tested = False

    def key(self, uri: str) -> str | None:
        """Return the key of a URI of this warehouse; None of another one."""
        prefix = f"{self.address}/"
        return uri.removeprefix(prefix) if uri.startswith(prefix) else None

    def get(self, key: str) -> StoredObject | None:
        """Return an object, None if it does not exist."""
        import obstore

        def get() -> StoredObject | None:
            try:
                response = obstore.get(self._open(), key)
            except FileNotFoundError:
                return None
            meta: Mapping[str, Any] = response.meta
            names = ("e_tag", "version")
            version = {name: meta[name] for name in names if meta[name] is not None}
            return StoredObject(bytes(response.bytes()).decode("utf-8"), version)

        return self._do(get)

    def create(self, key: str, text: str) -> bool:
        """Create an object; False, without any change, if it exists.

        Of several concurrent callers one gets True. ``text`` is unique to the caller: a request
        whose reply was lost is recognised by it.
        """
        self._test()
        return self._create(key, text)

    def replace_if(self, key: str, text: str, version: Any) -> bool:
        """Replace an object; False, without any change, if it has another version, or is gone.

        ``text`` is unique to the caller, as that of ``create``.
        """
        self._test()
        return self._replace_if(key, text, version)

    def put(self, key: str, text: str) -> None:
        """Create or replace an object."""
        import obstore

        self._do(lambda: obstore.put(self._open(), key, text.encode(), use_multipart=False))

    def delete(self, key: str) -> None:
        """Delete an object, if it exists."""
        import obstore

        with suppress(FileNotFoundError):
            self._do(lambda: obstore.delete(self._open(), key))

    def entries(self, folder: str) -> tuple[list[str], list[str]]:
        """Return the names of the folders and of the objects directly in a folder, sorted."""
        import obstore

        listing = self._do(lambda: obstore.list_with_delimiter(self._open(), folder))
        folders = [prefix.rstrip("/").rpartition("/")[2] for prefix in listing["common_prefixes"]]
        objects = [entry["path"].rpartition("/")[2] for entry in listing["objects"]]
        return sorted(folders), sorted(objects)

    def below(self, folder: str) -> list[str]:
        """Return the keys of all objects below a folder, sorted."""
        import obstore

        def listed() -> list[str]:
            return [entry["path"] for part in obstore.list(self._open(), folder) for entry in part]

        return sorted(self._do(listed))

    def _create(self, key: str, text: str) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        for _ in range(_CREATE_ATTEMPTS):
            try:
                self._do(
                    lambda: obstore.put(
                        self._open(), key, text.encode(), mode="create", use_multipart=False
                    )
                )
                return True
            except AlreadyExistsError:
                stored = self.get(key)
                # None: the store refuses both of two concurrent requests (409), or it was deleted
                if stored is not None:
                    return stored.text == text
            except StoreUnreachableError:
                stored = self.get(key)  # it may have been created
                if stored is None:
                    raise
                return stored.text == text
        raise StoreUnreachableError(
            f"warehouse {self.address!r}: {key} was neither created nor found, each of "
            f"{_CREATE_ATTEMPTS} times"
        )

    def _replace_if(self, key: str, text: str, version: Any) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            self._do(
                lambda: obstore.put(
                    self._open(), key, text.encode(), mode=version, use_multipart=False
                )
            )
        except (AlreadyExistsError, PreconditionError, FileNotFoundError):
            pass
        except StoreUnreachableError:
            stored = self.get(key)
            if stored is None or stored.text != text:
                raise
            return True
        else:
            return True
        stored = self.get(key)
        return stored is not None and stored.text == text

    def _test(self) -> None:
        """Raise ConfigurationError if the store ignores a condition; once per process."""
        if self._tested:
            return
        key = f"{PROBES}/{secrets.token_hex(8)}"
        try:
            ignored = not self._create(key, "first") or self._create(key, "second")
            first = self.get(key)
            ignored = ignored or first is None or first.text != "first"
            if first is not None and not ignored:
                ignored = not self._replace_if(key, "second", first.version)
                ignored = ignored or self._replace_if(key, "third", first.version)
        finally:
            self.delete(key)
        if ignored:
            raise ConfigurationError(
                f"warehouse {self.address!r}: the store ignores conditional requests "
                "(If-None-Match: * and If-Match of PUT), so two owners could write to a table. Use "
                "a store that has them (Amazon S3, MinIO, Ceph, Cloudflare R2, versitygw, ...), or "
                "set side_folder to a folder that all writers share"
            )
        self._tested = True

    def _open(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = _client(self.address, self._settings)
                self._process = os.getpid()
        if self._process != os.getpid():
            raise TableError(
                f"warehouse {self.address!r}: a forked process cannot use the connections of its "
                "parent, it would wait for ever: start it with spawn, or use threads"
            )
        return self._client

    def _do(self, work: Callable[[], T]) -> T:
        from obstore.exceptions import (
            BaseError,
            PermissionDeniedError,
            UnauthenticatedError,
        )

        try:
            return self._retries.call(work, passing=_is_passing)
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise ConfigurationError(
                f"warehouse {self.address!r}: the store rejects these credentials, or they may not "
                f"read and write here ({_brief(error)}); check AWS_ACCESS_KEY_ID, "
                "AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN (OSS_... for OSS) or the options, and "
                "the permissions on this bucket"
            ) from None
        except BaseError as error:
            if type(error) is not _generic():
                raise
            passing = f" each of {self._retries.attempts} times" if _is_passing(error) else ""
            raise StoreUnreachableError(
                f"warehouse {self.address!r}: the store failed{passing}: {_brief(error)}"
            ) from None


def _generic() -> type[Exception]:
    from obstore.exceptions import GenericError

    error_type: type[Exception] = GenericError
    return error_type


def _is_passing(error: BaseException) -> bool:
    """Return True if to repeat a request: all of them may be, see ``create`` and ``replace_if``."""
    if type(error) is not _generic():
        return False
    status = _STATUS.search(str(error))
    return status is None or status[1] in PASSING_STATUS


def _brief(error: BaseException) -> str:
    """Return the first line of an error, without the debug output that follows it."""
    return str(error).partition("\n")[0].partition("<?xml")[0].rstrip(": ")[:300]


def _client(address: str, settings: Mapping[str, str]) -> Any:
    try:
        from obstore.store import S3Store
    except ImportError:
        raise MissingExtraError.of(
            "obstore", "s3", f"using the records and leases of the warehouse {address!r}"
        ) from None
    parts = urlsplit(address)
    arguments = s3_arguments(address, settings)
    config: dict[str, Any] = {"region": arguments.get("region", "us-east-1")}
    virtual = arguments["force_virtual_addressing"]
    host = arguments.get("endpoint_override")
    if host:
        shown = f"{parts.netloc}.{host}" if virtual else host
        config["endpoint"] = f"{arguments['scheme']}://{shown}"
    config["virtual_hosted_style_request"] = virtual or not host
    for name, option in (
        ("access_key", "access_key_id"),
        ("secret_key", "secret_access_key"),
        ("session_token", "session_token"),
    ):
        if arguments.get(name):
            config[option] = arguments[name]
    return S3Store(
        parts.netloc,
        prefix=parts.path.strip("/") or None,
        client_options={
            "allow_http": arguments["scheme"] == "http",
            "connect_timeout": timedelta(seconds=arguments["connect_timeout"]),
            "timeout": timedelta(seconds=arguments["request_timeout"]),
        },
        # repeated here: obstore does not repeat a request whose reply ended too early
        retry_config={"max_retries": 0},
        **config,
    )
