"""The way of a request about entities, whatever answers it: feature reads, predictions.

A request passes: token, format, body, admission, what the answer begins with, reply. What it holds
is released once, however it ends.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import NamedTuple, Protocol

from paimon_features.serving.http.access import Rights
from paimon_features.serving.http.formats import Format
from paimon_features.serving.http.logs import StoreLog
from paimon_features.serving.http.messages import (
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
from paimon_features.serving.http.state import ServerState
from paimon_features.serving.request_log.log import RequestLog
from paimon_features.traces import ended_now


class IsGone(Protocol):
    """Something that knows whether a client is still there."""

    @property
    def is_gone(self) -> bool:
        """Whether the client is known to be gone."""


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
        """The reply to a request whose body is yet to be read.

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
        client: IsGone | None = None,
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
        """Rights and formats; raises RequestRejected for those that are not possible."""

    @abstractmethod
    def submit(
        self,
        request: Request,
        body: bytes | bytearray,
        head: Head,
        admitted: int,
        finish: Finish,
        client: IsGone | None,
    ) -> PendingWork:
        """Begin the work of an admitted request; what it holds is released by ``leave`` then.

        If it raises, it has begun nothing.
        """

    def leave(self, work: EntityWork) -> None:
        """Release what an admitted request holds."""
        self.state.admission.leave(work.admitted, time.perf_counter())
        self.state.buffers.free(work.size)

    def note_answered(self) -> None:
        """The store has answered."""
        if self._store_log.is_failing:
            self._store_log.answered()

    def _begin(
        self,
        request: Request,
        body: bytes | bytearray,
        head: Head,
        finish: Finish,
        client: IsGone | None = None,
    ) -> PendingWork:
        """From a body to the work; the body, which is counted, is freed at its end."""
        state = self.state
        size = len(body)
        try:
            admitted = state.admission.enter(size, time.perf_counter())
            try:
                return self.submit(request, body, head, admitted, finish, client)
            except BaseException:
                state.admission.leave(admitted, time.perf_counter())
                raise
        except BaseException:
            state.buffers.free(size)
            raise
