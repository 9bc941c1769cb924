"""Connections of a real server that last too long, are too many, or hold too much memory."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.servers.online_servers import wait_for
from tests.serving.chaos.processes import Server, resident_mb
from tests.serving.http.test_hostile_clients import served
from tests.waiting import LONG_S

pytestmark = pytest.mark.redis

MOST = 60
"""Connections that the server accepts."""
BODY = 1 << 20
BUFFERED = 4 * BODY
READ = json.dumps({"feature_service": "reading_v1", "entities": {"user": [1]}}).encode()
POST = b"POST /get-online-features HTTP/1.1\r\nhost: [::1]\r\n"
LAST_POST = POST + b"connection: close\r\n"
FIRST = b"GET /health/live HTTP/1.1\r\nhost: [::1]\r\n\r\n"


BOUNDS = {"max_connections": MOST, "max_body_bytes": BODY, "max_buffered_bytes": BUFFERED}
DEADLINES = ("head_timeout", "body_timeout", "idle_timeout", "reply_timeout")


@pytest.fixture(scope="module")
def patient_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A worker with narrow bounds, and deadlines that are over for no connection of a test."""
    settings = {**BOUNDS, **dict.fromkeys(DEADLINES, "600s")}
    with served(tmp_path_factory.mktemp("bounds"), workers=1, **settings) as server:
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A worker with short deadlines and narrow bounds."""
    settings = {**BOUNDS, **dict.fromkeys(DEADLINES, "1s"), "idle_timeout": "3s"}
    with served(tmp_path_factory.mktemp("connections"), workers=1, **settings) as server:
        yield server


Connect = Callable[..., socket.socket]


@pytest.fixture
def connect(server: Server) -> Iterator[Connect]:
    """Makes connections that have sent something; closed after the test."""
    with connections_to(server) as make:
        yield make


@pytest.fixture
def connect_patient(patient_server: Server) -> Iterator[Connect]:
    """The same, to the server without deadlines."""
    with connections_to(patient_server) as make:
        yield make


@contextlib.contextmanager
def connections_to(server: Server) -> Iterator[Connect]:
    made: list[socket.socket] = []

    def make(sent: bytes = b"") -> socket.socket:
        made.append(socket.create_connection(("127.0.0.1", server.port), timeout=120))
        made[-1].sendall(sent)
        return made[-1]

    yield make
    for connection in made:
        connection.close()


def is_answered(connection: socket.socket) -> bool:
    """Whether there is something to read, or the connection is ended."""
    return bool(select.select([connection], [], [], 0)[0])


def everything(connection: socket.socket) -> bytes:
    """What the server sends until it ends the connection."""
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(1 << 16):
            got += piece
    return got


def problem(reply: bytes) -> tuple[int, str, str]:
    """Status, code and detail of a reply."""
    head, _, body = reply.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    document = json.loads(body)
    assert int(head.split()[1]) == document["status"]
    return document["status"], document["code"], document["detail"]


def read(server: Server) -> int:
    """The status of a read; 0 if the connection was refused before."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("POST", "/get-online-features", READ)
        return connection.getresponse().status
    return 0


def counted(server: Server, name: str, reason: str | None = None) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    samples = [s for f in text_string_to_metric_families(text) for s in f.samples]
    return sum(
        s.value
        for s in samples
        if s.name == f"paimon_features_{name}" and reason in (None, s.labels.get("reason"))
    )


def closed(server: Server, reason: str) -> float:
    return counted(server, "connections_closed_total", reason)


def test_large_bodies_that_do_not_end_are_refused_beyond_the_bound_and_small_ones_answered(
    patient_server: Server, connect_patient: Connect
) -> None:
    server, connect = patient_server, connect_patient

    def refused() -> float:
        return counted(server, "refused_total", "memory") + closed(server, "memory")

    [pid] = server.pids
    before = refused()
    before_mb = resident_mb(pid)
    body = b" " * (BODY - 1)  # a byte less than declared
    senders = [connect(LAST_POST + b"content-length: %d\r\n\r\n" % BODY) for _ in range(50)]
    held = len([s for s in senders if sent_all(s, body)])
    print(f"{held} of 50 were read; resident {before_mb:.0f} -> {resident_mb(pid):.0f} MB")
    assert read(server) == 200  # a quarter of the bound is left to small bodies
    wait_for(lambda: refused() - before >= 50 - 3, "all are refused that do not fit")
    for sender in senders:
        if not is_answered(sender):
            sent_all(sender, b" ")  # the last byte
    answers = [problem(everything(sender))[:2] for sender in senders]
    assert answers.count((503, "overloaded")) >= 50 - 3
    assert set(answers) <= {(503, "overloaded"), (400, "malformed")}
    wait_for(lambda: counted(server, "buffered_bytes") == 0, "all bodies are freed")


def sent_all(connection: socket.socket, body: bytes) -> bool:
    try:
        connection.sendall(body)
    except OSError:
        return False
    return True


def test_chunks_are_counted_as_they_arrive(connect_patient: Connect) -> None:
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    count = 12  # of the sixteen that a body may have; the sixth one is over three quarters
    head = LAST_POST + b"transfer-encoding: chunked\r\n\r\n"
    senders = [connect_patient(head) for _ in range(6)]
    for _ in range(count):
        for sender in senders:
            sent_all(sender, chunk)
    # none is complete: one that would be first would leave its room to the others
    wait_for(lambda: any(map(is_answered, senders)), "one is refused")
    for sender in senders:
        if not is_answered(sender):
            sent_all(sender, b"0\r\n\r\n")
    answers = [problem(everything(sender))[:2] for sender in senders]
    assert (503, "overloaded") in answers
    assert (400, "malformed") in answers, "the others continue"


def test_a_body_that_does_not_come_at_all_is_408(server: Server, connect: Connect) -> None:
    for head in (b"content-length: 5\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n"):
        with connect(POST + head) as connection:
            assert problem(everything(connection))[:2] == (408, "too_slow")
    assert counted(server, "refused_total", "body_timeout") >= 2


def test_a_head_that_does_not_end_is_408_however_slowly_it_goes_on(
    server: Server, connect: Connect
) -> None:
    before = closed(server, "head")
    heads = [connect(b"GET /health/live HTTP/1.1\r\nhost: [::1]\r\nx: ") for _ in range(MOST // 2)]
    heads[0].settimeout(0.05)
    got = b""
    while not got:  # a byte now and then does not help
        heads[0].sendall(b"a")
        with contextlib.suppress(TimeoutError):
            got = heads[0].recv(1 << 16)
    assert problem(got)[:2] == (408, "too_slow")
    for head in heads[1:]:
        assert problem(everything(head))[:2] == (408, "too_slow")
    assert closed(server, "head") - before == len(heads)


def test_an_idle_connection_ends_and_empty_lines_do_not_keep_it(
    server: Server, connect: Connect
) -> None:
    before = closed(server, "idle")
    silent, used = connect(), connect(b"GET /health/live HTTP/1.1\r\nhost: [::1]\r\n\r\n")
    reply = b""
    while not reply.endswith(b"}"):
        received = used.recv(1 << 16)
        assert received
        reply += received
    assert reply.startswith(b"HTTP/1.1 200")
    lines = connect()
    lines.settimeout(0.1)
    with contextlib.suppress(OSError):
        while True:
            lines.sendall(b"\r\n")
            with contextlib.suppress(TimeoutError):
                if not lines.recv(1):
                    break
    assert everything(silent) == everything(used) == b""
    assert closed(server, "idle") - before == 3


def test_a_new_connection_takes_the_place_of_one_that_is_idle(
    patient_server: Server, connect_patient: Connect
) -> None:
    server = patient_server
    before = closed(server, "replaced")
    idle = [connect_patient() for _ in range(MOST)]
    assert read(server) == 200
    assert everything(idle[0]) == b"", "the one that was idle for longest"
    assert closed(server, "replaced") - before >= 1


def test_a_new_connection_takes_the_place_of_one_that_sends_no_complete_head(
    server: Server, connect: Connect
) -> None:
    before = closed(server, "full")
    half = b"GET /health/live HTTP/1.1\r\nhost: [::1]\r\nx"
    for number in range(3 * MOST):
        connect(half)
        if number % 20 == 0:
            assert read(server) == 200
    assert read(server) == 200
    assert closed(server, "full") == before, "nobody was refused"


def test_connections_beyond_the_bound_are_refused_while_the_others_are_busy(
    patient_server: Server, connect_patient: Connect
) -> None:
    server, connect = patient_server, connect_patient
    before = closed(server, "full")
    busy, got = [], []
    for _ in range(MOST):
        busy.append(connect(FIRST + LAST_POST + b"content-length: 5\r\n\r\n{"))
        # a connection is idle before it has sent something, and may be replaced: the answer to the
        # first request says that the second one, which came with it, is known
        got.append(busy[-1].recv(1 << 16))
    # those of earlier tests that still close have places, too
    refused = [connect() for _ in range(5)]
    for each in refused[-2:]:
        assert problem(everything(each))[:2] == (503, "overloaded")
    for each, first in zip(busy, got, strict=True):
        sent_all(each, b"    ")
        statuses = re.findall(rb"HTTP/1.1 ([0-9]+)", first + everything(each))
        assert statuses in ([b"200", b"400"], [b"503"])
    wait_for(lambda: read(server) == 200, "there is room again")
    assert closed(server, "full") - before >= 2


def test_a_reply_that_nobody_reads_ends_the_connection(server: Server, connect: Connect) -> None:
    before = closed(server, "reply")
    # more replies than the kernel's buffers take
    pipelined = b"GET /openapi.json HTTP/1.1\r\nhost: [::1]\r\n\r\n" * 5_000
    deaf = connect()
    deaf.settimeout(1.0)
    with contextlib.suppress(OSError):
        deaf.sendall(pipelined)
    wait_for(lambda: closed(server, "reply") > before, "the connection is ended")
    wait_for(lambda: counted(server, "buffered_bytes") == 0, "its memory is freed")


def test_pipelined_requests_are_all_answered_in_order(server: Server, connect: Connect) -> None:
    """They come in one piece that is larger than what is parsed at a time."""
    count, padding = 3_000, b"x-padding: " + b"a" * 100 + b"\r\n"
    sent = b"".join(
        b"GET /health/live HTTP/1.1\r\nhost: [::1]\r\nx-request-id: n%d\r\n%b\r\n" % (i, padding)
        for i in range(count)
    )
    with connect() as connection:
        connection.settimeout(LONG_S)
        reader = connection.makefile("rb")
        connection.sendall(
            sent + b"GET /health/live HTTP/1.1\r\nhost: [::1]\r\nconnection: close\r\n\r\n"
        )
        replies = reader.read()
    ids = [
        line.partition(b": ")[2].decode()
        for line in replies.splitlines()
        if line.startswith(b"x-request-id")
    ]
    assert ids[:-1] == [f"n{i}" for i in range(count)]
    assert len(ids) == count + 1


def test_a_client_that_sends_more_than_is_accepted_can_read_why(
    server: Server, connect: Connect
) -> None:
    """It has not read its reply when the server has refused the request."""
    for _ in range(10):
        with connect(POST + b"content-length: %d\r\n\r\n" % (BODY + 1)) as connection:
            connection.sendall(b" " * (BODY + 1))
            assert problem(everything(connection))[:2] == (413, "too_large")


@pytest.mark.parametrize("which", ["server", "patient_server"])
def test_a_server_with_bounds_reached_is_as_before(
    request: pytest.FixtureRequest, which: str
) -> None:
    """Runs last: nothing of the other tests is left."""
    server: Server = request.getfixturevalue(which)
    wait_for(lambda: counted(server, "connections") <= 2, "all connections are gone")
    assert counted(server, "buffered_bytes") == 0
    assert [read(server) for _ in range(5)] == [200] * 5
    assert server.workers == server.pids
    log = Path(server.log).read_text()
    assert "Traceback" not in log, log[-5_000:]
