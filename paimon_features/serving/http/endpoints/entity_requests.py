"""The way of a request about entities, whatever answers it: feature reads, predictions.

A request passes: token, format, body, admission, what the answer begins with, reply. What it holds
is released once, however it ends.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from functools import partial
from typing import Any, NamedTuple

from paimon_features.core.process.traces import ended_now
from paimon_features.serving.http.access.access import Rights
from paimon_features.serving.http.bodies.formats import Format
from paimon_features.serving.http.bodies.json_bodies import LARGE
from paimon_features.serving.http.definitions.state import ServerState
from paimon_features.serving.http.logs import StoreLog
from paimon_features.serving.http.messages import (
    ClientGoneError,
    Exchange,
    Finish,
    PendingWork,
    Receive,
    Reply,
    Request,
    answer_of,
    check_body,
    read_body,
    take_body,
)
from paimon_features.serving.request_log.log import RequestLog


class Head(NamedTuple):
    """What is known of a request before its body."""

    rights: Rights
    body_format: Format
    reply_format: Format


class EntityWork:
    """An admitted request: ``size`` are the bytes of its body, ``admitted`` its admission."""

    __slots__ = ("admitted", "request", "size")

    def __init__(self, request: Request, size: int, admitted: int) -> None:
        self.request, self.size, self.admitted = request, size, admitted

    def note_store_read(self, took_s: float, keys: int) -> None:
        """Remember a read of the store for the request's trace."""
        part = ended_now("MGET", took_s, {"db.system.name": "redis", "paimon_features.keys": keys})
        self.request.parts = (*self.request.parts, part)


class EntityRequests(ABC):
    """Answers requests about entities; ``request_log`` gets a sample of the responses.

    With ``traced`` each request has its reads of the store as ``parts``.
    """

    def __init__(
        self,
        state: ServerState,
        store_log: StoreLog,
        request_log: RequestLog | None = None,
        *,
        traced: bool = False,
    ) -> None:
        self.state = state
        self.request_log = request_log
        self.traced = traced
        self._store_log = store_log

    async def answer(self, request: Request, receive: Receive) -> Reply:
        """Return the reply to a request whose body is yet to be read.

        Raises
        ------
        RequestRejected, PaimonFeaturesError
            For a request that cannot be answered.
        """
        state = self.state
        head = self.head(request)
        limits = state.limits
        body = await read_body(
            request, receive, limits.max_body_bytes, state.buffers, limits.body_timeout_s
        )
        return await answer_of(lambda finish: self._begin(request, body, head, finish))

    def start(
        self,
        request: Request,
        body: bytes | bytearray,
        finish: Finish,
        client: Exchange | None = None,
    ) -> None:
        """Begin to answer a request with its body; ``finish`` gets the reply, or why there is none.

        Raises as ``answer`` does for what is wrong with the request alone; ``finish`` is not called
        then. Work that waits when its ``client`` goes need not be done.
        """
        state = self.state
        head = self.head(request)
        check_body(request, state.limits.max_body_bytes, state.buffers)
        take_body(body, state.limits.max_body_bytes, state.buffers)
        self._begin(request, body, head, finish, client)

    @abstractmethod
    def head(self, request: Request) -> Head:
        """Return rights and formats; RequestRejected for those that are not possible."""

    @abstractmethod
    def decode(self, request: Request, body: bytes | bytearray, head: Head) -> Any:
        """Return what the body says, by itself; of a large body, in another thread."""

    @abstractmethod
    def submit(
        self,
        request: Request,
        decoded: Any,
        size: int,
        head: Head,
        admitted: int,
        finish: Finish,
        client: Exchange | None,
    ) -> PendingWork:
        """Begin the work of an admitted request; what it holds is released by ``leave`` then.

        If it raises, it has begun nothing.
        """

    def leave(self, work: EntityWork) -> None:
        """Release what an admitted request holds."""
        self.state.admission.leave(work.admitted, time.perf_counter())
        self.state.buffers.free(work.size)

    def note_answered(self) -> None:
        """Note that the store has answered."""
        if self._store_log.is_failing:
            self._store_log.answered()

    def _begin(
        self,
        request: Request,
        body: bytes | bytearray,
        head: Head,
        finish: Finish,
        client: Exchange | None = None,
    ) -> PendingWork:
        """From a body to the work; the body, which is counted, is freed at its end."""
        state = self.state
        size = len(body)
        try:
            admitted = state.admission.enter(size, time.perf_counter())
            try:
                if size > LARGE:
                    return _Decoding(self, request, body, head, admitted, finish, client)
                decoded = self.decode(request, body, head)
                return self.submit(request, decoded, size, head, admitted, finish, client)
            except BaseException:
                state.admission.leave(admitted, time.perf_counter())
                raise
        except BaseException:
            state.buffers.free(size)
            raise


class _Decoding(EntityWork):
    """An admitted request with a large body: it is decoded in a thread, and then submitted."""

    __slots__ = ("_client", "_finish", "_head", "_is_given_up", "_of", "_work")

    def __init__(
        self,
        of: EntityRequests,
        request: Request,
        body: bytes | bytearray,
        head: Head,
        admitted: int,
        finish: Finish,
        client: Exchange | None,
    ) -> None:
        super().__init__(request, len(body), admitted)
        self._of, self._head, self._finish, self._client = of, head, finish, client
        self._work: PendingWork | None = None
        self._is_given_up = False
        of.state.bodies.submit(partial(of.decode, request, body, head), self._decoded)

    def give_up(self) -> None:
        """Stop waiting for the reply, which nobody needs any more."""
        self._is_given_up = True
        if self._work is not None:
            self._work.give_up()

    def _decoded(self, decoded: Any) -> None:
        """Submit what the body says; or the error."""
        try:
            if isinstance(decoded, Exception):
                raise decoded
            if self._is_given_up or (self._client is not None and self._client.is_gone):
                raise ClientGoneError
            self._work = self._of.submit(
                self.request, decoded, self.size, self._head, self.admitted, self._finish,
                self._client,
            )  # fmt: skip
        except Exception as error:
            self._of.leave(self)
            self._finish(error)
