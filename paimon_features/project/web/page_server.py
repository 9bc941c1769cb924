"""Serves the pages of a project on the loopback interface, to who has the token of this run.

Other users of the machine reach the loopback interface, too, and pages of other sites reach it
through a browser: therefore the token, and the check of the name by which a request arrives.
"""

from __future__ import annotations

import hmac
import json
import secrets
import sys
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from paimon_features.core.documents.redaction import redact
from paimon_features.core.errors import ConfigurationError, PaimonFeaturesError, UnknownNameError
from paimon_features.core.process.host_names import LOCAL, HostNames
from paimon_features.project.web.project_pages import ProjectPages
from paimon_features.serving import ui

REQUEST_TIMEOUT_S = 30.0
_MAX_URL = 8_192
_TYPES = {"json": "application/json", "problem": "application/problem+json"}


class PageServer:
    """The pages at ``http://127.0.0.1:PORT/``; port 0 selects a free one.

    Raises
    ------
    ConfigurationError
        If the port is in use.
    """

    def __init__(self, pages: ProjectPages, port: int = 0) -> None:
        self._pages = pages
        self.token = secrets.token_urlsafe(32)
        """What requests for data have to send, as ``Authorization: Bearer TOKEN``."""
        lock, token, hosts = threading.Lock(), self.token, HostNames(LOCAL)

        class ProjectHandler(_Handler):
            pass

        ProjectHandler.pages, ProjectHandler.lock, ProjectHandler.token, ProjectHandler.hosts = (
            pages.pages,
            lock,
            token,
            hosts,
        )
        try:
            self._server = _Server(("127.0.0.1", port), ProjectHandler)
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on 127.0.0.1:{port}: {error.strerror}; pass another --port"
            ) from error
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        """The address of the first page; it has no data without the token."""
        self.link = f"{self.url}#token={self.token}"
        """The address with the token, which a browser does not send: the page takes it."""

    def run(self) -> None:
        """Serve until ``stop`` is called, from another thread."""
        self._server.serve_forever(poll_interval=0.2)

    def stop(self) -> None:
        """End ``run``."""
        self._server.shutdown()

    def close(self) -> None:
        """Release the port and the project."""
        self._server.server_close()
        self._pages.close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        # a browser that leaves a page while it loads is no error
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """One connection. Data are read one request at a time."""

    pages: Mapping[str, Any]
    lock: threading.Lock
    token: str
    hosts: HostNames
    timeout = REQUEST_TIMEOUT_S
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "paimon-features", ""

    def do_GET(self) -> None:
        """Answer a request."""
        hosts = self.headers.get_all("host", [])
        if len(hosts) != 1 or not self.hosts.accepts(hosts[0].strip()):
            return self._problem(421, "this server does not answer to this name; use 127.0.0.1")
        if len(self.path) > _MAX_URL:
            return self._problem(414, f"the URL is longer than {_MAX_URL:,} bytes")
        path, _, query = self.path.partition("?")
        asset = ui.assets("project").get(path.strip("/"))
        if asset is not None:
            return self._send(200, asset.media_type, asset.content, ui.headers())
        page = self.pages.get(path.strip("/"))
        if page is None:
            return self._problem(404, f"unknown page {path[:80]!r}")
        scheme, _, given = self.headers.get("authorization", "").partition(" ")
        is_authorized = hmac.compare_digest(given.strip().encode(), self.token.encode())
        if scheme.lower() != "bearer" or not is_authorized:
            return self._problem(
                401, "no valid token; open the complete address that 'paimon-features ui' printed"
            )
        try:
            with self.lock:
                body = json.dumps(page(query), allow_nan=False).encode()
        except UnknownNameError as error:
            return self._problem(404, str(error))
        except PaimonFeaturesError as error:
            return self._problem(422, str(error))
        except Exception as error:
            self.log_error("%s: %r", path, error)
            return self._problem(500, f"{type(error).__name__}: {error}")
        return self._send(200, _TYPES["json"], body, ())

    do_HEAD = do_GET  # noqa: N815 - a name of the library

    def _problem(self, status: int, detail: str) -> None:
        document = {"status": status, "detail": redact(detail)[:2_000]}
        self._send(status, _TYPES["problem"], json.dumps(document).encode(), ())

    def _send(
        self, status: int, kind: str, body: bytes, headers: tuple[tuple[bytes, bytes], ...]
    ) -> None:
        self.send_response(status, HTTPStatus(status).phrase)
        for name, value in headers:
            self.send_header(name.decode(), value.decode())
        if not headers:
            self.send_header("cache-control", "no-store")
            self.send_header("x-content-type-options", "nosniff")
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nothing: one person looks at this."""
