"""Messages over HTTP are read strictly before the SDK reads them: no key twice, bounded size."""

from __future__ import annotations

from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paimon_features.serving.http.bodies.json_bodies import parse
from paimon_features.serving.http.http_errors import RequestRejected

MAX_BYTES = 1 << 20
"""The largest message: a call of a tool has a few kilobytes."""


class StrictBodies:
    """Refuses bodies that are not strict JSON, in front of an application."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request: by the application, if its body is well."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._application(scope, receive, send)
            return
        body = bytearray()
        more = True
        while more and len(body) <= MAX_BYTES:
            message = await receive()
            if message["type"] != "http.request":
                return  # the client is gone
            body += message.get("body", b"")
            more = message.get("more_body", False)
        try:
            if len(body) > MAX_BYTES:
                detail = f"the message has more than {MAX_BYTES:,} bytes"
                raise RequestRejected("too_large", detail)
            parse(body)
        except RequestRejected as rejection:
            await _refuse(rejection, send)
            return
        messages: list[Message] = [{"type": "http.request", "body": bytes(body)}]

        async def again() -> Message:
            return messages.pop() if messages else await receive()

        await self._application(scope, again, send)


async def _refuse(rejection: RequestRejected, send: Send) -> None:
    headers: list[Any] = [(b"content-type", b"application/problem+json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": rejection.status, "headers": headers})
    await send({"type": "http.response.body", "body": rejection.document("-")})
