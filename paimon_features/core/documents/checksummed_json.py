"""JSON documents that show whether they are what was written: with a digest and a serial number.

The digest covers the name of the file, so that another record in its place is found as well. The
serial number counts the writes of a file: of two copies the one with the smaller number is older.
A document of an earlier version has neither, and counts as number 0.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from paimon_features.core.documents.unambiguous_json import parse_unambiguous_json
from paimon_features.core.errors import DamagedFileError

_DIGEST, _SERIAL = "_digest", "_serial"
_REMEDY = (
    "restore it from a copy, or delete it if the record (see its folder's name) is no longer in use"
)


class TextFile(Protocol):
    """A path in a file system or in an object store."""

    @property
    def name(self) -> str: ...

    def read_text(self, encoding: str, /) -> str: ...


@dataclass(frozen=True, slots=True)
class Document:
    """The content of a file, and the number of its writes."""

    value: Any
    serial: int = 0


def add_checksum(value: Mapping[str, Any], name: str, serial: int = 1) -> dict[str, Any]:
    """Return the document to write for a value, as the file ``name``.

    >>> verify_checksum(add_checksum({"a": 1}, "x.json", 3), "x.json")
    Document(value={'a': 1}, serial=3)
    """
    return {**value, _DIGEST: _digest(value, name, serial), _SERIAL: serial}


def next_document(path: TextFile, value: Mapping[str, Any], after: int) -> dict[str, Any]:
    """Return the document that replaces the one of a file, which need not exist.

    Its number is greater than that one's, and than ``after``; raises as ``parse`` does.
    """
    previous = read_document(path)
    serial = max(after, 0 if previous is None else previous.serial) + 1
    return add_checksum(value, path.name, serial)


def verify_checksum(document: Any, name: str) -> Document:
    """Return the value of a parsed document.

    Raises
    ------
    ValueError
        If it is not what was written.
    """
    if not isinstance(document, dict) or not {_DIGEST, _SERIAL} & document.keys():
        return Document(document)
    value = {key: item for key, item in document.items() if key not in (_DIGEST, _SERIAL)}
    serial = document.get(_SERIAL)
    if not isinstance(serial, int) or document.get(_DIGEST) != _digest(value, name, serial):
        raise ValueError("it does not match its digest")
    return Document(value, serial)


def parse(text: str, path: str) -> Document:
    """Return the content of a file.

    Raises
    ------
    DamagedFileError
        If it is no JSON, or not what was written.
    """
    try:
        document = parse_unambiguous_json(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"is not valid JSON ({error})") from error
    try:
        return verify_checksum(document, path.rsplit("/", 1)[-1])
    except ValueError as error:
        raise _damaged(path, f"is damaged ({error})") from error


def read_document(path: TextFile) -> Document | None:
    """Return the content of a file, None if it does not exist; raises as ``parse`` does."""
    return _read(lambda: path.read_text("utf-8"), str(path))


class TextStorage(Protocol):
    """A storage, as far as it is needed here."""

    def read_text(self, path: str, /) -> str: ...


def stored_document(storage: TextStorage, path: str) -> Document | None:
    """Return ``read_document`` of a file in a storage."""
    return _read(lambda: storage.read_text(path), path)


def _read(text: Callable[[], str], path: str) -> Document | None:
    try:
        return parse(text(), path)
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise _damaged(path, f"is not valid JSON ({error})") from error


def _digest(value: Mapping[str, Any], name: str, serial: int) -> str:
    parsed = json.loads(json.dumps(value))  # as it is read: keys are texts
    text = f"{name}\n{serial}\n{json.dumps(parsed, sort_keys=True)}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _damaged(path: str, problem: str) -> DamagedFileError:
    return DamagedFileError(f"{path} {problem}; {_REMEDY}")
