"""The addresses of a cluster with several job managers: any that answers is asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler

import pytest

from paimon_features.core.errors import ConfigurationError, JobError
from paimon_features.core.process.flink_rest import FlinkRest
from paimon_features.core.process.ports import free_ports
from tests.http_servers import HTTPServer


@contextmanager
def answering(status: int) -> Iterator[tuple[str, list[str]]]:
    """A job manager that leads (200) or finds no leader (503), and what it was asked."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(f"{self.command} {self.path}")
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            text = {"flink-version": "2.2.1"} if status == 200 else {"errors": ["no leader"]}
            body = json.dumps(text).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_first_address_that_answers_is_asked_from_then_on() -> None:
    with ExitStack() as stack:
        waiting, asked = stack.enter_context(answering(503))
        leading, _ = stack.enter_context(answering(200))
        (closed,) = free_ports(1)
        rest = FlinkRest(f"127.0.0.1:{closed}, {waiting},http://{leading}/")
        assert rest.alive()
        assert rest.alive()
        assert asked == ["GET /overview"]
        assert rest.answering() == ("127.0.0.1", int(leading.rpartition(":")[2]))
        # the text names all of them, in their order: it is what a job's record has
        assert FlinkRest(rest.url).alive()
        assert rest.url.startswith(f"http://127.0.0.1:{closed},http://{waiting}")


def test_a_change_is_not_sent_to_a_second_one_if_it_may_have_arrived() -> None:
    with answering(503) as (first, _), answering(200) as (second, asked):
        with pytest.raises(JobError, match="no leader"):
            FlinkRest(f"{first},{second}").request_drain("a" * 32, "/savepoints")
        assert asked == []
        (closed,) = free_ports(1)
        FlinkRest(f"127.0.0.1:{closed},{second}").request_drain("a" * 32, "/savepoints")
        assert asked == [f"POST /jobs/{'a' * 32}/stop"]


def test_addresses_without_a_port_are_refused_and_none_that_answers_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="expected host:port"):
        FlinkRest("jobs-1:8081,jobs-2")
    ports = free_ports(2)
    with pytest.raises(JobError, match="does not answer"):
        FlinkRest(",".join(f"127.0.0.1:{port}" for port in ports)).jobs()
