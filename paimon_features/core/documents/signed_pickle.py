"""Authentication of pickles that pass through a store which other programs can write.

Whoever chooses the bytes of a pickle runs code where it is read. A job therefore reads only pickles
that were written with its own key: each carries the HMAC-SHA256 (RFC 2104) of its context and
content. The key is never in the store; the tasks of a job receive it with the job itself.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from paimon_features.core.errors import ConfigurationError, JobError

KEY_BYTES = 32
KEY_VARIABLE = "PAIMON_FEATURES_KEY"
"""Environment variable with the user's key, as hexadecimal digits."""
_DIGEST_BYTES = 32


class Seal:
    """Seals bytes with a key, and opens what the same key has sealed.

    ``context`` says what the bytes are (a stream, a table and its row): sealed bytes that were
    copied to another place do not open there.

    Raises
    ------
    ConfigurationError
        For a key shorter than 32 bytes.

    Examples
    --------
    >>> seal = Seal(bytes(range(32)))
    >>> sealed = seal.close(b"table a", b"content")
    >>> seal.open(b"table a", sealed, "a row of a")
    b'content'
    >>> seal.open(b"table b", sealed, "a row of b")
    Traceback (most recent call last):
    ...
    paimon_features.core.errors.JobError: a row of b was not written with the key of this job; ...
    """

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if len(key) < KEY_BYTES:
            raise ConfigurationError(f"a key of {len(key)} bytes; expected {KEY_BYTES} or more")
        self._key = key

    @classmethod
    def random(cls) -> Seal:
        """A seal with a new key."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def of_user(cls, environment: Mapping[str, str] = os.environ) -> Seal:
        """The seal of this user, for what is read again by later processes.

        The key is ``PAIMON_FEATURES_KEY`` (64 or more hexadecimal digits) or else the file
        ``paimon-features/key`` in the user's configuration folder (``XDG_CONFIG_HOME``, by default
        ``~/.config``), which is created with mode 0600.

        Raises
        ------
        ConfigurationError
            If the variable or file contains something else, or the file cannot be written.
        """
        if text := environment.get(KEY_VARIABLE):
            return cls(_parse(text, KEY_VARIABLE))
        folder = environment.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        return cls(_file_key(Path(folder) / "paimon-features" / "key"))

    def close(self, context: bytes, data: bytes) -> bytes:
        """Return ``data`` behind its authentication code (32 bytes)."""
        return self._code(context, data) + data

    def open(self, context: bytes, sealed: bytes, what: str) -> bytes:
        """Return the content of ``sealed``.

        Raises
        ------
        JobError
            If it was not sealed with this key for this context; ``what`` names it.
        """
        code, data = sealed[:_DIGEST_BYTES], sealed[_DIGEST_BYTES:]
        if not hmac.compare_digest(code, self._code(context, data)):
            raise JobError(
                f"{what} was not written with the key of this job; it is not read, because it "
                "could run code. Either another program writes there, or the key has changed "
                f"(supersteps: copy the key file or set {KEY_VARIABLE} on every host that resumes)"
            )
        return data

    def __repr__(self) -> str:
        return "Seal(...)"

    def _code(self, context: bytes, data: bytes) -> bytes:
        made = hmac.new(self._key, len(context).to_bytes(4, "big"), "sha256")
        made.update(context)
        made.update(data)
        return made.digest()


def _file_key(path: Path) -> bytes:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # written to a temporary file and linked, so that two processes that create the key at
        # once use the same one
        part = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        if not path.exists():
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(KEY_BYTES) + "\n")
            try:
                os.link(part, path)
            except FileExistsError:
                pass
            finally:
                part.unlink()
        return _parse(path.read_text(encoding="ascii"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"key {path}: {error}; or set {KEY_VARIABLE}") from error


def _parse(text: str, where: str) -> bytes:
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) < KEY_BYTES:
        raise ConfigurationError(
            f"{where}: expected a key of {2 * KEY_BYTES} or more hexadecimal digits, e.g. "
            "from: openssl rand -hex 32"
        )
    return key
