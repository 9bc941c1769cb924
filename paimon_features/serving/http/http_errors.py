"""What is not answered: the status, a code for programs, and a text for people.

The document is that of RFC 9457, so ``detail`` stands where clients of other servers look for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import msgspec

from paimon_features.errors import (
    OnlineStoreError,
    OverloadedError,
    PaimonFeaturesError,
    StoreNotReadyError,
    UnknownNameError,
)

Headers = tuple[tuple[bytes, bytes], ...]

MEDIA_TYPE = b"application/problem+json"
_RETRY = ((b"retry-after", b"1"),)


class RequestRejected(Exception):  # noqa: N818  (an answer of the protocol, not a fault)
    """A request that ends here. ``code`` is stable; the text may change."""

    def __init__(self, status: int, code: str, detail: str, headers: Headers = ()) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = headers

    def document(self, request_id: str) -> bytes:
        """The body of the reply."""
        return msgspec.json.encode(
            {
                "status": self.status,
                "title": HTTPStatus(self.status).phrase,
                "code": self.code,
                "detail": self.detail,
                "request_id": request_id,
            }
        )


CODES: Mapping[str, str] = {
    "malformed": "the body is not what its content type says",
    "invalid_request": "a field is missing, unknown or of the wrong type, or values do not fit",
    "unknown_name": "a view, feature, service or interaction that is not defined",
    "unauthorized": "no token, or one that is not known",
    "forbidden": "the token does not give the right to read this",
    "not_found": "no such path",
    "method_not_allowed": "the path takes another method",
    "not_acceptable": "none of the formats that the client accepts is ours",
    "unsupported_media_type": "the body is in a format that is not read here",
    "too_large": "the body, or what it asks for, is over a limit of this server",
    "too_slow": "the body did not arrive in time",
    "overloaded": "the request would wait too long; try again, at another worker or later",
    "not_ready": "the online store holds no complete view yet; it is being built",
    "store_unavailable": "the online store does not answer",
    "internal": "a fault of the server; the log has it under the request's id",
}
"""Every ``code`` and what it says."""


def rejection_of(error: PaimonFeaturesError) -> RequestRejected:
    """What an error of a read means to the client."""
    if isinstance(error, OverloadedError):
        return overloaded(str(error))
    if isinstance(error, StoreNotReadyError):
        return RequestRejected(503, "not_ready", str(error), _RETRY)
    if isinstance(error, OnlineStoreError):
        return RequestRejected(503, "store_unavailable", str(error), _RETRY)
    if isinstance(error, UnknownNameError):
        return RequestRejected(404, "unknown_name", str(error))
    return RequestRejected(422, "invalid_request", str(error))


def overloaded(detail: str) -> RequestRejected:
    """A request that would wait too long. It was not read, so it may be sent again."""
    return RequestRejected(503, "overloaded", detail, _RETRY)
