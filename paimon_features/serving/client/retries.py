"""Retries of one request: how long to wait, when to give up, which error a reply represents.

Nothing here waits or sends: both clients use it.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paimon_features.core.errors import (
    ConfigurationError,
    OnlineStoreError,
    OverloadedError,
    PaimonFeaturesError,
    RequestError,
    StoreNotReadyError,
    UnknownNameError,
)

AGAIN = frozenset((429, 503))
"""Statuses after which the same request may succeed."""

_BY_CODE: Mapping[str, type[PaimonFeaturesError]] = {
    "unknown_name": UnknownNameError,
    "overloaded": OverloadedError,
    "not_ready": StoreNotReadyError,
    "store_unavailable": OnlineStoreError,
}


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a failed read is retried.

    A reply of 429 or 503 and a failed connection are retried within ``timeout_s``, counted from
    the first try: after a random time of up to ``base_s * 2^(tries - 1)``, at most
    ``cap_s``, and not before the reply's Retry-After. A read changes nothing, so a repeat is
    harmless.
    """

    timeout_s: float = 5.0
    max_tries: int = 6
    base_s: float = 0.05
    cap_s: float = 1.0


class RetryState:
    """The tries of one request.

    ``clock`` counts seconds, ``chance`` returns a number in [0, 1).
    """

    def __init__(
        self,
        url: str,
        policy: RetryPolicy,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._url, self._policy, self._clock, self._chance = url, policy, clock, chance
        self._end = clock() + policy.timeout_s
        self._tries = 0
        self._rejection: PaimonFeaturesError | None = None

    def remaining_s(self) -> float:
        """Return how long the next try may take."""
        return max(self._end - self._clock(), 0.001)

    def failed(self, error: Exception) -> float:
        """Return the seconds to wait before the next try, after one without a reply.

        Raises
        ------
        OnlineStoreError
            If there is no next one; or the error of the server's last reply.
        """
        wait_s = self._wait(0.0)
        if wait_s is None and self._rejection is not None:
            # a last try cut short by the deadline says less than the server's last reply
            raise self._given_up(self._rejection) from error
        if wait_s is None:
            cause = f"{type(error).__name__}: {error}".rstrip(": ")
            raise OnlineStoreError(
                f"the feature server {self._url} does not respond ({cause}; {self._tried()}). Is "
                "'paimon-features serve' running there?"
            ) from error
        return wait_s

    def rejected(
        self, status: int, headers: Mapping[str, str], body: bytes, request_id: str
    ) -> float:
        """Return a try was answered with an error; returns the seconds to wait before the next one.

        Raises
        ------
        RequestError, UnknownNameError, ConfigurationError
            For what no retry can fix: the request, a name in it, the token.
        OverloadedError, StoreNotReadyError, OnlineStoreError
            If there is no next try.
        """
        error = error_of(self._url, status, body)
        error.add_note(f"request id {request_id}")
        wait_s = self._wait(_seconds(headers.get("retry-after"))) if status in AGAIN else None
        if wait_s is None:
            raise self._given_up(error) if status in AGAIN else error
        self._rejection = error
        return wait_s

    def _given_up(self, error: PaimonFeaturesError) -> PaimonFeaturesError:
        error.add_note(f"{self._url}: {self._tried()}")
        return error

    def _wait(self, at_least_s: float) -> float | None:
        self._tries += 1
        policy = self._policy
        longest = min(policy.cap_s, policy.base_s * 2.0 ** (self._tries - 1))
        # the jitter is added, or all clients that were rejected together would retry together
        wait_s = at_least_s + longest * self._chance()
        in_time = self._clock() + wait_s < self._end
        return wait_s if in_time and self._tries < policy.max_tries else None

    def _tried(self) -> str:
        tries = "1 try" if self._tries == 1 else f"{self._tries} tries"
        return f"{tries} within {self._policy.timeout_s:g} s"


def error_of(url: str, status: int, body: bytes) -> PaimonFeaturesError:
    """Return the error that a reply represents, with the server's own text."""
    code, detail = _problem(body)
    text = detail or f"the feature server {url} answered {status}"
    if status in (401, 403):
        return ConfigurationError(
            f"the feature server {url}: {text}. The client takes its token as token= or from "
            "PAIMON_FEATURES_TOKEN"
        )
    kind = _BY_CODE.get(code)
    if kind is None:
        # 429 is not an error of the request
        kind = OnlineStoreError if status >= 500 or status == 429 else RequestError
    return kind(text)


def _problem(body: bytes) -> tuple[str, str]:
    try:
        document: Any = json.loads(body)
        return str(document.get("code", "")), str(document.get("detail", ""))
    except (ValueError, AttributeError, RecursionError):
        return "", ""


def _seconds(retry_after: str | None) -> float:
    """Return Retry-After in seconds; a date, which our server never sends, counts as none."""
    try:
        return max(float(retry_after or 0.0), 0.0)
    except ValueError:
        return 0.0
