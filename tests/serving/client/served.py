"""A small feature server over a memory store: real HTTP, the project's fetcher and wire formats.

Faults are items of a list: each request takes one, as long as there are some.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any

from paimon_features.core.errors import (
    OnlineStoreError,
    PaimonFeaturesError,
    StoreNotReadyError,
    UnknownNameError,
)
from paimon_features.definitions import FeatureRef
from paimon_features.serving.reading.fetcher import FeatureFetcher
from paimon_features.serving.replies.reply_formats import feast_json
from tests.http_servers import ThreadingHTTPServer

Fault = tuple[int, Mapping[str, str], Mapping[str, Any]] | str
"""Status, headers and document of a reply; or ``drop`` (no reply), ``slow``, ``nonsense``."""


class FeatureServer:
    """Serves every feature of the fetcher's views, and ``everything``, a service of them all."""

    def __init__(
        self,
        fetcher: FeatureFetcher,
        views: list[Any],
        clock: Callable[[], int],
        token: str | None = None,
    ) -> None:
        self.fetcher, self.views, self.clock, self.token = fetcher, views, clock, token
        self.faults: list[Fault] = []
        self.seen: list[tuple[str, dict[str, str], Any]] = []
        self.connections = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def reads(self) -> list[Any]:
        """The bodies of the requests for features, in their order."""
        return [body for path, _, body in self.seen if path == "/get-online-features"]

    def answer(self, path: str, body: Any) -> tuple[int, bytes]:
        if path == "/health":
            return 200, json.dumps({"status": "ready"}).encode()
        if path == "/features":
            views = [{"name": v.name, "max_staleness_ms": v.max_staleness_ms} for v in self.views]
            return 200, json.dumps({"views": views}).encode()
        refs = [FeatureRef(*text.split(":")) for text in body.get("features", ())]
        if body.get("feature_service") == "everything":
            refs = [FeatureRef(v.name, f.name) for v in self.views for f in v.features]
        elif "feature_service" in body:
            return _problem(404, "unknown_name", f"no service {body['feature_service']!r}")
        try:
            response = self.fetcher.get(
                refs, body["entities"], body.get("as_of", self.clock()), body.get("request")
            )
        except PaimonFeaturesError as error:
            for kind, status, code in (
                (StoreNotReadyError, 503, "not_ready"),
                (OnlineStoreError, 503, "store_unavailable"),
                (UnknownNameError, 404, "unknown_name"),
                (PaimonFeaturesError, 422, "invalid_request"),
            ):
                if isinstance(error, kind):
                    return _problem(status, code, str(error))
            raise
        return 200, feast_json(response, body.get("full_feature_names", False))

    def _handler(outer) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                outer.connections += 1
                super().setup()

            def handle_any(self) -> None:
                size = int(self.headers.get("content-length", 0))
                body = json.loads(self.rfile.read(size) or b"null")
                sent = {name.lower(): value for name, value in self.headers.items()}
                outer.seen.append((self.path, sent, body))
                fault = outer.faults.pop(0) if outer.faults else None
                headers: Mapping[str, str] = {}
                if fault == "drop":
                    self.close_connection = True
                    return
                if fault == "slow":
                    time.sleep(8.0)
                if fault == "nonsense":
                    status, data = 200, b"<html>It works!</html>"
                elif fault is not None and not isinstance(fault, str):
                    status, headers, document = fault
                    data = json.dumps(document).encode()
                elif outer.token and sent.get("authorization") != f"Bearer {outer.token}":
                    status, data = _problem(401, "unauthorized", "the token is not known")
                else:
                    status, data = outer.answer(self.path, body)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("x-request-id", sent["x-request-id"])
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = handle_any  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def _problem(status: int, code: str, detail: str) -> tuple[int, bytes]:
    return status, json.dumps({"status": status, "code": code, "detail": detail}).encode()
