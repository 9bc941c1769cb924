"""What goes into the loop, and what comes out: a producer, and readers that ask all the time."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from paimon_features.core.times.clock import now_ms
from paimon_features.core.windows import HOUR_MS, MINUTE_MS
from tests.kafka_topics import Message, Topic

USERS = 24
NOBODY = 999
"""A user without events, ever."""
DAY_START_MS = 1_699_920_000_000
"""All events are of one day: those of a user pass through one file of each commit, and so they are
counted in the order in which they were sent."""
TIMES_MS = tuple(DAY_START_MS + minutes * MINUTE_MS for minutes in (360, 437, 8 * 60 + 59))
"""When features are asked for; every event is older."""
MAX_STALENESS_MS = 5_000

FEATURES = f"""
import paimon_features as pf

clicks = pf.EventSource(
    "clicks",
    schema={{"n": pf.Int64, "user": pf.Int64, "amount": pf.Int64, "at_ms": pf.Int64}},
    event_time="at_ms",
)
spend = pf.FeatureView(
    "spend",
    source=clicks,
    entity=pf.Entity("user", keys={{"user": pf.Int64}}),
    max_staleness="{MAX_STALENESS_MS}ms",
    features=[
        pf.Count(windows=[None]),
        pf.Sum("amount", windows=["3h", "1d", None], bound=1000),
        pf.Max("amount", windows=["3h"]),
    ],
)
churn = pf.FeatureService("churn", [spend])
"""
VALUES = ("count", "sum_amount_3h", "sum_amount_1d", "sum_amount", "max_amount_3h")


class Producer:
    """Sends numbered events and poisoned messages; user 0 has one every quarter of a second."""

    def __init__(self, topic: Topic, seed: int) -> None:
        self.topic = topic
        self.events: list[dict[str, int]] = []
        self.of_user: dict[int, list[dict[str, int]]] = defaultdict(list)
        self.sent_ms: list[int] = []
        """When each event of user 0 was sent."""
        self.poisoned = 0
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="producer")

    def send(self, count: int) -> None:
        """Send an event of user 0, and others."""
        with self._lock:
            for number in range(count):
                if self._rng.random() < 0.03:
                    self.poisoned += 1
                    self.topic.send([b"poison"], flush=False)
                self._send(0 if number == 0 else self._rng.randrange(1, USERS))

    def _send(self, user: int) -> None:
        event = {
            "n": len(self.events),
            "user": user,
            "amount": self._rng.randrange(1, 1000),
            "at_ms": DAY_START_MS + self._rng.randrange(6 * HOUR_MS),
        }
        # recorded first: nothing is answered that is not recorded
        self.events.append(event)
        self.of_user[user].append(event)
        if user == 0:
            self.sent_ms.append(now_ms())
        message = Message(json.dumps(event).encode(), partition=user % self.topic.partitions)
        self.topic.send([message], flush=False)

    def counts(self) -> dict[int, int]:
        """How many events of each user have been sent."""
        return {user: len(events) for user, events in [*self.of_user.items()]}

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop sending; idempotent."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        while not self._stop.wait(0.25):
            self.send(self._rng.choice((1, 2, 2, 3)))


@dataclass(frozen=True, slots=True)
class Exchange:
    """One question and its reply. ``status`` 0: the connection broke, and ``reply`` says how.

    ``sent`` are the counts of events of each user that had been sent when the reply was there.
    """

    users: tuple[int, ...]
    as_of_ms: int
    sent_ms: int
    got_ms: int
    status: int
    retry_after: str | None
    reply: Any
    sent: dict[int, int]


class Readers:
    """Some clients, each with one connection that it renews now and then."""

    def __init__(self, producer: Producer, port: int, seed: int, clients: int = 3) -> None:
        self._producer, self._port = producer, port
        self.exchanges: list[Exchange] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(random.Random(seed * 100 + i),))
            for i in range(clients)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop asking; idempotent."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _work(self, rng: random.Random) -> None:
        while not self._stop.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)
            with contextlib.closing(connection):
                for _ in range(rng.choice((1, 20, 60))):
                    users = [0, *rng.sample(range(1, USERS), rng.choice((0, 1, 4, USERS - 1)))]
                    users += [NOBODY] if rng.random() < 0.1 else []
                    rng.shuffle(users)
                    exchange = self.ask(connection, users, rng.choice(TIMES_MS))
                    self.exchanges.append(exchange)
                    if exchange.status == 0 or self._stop.wait(rng.uniform(0.05, 0.15)):
                        break
            # a server that is being started refuses at once
            self._stop.wait(0.05)

    def ask(
        self, connection: http.client.HTTPConnection, users: list[int], as_of_ms: int
    ) -> Exchange:
        """One question."""
        question = {"feature_service": "churn", "entities": {"user": users}, "as_of": as_of_ms}
        sent_ms, retry_after = now_ms(), None
        try:
            connection.request("POST", "/get-online-features", json.dumps(question))
            answer = connection.getresponse()
            status, retry_after = answer.status, answer.headers["retry-after"]
            reply = json.loads(answer.read())
        except (OSError, http.client.HTTPException) as error:
            status, reply = 0, repr(error)
        got_ms, sent = now_ms(), self._producer.counts()
        return Exchange(tuple(users), as_of_ms, sent_ms, got_ms, status, retry_after, reply, sent)

    def newest(self, users: list[int], as_of_ms: int) -> Exchange:
        """The reply to one more question, which is judged like all others."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)
        with contextlib.closing(connection):
            exchange = self.ask(connection, users, as_of_ms)
        self.exchanges.append(exchange)
        return exchange
