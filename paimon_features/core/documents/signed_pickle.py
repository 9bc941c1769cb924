"""Authentication of pickles that pass through a store which other programs can write.

Whoever chooses the bytes of a pickle runs code where it is read. A job therefore reads only pickles
that were written with its own key: each carries the HMAC-SHA256 (RFC 2104) of its context and
content. The key is never in the store; the tasks of a job receive it with the job itself.
"""

from __future__ import annotations

import hmac
import secrets

from paimon_features.core.errors import ConfigurationError, JobError

KEY_BYTES = 32
_DIGEST_BYTES = 32


class Seal:
    """Seals bytes with a key, and opens what the same key has sealed.

    ``context`` says what the bytes are (a stream and an entry of it): sealed bytes that were
    copied to another place do not open there.

    Raises
    ------
    ConfigurationError
        For a key shorter than 32 bytes.

    Examples
    --------
    >>> seal = Seal(bytes(range(32)))
    >>> sealed = seal.close(b"stream a", b"content")
    >>> seal.open(b"stream a", sealed, "an entry of a")
    b'content'
    >>> seal.open(b"stream b", sealed, "an entry of b")
    Traceback (most recent call last):
    ...
    paimon_features.core.errors.JobError: an entry of b was not written with the key of this ...
    """

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if len(key) < KEY_BYTES:
            raise ConfigurationError(f"a key of {len(key)} bytes; expected {KEY_BYTES} or more")
        self._key = key

    @classmethod
    def random(cls) -> Seal:
        """Return a seal with a new key."""
        return cls(secrets.token_bytes(KEY_BYTES))

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
                "could run code: another program writes there"
            )
        return data

    def __repr__(self) -> str:
        return "Seal(...)"

    def _code(self, context: bytes, data: bytes) -> bytes:
        code = hmac.new(self._key, len(context).to_bytes(4, "big"), "sha256")
        code.update(context)
        code.update(data)
        return code.digest()
