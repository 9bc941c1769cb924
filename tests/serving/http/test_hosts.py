"""Names under which the server answers: pages of other sites do not read through a browser."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from paimon_features.core.process.host_names import LOCAL
from paimon_features.serving.http.access.hosts import Hosts
from paimon_features.serving.http.http_errors import RequestRejected
from tests.serving.chaos.processes import Server
from tests.serving.http.test_hostile_clients import served


@pytest.mark.parametrize(
    ("names", "host", "accepted"),
    [
        (LOCAL, "localhost", True),
        (LOCAL, "LocalHost.:6566", True),
        (LOCAL, "127.0.0.1:6566", True),
        (LOCAL, "[::1]:6566", True),
        (LOCAL, "10.0.0.7", True),  # an address is not resolved, so it is not resolved again
        (LOCAL, "evil.example", False),
        (LOCAL, "localhost.evil.example", False),
        (LOCAL, "127.0.0.1.evil.example", False),
        (LOCAL, "0x7f000001", False),
        (LOCAL, "", False),
        ([".example.com"], "a.b.example.com", True),
        ([".example.com"], "example.com", False),
        ([".example.com"], "badexample.com", False),
        (["features"], "localhost", False),
        (None, "anything.example", True),
    ],
)
def test_a_name_is_accepted_if_it_is_listed_or_an_address(
    names: Any, host: str, accepted: bool
) -> None:
    assert Hosts(names).accepts(host) is accepted


@pytest.mark.parametrize("host", ["a b", "localhost@evil.example", "a,b", "[::1", "a:b", "é"])
def test_a_value_that_is_no_host_is_400(host: str) -> None:
    with pytest.raises(RequestRejected) as caught:
        Hosts(None).accepts(host)
    assert caught.value.status == 400


def test_the_allow_list_applies_to_every_path_and_is_counted(make_client: Any) -> None:
    client = make_client(hosts=("features.example.com",))
    for path in ("/health", "/metrics", "/features", "/ui", "/docs", "/nowhere"):
        answer = client.get(path, headers={"host": "evil.example"})
        assert answer.problem[:2] == (421, "unknown_host"), path
    assert client.get("/health/live", headers={"host": "features.example.com"}).status == 200
    assert client.app.counts.refused == {"host": 6}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server as it is by default: on the loopback, without tokens."""
    with served(tmp_path_factory.mktemp("hosts"), workers=1) as server:
        yield server


def status(server: Server, head: bytes) -> int:
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as connection:
        connection.sendall(head)
        return int(connection.recv(1 << 16).split()[1])


@pytest.mark.redis
@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"GET /features HTTP/1.1\r\nhost: localhost\r\n\r\n", 200),
        (b"GET /features HTTP/1.1\r\nhost: 127.0.0.1:80\r\n\r\n", 200),
        (b"GET /health/live HTTP/1.0\r\n\r\n", 200),
        (b"GET /health/live HTTP/0.9\r\n\r\n", 400),
        (b"GET /health/live HTTP/2.0\r\n\r\n", 400),
        (b"GET /features HTTP/0.9\r\nhost: evil.example\r\n\r\n", 421),
        (b"GET /features HTTP/1.1\r\nhost: evil.example\r\n\r\n", 421),
        (b"GET /features HTTP/1.0\r\nhost: evil.example\r\n\r\n", 421),
        (b"GET /features HTTP/1.1\r\n\r\n", 400),
        (b"GET /features HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n", 400),
        (b"GET /features HTTP/1.1\r\nhost: localhost\r\nHost: evil.example\r\n\r\n", 400),
        (b"GET http://evil.example/features HTTP/1.1\r\nhost: localhost\r\n\r\n", 400),
        (b"GET http://localhost/features HTTP/1.1\r\nhost: evil.example\r\n\r\n", 400),
        (b"CONNECT localhost:80 HTTP/1.1\r\nhost: localhost\r\n\r\n", 400),
        (b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\n\r\n", 400),
    ],
)
def test_a_local_server_without_tokens_answers_local_requests_only(
    server: Server, head: bytes, expected: int
) -> None:
    assert status(server, head) == expected


@pytest.mark.parametrize(
    ("headers", "accepted"),
    [
        ({}, True),
        ({"origin": "http://localhost:6566"}, True),
        ({"sec-fetch-site": "same-origin", "origin": "http://LOCALHOST:6566"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "http://localhost:3000"}, False),
        ({"origin": "http://10.0.0.7:6566"}, False),
        ({"origin": "null"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "same-origin", "origin": "https://evil.example"}, False),
    ],
)
@pytest.mark.parametrize("path", ["/get-online-features", "/predict/x", "/invocations"])
def test_a_form_of_another_site_is_refused_on_an_open_server_of_this_host(
    make_client: Any, headers: dict[str, str], accepted: bool, path: str
) -> None:
    client = make_client(hosts=LOCAL)
    form = {"content-type": "application/x-www-form-urlencoded", "host": "localhost:6566"}
    body = b'{"feature_service":"reading_v1","entities":{"user":[1]}}'
    answer = client.request("POST", path, body, headers={**form, **headers})
    assert (answer.status != 403) == accepted
    # a page may still be linked to
    assert client.get("/health/live", headers={**form, **headers}).status == 200
    # no form has a token
    known = {**form, **headers, "authorization": "Bearer x"}
    assert client.request("POST", path, body, headers=known).status != 403
