"""The bytes of requests and replies that one worker has in memory, and their bound."""

from __future__ import annotations

from paimon_features.serving.http.http_errors import CLOSE, overloaded

SMALL_BODY = 65_536
"""A body up to this size may use all of the bound; larger ones leave a quarter of it to these."""


class BufferedBytes:
    """Counts bodies that are read or being answered, and replies that clients have not read yet.

    Used from one event loop only. Large bodies cannot occupy everything, so that small requests
    are answered while many large ones arrive.

    >>> buffers = BufferedBytes(limit=400_000)
    >>> buffers.take(300_000, 300_000)
    >>> buffers.take(1, 70_000)
    Traceback (most recent call last):
    paimon_features.serving.http.http_errors.RequestRejected: this worker has 300,000 bytes of ...
    >>> buffers.take(1, 1)
    >>> buffers.free(300_001)
    >>> buffers.held
    0
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    @property
    def is_full(self) -> bool:
        """Whether more is in memory than allowed."""
        return self.held > self.limit

    def check(self, size: int, body_bytes: int) -> None:
        """Raise RequestRejected (503) if ``size`` more bytes, of a body of ``body_bytes`` so far or
        as declared, do not fit."""
        allowed = self.limit if body_bytes <= SMALL_BODY else self.limit * 3 // 4
        if self.held + size > allowed:
            raise overloaded(
                f"this worker has {self.held:,} bytes of requests and replies in memory, and a "
                f"body of {body_bytes:,} bytes does not fit into {allowed:,} "
                "([serve] max_buffered_bytes); retry after a second, or run more workers",
                "memory",
                CLOSE,
            )

    def take(self, size: int, body_bytes: int) -> None:
        """Count ``size`` more bytes; raises as ``check`` does, and counts nothing then."""
        self.check(size, body_bytes)
        self.held += size

    def hold(self, size: int) -> None:
        """Count bytes that are in memory already, over the bound or not."""
        self.held += size

    def free(self, size: int) -> None:
        """Subtract bytes that are no longer in memory."""
        self.held -= size
