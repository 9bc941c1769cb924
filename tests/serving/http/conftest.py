"""An app over a filled memory store, and a client that calls it as a connection does."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paimon_features.core.configuration.project_config import ServeConfig
from paimon_features.core.process.traces import Tracer
from paimon_features.core.types.schema import Date, Decimal, Float64, Int64, String, Timestamp
from paimon_features.core.windows import HOUR_MS
from paimon_features.definitions import (
    Definitions,
    Entity,
    EventSource,
    FeatureService,
    FeatureView,
    Interaction,
    RequestSource,
)
from paimon_features.definitions.aggregates import Count, Last, Sum
from paimon_features.online.store import MemoryStore
from paimon_features.online.store.store import OnlineStore
from paimon_features.serving.http.access.token_use import TokenUse
from paimon_features.serving.http.access.tokens import TokenIssuer, Tokens
from paimon_features.serving.http.definitions.definition_set import DefinitionSet
from paimon_features.serving.http.logs import AccessLog
from paimon_features.serving.http.messages import BodyPart, Reply, Request, reply_bytes
from paimon_features.serving.http.server.app import FeatureApp
from tests.tile_lake import PROJECT, TileLake
from tests.waiting import LONG_S

CLICKS = EventSource(
    "clicks", schema={"user": Int64, "t": Int64, "n": Int64, "word": String}, event_time="t"
)
USER = Entity("person", keys={"user": Int64}, description="who clicks")
CLICK_VIEW = FeatureView(
    "clicks",
    source=CLICKS,
    entity=USER,
    features=[
        Sum("n", windows=["1h", "1d"]),
        Count(windows=["12d"]),
        Last("word", windows=["30d"]),
    ],
    max_staleness="1d",
    owner="growth",
    tags={"team": "web"},
)
VISITS = EventSource(
    "visits", schema={"shop": String, "day": Date, "t": Int64, "n": Int64}, event_time="t"
)
VISIT_VIEW = FeatureView(
    "visits",
    source=VISITS,
    entity=Entity("shop_day", keys={"shop": String, "day": Date}),
    features=[Sum("n", windows=["1d"])],
)
PAYMENT = RequestSource(
    "payment", schema={"amount": Float64, "price": Decimal(10, 2), "at": Timestamp}
)
SHARE = Interaction("share", "ratio(amount, clicks:sum_n_1d, zero=0)", request=PAYMENT)
PATIENT = {"max_wait_ms": 3_600_000, "predict_timeout_ms": 60_000}
"""Settings by which a busy machine is no reason to refuse a request."""
SERVICES = [
    FeatureService("reading_v1", [CLICK_VIEW], description="what the reader model takes"),
    FeatureService("paying_v1", ["clicks:count_12d", SHARE]),
    FeatureService("visiting_v1", [VISIT_VIEW]),
]


@dataclass
class Answer:
    """A reply of the app."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> tuple[int, str, str]:
        """Status, code and detail of an error document."""
        assert self.headers["content-type"] == "application/problem+json"
        document = self.json
        assert document["status"] == self.status
        assert document["request_id"] == self.headers["x-request-id"]
        return self.status, document["code"], document["detail"]


class Sent:
    """A request whose body comes in parts, and its reply, as a connection has them.

    ``goes``: the client leaves when all parts are sent, although more was to come.
    """

    def __init__(self, request: Request, parts: Sequence[bytes], *, goes: bool = False) -> None:
        self.request = request
        self.body = parts[0] if len(parts) == 1 and not goes else None
        self._goes = goes
        self.replied: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._parts = list(parts)
        self.is_gone = False

    async def receive(self) -> BodyPart | None:
        if not self._parts:
            return None
        return BodyPart(self._parts.pop(0), self._goes or bool(self._parts))

    def respond(self, reply: Reply) -> None:
        data, _ = reply_bytes(self.request, reply, b"", closes=False)
        self.replied.set_result((reply.status, data))


async def send_request(
    app: FeatureApp,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    query: str = "",
    parts: int = 1,
) -> Answer:
    """One request, its body in ``parts`` parts."""
    given = {"content-length": str(len(body)), **(headers or {})}
    request = Request(
        method,
        path,
        query.encode(),
        "1.0",  # which needs no Host
        [(k.lower().encode(), v.encode("latin-1")) for k, v in given.items()],
    )
    size = max(1, -(-len(body) // parts))
    sent = Sent(request, [body[at : at + size] for at in range(0, max(len(body), 1), size)])
    app.start(sent)
    status, data = await sent.replied
    head, _, received = data.partition(b"\r\n\r\n")
    names = dict(line.split(": ", 1) for line in head.decode("latin-1").split("\r\n")[1:])
    return Answer(status, names, received)


class Client:
    """Sends requests to an app, each in an event loop that lives as long as the client."""

    def __init__(self, app: FeatureApp, log: io.StringIO) -> None:
        self.app = app
        self._log = log
        self._runner = asyncio.Runner()

    async def send(self, method: str, path: str, body: bytes = b"", **options: Any) -> Answer:
        return await send_request(self.app, method, path, body, **options)

    def request(self, method: str, path: str, body: bytes = b"", **options: Any) -> Answer:
        return self._runner.run(self.send(method, path, body, **options))

    def get(self, path: str, **options: Any) -> Answer:
        return self.request("GET", path, **options)

    def read(self, document: object, **options: Any) -> Answer:
        """POST a document (or bytes) to /get-online-features."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return self.request("POST", "/get-online-features", body, **options)

    def run(self, work: Any) -> Any:
        return self._runner.run(work)

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines about requests so far."""
        self.app.log.flush()
        return [json.loads(line) for line in self._log.getvalue().splitlines()]

    def close(self) -> None:
        self.app.close()
        self._runner.close()


@dataclass
class Filled:
    """A store with clicks and visits around ``now_ms``."""

    store: MemoryStore
    now_ms: int
    definitions: Definitions


@pytest.fixture(scope="session")
def fillings() -> list[Filled]:
    """All that were made; they are not changed by tests."""
    return []


@pytest.fixture(scope="module")
def filled(fillings: list[Filled], tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """The newest one, whose events are within the last hour, however long the tests run."""
    now_ms = time.time_ns() // 1_000_000
    if not fillings or now_ms - fillings[-1].now_ms > HOUR_MS // 4:
        fillings.append(fill(tmp_path_factory.mktemp("lakes"), now_ms))
    return fillings[-1]


def fill(folder: Path, now_ms: int) -> Filled:
    store = MemoryStore()
    clicks = TileLake(folder / "clicks", CLICK_VIEW)
    clicks.commit(
        [
            {"user": 1, "t": now_ms - 1_000, "n": 5, "word": "hello"},
            {"user": 1, "t": now_ms - 3 * HOUR_MS, "n": 7, "word": "before"},
            {"user": 2, "t": now_ms - 2_000, "n": 1, "word": None},
        ]
    )
    clicks.materializer(store).run_once()
    visits = TileLake(folder / "visits", VISIT_VIEW)
    visits.commit([{"shop": "north", "day": 15_000, "t": now_ms - 1_000, "n": 3}])
    visits.materializer(store).run_once()
    definitions = Definitions.of([CLICK_VIEW, VISIT_VIEW, SHARE, *SERVICES])
    return Filled(store, now_ms, definitions)


@pytest.fixture
def make_client(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Client]]:
    """Makes clients of apps of their own, which are ``PATIENT``; closed after the test."""
    monkeypatch.setattr("paimon_features.serving.http.definitions.health.TIMEOUT_S", LONG_S)
    made: list[Client] = []

    def make(
        *,
        store: OnlineStore | None = None,
        definitions: Definitions | None = None,
        tokens: Path | None = None,
        tracer: Tracer | None = None,
        issuer: TokenIssuer | None = None,
        token_use: TokenUse | None = None,
        **settings: Any,
    ) -> Client:
        log = io.StringIO()
        config = replace(ServeConfig(), **{**PATIENT, **settings})
        served = DefinitionSet(PROJECT, definitions or filled.definitions, store or filled.store, 1)
        app = FeatureApp(
            served,
            config,
            tokens=None if tokens is None else Tokens(tokens, issuer),
            token_use=token_use,
            log=AccessLog(config.log_level, config.log_sample, log),
            tracer=tracer,
        )
        made.append(Client(app, log))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def client(make_client: Callable[..., Client]) -> Client:
    """A client of an app without settings of its own."""
    return make_client()


@pytest.fixture
def one_instant(monkeypatch: pytest.MonkeyPatch) -> None:
    """No quota is filled up again while the test runs, however long that takes."""
    monkeypatch.setattr(
        "paimon_features.serving.http.access.quotas.time", SimpleNamespace(monotonic=lambda: 1e6)
    )
