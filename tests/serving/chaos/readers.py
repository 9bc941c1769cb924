"""Clients that send requests continuously, and the check of every reply."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import threading
import time
from dataclasses import dataclass
from typing import Any

from tests.serving.chaos.shop import (
    FEATURES,
    MAX_STALENESS_MS,
    NOBODY,
    QUESTION_AHEAD_MS,
    USERS,
    Oracle,
    Shop,
    now_ms,
)

REFUSALS = {"not_ready", "store_unavailable", "overloaded"}
SLOWEST_S = 60.0
"""Who waits longer for an answer waits for ever: no request has a deadline of this length, and a
machine that is busy with the tests answers after seconds."""


@dataclass(frozen=True, slots=True)
class Reported:
    """One exchange. ``status`` 0: the connection broke, and ``reply`` says how."""

    users: list[int]
    now_ms: int | None
    sent_ms: int
    got_ms: int
    took_s: float
    status: int
    retry_after: str | None
    reply: Any
    committed: dict[int, int]


class Readers:
    """Some clients, each with one connection that it renews now and then."""

    def __init__(self, shop: Shop, port: int, seed: int, clients: int = 5) -> None:
        self.shop, self._port = shop, port
        self.reported: list[Reported] = []
        self.last: list[list[Reported]] = [[] for _ in range(clients)]
        """The newest exchanges of each client."""
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(i, random.Random(seed * 100 + i)))
            for i in range(clients)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop sending requests; idempotent."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def all_answered_since(self, time_ms: int, replies: int = 1) -> bool:
        """Whether the newest replies of each client, requested after this time, are answers."""
        return all(
            len(last) >= replies
            and all(one.status == 200 and one.sent_ms >= time_ms for one in last[-replies:])
            for last in self.last
        )

    def _ask(self, number: int, rng: random.Random) -> None:
        while not self._stop.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=2 * SLOWEST_S)
            with contextlib.closing(connection):
                for _ in range(rng.choice((1, 20, 60))):
                    reported = self._exchange(connection, rng)
                    self.reported.append(reported)
                    self.last[number] = [*self.last[number][-4:], reported]
                    if reported.status == 0 or self._stop.wait(rng.uniform(0, 0.02)):
                        break

    def _exchange(self, connection: http.client.HTTPConnection, rng: random.Random) -> Reported:
        users = rng.sample(range(USERS), rng.choice((1, 1, 2, 5, USERS)))
        if rng.random() < 0.1:
            users.append(NOBODY)
        question = self.shop.start_ms + QUESTION_AHEAD_MS if rng.random() < 0.9 else None
        document = {"feature_service": "all_v1", "entities": {"user": users}}
        if question is not None:
            document["as_of"] = question  # type: ignore[assignment]
        body = json.dumps(document)
        sent_ms, started = now_ms(), time.monotonic()
        retry_after = None
        try:
            connection.request("POST", "/get-online-features", body)
            answer = connection.getresponse()
            status, retry_after = answer.status, answer.headers["retry-after"]
            reply = json.loads(answer.read())
        except (OSError, http.client.HTTPException) as error:
            status, reply = 0, repr(error)
        took_s = time.monotonic() - started
        committed = self.shop.committed()
        return Reported(
            users, question, sent_ms, now_ms(), took_s, status, retry_after, reply, committed
        )


class Judge:
    """Says what is wrong with a reply: a text, or nothing."""

    def __init__(self, shop: Shop) -> None:
        self._oracle = Oracle(shop)
        self._shop = shop
        self.stale = self.behind = 0
        """How many replies said STALE, and how many were not of the newest snapshot."""

    def wrong(self, reported: Reported, may_break: bool) -> str | None:
        """What is wrong with it; ``may_break``: a worker was killed just then."""
        if reported.took_s > SLOWEST_S:
            return f"took {reported.took_s:.1f} s"
        if reported.status == 0:
            return None if may_break else f"the connection broke: {reported.reply}"
        if reported.status == 503:
            if reported.retry_after is None or reported.reply["code"] not in REFUSALS:
                return f"503 {reported.reply}, retry-after {reported.retry_after}"
            return None
        if reported.status != 200:
            return f"{reported.status} {reported.reply}"
        return self._wrong_answer(reported)

    def _wrong_answer(self, reported: Reported) -> str | None:
        meta = reported.reply["metadata"]
        columns = dict(zip(meta["feature_names"], reported.reply["results"], strict=True))
        fresh, as_of_ms = meta["freshness"]["clicks"], meta["as_of_ms"]
        if columns["user"]["values"] != reported.users:
            return f"other users: {columns['user']['values']}"
        if reported.now_ms is not None and as_of_ms != reported.now_ms:
            return f"of another time: {as_of_ms}"
        words = [word for word in columns["last_word_1d"]["values"] if word is not None]
        found = {int(word[1:-1]) for word in words}
        if len(found) != 1:
            return f"generations {found} in one reply"
        [generation] = found
        last = reported.committed.get(generation, 0)
        first = max(
            fresh["applied_snapshot"], self._oracle.newest_before(generation, fresh["current_ms"])
        )
        self.behind += first < last
        if not 1 <= first <= last:
            return f"snapshot {first} of {last}"
        for row, user in enumerate(reported.users):
            values = {name: columns[name]["values"][row] for name in FEATURES}
            statuses = {columns[name]["statuses"][row] for name in FEATURES}
            times = [columns[name]["values"][row] for name in ("first_times", "second_times")]
            if user == NOBODY:
                if statuses != {"NOT_FOUND"} or set(values.values()) != {None}:
                    return f"of nobody: {statuses} {values}"
                continue
            if statuses != {"PRESENT"}:
                return f"user {user}: {statuses}"
            if times[0] != times[1] or times[0] not in [
                factor * values["count"] for factor in [*self._shop.factors]
            ]:
                return f"user {user}: two definitions: {times} of {values['count']}"
            if not self._oracle.agrees(generation, user, as_of_ms, first, last, values):
                expected = [self._oracle.at(generation, s, user, as_of_ms) for s in (first, last)]
                return f"user {user}: {values} at {first} to {last}, expected {expected}"
        return self._wrong_staleness(reported, columns, fresh)

    def _wrong_staleness(
        self, reported: Reported, columns: dict[str, Any], fresh: dict[str, Any]
    ) -> str | None:
        """The clock at the read was one between sending and getting."""
        detailed = columns["count"].get("detailed_statuses", [])
        is_stale = "STALE" in detailed
        self.stale += is_stale
        if reported.sent_ms - fresh["current_ms"] > MAX_STALENESS_MS and not fresh["stale"]:
            return f"old and not stale: {fresh}"
        if reported.got_ms - fresh["current_ms"] <= MAX_STALENESS_MS and (
            is_stale or fresh["stale"]
        ):
            return f"stale and not old: {fresh} {detailed}"
        known = [s for s, user in zip(detailed, reported.users, strict=False) if user != NOBODY]
        if fresh["stale"] and NOBODY not in reported.users and "STALE" not in known:
            return f"stale, but of no user: {fresh} {detailed}"
        return None
