"""Bearer tokens: which client may read which services. The file contains hashes only.

::

    [[token]]
    name = "churn scorer"
    sha256 = "9f86d0..."
    services = ["churn_v1"]        # or ["*"] for everything

A token is random and long, so one round of SHA-256 is enough: it cannot be guessed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paimon_features.errors import ConfigurationError
from paimon_features.serving.http.http_errors import RequestRejected

EVERYTHING = "*"
_PREFIX = "pf_"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_CHALLENGE = ((b"www-authenticate", b'Bearer realm="paimon-features"'),)


@dataclass(frozen=True, slots=True)
class Rights:
    """What a client may read: the features of these services, or everything (None)."""

    client: str
    services: frozenset[str] | None


ANYBODY = Rights("", None)
"""The rights of every client of an open server."""


class Tokens:
    """The tokens of a file.

    Raises
    ------
    ConfigurationError
        If the file cannot be read or is invalid.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known = [(entry.digest, entry.rights) for entry in _read(path)]

    def rights(self, authorization: bytes) -> Rights:
        """The rights of the bearer.

        Raises
        ------
        RequestRejected
            401 without a known token.
        """
        if not authorization:
            raise RequestRejected(
                401,
                "unauthorized",
                "no token; send the header 'Authorization: Bearer <token>' with a token created by "
                "'paimon-features serve token'",
                _CHALLENGE,
            )
        scheme, _, token = authorization.partition(b" ")
        found: Rights | None = None
        if scheme.lower() == b"bearer":
            digest = hashlib.sha256(token.strip()).digest()
            # all are compared, so that the time reveals nothing
            for known, rights in self._known:
                if hmac.compare_digest(known, digest):
                    found = rights
        if found is None:
            raise RequestRejected(
                401,
                "unauthorized",
                "the token is not known to this server; expected 'Authorization: Bearer <token>' "
                "with a token created by 'paimon-features serve token' and not removed since",
                _CHALLENGE,
            )
        return found


@dataclass(frozen=True, slots=True)
class _Entry:
    digest: bytes
    rights: Rights


def _read(path: Path) -> list[_Entry]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(
            f"there is no token file {path}; 'paimon-features serve token --service NAME' creates "
            "a token and the file"
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"token file {path}: {error}") from error
    entries: Any = document.pop("token", [])
    if document or not isinstance(entries, list):
        raise ConfigurationError(
            f"token file {path}: expected entries [[token]] only, got {', '.join(document)}"
        )
    return [_entry(path, number, entry) for number, entry in enumerate(entries, 1)]


def _entry(path: Path, number: int, entry: Any) -> _Entry:
    where = f"token file {path}: entry {number}"
    if not isinstance(entry, dict) or entry.keys() - {"name", "sha256", "services", "created"}:
        raise ConfigurationError(f"{where}: expected name, sha256, services, created; got {entry}")
    name, digest, services = entry.get("name"), entry.get("sha256"), entry.get("services")
    if not isinstance(name, str) or not name:
        raise ConfigurationError(f"{where}: name = {name!r}; expected a string")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ConfigurationError(f"{where} ({name!r}): sha256 is not 64 lower-case hex digits")
    texts = isinstance(services, list) and all(isinstance(s, str) for s in services)
    if not texts or not services:
        raise ConfigurationError(
            f"{where} ({name!r}): services = {services!r}; expected names of services, or ['*']"
        )
    granted = None if EVERYTHING in services else frozenset(services)
    return _Entry(bytes.fromhex(digest), Rights(name, granted))


def add_token(path: Path, name: str, services: Sequence[str], created: str) -> str:
    """Create a token with the right to read ``services``, add its hash to the file, return it.

    The file is created if there is none, readable by its owner only. ``created`` is a date for
    the reader of the file.

    Raises
    ------
    ConfigurationError
        If the file exists and is invalid, or has a token of this name.
    """
    if path.exists() and name in {entry.rights.client for entry in _read(path)}:
        raise ConfigurationError(
            f"token file {path} already has a token {name!r}; remove its entry first, or "
            "choose another --name"
        )
    token = _PREFIX + secrets.token_urlsafe(32)
    digest = hashlib.sha256(token.encode()).hexdigest()
    entry = (
        f"[[token]]\nname = {_quoted(name)}\nsha256 = {_quoted(digest)}\n"
        f"services = [{', '.join(_quoted(service) for service in services)}]\n"
        f"created = {_quoted(created)}\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    separator = "\n" if before and not before.endswith("\n\n") else ""
    # a new file, then one rename: a server that reads meanwhile sees the old or the new one
    fresh = path.with_name(path.name + ".new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(before + separator + entry)
    os.replace(fresh, path)
    return token


def _quoted(text: str) -> str:
    if any(ord(c) < 32 or ord(c) == 127 for c in text):
        raise ConfigurationError(f"{text!r} has control characters; expected plain text")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
